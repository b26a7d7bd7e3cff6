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
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from sandbox_kernel.limits.cgroup_places import (
    CPU,
    MEMORY,
    OURSELVES,
    PIDS,
    PREFIX,
    SHARE,
    directories_of,
    family,
    find_places,
)
from sandbox_kernel.limits.files import read, start_ticks, write

_PERIOD_MICROSECONDS: Final = 100_000
_ATTEMPTS: Final = 10
# A killed process may be stuck in the kernel for longer; its cgroup is then left to be reaped.
_CLOSE_SECONDS: Final = 1.0
# Kernel memory in `memory.stat` of version 2 before Linux 5.18, which has one number for it.
KERNEL_PARTS: Final = (b"kernel_stack", b"pagetables", b"percpu", b"slab", b"sock")
_numbers = count(1)


class Memory(NamedTuple):
    """What counts as used, in bytes. Not in it: page cache, which the kernel takes back at need."""

    anon: int
    shmem: int
    kernel: int
    # What the whole host's kernel can take back of its own memory. Version 1 of cgroups does not say how much
    # of `kernel` that is: what it knows about files that a cell has read, above all.
    host_reclaimable: int = 0

    @property
    def total(self) -> int:
        return self.anon + self.shmem + self.kernel

    def kernel_gained(self, before: Memory) -> int:
        """By how much kernel memory has grown for good. What the host reclaims meanwhile blames no cell."""
        reclaimable = max(0, self.host_reclaimable - before.host_reclaimable)
        return max(0, self.kernel - before.kernel - reclaimable)


class Held(NamedTuple):
    """Which limits the kernel holds from now on."""

    memory: bool
    processes: bool
    cpus: bool


class Cgroup:
    """One cgroup, in one directory (version 2) or one per controller (version 1).

    Readings answer ``None`` where the controller is missing, and after the end.
    """

    def __init__(self, version: int, directories: dict[str, Path], *, made: bool = True) -> None:
        self.version = version
        self._directories = directories
        # Else an engine has, and limits it.
        self.made = made
        # Kept open: reading again from the start of a file is several times cheaper than by name.
        self._descriptors: dict[str, int] = {}

    @classmethod
    def create(cls, about: Path = OURSELVES) -> Cgroup | None:
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
            directories = directories_of(Path(f"/proc/{pid}/cgroup"), OURSELVES / "mountinfo")
        except OSError:  # it has ended
            return None
        found = {name: own for name, (_, own) in directories.items() if own.is_dir()}
        if "" in found and (found[""] / "memory.stat").exists():
            return cls(2, dict.fromkeys((MEMORY, CPU, PIDS), found[""]), made=False)
        v1 = {name: found[name] for name in (MEMORY, CPU, PIDS) if name in found}
        with contextlib.suppress(KeyError, OSError):  # not ours to write: see docs/threats.md
            # Buffers of TCP sockets are not counted before there was a limit, be it none.
            write(f"{v1[MEMORY]}/memory.kmem.tcp.limit_in_bytes", "-1")
        return cls(1, v1, made=False) if v1 else None

    @property
    def paths(self) -> set[Path]:
        return set(self._directories.values())

    @property
    def source(self) -> str:
        return f"cgroup v{self.version}"

    @property
    def as_of(self) -> None:
        return None

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
        stat = self._read(MEMORY, "memory.stat")
        if stat is None:
            return None
        if self.version == 2:
            kernel = _number(stat, b"kernel")
            if kernel is None:
                kernel = sum(_number(stat, part) or 0 for part in KERNEL_PARTS)
            else:  # buffers of internet sockets are in no other number
                kernel += _number(stat, b"sock") or 0
            # What the kernel knows about files that were read, and takes back at need as it does their cache.
            kernel -= _number(stat, b"slab_reclaimable") or 0
            return Memory(_number(stat, b"anon") or 0, _number(stat, b"shmem") or 0, kernel)
        # Absent where kernel memory is not accounted.
        kernel_usage = self._read(MEMORY, "memory.kmem.usage_in_bytes") or b"0"
        sockets = self._read(MEMORY, "memory.kmem.tcp.usage_in_bytes") or b"0"
        rss, shmem = _number(stat, b"total_rss"), _number(stat, b"total_shmem")
        kernel = int(kernel_usage) + int(sockets)
        return Memory(rss or 0, shmem or 0, kernel, self._host_reclaimable())

    def _host_reclaimable(self) -> int:
        if "meminfo" not in self._descriptors:
            self._descriptors["meminfo"] = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        return (
            _number(os.pread(self._descriptors["meminfo"], 4096, 0), b"SReclaimable:") or 0
        ) * 1024

    def cpu_seconds(self) -> float | None:
        if self.version == 2:
            stat = self._read(CPU, "cpu.stat")
            return None if stat is None else (_number(stat, b"usage_usec") or 0) / 1e6
        usage = self._read(CPU, "cpuacct.usage")
        return None if usage is None else int(usage) / 1e9

    def tasks(self) -> int | None:
        """Processes and threads."""
        current = self._read(PIDS, "pids.current")
        return None if current is None else int(current)

    def oom_kills(self) -> int:
        """How many of its processes were killed for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return _number(self._read(MEMORY, name) or b"", b"oom_kill") or 0

    def _read(self, controller: str, name: str) -> bytes | None:
        try:
            if name not in self._descriptors:
                path = self._directories[controller] / name
                self._descriptors[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptors[name], 16384, 0)
        except (KeyError, OSError):
            return None  # no such controller, a kernel without this file, or removed by now

    # -- what it may use ---------------------------------------------------------------------------

    def limit(
        self,
        memory_bytes: int | None = None,
        processes: int | None = None,
        cpus: float | None = None,
    ) -> Held:
        """Limit memory, with no swap, processes, of which each thread is one here, and processors.

        What cannot be limited on this host is not held.
        """
        memory = memory_bytes is not None and self._hold(
            MEMORY,
            self._limit_memory_v2 if self.version == 2 else self._limit_memory_v1,
            memory_bytes,
        )
        pids = processes is not None and self._hold(PIDS, self._limit_tasks, processes)
        if cpus is None:
            self._give_up_share()
            return Held(memory, pids, cpus=False)
        share = self._limit_share_v2 if self.version == 2 else self._limit_share_v1
        return Held(memory, pids, self._hold(SHARE, share, round(cpus * _PERIOD_MICROSECONDS)))

    def _give_up_share(self) -> None:
        """Leave the controller of shares to others, before any cell has run.

        All that is in one of its groups counts as much as a single process of the host outside: a
        supervisor among many processes that are to be killed would hardly get its turn.
        """
        path = self._directories.get(SHARE)
        if path is None or list(self._directories.values()).count(path) > 1:
            return
        for _ in range(_ATTEMPTS):  # one may have been in the middle of a fork
            with contextlib.suppress(OSError):  # not ours to move, or it has ended
                for pid in _pids(path):
                    write(f"{path.parent}/cgroup.procs", str(pid))
            if _remove(path):
                del self._directories[SHARE]
                return

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
        with contextlib.suppress(FileNotFoundError):  # a kernel that does not account for them
            # Buffers of TCP sockets are apart from all else, and not even counted without a limit.
            write(f"{path}/memory.kmem.tcp.limit_in_bytes", str(memory_bytes))
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

    @staticmethod
    def _limit_share_v2(path: Path, quota: int) -> None:
        write(f"{path}/cpu.max", f"{quota} {_PERIOD_MICROSECONDS}")

    @staticmethod
    def _limit_share_v1(path: Path, quota: int) -> None:
        write(f"{path}/cpu.cfs_period_us", str(_PERIOD_MICROSECONDS))
        write(f"{path}/cpu.cfs_quota_us", str(quota))

    # -- its end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove it, once its processes, which have been killed, are gone."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}
        if not self.made:
            return
        deadline = time.monotonic() + _CLOSE_SECONDS
        for path in self.paths:
            while not _remove(path) and time.monotonic() < deadline:
                _await_exits(_pids(path), deadline)
        self._directories = {}


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
