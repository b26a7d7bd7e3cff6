"""Single readings of the host's ``/proc``: what one process is and uses.

A process may end between any two of these, so each reading answers ``None`` (or nothing) for one that
is gone. Names of processes are chosen by cells: all is read as bytes. In ``status`` the kernel escapes
line breaks in names, so that no line there can be forged.
"""

# Hundreds of small files per reading: pathlib would cost more than they do.
# ruff: noqa: PTH115, PTH116, PTH208

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from sandbox_kernel.limits.aside import ASIDE
from sandbox_kernel.limits.files import read, stat_fields, write

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_KIBIBYTE: Final = 1024
_BLOCK_BYTES: Final = 512  # of st_blocks, on every file system
# How much of a tree is looked at in one walk; a cell decides how large the tree is.
MAX_PROCESSES: Final = 512
MAX_THREADS: Final = 4096
# What `inner/processes.py` calls a process that sleeps until it takes the kernel's place.
_CHECKPOINT: Final = b"checkpoint"
_FORKED_NO_EXEC: Final = 0x40  # PF_FORKNOEXEC
# How long what needs the lock on a process's memory is waited for: see `aside`. A share is read in 11 ms per
# GiB; a reset takes no time at all unless somebody has that lock.
_ROLLUP_SECONDS: Final = 0.4
_RESET_SECONDS: Final = 0.05


class Stat(NamedTuple):
    """A process by ``/proc/PID/stat``. CPU in ticks: its own, and that of children it waited for."""

    parent: int
    flags: int
    own_ticks: int
    waited_ticks: int
    threads: int
    start: int
    running: bool = False

    @property
    def forked(self) -> bool:
        """Whether it runs its parent's program still, and so may share memory with it."""
        return bool(self.flags & _FORKED_NO_EXEC)


class Status(NamedTuple):
    """A process by ``/proc/PID/status``. ``anon`` includes what is swapped out; all in bytes."""

    name: bytes
    parent: int
    inner_pid: int
    nesting: int
    threads: int
    highest: int
    resident: int
    anon: int
    shmem: int
    page_tables: int


class Rollup(NamedTuple):
    """A process's share of memory by ``smaps_rollup``: costs 0.5 ms and 11 ms per GiB."""

    anon: int
    shmem: int
    private: int


def ticks_now() -> int:
    """The time as processes' starts are dated: ticks since boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_SECOND)


def read_stat(pid: int | str) -> Stat | None:
    """Of a process, or of a thread as ``PID/task/TID``."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return Stat(
        parent=int(fields[1]),
        flags=int(fields[6]),
        own_ticks=own,
        waited_ticks=waited,
        threads=int(fields[17]),
        start=int(fields[19]),
        running=fields[0] == b"R",
    )


def thread_ids(pid: int) -> frozenset[str]:
    """Of a process; none if it has ended."""
    try:
        return frozenset(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return frozenset()


def anon_bytes(pid: int) -> int:
    """Resident anonymous memory, by the cheapest of the files that have it."""
    try:
        _, resident, shared, *_ = read(f"/proc/{pid}/statm").split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


def read_status(pid: int) -> Status | None:
    """``None`` for a zombie too: it uses nothing any more."""
    try:
        data = b"\n" + read(f"/proc/{pid}/status")
    except OSError:
        return None
    if b"\nVmRSS:" not in data:
        return None
    pids = (_field(data, b"NSpid") or _field(data, b"Pid")).split()
    return Status(
        name=_field(data, b"Name"),
        parent=int(_field(data, b"PPid")),
        inner_pid=int(pids[-1]),
        nesting=len(pids),
        threads=int(_field(data, b"Threads")),
        highest=_kibibytes(data, b"VmHWM"),
        resident=_kibibytes(data, b"VmRSS"),
        anon=_kibibytes(data, b"RssAnon") + _kibibytes(data, b"VmSwap"),
        shmem=_kibibytes(data, b"RssShmem"),
        page_tables=_kibibytes(data, b"VmPTE"),
    )


def read_rollup(pid: int) -> Rollup | None:
    """``None`` also where it may not be read: another user's process, say, or one that holds it up."""
    data = ASIDE.ask(lambda: _read_if_there(f"/proc/{pid}/smaps_rollup"), _ROLLUP_SECONDS)
    if data is None:
        return None
    shmem = _kibibytes(data, b"Pss_Shmem")
    # Private pages that are dirty are anonymous, or shared memory that nobody else maps.
    private = max(0, _kibibytes(data, b"Private_Dirty") - shmem)
    return Rollup(_kibibytes(data, b"Pss_Anon") + _kibibytes(data, b"SwapPss"), shmem, private)


def _read_if_there(path: str) -> bytes | None:
    try:
        return read(path)
    except OSError:
        return None


def _field(data: bytes, name: bytes) -> bytes:
    """The value of a line ``name: value``; empty if this kernel has no such line."""
    start = data.find(b"\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 2
    return data[start : data.index(b"\n", start)].strip()


def _kibibytes(data: bytes, name: bytes) -> int:
    return int((_field(data, name) or b"0").split()[0]) * _KIBIBYTE


def reset_highest(pid: int) -> bool:
    """Let the process's highest resident size (``VmHWM``) count from now; whether it does.

    It does not if the process is gone, is not ours to reset (not dumpable) or holds us up: then an old
    peak hides lower new ones.
    """
    return bool(ASIDE.ask(lambda: _write_if_there(f"/proc/{pid}/clear_refs", "5"), _RESET_SECONDS))


def _write_if_there(path: str, text: str) -> bool:
    try:
        write(path, text)
    except OSError:
        return False
    return True


def process_tree(root: int, limit: int = MAX_PROCESSES) -> Iterator[int]:
    """``root`` and its descendants. Orphans stay in it: a pid namespace's init adopts them.

    At most ``limit`` of them, and the children of as many threads as one walk may look at.
    """
    waiting, threads = [root], 0
    for _ in range(limit):
        if not waiting:
            return
        pid = waiting.pop()
        yield pid
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue  # ended while we looked
        for task in tasks:
            threads += 1
            if threads > MAX_THREADS:
                return
            try:
                waiting += map(int, read(f"/proc/{pid}/task/{task}/children").split())
            except OSError:
                continue  # ended while we looked


class Leaders(NamedTuple):
    """The processes of a sandbox with a role: its supervisor, and the kernel process that runs cells."""

    supervisor: int | None
    kernel: int


def find_leaders(root: int, pids: Iterable[int], supervisor: int | None = None) -> Leaders | None:
    """The kernel process is the supervisor's first child, in the order of pids inside.

    Sleeping checkpoints come after others: a kernel process that took over is younger than an older
    checkpoint of its predecessor. Without a pid namespace it is ``root`` itself, or a child of
    ``supervisor``; that is then none with a file system of its own.
    """
    statuses = {pid: status for pid in pids if (status := read_status(pid)) is not None}
    if root not in statuses:
        return None
    # As deep as this process itself: bwrap is, but not the first process of a container.
    own = read_status(os.getpid())
    outside = 1 if own is None else own.nesting
    first = next(
        (pid for pid, s in statuses.items() if s.nesting > outside and s.inner_pid == 1), None
    )
    if first is None and supervisor is None:
        return Leaders(None, root)
    children = [
        (is_checkpoint(status), _start(pid), status.inner_pid, pid)
        for pid, status in statuses.items()
        if status.parent == (first or supervisor)
    ]
    return Leaders(first, min(children)[-1]) if children else None


def _start(pid: int) -> int:
    """When it started; pids of the host begin again at some time."""
    found = read_stat(pid)
    return 0 if found is None else found.start


def is_checkpoint(status: Status) -> bool:
    """The kernel process has that name too while it forks one, but has threads."""
    return status.name == _CHECKPOINT and status.threads == 1


class OpenFiles(NamedTuple):
    """What a process has open that is memory: files without a name (``memfd_create``) and pipes.

    By inode, because processes share them: the size of each file, and which pipes.
    """

    memfds: dict[int, int]
    pipes: frozenset[str]


NO_FILES: Final = OpenFiles({}, frozenset())


def open_files(pid: int) -> OpenFiles:
    """All of them: the limit of descriptors (``inner.shares``) bounds the work."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return NO_FILES  # ended, or one that hides its descriptors (not dumpable)
    memfds: dict[int, int] = {}
    pipes = set()
    for name in names:
        path = f"/proc/{pid}/fd/{name}"
        try:
            target = os.readlink(path)
            if target.startswith("/memfd:"):
                file = os.stat(path)
                memfds[file.st_ino] = file.st_blocks * _BLOCK_BYTES
            elif target.startswith("pipe:"):
                pipes.add(target)
        except OSError:
            continue  # closed while we looked
    return OpenFiles(memfds, frozenset(pipes))
