"""How much of a sandbox's memory is a cell's doing.

Not the difference of two totals. Before a cell the kernel process forks a checkpoint, which sleeps and
shares all memory. What the kernel process then merely writes to is copied, and the total grows by up
to the size of the variables that were there. The resident sizes of the two do not change by that, so
growth is what each process has gained. Only processes that a cell forks need a closer look: what they
have resident includes what they inherit.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sandbox_kernel.limits.proc import (
    Status,
    anon_bytes,
    is_checkpoint,
    read_stat,
    read_status,
)
from sandbox_kernel.limits.reading import Baseline, Snapshot

# What may be made while a cell is measured: one before it runs and one after it has ended. More of
# that kind are a cell's own.
_CHECKPOINTS: Final = 2


class Processes(NamedTuple):
    """The processes of a sandbox during a cell.

    Those that were there; those that were started, with programs of their own; those that are forks
    and run their parent's program; and checkpoints, which are the kernel's.
    """

    old: set[int]
    started: set[int]
    forked: set[int]
    checkpoints: set[int]

    @property
    def added(self) -> int:
        return len(self.started) + len(self.forked)


def sort_processes(baseline: Baseline, now: Snapshot, kernel_pid: int) -> Processes:
    found = Processes(set(), set(), set(), set())
    for pid in now.anon:
        stat = now.stats.get(pid)
        # A pid may be another process's by now.
        if pid in baseline.snapshot.anon and (stat is None or stat.start <= baseline.ticks):
            found.old.add(pid)
            continue
        if stat is None:
            stat = read_stat(pid)
            if stat is None or not stat.forked:
                # It runs its own program only since, or has ended: what it had was its parent's.
                now.anon[pid] = anon_bytes(pid)
        if stat is None or not stat.forked:
            found.started.add(pid)
            continue
        status = now.statuses.get(pid) or read_status(pid)
        if (
            len(found.checkpoints) < _CHECKPOINTS
            and status is not None
            and status.parent == kernel_pid
            and is_checkpoint(status)
        ):
            found.checkpoints.add(pid)
        else:
            found.forked.add(pid)
    return found


def heritage_bytes(baseline: Baseline, kernel: Status | None) -> int:
    """How much anonymous memory a fork of the kernel process may have from it."""
    return max(status.anon if status is not None else 0 for status in (baseline.kernel, kernel))


def gained_bytes(
    baseline: Baseline, now: Snapshot, processes: Processes, heritage_bytes: int
) -> int:
    """Anonymous memory gained by all but forks: it is theirs for certain.

    A process that has ended has not shrunk. A checkpoint has its heritage only; if more, it is none.
    """
    before = baseline.snapshot.anon
    gained = sum(now.anon[pid] - before[pid] for pid in processes.old)
    gained += sum(now.anon[pid] for pid in processes.started)
    return gained + sum(max(0, now.anon[pid] - heritage_bytes) for pid in processes.checkpoints)


def highest_growth(before: Status, now: Status) -> int:
    """By how much the kernel process was larger at some moment than at the baseline.

    Pages of files count in its highest resident size: as many as are mapped now are taken off.
    """
    if now.highest <= before.highest:
        return 0
    files = (now.resident - now.anon) - (before.resident - before.anon)
    return now.highest - before.resident - max(0, files)
