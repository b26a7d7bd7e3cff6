"""What a sandbox uses, for want of a cgroup: sums over its processes in ``/proc``.

Weaker than a cgroup, and bounded work all the same: a cell decides how many processes there are, how
large, and how many files they have open. What cannot be seen: memory of a ``memfd`` that is mapped
nowhere and either on its way between processes or held by one that hides its descriptors, and kernel
objects (``surroundings`` sees both from outside). CPU time of processes that start and end between two
looks and that nobody waits for is an estimate.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from sandbox_kernel.isolation.view import HOME
from sandbox_kernel.limits.cgroup import Memory
from sandbox_kernel.limits.files import start_ticks
from sandbox_kernel.limits.proc import (
    MAX_PROCESSES,
    TICKS_PER_SECOND,
    OpenFiles,
    Rollup,
    Stat,
    Status,
    open_files,
    process_tree,
    read_rollup,
    read_stat,
)
from sandbox_kernel.limits.sockets import SocketList
from sandbox_kernel.log import log

# File systems in memory that the sandbox can write to.
_PLACES: Final = ("tmp", "var/tmp", "dev/shm", HOME.lstrip("/"))
# What the kernel keeps of a file in memory besides its contents: the inode, the name, attributes. tmpfs
# counts attributes as inodes of 1 KiB; inode and name together are a little more than that.
_INODE_BYTES: Final = 1280
# A pipe that is full, by default.
_PIPE_BYTES: Final = 1 << 16
# Costly readings may take this part of the time, and so long at once.
_PART_OF_TIME: Final = 1 / 20
_BUDGET_SECONDS: Final = 0.05
# A process that is seen once and never again stands for so much time at most, and for what has been since the
# last look. Between cells there is a look every so often.
_SAMPLE_SECONDS: Final = 0.5
_SAME_LOOK_SECONDS: Final = 0.01
_MOST_AHEAD_SECONDS: Final = 1.0
_PROCESSORS: Final = os.cpu_count() or 1


class Tree:
    """The processes below ``root``, and the CPU time they have used, which never runs backwards.

    The time of a process that has ended moves to the parent that waits for it. If nobody does (SIGCHLD is
    ignored), it is kept here, and processes so short-lived that each is seen once at most are taken for a
    sample: who was seen at work, once, stands for all of its kind between two looks.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._start = start_ticks(root)
        self._seen: dict[int, Stat] = {}
        self._lost_ticks = 0.0
        self._missing_ticks = 0
        # Which processes stand for others, each for how much time; and when they were seen.
        self._samples: dict[int, float] = {}
        self._sampled_at = time.monotonic()
        # What parents got of processes that nobody had seen: the samples have stood for these too.
        self._ahead_ticks = 0.0

    def look(self) -> dict[int, Stat]:
        """The processes now, parents before their children."""
        stats: dict[int, Stat] = {}
        for pid in process_tree(self._root):
            if (stat := read_stat(pid)) is None:
                continue
            if pid == self._root and stat.start != self._start:
                break  # the sandbox has ended, and its pid is another process's
            stats[pid] = stat
        # The kernel may leave one out of a list of children while another of them ends.
        for pid, before in self._seen.items():
            if pid not in stats and len(stats) < MAX_PROCESSES:
                stat = read_stat(pid)
                if stat is not None and stat.start == before.start:
                    stats[pid] = stat
        self._settle(stats)
        return stats

    def _settle(self, stats: dict[int, Stat]) -> None:
        """See that the time of processes that have ended is not lost.

        What no parent has got by this look may have moved just after the parent was read, so it is
        missing for one look before it is lost.
        """
        moved = ended = 0
        estimated = 0.0
        new = []
        for pid, stat in stats.items():
            before = self._seen.get(pid)
            if before is not None and before.start == stat.start:
                moved += stat.waited_ticks - before.waited_ticks
            else:
                moved += stat.waited_ticks
                new.append(pid)
        for pid, before in self._seen.items():
            if pid not in stats or stats[pid].start != before.start:
                used = before.own_ticks + before.waited_ticks
                ended += used
                estimated += max(0.0, self._samples.pop(pid, 0.0) - used)
        over = moved - ended
        found = min(self._missing_ticks, max(0, over))
        self._lost_ticks += self._missing_ticks - found
        self._missing_ticks = max(0, -over)
        ahead = self._ahead_ticks + max(0, over - found) - estimated
        self._lost_ticks += max(0.0, -ahead)
        self._ahead_ticks = min(max(0.0, ahead), _MOST_AHEAD_SECONDS * TICKS_PER_SECOND)
        self._seen = stats
        self._sample([pid for pid in new if stats[pid].running])

    def _sample(self, pids: list[int]) -> None:
        """Let what is new and at work stand for the time since the last sample, if it is gone by the next."""
        now = time.monotonic()
        since = now - self._sampled_at
        if since < _SAME_LOOK_SECONDS:
            return
        self._sampled_at = now
        ticks = min(since, _SAMPLE_SECONDS) * TICKS_PER_SECOND
        each = ticks * min(1.0, _PROCESSORS / max(1, len(pids)))
        self._samples = dict.fromkeys(pids, each)

    @property
    def cpu_seconds(self) -> float:
        """As of the last look."""
        live = sum(stat.own_ticks + stat.waited_ticks for stat in self._seen.values())
        return (live + self._lost_ticks + self._missing_ticks) / TICKS_PER_SECOND


class _Share(NamedTuple):
    """A process's share, and what it had resident when that was read."""

    rollup: Rollup
    status: Status
    read_at: float

    def now(self, status: Status) -> Rollup:
        more_anon = max(0, status.anon - self.status.anon)
        more_shmem = max(0, status.shmem - self.status.shmem)
        anon, shmem, private = self.rollup
        return Rollup(anon + more_anon, shmem + more_shmem, private + more_anon)


class TreeMemory:
    """Memory of processes: resident sizes are cheap, a process's share of what it has is not.

    A share is read when its process is new, and again as the time allows; in between it grows with
    the resident size.
    """

    def __init__(self) -> None:
        self._open_files = _OpenFilesOfAll()
        self._sockets = _Sockets()
        self._shares: dict[int, _Share] = {}
        self._shares_free_at = 0.0
        # Of the reading under way: shares read before are old if they are due.
        self._began = 0.0
        self._due = False

    def read(
        self, statuses: Mapping[int, Status], supervisor: int | None, *, scan: bool = True
    ) -> Memory:
        """Upper bounds: anonymous memory that several processes share is in it once for each.

        Shared memory is the larger of what files in memory hold and of what is mapped: mapped files
        are in both, so the sum would have them twice.
        """
        self._began = time.monotonic()
        self._due = self._began >= self._shares_free_at
        self._shares = {pid: share for pid, share in self._shares.items() if pid in statuses}
        if scan:
            self._open_files.look(statuses)
            self._sockets.look(supervisor)
        files, inodes = self._open_files.memfd_bytes, 0
        if supervisor is not None:  # else there is no file system apart from the host's
            held = tmpfs_held(f"/proc/{supervisor}/root")
            files, inodes = files + held.bytes, held.inodes * _INODE_BYTES
        mapped = sum(status.shmem for status in statuses.values())
        if mapped > files:
            mapping = {pid: status for pid, status in statuses.items() if status.shmem}
            mapped = sum(share.shmem for share in self._read_shares(mapping))
        return Memory(
            anon=sum(status.anon for status in statuses.values()),
            shmem=max(files, mapped),
            kernel=sum(status.page_tables for status in statuses.values())
            + inodes
            + self._sockets.buffered_bytes
            + self._open_files.pipe_bytes,
        )

    def count_pipes(self, pids: Collection[int]) -> int:
        """How many these processes have open, as of the last time that there was time to look."""
        self._open_files.look(pids)
        return self._open_files.pipes

    def exact(self, statuses: Mapping[int, Status], memory: Memory) -> Memory:
        """``memory``, just read, with what processes share in it once."""
        shares = sum(share.anon for share in self._read_shares(statuses))
        # A process that was forked since has a share too, which is missing from the others.
        largest = max((status.anon for status in statuses.values()), default=0)
        return memory._replace(anon=max(shares, largest))

    def forked_bytes(self, statuses: Mapping[int, Status], heritage_bytes: int) -> int:
        """Anonymous memory of new processes that run their parent's program: what is not inherited.

        A page that n of them share with the kernel process is in their shares n/(n+1) times at most.
        What else they share among themselves is taken for inherited up to that, so that no cell is
        blamed for the variables it found.
        """
        shares = self._read_shares(statuses)
        shared = sum(max(0, share.anon - share.private) for share in shares)
        inherited = min(shared, heritage_bytes * len(shares) // (len(shares) + 1))
        return sum(share.anon for share in shares) - inherited

    def _read_shares(self, statuses: Mapping[int, Status]) -> list[Rollup]:
        began = time.monotonic()  # not CPU time: a process can hold up who reads its share
        for pid in sorted(statuses, key=self._read_at):
            if self._read_at(pid) and not (self._due and self._read_at(pid) < self._began):
                break  # and so are all others
            status = statuses[pid]
            # Not to be read if it is another user's, say: then what is resident must do.
            rollup = read_rollup(pid) or Rollup(status.anon, status.shmem, status.anon)
            self._shares[pid] = _Share(rollup, status, time.monotonic())
            if time.monotonic() - began > _BUDGET_SECONDS:
                break
        spent = time.monotonic() - began
        self._shares_free_at = max(self._shares_free_at, free_again(spent))
        known = {
            pid: self._shares[pid].now(statuses[pid]) for pid in statuses if pid in self._shares
        }
        # Those there was no time for are taken to be like the others.
        resident = sum(statuses[pid].anon for pid in known) or 1
        anon_part = sum(share.anon for share in known.values()) / resident
        private_part = sum(share.private for share in known.values()) / resident
        return list(known.values()) + [
            Rollup(int(status.anon * anon_part), status.shmem, int(status.anon * private_part))
            for pid, status in statuses.items()
            if pid not in known
        ]

    def _read_at(self, pid: int) -> float:
        return self._shares[pid].read_at if pid in self._shares else 0.0


class _OpenFilesOfAll:
    """Files in memory and pipes of all processes. A few are looked through at a time, the oldest first."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[float, OpenFiles]] = {}
        self._free_at = 0.0
        self.memfd_bytes = 0
        self.pipes = 0

    @property
    def pipe_bytes(self) -> int:
        """An upper bound that is far from true only if somebody makes larger ones: the filter refuses."""
        return self.pipes * _PIPE_BYTES

    def look(self, pids: Collection[int]) -> None:
        self._found = {pid: found for pid, found in self._found.items() if pid in pids}
        began = time.monotonic()
        if began >= self._free_at:
            spent_before = time.thread_time()
            for pid in sorted(pids, key=self._looked_at):
                self._found[pid] = (began, open_files(pid))
                if time.thread_time() - spent_before > _BUDGET_SECONDS:
                    break
            self._free_at = free_again(time.thread_time() - spent_before)
        memfds: dict[int, int] = {}
        pipes: set[str] = set()
        for _, found in self._found.values():
            memfds |= found.memfds
            pipes |= found.pipes
        self.memfd_bytes, self.pipes = sum(memfds.values()), len(pipes)

    def _looked_at(self, pid: int) -> float:
        return self._found[pid][0] if pid in self._found else 0.0


class _Sockets:
    """Buffers of the sandbox's sockets; nothing where it has no network namespace of its own."""

    def __init__(self) -> None:
        self._list: SocketList | None = None
        self._supervisor: int | None = None
        self._free_at = 0.0
        self.buffered_bytes = 0

    def look(self, supervisor: int | None) -> None:
        if supervisor is None or time.monotonic() < self._free_at:
            return
        spent = time.thread_time()
        if supervisor != self._supervisor:
            self._supervisor = supervisor
            self._list = _list_sockets(supervisor)
        if self._list is not None:
            try:
                self.buffered_bytes = self._list.buffered_bytes()
            except OSError as error:
                # The machine is short of memory, for example. What was read last holds; an answer that
                # was read in part must not be taken for the next one's.
                log(f"the sandbox's sockets could not be listed, which is tried again: {error}")
                self._supervisor = None
        self._free_at = free_again(time.thread_time() - spent)


def _list_sockets(supervisor: int) -> SocketList | None:
    """``None`` where that is not possible: `surroundings` sees their memory all the same, but later."""
    try:
        if os.stat(f"/proc/{supervisor}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:  # noqa: PTH116
            return None
        return SocketList(supervisor)
    except OSError as error:
        log(f"memory in the sandbox's socket buffers cannot be measured apart: {error}")
        return None


class TmpfsHeld(NamedTuple):
    """What file systems in memory hold."""

    bytes: int
    inodes: int


def tmpfs_held(root: str) -> TmpfsHeld:
    """What those below ``root`` do: its own, which is read-only but for these, is left out."""
    held: dict[int, TmpfsHeld] = {}
    for name in (*_PLACES, "."):
        try:
            device = os.stat(f"{root}/{name}").st_dev  # noqa: PTH116 - see `proc`
            about = os.statvfs(f"{root}/{name}")
        except OSError:
            continue  # not there, or the sandbox has ended
        used = (about.f_blocks - about.f_bfree) * about.f_frsize
        held[device] = TmpfsHeld(used, about.f_files - about.f_ffree)
        if name == ".":
            del held[device]  # no file system of its own then, but perhaps a directory on a disk
    return TmpfsHeld(
        sum(each.bytes for each in held.values()), sum(each.inodes for each in held.values())
    )


def free_again(spent_seconds: float) -> float:
    """When something that has just cost this much CPU time may be done again."""
    return time.monotonic() + spent_seconds / _PART_OF_TIME
