"""What the host looks at before and after, to see for itself whether a probe has reached it."""

from __future__ import annotations

import hashlib
import os
import platform
from contextlib import suppress
from pathlib import Path

from tests.hostile.probes.attack import Probe, call
from tests.hostile.probes.devices import SETTINGS_FILES
from tests.hostile.probes.secrets import OF_THE_SYSTEM
from tests.hostile.probes.stage import Stage
from tests.kernel import Kernel, containers_of, is_running

# The control must change what these see: else they would not see a sandbox's doing either.
SEEN_IN_THE_CONTROL = (
    *("place:", "listener:", "signal:", "terminal", "semaphore", "lease"),
    *("neighbour:memory", "neighbour:nice", "neighbour:affinity", "neighbour:policy"),
    *("neighbour:limits", "neighbour:io priority"),
)


def must_see_the_control(probe: Probe) -> bool:
    return probe.control == "host" and probe.witness.startswith(SEEN_IN_THE_CONTROL)


class Witnesses:
    """All that is looked at, of one stage and one kernel."""

    def __init__(self, stage: Stage, kernel: Kernel, sibling: Kernel) -> None:
        self._stage = stage
        self._kernel = kernel
        self._sandbox = sandbox_pid(kernel)
        self._written = b""
        self.pids = {
            "wrapper": kernel.wrapper_pid,
            "outer": outer_pid(kernel),
            "sandbox": self._sandbox,
            "sibling": sibling.wrapper_pid,
            "sibling sandbox": sandbox_pid(sibling),
        }

    def observe(self, probe: Probe) -> object:
        what, _, which = probe.witness.partition(":")
        stage = self._stage
        match what:
            case "said":
                return None  # judged by what the probe said
            case "place":
                return snapshot(Path(stage.targets["places"][probe.name]))
            case "listener":
                return stage.listeners.arrivals[which]
            case "signal":
                return stage.neighbour.signals(int(which))
            case "neighbour":
                return stage.neighbour.observe(which)
            case "alive":
                pid = self.pids[which]
                return is_running(pid), start_of(pid)
            case "terminal":
                return self._read_terminal()
            case "semaphore":
                get_value = 12
                return call("semctl", stage.semaphore, 0, get_value, 0)
            case "lease":
                return stage.leases
            case "file":
                return hash_of(Path(which))
            case "environment":
                files = stage.targets["environment"]
                return {name: hash_of(Path(path)) for name, path in files.items()}
            case "run directory":
                (run,) = stage.state.glob(f"run/{self._kernel.wrapper_pid}-*")
                return snapshot(run)
            case "interfaces":
                return interfaces(self._sandbox)
            case "machine":
                return self._machine(which)
            case "kernel":
                return self._of_the_kernel(which)
        msg = f"no witness {probe.witness}"
        raise AssertionError(msg)

    def _read_terminal(self) -> bytes:
        with suppress(BlockingIOError):  # nothing more
            while True:
                self._written += os.read(self._stage.terminal, 4096)
        return self._written

    def _machine(self, which: str) -> object:
        match which:
            case "files":
                home = self._stage.home
                return [hash_of(Path(path)) for path in OF_THE_SYSTEM], sorted(home.iterdir())
            case "devices":
                return sorted(path.name for path in Path("/dev").iterdir())
            case "settings":
                others = (
                    "/proc/swaps",
                    "/proc/sys/kernel/random/boot_id",
                    "/proc/sys/kernel/domainname",
                )
                return {path: text_of(Path(path)) for path in (*SETTINGS_FILES.values(), *others)}
            case "cgroups":
                agents = Path("/sys/fs/cgroup").glob("*/release_agent")
                membership = text_of(Path(f"/proc/{self._sandbox}/cgroup"))
                return [text_of(path) for path in agents], membership
            case "names":
                return platform.node(), text_of(Path("/proc/sys/kernel/domainname"))
            case "mounts":
                return mounts_of(self._sandbox), [
                    line for line in mounts_of(os.getpid()) if self._stage.mark in line
                ]
            case "folder":
                return snapshot(self._stage.folder), mounts_of(self._sandbox)
            case "connections":
                # Those that the wrapper has accepted; elsewhere another program may use that number.
                here = f"0100007F:{self._stage.targets['shell port']:04X}"
                lines = Path("/proc/net/tcp").read_text().splitlines()
                return sum(line.split()[1] == here and line.split()[3] == "01" for line in lines)
            case "space":
                return self._space()
        msg = f"no witness machine:{which}"
        raise AssertionError(msg)

    def _space(self) -> object:
        """How much a sandbox can hold: its folders' sizes, or the memory that they are counted in."""
        if self._kernel.level == "gvisor":
            (about,) = containers_of(self._kernel.wrapper_pid)
            return about["HostConfig"]["Memory"] > 0
        places = self._stage.inside()["writable"].values()
        seen = [os.statvfs(f"/proc/{self._sandbox}/root{place}") for place in places]
        return [about.f_blocks * about.f_frsize for about in seen]

    def _of_the_kernel(self, which: str) -> object:
        """Of every process in the sandbox; under gVisor, of the one that is its kernel."""
        pids = [self._sandbox]
        if self._kernel.level != "gvisor":
            pids = list(self._kernel.sandboxed_pids())
        found = set()
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended
                found.add(facts_of(pid, which))
        return found


def facts_of(pid: int, which: str) -> tuple[object, ...]:
    about = Path(f"/proc/{pid}")
    match which:
        case "scheduling":
            adjustment = (about / "oom_score_adj").read_text()
            return (
                os.getpriority(os.PRIO_PROCESS, pid),
                os.sched_getscheduler(pid),
                adjustment.strip(),
            )
        case "limits":
            lines = (about / "limits").read_text().splitlines()
            return tuple(line for line in lines if line.startswith(("Max core", "Max open")))
        case "namespaces":
            return tuple(sorted(os.readlink(path) for path in (about / "ns").iterdir()))
        case "rights":
            lines = (about / "status").read_text().splitlines()
            kept = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:")
            return tuple(line for line in lines if line.startswith(kept))
    msg = f"no witness kernel:{which}"
    raise AssertionError(msg)


def sandbox_pid(kernel: Kernel) -> int:
    """The host's pid of the sandbox's first process; under gVisor, of its kernel."""
    if kernel.level == "process":
        return min((inner, pid) for pid, inner in kernel.sandboxed_pids().items())[1]
    (about,) = containers_of(kernel.wrapper_pid)
    return int(about["State"]["Pid"])


def outer_pid(kernel: Kernel) -> int:
    """Who holds the sandbox, on the host: bwrap, or the keeper of a container."""
    word = b"bwrap" if kernel.level == "process" else b"isolation.keeper"
    children = Path(f"/proc/{kernel.wrapper_pid}/task/{kernel.wrapper_pid}/children").read_text()
    found = [
        pid
        for pid in map(int, children.split())
        if word in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert found, f"no {word!r} among the children of the wrapper"
    return found[0]


def start_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def interfaces(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return [line.split(":")[0].strip() for line in lines]


def mounts_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/mountinfo").read_text().splitlines()


def text_of(path: Path) -> str | None:
    """What a setting is; ``None`` if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return None


def hash_of(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """All that is in a folder: names, kinds, owners, times, attributes, contents."""
    found = {str(root): entry(root)} if os.path.lexists(root) else {}
    if not root.is_symlink():
        for folder, folders, files in os.walk(root):
            found |= {f"{folder}/{name}": entry(Path(folder, name)) for name in (*folders, *files)}
    return found


def entry(path: Path) -> tuple[object, ...]:
    about = path.lstat()
    return (
        *(about.st_mode, about.st_uid, about.st_gid, about.st_size, about.st_mtime_ns),
        *(about.st_blocks, about.st_nlink),
        *os.listxattr(path, follow_symlinks=False),
        os.readlink(path) if path.is_symlink() else hash_of(path),
    )
