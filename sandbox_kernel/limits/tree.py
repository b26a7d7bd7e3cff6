"""What a sandbox uses, for want of a cgroup: sums over its processes in ``/proc``.

Weaker than a cgroup, and bounded work all the same: a cell decides how many processes there are, how
large, and how many files they have open. What cannot be seen: memory of a ``memfd`` that is mapped
nowhere and either on its way between processes or held by one that hides its descriptors; CPU time
of a process that started and ended between two looks and that nobody waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from sandbox_kernel.isolation.view import HOME
from sandbox_kernel.limits.cgroup import Memory
from sandbox_kernel.limits.files import start_ticks
from sandbox_kernel.limits.proc import (
    MAX_PROCESSES,
    TICKS_PER_SECOND,
    Rollup,
    Stat,
    Status,
    memfd_bytes,
    process_tree,
    read_rollup,
    read_stat,
)

# File systems in memory that the sandbox can write to.
_PLACES: Final = ("tmp", "dev/shm", HOME.lstrip("/"))
# Costly readings may take this part of the time, and so long at once.
_PART_OF_TIME: Final = 1 / 20
_BUDGET_SECONDS: Final = 0.05


class Tree:
    """The processes below ``root``, and the CPU time they have used, which never runs backwards."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._start = start_ticks(root)
        self._seen: dict[int, Stat] = {}
        self._lost_ticks = 0
        self._missing_ticks = 0

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

        It moves to the parent that waits for them; if nobody does (SIGCHLD is ignored), it is kept
        here. What no parent has got by this look may have moved just after the parent was read, so
        it is missing for one look before it is lost.
        """
        moved = ended = 0
        for pid, stat in stats.items():
            before = self._seen.get(pid)
            same = before is not None and before.start == stat.start
            moved += stat.waited_ticks - (before.waited_ticks if before is not None and same else 0)
        for pid, before in self._seen.items():
            if pid not in stats or stats[pid].start != before.start:
                ended += before.own_ticks + before.waited_ticks
        self._lost_ticks += self._missing_ticks - min(self._missing_ticks, max(0, moved - ended))
        self._missing_ticks = max(0, ended - moved)
        self._seen = stats

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
        self._memfd_bytes = 0
        self._memfd_free_at = 0.0
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
        if scan and self._began >= self._memfd_free_at:
            spent = time.thread_time()
            self._memfd_bytes = memfd_bytes(statuses)
            self._memfd_free_at = _free_again(time.thread_time() - spent)
        files = self._memfd_bytes
        if supervisor is not None:  # else there is no file system apart from the host's
            files += _tmpfs_bytes(f"/proc/{supervisor}/root")
        mapped = sum(status.shmem for status in statuses.values())
        if mapped > files:
            mapping = {pid: status for pid, status in statuses.items() if status.shmem}
            mapped = sum(share.shmem for share in self._read_shares(mapping))
        return Memory(
            anon=sum(status.anon for status in statuses.values()),
            shmem=max(files, mapped),
            kernel=sum(status.page_tables for status in statuses.values()),
        )

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
        spent_before = time.thread_time()
        for pid in sorted(statuses, key=self._read_at):
            if self._read_at(pid) and not (self._due and self._read_at(pid) < self._began):
                break  # and so are all others
            status = statuses[pid]
            # Not to be read if it is another user's, say: then what is resident must do.
            rollup = read_rollup(pid) or Rollup(status.anon, status.shmem, status.anon)
            self._shares[pid] = _Share(rollup, status, time.monotonic())
            if time.thread_time() - spent_before > _BUDGET_SECONDS:
                break
        spent = time.thread_time() - spent_before
        self._shares_free_at = max(self._shares_free_at, _free_again(spent))
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


def _tmpfs_bytes(root: str) -> int:
    """What the file systems in memory below ``root`` hold."""
    used: dict[int, int] = {}
    for name in (*_PLACES, "."):
        try:
            device = os.stat(f"{root}/{name}").st_dev  # noqa: PTH116 - see `proc`
            about = os.statvfs(f"{root}/{name}")
        except OSError:
            continue  # not there, or the sandbox has ended
        used[device] = (about.f_blocks - about.f_bfree) * about.f_frsize
        if name == ".":
            del used[device]  # no file system of its own then, but perhaps a directory on a disk
    return sum(used.values())


def _free_again(spent_seconds: float) -> float:
    """When something that has just cost this much CPU time may be done again."""
    return time.monotonic() + spent_seconds / _PART_OF_TIME
