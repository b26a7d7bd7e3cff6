"""A cgroup for one sandbox: the kernel's own account of all its processes together, and their limits.

Version 2 where that has the memory controller, else version 1, whose controllers may be mounted apart
or together: one that cannot be used is left out. What is made here is named after the wrapper, by pid
and start time, so that what a dead one left is known as abandoned.

Imported before the sandbox starts: see ``isolation.base`` on what that means.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from sandbox_kernel.limits.files import read, start_ticks, write

PREFIX: Final = "sandbox-kernel-"
_SELF: Final = Path("/proc/self")
# The names of version 1; in version 2 every cgroup has an account of its CPU time.
_MEMORY, _CPU, _PIDS = "memory", "cpuacct", "pids"
# A killed process may be stuck in the kernel for longer; its cgroup is then left to be reaped.
_CLOSE_SECONDS: Final = 1.0
# Kernel memory in `memory.stat` of version 2 before Linux 5.18, which has one number for it.
_KERNEL_PARTS: Final = (b"kernel_stack", b"pagetables", b"percpu", b"slab", b"sock")
_numbers = count(1)


class Memory(NamedTuple):
    """What counts as used, in bytes. Not in it: page cache, which the kernel takes back at need."""

    anon: int
    shmem: int
    kernel: int

    @property
    def total(self) -> int:
        return self.anon + self.shmem + self.kernel


class Held(NamedTuple):
    """Which limits the kernel holds from now on."""

    memory: bool
    processes: bool


class Cgroup:
    """One cgroup, in one directory (version 2) or one per controller (version 1).

    Readings answer ``None`` where the controller is missing, and after the end.
    """

    def __init__(self, version: int, directories: dict[str, Path], *, made: bool = True) -> None:
        self.version = version
        self._directories = directories
        self._made = made
        # Kept open: reading again from the start of a file is several times cheaper than by name.
        self._descriptors: dict[str, int] = {}

    @classmethod
    def create(cls, about: Path = _SELF) -> Cgroup | None:
        """A new one below or beside this process's own; ``None`` where none can be made."""
        name = f"{family()}{next(_numbers)}"
        for version, parents in find_places(about):
            directories: dict[str, Path] = {}
            for controller, parent in parents.items():
                if (directory := parent / name) not in directories.values():
                    try:
                        directory.mkdir()
                    except OSError:
                        continue  # not ours to make, or a read-only mount
                    _reap(parent)
                directories[controller] = directory
            if directories:
                return cls(version, directories)
        return None

    @classmethod
    def of(cls, pid: int) -> Cgroup | None:
        """The one that an engine has made for its container's first process; not ours to remove."""
        try:
            directories = _directories(Path(f"/proc/{pid}/cgroup"), _SELF / "mountinfo")
        except OSError:  # it has ended
            return None
        found = {name: own for name, (_, own) in directories.items() if own.is_dir()}
        if "" in found and (found[""] / "memory.stat").exists():
            return cls(2, dict.fromkeys((_MEMORY, _CPU, _PIDS), found[""]), made=False)
        v1 = {name: found[name] for name in (_MEMORY, _CPU, _PIDS) if name in found}
        return cls(1, v1, made=False) if v1 else None

    @property
    def paths(self) -> set[Path]:
        return set(self._directories.values())

    @property
    def source(self) -> str:
        return f"cgroup v{self.version}"

    # -- who is in it ------------------------------------------------------------------------------

    def join(self) -> None:
        """For the child between fork and exec; whether it worked is seen by ``keeps``."""
        for path in self.paths:
            with contextlib.suppress(OSError):  # see `keeps`
                write(f"{path}/cgroup.procs", "0")

    def keeps(self, pid: int) -> bool:
        """Whether the child is in it; a controller that would not take the child is given up."""
        for path in self.paths:
            if pid not in _pids(path):
                _remove(path)
                self._directories = {c: p for c, p in self._directories.items() if p != path}
        return bool(self._directories)

    def pids(self) -> list[int]:
        # By name each time: version 1 repeats an old list to a descriptor that is kept open.
        return _pids(next(iter(self._directories.values()))) if self._directories else []

    # -- what it uses ------------------------------------------------------------------------------

    def memory(self) -> Memory | None:
        stat = self._read(_MEMORY, "memory.stat")
        if stat is None:
            return None
        if self.version == 2:
            kernel = _number(stat, b"kernel")
            if kernel is None:
                kernel = sum(_number(stat, part) or 0 for part in _KERNEL_PARTS)
            return Memory(_number(stat, b"anon") or 0, _number(stat, b"shmem") or 0, kernel)
        # Absent where kernel memory is not accounted.
        kernel_usage = self._read(_MEMORY, "memory.kmem.usage_in_bytes") or b"0"
        rss, shmem = _number(stat, b"total_rss"), _number(stat, b"total_shmem")
        return Memory(rss or 0, shmem or 0, int(kernel_usage))

    def cpu_seconds(self) -> float | None:
        if self.version == 2:
            stat = self._read(_CPU, "cpu.stat")
            return None if stat is None else (_number(stat, b"usage_usec") or 0) / 1e6
        usage = self._read(_CPU, "cpuacct.usage")
        return None if usage is None else int(usage) / 1e9

    def tasks(self) -> int | None:
        """Processes and threads."""
        current = self._read(_PIDS, "pids.current")
        return None if current is None else int(current)

    def oom_kills(self) -> int:
        """How many of its processes were killed for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return _number(self._read(_MEMORY, name) or b"", b"oom_kill") or 0

    def _read(self, controller: str, name: str) -> bytes | None:
        try:
            if name not in self._descriptors:
                path = self._directories[controller] / name
                self._descriptors[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptors[name], 16384, 0)
        except (KeyError, OSError):
            return None  # no such controller, a kernel without this file, or removed by now

    # -- what it may use ---------------------------------------------------------------------------

    def limit(self, memory_bytes: int | None = None, processes: int | None = None) -> Held:
        """Limit memory, with no swap, and processes, of which each thread is one here.

        What cannot be limited on this host is not held.
        """
        memory = memory_bytes is not None and self._hold(
            _MEMORY,
            self._limit_memory_v2 if self.version == 2 else self._limit_memory_v1,
            memory_bytes,
        )
        pids = processes is not None and self._hold(_PIDS, self._limit_tasks, processes)
        return Held(memory, pids)

    def _hold(self, controller: str, limit: Callable[[Path, int], None], value: int) -> bool:
        try:
            limit(self._directories[controller], value)
        except (KeyError, OSError):
            return False  # no such controller, or more is in use than could be taken back
        return True

    @staticmethod
    def _limit_memory_v2(path: Path, memory_bytes: int) -> None:
        write(f"{path}/memory.max", str(memory_bytes))
        with contextlib.suppress(FileNotFoundError):  # a kernel without swap
            write(f"{path}/memory.swap.max", "0")

    @staticmethod
    def _limit_memory_v1(path: Path, memory_bytes: int) -> None:
        plain, with_swap = path / "memory.limit_in_bytes", path / "memory.memsw.limit_in_bytes"
        if not with_swap.exists():  # a kernel that does not account for swap
            write(str(plain), str(memory_bytes))
            return
        # The second may never be lower than the first, not even in between.
        lower = memory_bytes < int(with_swap.read_bytes())
        for file in (plain, with_swap) if lower else (with_swap, plain):
            write(str(file), str(memory_bytes))

    @staticmethod
    def _limit_tasks(path: Path, processes: int) -> None:
        write(f"{path}/pids.max", str(processes))

    # -- its end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove it, once its processes, which have been killed, are gone."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}
        if not self._made:
            return
        deadline = time.monotonic() + _CLOSE_SECONDS
        for path in self.paths:
            while not _remove(path) and time.monotonic() < deadline:
                _await_exits(_pids(path), deadline)
        self._directories = {}


def family() -> str:
    """What the names of all of this process's cgroups begin with."""
    return f"{PREFIX}{os.getpid()}-{start_ticks(os.getpid())}-"


def prefixes() -> list[str]:
    """What the paths of all of this process's cgroups begin with, if any can be made."""
    parents = {path for _, places in find_places() for path in places.values()}
    return sorted(f"{parent}/{family()}" for parent in parents)


def find_places(about: Path = _SELF) -> Iterator[tuple[int, dict[str, Path]]]:
    """Where this process could make cgroups: versions, best first, with a parent per controller.

    ``about`` has the files ``cgroup`` and ``mountinfo`` of this process.
    """
    directories = _directories(about / "cgroup", about / "mountinfo")
    if "" in directories and (parent := _parent_v2(*directories[""])) is not None:
        controllers = [_MEMORY, _CPU, *([_PIDS] if _hands_on(parent, _PIDS) else [])]
        yield 2, dict.fromkeys(controllers, parent)
    found = {name: directories[name][1] for name in (_MEMORY, _CPU, _PIDS) if name in directories}
    if found:
        yield 1, found


def _directories(cgroups: Path, mounts: Path) -> dict[str, tuple[Path, Path]]:
    """For each controller where it is mounted, and the directory of the process in question.

    The one without a name is that of version 2.
    """
    own: dict[str, str] = {}
    for line in _lines(cgroups):
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    directories: dict[str, tuple[Path, Path]] = {}
    for line in _lines(mounts):
        before, _, after = line.partition(" - ")
        kind = after.partition(" ")[0]
        if kind not in ("cgroup", "cgroup2"):
            continue  # others may have anything in their options, even spaces
        options = after.rpartition(" ")[2]
        root, mount = map(_unescape, before.split(" ")[3:5])
        controllers = [""] if kind == "cgroup2" else options.split(",")
        for controller in controllers:
            below = _below(root, own.get(controller))
            if below is not None:
                directories.setdefault(controller, (Path(mount), Path(mount, below)))
    return directories


def _lines(path: Path) -> list[str]:
    # Not `splitlines`: names may have other line breaks in them than the kernel's.
    return os.fsdecode(path.read_bytes()).removesuffix("\n").split("\n")


def _below(root: str, path: str | None) -> str | None:
    """``path`` as seen from ``root``. A mount may show another part of the hierarchy than ours."""
    root = root.rstrip("/")
    if path is None or ".." in path.split("/") or not f"{path}/".startswith(f"{root}/"):
        return None
    return path[len(root) :].lstrip("/")


def _parent_v2(mount: Path, own: Path) -> Path | None:
    """Own, if that hands the memory controller on to its children; else its parent if that does.

    Beside its own a sandbox is free of the limits that were set there. So only where there are none:
    in a systemd user session, say, but not in a service with ``MemoryMax``.
    """
    if _hands_on(own, _MEMORY):
        return own
    if own != mount and _hands_on(own.parent, _MEMORY) and not _is_limited(own):
        return own.parent
    return None


def _hands_on(path: Path, controller: str) -> bool:
    try:
        return controller in (path / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False  # hidden from us


def _is_limited(path: Path) -> bool:
    for name in ("memory.max", "memory.high", "cpu.max"):
        try:
            if not (path / name).read_text().startswith("max"):
                return True
        except OSError:
            continue  # without the controller there is no limit of this kind
    return False


def _reap(parent: Path) -> None:
    """Remove what wrappers that are gone have left here. A cgroup with processes cannot be removed."""
    for name in os.listdir(parent):  # noqa: PTH208 - called on every start
        if not name.startswith(PREFIX):
            continue
        pid, _, rest = name.removeprefix(PREFIX).partition("-")
        start = rest.partition("-")[0]
        if pid.isdecimal() and start.isdecimal() and start_ticks(int(pid)) != int(start):
            _remove(parent / name)


def _remove(path: Path) -> bool:
    """Whether it is gone; else a process in it is not, yet."""
    try:
        path.rmdir()
    except OSError as error:
        return error.errno != errno.EBUSY  # any other reason does not pass
    return True


def _await_exits(pids: list[int], deadline: float) -> None:
    """Until one of them has ended; a moment if there is none to wait for."""
    poll = select.poll()
    timeout = 0.001
    with contextlib.ExitStack() as stack:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # gone by now
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                poll.register(descriptor, select.POLLIN)
                timeout = deadline - time.monotonic()
        poll.poll(max(1, timeout * 1000))


def _pids(path: Path) -> list[int]:
    try:
        return [int(pid) for pid in read(f"{path}/cgroup.procs").split()]
    except OSError:
        return []  # removed by now


def _number(data: bytes, name: bytes) -> int | None:
    """The number in a line ``name number``."""
    rest = (b"\n" + data).partition(b"\n" + name + b" ")[2]
    return int(rest.split(None, 1)[0]) if rest else None


def _unescape(path: str) -> str:
    """Mount points in ``mountinfo`` have spaces and the like as octal numbers."""
    head, *parts = path.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts)
