"""The ``container`` and ``gvisor`` levels: an engine's container with nothing that can be left out.

The same supervisor, sockets, checkpoints and meter as at ``process``; what differs is who makes the
namespaces, and that the files are an image's. All that takes time happens in a ``keeper``.
"""

from __future__ import annotations

import json
import os
import select
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation import view
from sandbox_kernel.isolation.base import Sandbox, SandboxFacts, SandboxSpec
from sandbox_kernel.isolation.keeper import OWNER, owner_label
from sandbox_kernel.limits.cgroup import Cgroup
from sandbox_kernel.paths import policies_directory

# Nobody's on the host, and one per wrapper: two sandboxes are strangers to each other.
FIRST_UNRELATED_UID: Final = 1_900_000_000
TMPFS_BYTES: Final = 1 << 30
OPEN_FILES: Final = 4096
# The keeper tells of a container's start within milliseconds of it.
REPORT_SECONDS: Final = 10.0
NO_SUCH_IMAGE: Final = 404
_ENTER: Final = stat.S_IROTH | stat.S_IXOTH


class ContainerSpec(NamedTuple):
    """What an engine is asked for."""

    address: str
    engine: str  # in words
    image: str
    runtime: str | None
    memory_bytes: int | None
    processes: int | None
    policy_sha256: str


class ContainerSandbox(Sandbox):
    """A container, and the keeper that has it."""

    def __init__(self, spec: SandboxSpec, container: ContainerSpec, level: str) -> None:
        self._spec = spec
        self._container = container
        self._level = level
        self._uid = FIRST_UNRELATED_UID + os.getpid()
        self._view = view.plan_folder(spec.working_directory, spec.secrets, view.homes())
        self._process: subprocess.Popen[bytes] | None = None
        self._report = -1
        self._exit_descriptor = -1
        self._said: dict[str, Any] | None = None
        self._cgroup: Cgroup | None = None

    def give(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, self._uid, self._uid)
        else:
            # Who can get there is decided by the run directory, which is for this user alone.
            path.chmod(0o666)

    @property
    def facts(self) -> SandboxFacts:
        return SandboxFacts(
            level=self._level,
            engine=self._container.engine,
            network="none",
            working_directory=str(self._spec.working_directory),
            notes=(*self._view.notes, *self._notes()),
        )

    def _notes(self) -> list[str]:
        notes = []
        folder = self._spec.working_directory
        if folder in self._view.read_only and folder.stat().st_mode & _ENTER != _ENTER:
            notes.append(
                f"{folder} is closed to other users, as which cells run: not readable inside "
                f"(`chmod o+rx {folder}` opens it)"
            )
        if self._level == "gvisor":
            notes.append(
                "under gVisor a cell can end its own sandbox, and the variables with it; memory is "
                "read for the sandbox as a whole"
            )
        return notes

    def start(self, run_directory: Path) -> None:
        report, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sandbox_kernel.isolation.keeper", str(write_end)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[write_end],
                cwd="/",
                # Not the wrapper's: a process's environment can be read by its whole life.
                env={
                    name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ
                },
                # jupyter_client kills a kernel's whole process group.
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        self._report = report
        order = {"address": self._container.address, "config": self._config(run_directory)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        self._exit_descriptor = os.pidfd_open(self._process.pid)
        os.set_blocking(self.console_descriptor, False)

    def _config(self, run_directory: Path) -> dict[str, Any]:
        return container_config(
            self._container,
            user=f"{self._uid}:{self._uid}",
            environment=view.plan_image_environment(os.environ),
            mounts=[bind(run_directory, view.RUN), *self._folder_mounts()],
        )

    def _folder_mounts(self) -> list[dict[str, Any]]:
        mounts = [bind(path, str(path)) for path in self._view.read_only]
        for path in self._view.hidden:
            if path.is_dir():
                mounts.append({"Type": "tmpfs", "Target": str(path), "ReadOnly": True})
            elif path.exists():
                mounts.append(bind(Path("/dev/null"), str(path)))
        return mounts

    @property
    def exit_descriptor(self) -> int:
        return self._exit_descriptor

    @property
    def console_descriptor(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def root_pid(self) -> int:
        return int(self._hear().get("pid", 0))

    @property
    def cgroup(self) -> Cgroup | None:
        if self._cgroup is None and self.root_pid:
            self._cgroup = Cgroup.of(self.root_pid)
        return self._cgroup

    def _hear(self) -> Mapping[str, Any]:
        """What the keeper has said of the container. It has started when its supervisor connects."""
        if self._said is None:
            if not select.select([self._report], [], [], REPORT_SECONDS)[0]:
                return {}
            line = os.read(self._report, 65536)
            self._said = json.loads(line) if line else {}
        return self._said

    def explain(self, console: str) -> SandboxUnavailable:
        return explain(self._hear(), self._container, console)

    def kill(self) -> None:
        if self._process is None:
            return
        # The supervisor ends with its lifeline and the container with that; the keeper removes what
        # is left, in its own time, and is collected when it has ended.
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        os.close(self._report)
        os.close(self._exit_descriptor)
        self._process = None
        if self._cgroup is not None:
            self._cgroup.close()


def container_config(
    container: ContainerSpec,
    *,
    user: str,
    environment: Mapping[str, str],
    mounts: list[dict[str, Any]],
) -> dict[str, Any]:
    """The body of ``POST /containers/create``: every line of it takes something away."""
    seccomp = (policies_directory() / "seccomp.json").read_text()
    tmpfs = f"rw,nosuid,nodev,exec,size={TMPFS_BYTES}"
    host_config = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={seccomp}"],
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "CgroupnsMode": "private",
        "Mounts": mounts,
        "Tmpfs": {
            "/tmp": f"{tmpfs},mode=1777",
            "/var/tmp": f"{tmpfs},mode=1777",
            view.HOME: f"{tmpfs},mode=0777",
        },
        "ShmSize": TMPFS_BYTES,
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "nofile", "Soft": OPEN_FILES, "Hard": OPEN_FILES},
        ],
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "OomScoreAdj": 500,
        # With its last process gone; the keeper does it sooner.
        "AutoRemove": True,
    }
    if container.memory_bytes is not None:
        # The same with swap: none.
        host_config |= {"Memory": container.memory_bytes, "MemorySwap": container.memory_bytes}
    if container.processes is not None:
        host_config["PidsLimit"] = container.processes
    if container.runtime is not None:
        host_config["Runtime"] = container.runtime
    return {
        "Image": container.image,
        "User": user,
        "Hostname": "sandbox",
        "Entrypoint": ["python3", f"{view.RUN}/boot.py", f"{view.RUN}/connection.json"],
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "WorkingDir": "/",
        "Labels": {
            OWNER: owner_label(os.getpid()),
            "sandbox-kernel.policy": container.policy_sha256,
        },
        "NetworkDisabled": True,
        "StopSignal": "SIGKILL",
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": host_config,
    }


def bind(source: Path, target: str) -> dict[str, Any]:
    """A host's folder, for reading; not what is mounted below it, which that would not cover."""
    options = {"Propagation": "rprivate", "NonRecursive": True}
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": True,
        "BindOptions": options,
    }


def explain(said: Mapping[str, Any], container: ContainerSpec, console: str) -> SandboxUnavailable:
    """Why a container did not come up."""
    if "error" in said:
        return SandboxUnavailable(said["error"], hint=said["hint"])
    if "refused" in said:
        if said.get("status") == NO_SUCH_IMAGE:
            return SandboxUnavailable(
                f"The engine at {container.address} has no image {container.image}.",
                hint="Build it: `sandbox-kernel image build`.",
            )
        return SandboxUnavailable(
            f"The engine at {container.address} refused the sandbox: {said['refused']}.",
            hint="`sandbox-kernel doctor` checks the engine, its runtimes and images.",
        )
    printed = "".join(c if c.isprintable() else " " for c in console[-600:]).strip()
    return SandboxUnavailable(
        "The container ended before its kernel was ready. "
        + (f"It said: {printed!r}." if printed else "It said nothing."),
        hint="The image needs `python3` with ipykernel: `sandbox-kernel image build` makes one.",
    )
