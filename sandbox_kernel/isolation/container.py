"""The ``container`` and ``gvisor`` levels: an engine's container with nothing that can be left out.

The same supervisor, sockets, checkpoints and meter as at ``process``; what differs is who makes the
namespaces, and that the files are an image's. All that takes time, or may hang, happens in a ``keeper``:
so which of the levels the engine has is known only when that says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation import view
from sandbox_kernel.isolation.base import (
    Sandbox,
    SandboxFacts,
    SandboxSpec,
    preferred,
    unrelated_uid,
)
from sandbox_kernel.isolation.hire import HiredKeeper, hire
from sandbox_kernel.isolation.offer import NO_SUCH_IMAGE, PODMAN, REGISTER, no_runtime
from sandbox_kernel.isolation.owner import OWNER, owner_label
from sandbox_kernel.isolation.probe import cpus_not_held, not_measurable
from sandbox_kernel.isolation.wanted import Found, Missing, Wanted, bind, ulimit
from sandbox_kernel.limits.cgroup import Cgroup
from sandbox_kernel.limits.files import read
from sandbox_kernel.limits.statistics import LIMITATION, Statistics, Used
from sandbox_kernel.paths import SECCOMP, policies_directory

TMPFS_BYTES: Final = 1 << 30
OPEN_FILES: Final = 4096
ROOT: Final = 0
# What is shown of it: docs/operations.md has all of it, with the reasons.
GVISOR_LIMITATIONS: Final = (
    "a cell can end its own sandbox, and the variables with it",
    "memory is read for the sandbox as a whole, processes as far as the host can tell",
)
# In what the supervisor prints if it fails at the first thing that it does.
_SOCKET_REFUSED: Final = "lifeline.connect("
_ENTER: Final = stat.S_IROTH | stat.S_IXOTH


class Allowance(NamedTuple):
    """What the engine itself holds a container to; ``None``: no limit."""

    memory_bytes: int | None
    processes: int | None
    cpus: float | None


class Containers:
    """Makes the containers of one kernel: what the first one got, all others get."""

    def __init__(
        self,
        wanted: Wanted,
        allowance: Allowance,
        policy_sha256: str,
        passed: tuple[str, ...] = (),
        keeper: HiredKeeper | None = None,
    ) -> None:
        self.wanted = wanted
        self.allowance = allowance
        self.policy_sha256 = policy_sha256
        # Variables of the wrapper's environment.
        self.passed = passed
        self.found: Found | None = None
        # One that was hired early, for the first of them.
        self._keeper = keeper

    def same_as(self, other: Containers) -> bool:
        """Whether a container of one is as good as one of the other."""
        return (self.wanted, self.allowance, self.policy_sha256, self.passed) == (
            other.wanted,
            other.allowance,
            other.policy_sha256,
            other.passed,
        )

    def take_keeper(self) -> HiredKeeper:
        keeper, self._keeper = self._keeper, None
        return keeper or hire()

    def __call__(self, spec: SandboxSpec) -> ContainerSandbox:
        return ContainerSandbox(spec, self)


class ContainerSandbox(Sandbox):
    """A container, and the keeper that has it."""

    def __init__(self, spec: SandboxSpec, containers: Containers) -> None:
        self._spec = spec
        self._containers = containers
        self._uid = unrelated_uid()
        self._view = self._plan_folder()
        # Once: the folder may be renamed or removed while the sandbox runs.
        self._folder_notes = (*self._view.notes, *self._closed())
        self._keeper: HiredKeeper | None = None
        self._heard = b""
        # All that the keeper has said, each word as it was said last.
        self._said: dict[str, Any] = {}
        self._cgroup: Cgroup | None = None
        # Whether the engine must say what it uses, because nobody can see it from here.
        self._out_of_sight = False
        self._statistics: Statistics | None = None

    def _plan_folder(self) -> view.View:
        folder = self._spec.working_directory
        if not leads_to(folder, self._spec.working_descriptor):
            # The engine is root and goes by names: whoever owns a folder above could have it show
            # another one.
            note = f"{folder} is no longer the folder that the kernel was started in: empty"
            return view.View((), (), (note,))
        return view.plan_folder(folder, self._spec.secrets, view.homes())

    def give(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, self._uid, self._uid)
        else:
            # Who can get there is decided by the run directory, which is for this user alone.
            path.chmod(0o666)

    @property
    def facts(self) -> SandboxFacts:
        """Of what was asked for first, until it is known what there is."""
        found = self._containers.found
        level = self._containers.wanted.levels[0][0] if found is None else found.level
        engine = () if found is None else (found.engine, found.runtime or self._said.get("runtime"))
        return SandboxFacts(
            level=level,
            engine=" ".join(filter(None, engine)),
            network="none",
            working_directory=str(self._spec.working_directory),
            notes=(
                *self.remarks,
                *self._passed_over(),
                *self._folder_notes,
                *self._dropped(),
                *_notes(level),
                *self._late(),
            ),
            limitations=(*(GVISOR_LIMITATIONS if level == "gvisor" else ()), *self._late()),
            image="" if found is None else found.image,
            folder_shown=view.shows(self._view, self._spec.working_directory),
        )

    def _closed(self) -> Iterator[str]:
        folder = self._spec.working_directory
        if folder in self._view.read_only and folder.stat().st_mode & _ENTER != _ENTER:
            yield (
                f"{folder} is closed to other users, as which cells run: not readable inside "
                f"(`chmod o+rx {folder}` opens it)"
            )

    def _passed_over(self) -> Iterator[str]:
        """Levels that come before the one that the engine has: what it lacks is their runtime."""
        found = self._containers.found
        for level, runtime in self._containers.wanted.levels:
            if found is None or level == found.level:
                return
            yield preferred([level], no_runtime(runtime, found.engine))

    def _dropped(self) -> Iterator[str]:
        if unheld := self._said.get("unheld"):
            yield (
                f"the engine holds no limit of {', '.join(unheld)} (see its warnings): what is held is "
                "what the wrapper sees when it looks"
            )
        if self._containers.found is not None and self._containers.found.labels:
            yield "SELinux labels are off in the sandbox: they would close the wrapper's sockets to it"

    def _late(self) -> Iterator[str]:
        if self._out_of_sight:
            yield LIMITATION

    def start(self, run_directory: Path) -> None:
        keeper = self._keeper = self._containers.take_keeper()
        found = self._containers.found
        name = f"sandbox-kernel-{os.getpid()}-{os.urandom(6).hex()}"
        order = {
            "name": name,
            "wanted": self._containers.wanted._asdict(),
            "found": None if found is None else found._asdict(),
            "config": self._config(run_directory, name),
        }
        keeper.order(json.dumps(order).encode())
        self._watch(keeper.process)

    def _config(self, run_directory: Path, name: str) -> dict[str, Any]:
        environment = view.plan_image_environment(os.environ, self._containers.passed)
        config = container_config(
            self._containers.allowance,
            self._containers.policy_sha256,
            user=f"{self._uid}:{self._uid}",
            environment=environment | view.own_places(self._view),
            mounts=[bind(run_directory, view.RUN), *self._folder_mounts(name)],
        )
        writable = config["HostConfig"]["Tmpfs"]
        if self._view.stand_in == Path(view.HOME):
            writable[view.OTHER_HOME] = writable[view.HOME]
        writable.pop(str(self._view.stand_in), None)
        return config

    def _folder_mounts(self, name: str) -> list[dict[str, Any]]:
        mounts: list[dict[str, Any]] = []
        if self._view.stand_in is not None:
            mounts.append(empty(self._view.stand_in))
        mounts += [
            volume(path, f"{name}-{number}") if path.is_dir() else bind(path, str(path))
            for number, path in enumerate(self._view.read_only)
        ]
        for path in self._view.hidden:
            if path.is_dir():
                mounts.append(empty(path))
            elif path.exists():
                mounts.append(bind(Path("/dev/null"), str(path)))
        return mounts

    # -- what the keeper says ----------------------------------------------------------------------

    @property
    def report_descriptor(self) -> int:
        assert self._keeper is not None
        return self._keeper.report

    def hear(self) -> bool:
        """Take in what the keeper has said by now; whether more may come."""
        has_ended = False
        with contextlib.suppress(BlockingIOError):
            while received := os.read(self.report_descriptor, 65536):
                self._heard += received
            has_ended = True
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            words = json.loads(line)
            self._said |= words
            if "used" in words:
                self._renew(Used(**words["used"]), words["asked_at"])
        if self._containers.found is None and "found" in self._said:
            self._containers.found = Found(**self._said["found"])
        return not has_ended

    def _renew(self, used: Used, asked_at: float) -> None:
        if self._statistics is None:
            self._statistics = Statistics(used, asked_at)
        else:
            self._statistics.renew(used, asked_at)

    @property
    def known(self) -> bool:
        return "started" in self._said

    @property
    def waiting(self) -> SandboxUnavailable | None:
        if "waiting" not in self._said or self._containers.found is not None:
            return None
        return SandboxUnavailable(
            f"The container engine at {self._containers.wanted.address} has not answered yet.",
            hint="Cells wait for it; if it stays silent, they will say so.",
        )

    @property
    def failed(self) -> bool:
        if self._said.keys() & {"missing", "error", "refused"}:
            return True
        if self._unmeasured:
            return True
        return self.known and self._unheld() is not None

    @property
    def missing(self) -> Missing:
        return [
            (level, SandboxUnavailable(what, hint=hint))
            for level, what, hint in self._said.get("missing", ())
        ]

    def _unheld(self) -> SandboxUnavailable | None:
        """What nobody else would hold, where the engine does not."""
        cpus = self._containers.allowance.cpus
        if cpus is None or 0 < self._said["cpus"] <= cpus * 1.01:
            return None
        return cpus_not_held(f"the engine at {self._containers.wanted.address} does not hold it")

    @property
    def holds_cpus(self) -> bool:
        return True

    @property
    def root_pid(self) -> int:
        return int(self._said.get("pid", 0))

    def contains(self, pid: int) -> bool:
        """By its cgroups: under gVisor it is not the first process that opens sockets."""
        if not pid or not self.root_pid:
            return False
        try:
            return read(f"/proc/{pid}/cgroup") == read(f"/proc/{self.root_pid}/cgroup")
        except OSError:
            return False

    def ask_for_statistics(self, uid: int) -> str | None:
        """By its user, as its pid says nothing here. Under gVisor it is a process of the engine's."""
        assert self._keeper is not None
        found = self._containers.found
        assert found is not None
        if uid != (self._uid if found.runtime is None else ROOT):
            return "who has connected is not of this sandbox's user"
        if unheld := set(self._said.get("unheld", ())) & {"memory", "processes"}:
            return f"they come too late where the engine holds no limit of {' and '.join(sorted(unheld))}"
        if found.engine == PODMAN and found.runtime is not None:
            return "Podman's leave out the memory that gVisor has"
        if not self._out_of_sight:
            self._out_of_sight = True
            self._keeper.ask_for_statistics()
        return None

    @property
    def statistics(self) -> Statistics | None:
        return self._statistics

    @property
    def _unmeasured(self) -> bool:
        """Whether the engine does not even say once what the container uses."""
        return "unused" in self._said and self._statistics is None

    @property
    def cgroup(self) -> Cgroup | None:
        if self._out_of_sight:
            return None
        if self._cgroup is None and self.root_pid:
            self._cgroup = Cgroup.of(self.root_pid)
        return self._cgroup

    def explain(self, console: str) -> SandboxUnavailable:
        self.hear()
        if self._unmeasured:
            return not_measurable(self.facts.engine, self._said["unused"])
        if self.known and (unheld := self._unheld()) is not None:
            return unheld
        return explain(self._said, self._containers.wanted.address, console)

    def kill(self) -> None:
        if self._outer is None:
            return
        # The supervisor ends with its lifeline and the container with that; the keeper removes what
        # is left, in its own time, and is collected when it has ended.
        assert self._keeper is not None
        self._keeper.dismiss()
        os.close(self._exit_descriptor)
        self._outer = None
        if self._cgroup is not None:
            self._cgroup.close()


def leads_to(path: Path, descriptor: int) -> bool:
    """Whether the file that is open as ``descriptor`` is still the one at ``path``."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:  # it is gone, or was closed to us
        return False


def _notes(level: str) -> list[str]:
    if level != "gvisor":
        return []
    return [f"under gVisor {each}" for each in GVISOR_LIMITATIONS]


def container_config(
    allowance: Allowance,
    policy_sha256: str,
    *,
    user: str,
    environment: Mapping[str, str],
    mounts: list[dict[str, Any]],
) -> dict[str, Any]:
    """The body of ``POST /containers/create`` but for what the engine has: see ``Found``.

    Every line of it takes something away.
    """
    seccomp = (policies_directory() / SECCOMP).read_text()
    tmpfs = f"rw,nosuid,nodev,exec,size={TMPFS_BYTES}"
    host_config = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={seccomp}"],
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Mounts": mounts,
        "Tmpfs": {
            "/tmp": f"{tmpfs},mode=1777",
            "/var/tmp": f"{tmpfs},mode=1777",
            view.HOME: f"{tmpfs},mode=0777",
        },
        "ShmSize": TMPFS_BYTES,
        "Ulimits": [ulimit("core", 0), ulimit("nofile", OPEN_FILES)],
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "OomScoreAdj": 500,
        # With its last process gone; the keeper does it sooner.
        "AutoRemove": True,
    }
    if allowance.memory_bytes is not None:
        # The same with swap: none.
        host_config |= {"Memory": allowance.memory_bytes, "MemorySwap": allowance.memory_bytes}
    if allowance.processes is not None:
        host_config["PidsLimit"] = allowance.processes
    if allowance.cpus is not None:
        host_config["NanoCpus"] = round(allowance.cpus * 1e9)
    return {
        "User": user,
        "Hostname": "sandbox",
        "Entrypoint": ["python3", view.BOOT, f"{view.RUN}/connection.json"],
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "WorkingDir": "/",
        "Labels": {
            OWNER: owner_label(os.getpid()),
            "sandbox-kernel.policy": policy_sha256,
        },
        "NetworkDisabled": True,
        # An image's own would be run beside the supervisor.
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": host_config,
    }


def empty(folder: Path) -> dict[str, Any]:
    """An empty folder that cannot be written."""
    options = {"Mode": 0o755}
    return {"Type": "tmpfs", "Target": str(folder), "ReadOnly": True, "TmpfsOptions": options}


def volume(folder: Path, name: str) -> dict[str, Any]:
    """A folder as ``bind`` shows it, where device files and setuid programs are nothing but files.

    A mount of the type ``bind`` cannot be asked for that: a device file in the folder would be the
    host's device, as far as the engine's list goes, and under gVisor, which has none, every one.
    The keeper removes it.
    """
    options = {"type": "none", "o": "bind,ro,nodev,nosuid", "device": str(folder)}
    return {
        "Type": "volume",
        "Source": name,
        "Target": str(folder),
        "ReadOnly": True,
        "VolumeOptions": {
            "NoCopy": True,
            "Labels": {OWNER: owner_label(os.getpid())},
            "DriverConfig": {"Name": "local", "Options": options},
        },
    }


def explain(said: Mapping[str, Any], address: str, console: str) -> SandboxUnavailable:
    """Why a container did not come up."""
    if "missing" in said:
        _, what, hint = said["missing"][0]
        return SandboxUnavailable(what, hint=hint)
    if "error" in said:
        return SandboxUnavailable(said["error"], hint=said["hint"])
    if "refused" in said:
        # Once it is made there is an image: then it is the container that there is not any more.
        if said.get("status") == NO_SUCH_IMAGE and not said.get("made"):
            return SandboxUnavailable(
                f"The engine at {address} has no such image any more: {said['refused']}.",
                hint="Build it: `sandbox-kernel image build`.",
            )
        return SandboxUnavailable(
            f"The engine at {address} refused the sandbox: {said['refused']}.",
            hint="`sandbox-kernel doctor` checks the engine, its runtimes and images.",
        )
    runtime = said.get("found", {}).get("runtime")
    if runtime is not None and _SOCKET_REFUSED in console:
        return SandboxUnavailable(
            f"The engine's runtime {runtime!r} does not let a sandbox open the wrapper's sockets.",
            hint=f"For gVisor, {REGISTER}. `sandbox-kernel doctor` says if another flag is needed.",
        )
    printed = "".join(c if c.isprintable() else " " for c in console[-600:]).strip()
    return SandboxUnavailable(
        "The container ended before its kernel was ready. "
        + (f"It said: {printed!r}." if printed else "It said nothing."),
        hint="The image needs `python3` with ipykernel: `sandbox-kernel image build` makes one.",
    )
