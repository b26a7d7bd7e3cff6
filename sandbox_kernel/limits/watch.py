"""One cell that is being watched: what it has used, which limit it has reached, when to look again."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from sandbox_kernel.limits.clock import Clock
from sandbox_kernel.limits.meter import CellMeter, Meter, Reading
from sandbox_kernel.limits.shortage import MARGIN_PART, RELIEF_SECONDS
from sandbox_kernel.outputs.receipt import Usage
from sandbox_kernel.policy.model import Limits
from sandbox_kernel.relay.cells import RunningCell
from sandbox_kernel.words import Limit

TICK_SECONDS: Final = 0.02
# A look at a large sandbox takes long: it may cost this share of one processor, not more.
TICK_SHARE: Final = 0.05
# One that fills up is looked at sooner: twice at least before it is full, for up to half of the time.
FILLING_SHARE: Final = 0.5
SHORTEST_TICK_SECONDS: Final = 0.002
NOTHING_READ: Final = Reading(0.0, 0, 0, 0, 1, 1, 0, complete=True)
# Linux counts pipes per user, and those that the user makes beyond 1,024 are smaller: a sandbox has half.
MOST_PIPES: Final = 512
# The machine has 3,072 for all sandboxes, and `!command` needs one.
MOST_TERMINALS: Final = 256
# Beyond this much over its limit, memory is taken away without grace: the host's own is at stake.
MEMORY_WITHOUT_GRACE: Final = 1.5


class Excess(NamedTuple):
    """A limit that was reached."""

    limit: Limit
    allowed: float
    used: float


@dataclass(slots=True)
class Watch:
    """One cell that is being watched."""

    cell: RunningCell
    limits: Limits
    meter: CellMeter
    reading: Reading
    source: str
    oom_kills: int  # before it
    began: float  # by the monotonic clock
    clock: Clock = field(default_factory=Clock)
    excess: Excess | None = None
    interrupted_at: float | None = None
    # Why it was killed though it was interrupted: its grace was over, it has left threads, or its
    # process has not answered any more. Else it was not given time.
    outlasted_grace: bool = False
    threads_left: int = 0
    fell_silent: bool = False
    # Whether the sandbox had too much memory before it, which it may free.
    began_over: bool = False
    # When memory was given up for it, and until when that may be on its way back.
    relieved_at: float = -math.inf
    relief_until: float = -math.inf
    # Being swept or rolled back: nothing more is decided about it.
    ending: bool = False

    # When it was last looked at, the processor time that took, and when a memory limit is reached if
    # it goes on like this.
    looked_at: float = field(default_factory=time.monotonic)
    look_seconds: float = 0.0
    full_at: float = math.inf
    # When it was looked at because it has said that it is over.
    last_look_at: float = -math.inf

    @classmethod
    def begin(cls, cell: RunningCell, limits: Limits, meter: Meter) -> Watch:
        cell_meter = CellMeter(meter, limits.sandbox_memory_bytes)
        total = cell_meter.baseline.snapshot.memory.total
        reading = replace(NOTHING_READ, memory_bytes=total)
        began, oom_kills = time.monotonic(), meter.oom_kills()
        return cls(cell, limits, cell_meter, reading, meter.source, oom_kills, began)

    def look(self) -> None:
        before, then, spent = self.reading, self.looked_at, time.thread_time()
        self.reading, self.looked_at = self.meter.sample(), time.monotonic()
        self.clock.cpu_seconds = self.reading.cpu_seconds
        self.look_seconds = time.thread_time() - spent
        seconds = self.looked_at - then
        self.full_at = self.looked_at + min(
            _until_full(allowed, used, (used - used_before) / seconds)
            for allowed, used, used_before in (
                (
                    self.limits.memory_bytes,
                    self._taken,
                    max(0, before.growth_bytes) + before.unseen_bytes,
                ),
                (self._sandbox_ceiling, self.reading.memory_bytes, before.memory_bytes),
            )
        )

    def next_look(self) -> float:
        """In how many seconds it is to be looked at again."""
        until = max(TICK_SECONDS, self.look_seconds / TICK_SHARE)
        if self.limits.wall_seconds is not None and self.clock.running:
            until = min(until, self.limits.wall_seconds - self.clock.seconds)
        until = min(until, (self.full_at - time.monotonic()) / 2)
        return max(until, SHORTEST_TICK_SECONDS, self.look_seconds / FILLING_SHARE)

    # -- what it has reached, as it was last looked at ---------------------------------------------

    def time_excess(self) -> Excess | None:
        limits, wall, cpu = self.limits, self.clock.seconds, self.reading.cpu_seconds
        if limits.wall_seconds is not None and wall >= limits.wall_seconds:
            return Excess("wall", limits.wall_seconds, wall)
        if limits.cpu_seconds is not None and cpu >= limits.cpu_seconds:
            return Excess("cpu", limits.cpu_seconds, cpu)
        return None

    def processes_excess(self) -> Excess | None:
        """Of one that got around the limit inside, which makes starting one more fail."""
        hard, tasks = self.limits.hard_tasks, self.reading.tasks
        # A second kernel has threads of its own, and holds its own limits.
        if hard is None or tasks <= hard or self.meter.baseline.kernel is None:
            return None
        assert self.limits.processes is not None
        return Excess("processes", self.limits.processes, tasks)

    def sandbox_memory_excess(self) -> Excess | None:
        allowed, used = self.limits.sandbox_memory_bytes, self.reading.memory_bytes
        if allowed is None or (
            # What it has found there is not its doing: what counts is what it adds.
            self.began_over and self.reading.growth_bytes <= allowed // MARGIN_PART
        ):
            return None
        if self._awaits_relief and used <= allowed + allowed // MARGIN_PART:
            return None
        return _beyond("sandbox_memory", allowed, used)

    def relieve(self) -> None:
        """Memory was given up for it, which takes a moment to come back."""
        self.relieved_at = time.monotonic()
        self.relief_until = self.relieved_at + RELIEF_SECONDS

    @property
    def _awaits_relief(self) -> bool:
        return time.monotonic() < self.relief_until or not self.meter.covers(self.relieved_at)

    @property
    def _sandbox_ceiling(self) -> int | None:
        """At how much memory of the sandbox something is decided."""
        allowed = self.limits.sandbox_memory_bytes
        if allowed is not None and (self.began_over or self._awaits_relief):
            return allowed + allowed // MARGIN_PART
        return allowed

    def memory_excess(self) -> Excess | None:
        return _beyond("memory", self.limits.memory_bytes, self._taken)

    def pipes_excess(self) -> Excess | None:
        """Of one that makes them. One that finds too many may be there to close some."""
        if self.reading.pipes <= self.meter.baseline.pipes:
            return None
        return _beyond("pipes", MOST_PIPES, self.reading.pipes)

    def terminals_excess(self) -> Excess | None:
        """The same of terminals."""
        if self.reading.terminals <= self.meter.baseline.terminals:
            return None
        return _beyond("terminals", MOST_TERMINALS, self.reading.terminals)

    @property
    def _taken(self) -> int:
        """What the cell has added, seen and unseen."""
        return max(0, self.reading.growth_bytes) + self.reading.unseen_bytes

    def unseen_reason(self) -> int:
        """How much that no process shows is why it has reached a memory limit; 0 if it is not."""
        excess, unseen = self.excess, self.reading.unseen_bytes
        if excess is None or excess.limit not in ("memory", "sandbox_memory"):
            return 0
        return unseen if excess.used - unseen <= excess.allowed else 0

    def output_excess(self) -> Excess | None:
        limits, cell = self.limits, self.cell
        return (
            _beyond("output", limits.output_bytes, cell.output_bytes)
            or _beyond("text", limits.text_bytes, cell.text_bytes)
            or _beyond("messages", limits.messages, cell.messages)
        )

    @property
    def dangerous(self) -> bool:
        """Whether it has so much memory that it must be stopped without grace."""
        allowed, used = self.limits.memory_bytes, self._taken
        far_beyond = allowed is not None and used > allowed * MEMORY_WITHOUT_GRACE
        return far_beyond or self.sandbox_memory_excess() is not None

    @property
    def grace_is_over(self) -> bool:
        assert self.interrupted_at is not None
        return time.monotonic() >= self.interrupted_at + self.limits.grace_seconds

    def usage(self) -> Usage:
        return Usage(
            wall_seconds=self.clock.seconds,
            cpu_seconds=self.meter.cpu_seconds,
            memory_peak_bytes=self.meter.baseline.memory_bytes + self.meter.memory_peak_bytes,
            memory_delta_bytes=self.meter.memory_delta_bytes,
            processes_peak=self.meter.processes_peak,
            output_bytes=self.cell.shown_bytes,
            source=self.source,
        )


def _beyond(limit: Limit, allowed: int | None, used: int) -> Excess | None:
    return None if allowed is None or used <= allowed else Excess(limit, allowed, used)


def _until_full(allowed: int | None, used: int, rate: float) -> float:
    """Seconds until all that is allowed is used, at this rate."""
    return math.inf if allowed is None or rate <= 0 else max(0, allowed - used) / rate
