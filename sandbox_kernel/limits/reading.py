"""What a meter gives: a sandbox at one moment, and what a cell in it has used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sandbox_kernel.limits.cgroup import Memory
from sandbox_kernel.limits.proc import Stat, Status, is_checkpoint


class Snapshot(NamedTuple):
    """A sandbox's memory, and the anonymous part of it that each process has resident.

    ``stats`` and ``statuses`` are there if it was read from ``/proc``.
    """

    memory: Memory
    anon: dict[int, int]
    stats: dict[int, Stat]
    statuses: dict[int, Status]
    complete: bool

    @property
    def estimate_bytes(self) -> int:
        """The whole sandbox. From ``/proc`` an estimate: checkpoints share all they have."""
        checkpoints = filter(is_checkpoint, self.statuses.values())
        return self.memory.total - sum(status.anon for status in checkpoints)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A sandbox at the start of a cell. ``ticks``: when, as the kernel dates processes."""

    ticks: int
    cpu_seconds: float
    snapshot: Snapshot
    kernel_pid: int
    kernel: Status | None
    kernel_threads: frozenset[str] = frozenset()
    unseen_bytes: int = 0
    pipes: int = 0
    terminals: int = 0

    @property
    def memory_bytes(self) -> int:
        """The whole sandbox, by an estimate."""
        return self.snapshot.estimate_bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """What a cell has used since its baseline, and the sandbox now.

    ``cpu_seconds``           since the baseline, children included
    ``background_seconds``    not in it: that of what earlier cells have left at work
    ``memory_bytes``          the whole sandbox; page cache does not count
    ``growth_bytes``          what the cell has added to it; may be negative
    ``growth_peak``           the most that is known of it, between readings too
    ``processes``             the kernel process and those added since the baseline
    ``tasks``                 processes and threads of the whole sandbox; 0: it has ended
    ``kernel_threads_added``  threads of the kernel process that were not there at the baseline
    ``complete``              false if there were too many processes to look at all of them: then
                              numbers are at least this, and growth may include copies
    ``unseen_bytes``          memory that grew around the sandbox and that nothing else explains; not in
                              the others
    ``pipes``                 of the whole sandbox; 0 where nobody else's count is at stake
    ``terminals``             of the whole sandbox, where they can be seen
    """

    cpu_seconds: float
    memory_bytes: int
    growth_bytes: int
    growth_peak: int
    processes: int
    tasks: int
    kernel_threads_added: int
    complete: bool
    unseen_bytes: int = 0
    pipes: int = 0
    terminals: int = 0
    background_seconds: float = 0.0
