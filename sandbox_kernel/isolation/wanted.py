"""What the wrapper asks an engine for, through a keeper, and what that finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.paths import SECCOMP, policies_directory

Missing = list[tuple[str, SandboxUnavailable]]
"""Levels that cannot be had, with why."""


PROCESSES: Final = 16_384
# Tasks of the host that a second kernel may need for one of its own, and that it keeps: gVisor has been
# seen to take 16. It ends, and all variables with it, if it is refused one.
HOST_TASKS_PER_TASK: Final = 30


class Wanted(NamedTuple):
    """What an engine is asked for. A value that goes through JSON, as a mapping."""

    address: str
    levels: tuple[
        tuple[str, str | None], ...
    ]  # with the runtime each needs; the first choice first
    image: str  # as the policy calls it
    reference: str  # as the engine does
    digest: str | None  # that it must have


class Found(NamedTuple):
    """What the engine has of it. What the first sandbox of a kernel got, all others get."""

    level: str
    runtime: str | None
    image: str  # its id, which cannot come to mean another one as a name can
    engine: str  # ``docker`` or ``podman``
    labels: bool = False  # whether it gives containers SELinux labels

    def complete(self, config: dict[str, Any]) -> dict[str, Any]:
        """The body of ``POST /containers/create`` with what was found.

        Raises ``SandboxUnavailable`` if the engine would not take it for what it is.
        """
        host = dict(config["HostConfig"])
        if self.runtime is not None:
            host["Runtime"] = self.runtime
            if (processes := host.get("PidsLimit")) is not None:
                # The second kernel counts its own tasks; the host's limit is for when that fails.
                host["PidsLimit"] = processes * HOST_TASKS_PER_TASK
                host["Ulimits"] = [*host["Ulimits"], ulimit("nproc", processes)]
        if self.labels:
            # With one of its own a container may open neither the wrapper's sockets nor the folder,
            # which have none that it may. To give them such a one would change the user's files.
            host["SecurityOpt"] = [*host["SecurityOpt"], "label=disable"]
        if self.engine == "podman":
            _refuse_commas(host["Mounts"])
            host["SecurityOpt"] = [_by_path(option) for option in host["SecurityOpt"]]
            # Else it asks for more than many hosts let anybody have. Each sandbox has a user of its own.
            if not any(limit["Name"] == "nproc" for limit in host["Ulimits"]):
                host["Ulimits"] = [*host["Ulimits"], ulimit("nproc", PROCESSES)]
            # Its side of the API drops a volume's options, and would show an empty folder.
            host["Mounts"] = [
                bind(mount["Target"], mount["Target"]) if mount["Type"] == "volume" else mount
                for mount in host["Mounts"]
            ]
        return config | {"Image": self.image, "HostConfig": host}


def _refuse_commas(mounts: Iterable[Mapping[str, Any]]) -> None:
    """Podman writes a mount as one line with commas and reads that again: the rest of a path that has
    one could be an option, such as another folder of the host.
    """
    for mount in mounts:
        for path in (mount.get("Source", ""), mount["Target"]):
            if "," in path:
                what = (
                    f"Podman cannot be asked for {path!r}: it takes a comma in a path for the path's "
                    "end, and might show another folder of this host."
                )
                hint = "Rename it, so that the path has no comma, and restart the kernel; or use Docker."
                raise SandboxUnavailable(what, hint=hint)


def ulimit(name: str, value: int) -> dict[str, Any]:
    return {"Name": name, "Soft": value, "Hard": value}


def bind(source: str | Path, target: str) -> dict[str, Any]:
    """A host's folder, for reading; not what is mounted below it, which that would not cover."""
    options = {"Propagation": "rprivate", "NonRecursive": True}
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": True,
        "BindOptions": options,
    }


def _by_path(option: str) -> str:
    """Podman reads the filter itself, where Docker is sent its text."""
    name, _, _ = option.partition("=")
    return f"{name}={policies_directory() / SECCOMP}" if name == "seccomp" else option
