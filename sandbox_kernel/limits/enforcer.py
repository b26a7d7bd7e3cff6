"""The ladder: interrupt, grace, kill and roll back, replace the sandbox.

A cell that reaches a limit is interrupted. If it ends within its grace, what it left running is swept
away and the user keeps everything. If it does not end, or has left threads in the kernel process, that
process is killed and the checkpoint made before the cell takes its place. Only if there is none, the
sandbox is replaced and the variables are lost. The error says which of these it was.

All cells share one sandbox, so what is done to one ends those of other subshells too.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from sandbox_kernel.errors import (
    LIMIT_ERRORS,
    CellInterrupted,
    CellLimitExceeded,
    SandboxError,
    SandboxLost,
)
from sandbox_kernel.limits.files import read
from sandbox_kernel.limits.meter import CellMeter, Meter, Reading
from sandbox_kernel.outputs.receipt import Exceeded, Usage
from sandbox_kernel.policy.model import LIMITS, Limits, Policy
from sandbox_kernel.relay.cells import RunningCell
from sandbox_kernel.relay.loop import Loop, Timer
from sandbox_kernel.relay.settle import Ending
from sandbox_kernel.words import Action, Limit, Outcome, State

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TICK_SECONDS: Final = 0.02
# A look at a large sandbox takes long: it may cost this share of one processor, not more.
TICK_SHARE: Final = 0.05
# One that fills up is looked at sooner: twice at least before it is full, for up to half of the time.
FILLING_SHARE: Final = 0.5
SHORTEST_TICK_SECONDS: Final = 0.002
IDLE_TICK_SECONDS: Final = 1.0
NOTHING_READ: Final = Reading(0.0, 0, 0, 0, 1, 1, 0, complete=True)
# Beyond this much over its limit, memory is taken away without grace: the host's own is at stake.
MEMORY_WITHOUT_GRACE: Final = 1.5
# More than all honest output of a moment takes in the wrapper.
OWN_GROWTH_BYTES: Final = 128 << 20
# A second interrupt this long after the first one means it.
INSIST_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint has taken over: the state is the one after cell ``label``."""

    label: int
    not_restored: tuple[str, ...]


class Ladder(Protocol):
    """What can be done to a sandbox, step by step."""

    def meter(self) -> Meter | None: ...
    def interrupt(self) -> None: ...
    def sweep(self, since_ticks: int, done: Callable[[], None]) -> None: ...
    def forget(self) -> None: ...
    def roll_back(
        self, to: int | Literal["previous"], done: Callable[[Restored | None], None]
    ) -> None: ...


class Concluding(Protocol):
    """Who is told how a cell ended."""

    def conclude(self, cell: RunningCell, ending: Ending) -> None: ...
    def notice(self, text: str) -> None: ...


class Stopwatch:
    """Seconds since it was made, but for pauses."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        self._since: float | None = time.monotonic()

    def pause(self) -> None:
        self._elapsed, self._since = self.seconds, None

    def resume(self) -> None:
        if self._since is None:
            self._since = time.monotonic()

    @property
    def running(self) -> bool:
        return self._since is not None

    @property
    def seconds(self) -> float:
        return self._elapsed + (0.0 if self._since is None else time.monotonic() - self._since)


@dataclass(frozen=True, slots=True)
class Excess:
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
    clock: Stopwatch
    oom_kills: int  # before it
    excess: Excess | None = None
    # Whether it was interrupted and given time.
    graced: bool = False
    interrupted_at: float | None = None
    # Being swept or rolled back: nothing more is decided about it.
    ending: bool = False

    # When it was last looked at, the processor time that took, and when a memory limit is reached if
    # it goes on like this.
    looked_at: float = field(default_factory=time.monotonic)
    look_seconds: float = 0.0
    full_at: float = math.inf

    def look(self) -> None:
        before, then, spent = self.reading, self.looked_at, time.thread_time()
        self.reading, self.looked_at = self.meter.sample(), time.monotonic()
        self.look_seconds = time.thread_time() - spent
        seconds = self.looked_at - then
        self.full_at = self.looked_at + min(
            _until_full(allowed, used, (used - used_before) / seconds)
            for allowed, used, used_before in (
                (self.limits.memory_bytes, self.reading.growth_bytes, before.growth_bytes),
                (self.limits.sandbox_memory_bytes, self.reading.memory_bytes, before.memory_bytes),
            )
        )

    def next_look(self) -> float:
        """In how many seconds it is to be looked at again."""
        until = max(TICK_SECONDS, self.look_seconds / TICK_SHARE)
        if self.limits.wall_seconds is not None and self.clock.running:
            until = min(until, self.limits.wall_seconds - self.clock.seconds)
        until = min(until, (self.full_at - time.monotonic()) / 2)
        return max(until, SHORTEST_TICK_SECONDS, self.look_seconds / FILLING_SHARE)

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


class Enforcer:
    """Watches the cells in flight and the sandbox between them. Runs in the loop's thread only."""

    def __init__(self, loop: Loop, policy: Policy, ladder: Ladder, concluding: Concluding) -> None:
        self._loop = loop
        self._policy = policy
        self._ladder = ladder
        self._concluding = concluding
        self._watches: dict[str, Watch] = {}
        # The last cell whose effects are in the state.
        self._finished = 0
        self._spent_wall = 0.0
        self._spent_cpu = 0.0
        self._own_memory_bytes = own_memory_bytes()
        self._insisted = False
        self._forgot = False
        self._rolling_back = False
        self._how_it_died = ""
        self._timer: Timer | None = None

    # -- told by the router ------------------------------------------------------------------------

    @property
    def watching(self) -> bool:
        return bool(self._watches)

    def check_budget(self) -> None:
        """Raise the error of a cell that comes when the notebook's budget is used up."""
        for limit, allowed, used in self._budgets(0.0, 0.0):
            if used >= allowed:
                raise LIMIT_ERRORS[limit](
                    limit,
                    allowed=allowed,
                    used=used,
                    action="refused",
                    state="kept",
                    policy=self._policy.name,
                )

    def begin(self, cell: RunningCell, limits: Limits) -> None:
        meter = self._ladder.meter()
        assert meter is not None
        if not self._watches:
            self._own_memory_bytes = own_memory_bytes()
        cell_meter = CellMeter(meter, limits.sandbox_memory_bytes)
        total = cell_meter.baseline.snapshot.memory.total
        self._watches[cell.request.msg_id] = Watch(
            cell,
            limits,
            cell_meter,
            replace(NOTHING_READ, memory_bytes=total),
            meter.source,
            Stopwatch(),
            meter.oom_kills(),
        )
        self._forgot = False
        self._schedule()

    def pause(self, cell: RunningCell) -> None:
        """The cell waits for the user: that time is not its own."""
        if watch := self._watches.get(cell.request.msg_id):
            watch.clock.pause()

    def resume(self) -> None:
        for watch in self._watches.values():
            watch.clock.resume()
        self._schedule()

    def output(self, cell: RunningCell, limits: Limits) -> bool:
        """Whether the cell may still show what it has just sent; if not, it is stopped."""
        watch = self._watches.get(cell.request.msg_id)
        if watch is None or watch.ending:
            return watch is None
        shown: tuple[tuple[Limit, int | None, int], ...] = (
            ("output", limits.output_bytes, cell.output_bytes),
            ("text", limits.text_bytes, cell.text_bytes),
            ("messages", limits.messages, cell.messages),
        )
        for limit, allowed, used in shown:
            if allowed is not None and used > allowed:
                if watch.excess is None:
                    self._exceed(watch, Excess(limit, allowed, used))
                return False
        return True

    def stopped(self, cell: RunningCell) -> bool:
        """Whether the cell is being stopped: the error it shows then is not its own."""
        watch = self._watches.get(cell.request.msg_id)
        return watch is not None and watch.excess is not None

    def insist(self) -> None:
        """The user has interrupted. The second time, what does not stop is killed."""
        now = time.monotonic()
        for watch in self._watches.values():
            if watch.interrupted_at is None:
                watch.interrupted_at = now
            elif now - watch.interrupted_at > INSIST_SECONDS and not watch.ending:
                self._insisted = True
                self._roll_back()
                return

    def over(self, cell: RunningCell) -> None:
        """The cell's reply and idle are here."""
        watch = self._watches.get(cell.request.msg_id)
        if watch is None or watch.ending:
            return
        watch.look()
        if watch.excess is None:
            watch.excess = self._memory_excess(watch)
            if watch.excess is not None:
                # It was faster than any look at it, and has the memory still.
                self._roll_back()
                return
        if watch.excess is None:
            self._conclude(watch, Ending(watch.usage()))
        elif watch.reading.kernel_threads_added > 0:
            # Threads cannot be ended from outside, and may go on with what was stopped.
            self._roll_back()
        else:
            watch.ending = True
            watch.clock.pause()
            self._ladder.sweep(watch.meter.baseline.ticks, lambda: self._conclude_kept(watch))

    # -- told by the lifecycle ---------------------------------------------------------------------

    def went_back(self, restored: Restored) -> None:
        """The state is that of an earlier cell, because the user wanted it so."""
        self._finished = restored.label

    def died(self, how: str) -> None:
        """The kernel process has ended by itself: go back to the state before the cell."""
        self._how_it_died = how
        meter = self._ladder.meter()
        for watch in self._watches.values():
            allowed = watch.limits.sandbox_memory_bytes
            if meter is None or allowed is None or meter.oom_kills() <= watch.oom_kills:
                continue
            if watch.excess is None:
                used = max(allowed, watch.reading.memory_bytes)
                watch.excess = Excess("sandbox_memory", allowed, used)
        self._roll_back()

    def lost(self, how: str) -> None:
        """The whole sandbox has ended, and the state with it."""
        self._how_it_died = how
        self._restored(None)

    # -- the clockwork -----------------------------------------------------------------------------

    def watch_idle(self) -> None:
        """Begin to look at the sandbox between cells: callbacks and threads of old ones run then."""
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._until_next_tick(), self._tick)

    def _until_next_tick(self) -> float:
        return min((w.next_look() for w in self._watches.values()), default=IDLE_TICK_SECONDS)

    def _tick(self) -> None:
        self._timer = None
        if self._watches and self._is_swamped():
            self._hang_up()
        elif self._watches:
            for watch in list(self._watches.values()):
                if not watch.ending:
                    self._look_at(watch)
        elif not self._rolling_back:
            self._look_at_idle()
        self._schedule()

    def _is_swamped(self) -> bool:
        """Whether the wrapper itself grows: libzmq keeps a message's parts until the last has come."""
        return own_memory_bytes() > self._own_memory_bytes + OWN_GROWTH_BYTES

    def _hang_up(self) -> None:
        """Close the connections that swamp the wrapper; with them goes the kernel process."""
        for watch in self._watches.values():
            if watch.excess is None:
                allowed = watch.limits.output_bytes
                used = own_memory_bytes() - self._own_memory_bytes
                watch.excess = Excess(
                    "output", OWN_GROWTH_BYTES if allowed is None else allowed, used
                )
        self._roll_back()

    def _look_at(self, watch: Watch) -> None:
        watch.look()
        if watch.excess is None:
            excess = self._excess(watch)
            if excess is not None:
                self._exceed(watch, excess)
            return
        assert watch.interrupted_at is not None
        grace_is_over = time.monotonic() >= watch.interrupted_at + watch.limits.grace_seconds
        if grace_is_over or self._is_dangerous(watch):
            self._roll_back()

    def _look_at_idle(self) -> None:
        meter = self._ladder.meter()
        allowed = self._policy.limits.sandbox_memory_bytes
        if meter is None or allowed is None:
            return
        used = meter.memory_bytes(allowed)
        if used > allowed and not self._forget():
            self._how_it_died = "what earlier cells left running took too much memory"
            self._roll_back()

    def _excess(self, watch: Watch) -> Excess | None:
        if (excess := self._memory_excess(watch)) is not None:
            return excess
        limits, wall, cpu = watch.limits, watch.clock.seconds, watch.reading.cpu_seconds
        if limits.wall_seconds is not None and wall >= limits.wall_seconds:
            return Excess("wall", limits.wall_seconds, wall)
        if limits.cpu_seconds is not None and cpu >= limits.cpu_seconds:
            return Excess("cpu", limits.cpu_seconds, cpu)
        for limit, allowed, spent in self._budgets(wall, cpu):
            if spent >= allowed:
                return Excess(limit, allowed, spent)
        return None

    def _memory_excess(self, watch: Watch) -> Excess | None:
        limits, reading = watch.limits, watch.reading
        if limits.sandbox_memory_bytes is not None:
            used = reading.memory_bytes
            if used > limits.sandbox_memory_bytes and not self._forget():
                return Excess("sandbox_memory", limits.sandbox_memory_bytes, used)
        if limits.memory_bytes is not None and reading.growth_bytes > limits.memory_bytes:
            return Excess("memory", limits.memory_bytes, reading.growth_bytes)
        return None

    def _budgets(self, wall: float, cpu: float) -> Iterator[tuple[Limit, float, float]]:
        budget = self._policy.budget
        if budget.wall_seconds is not None:
            yield "budget_wall", budget.wall_seconds, self._spent_wall + wall
        if budget.cpu_seconds is not None:
            yield "budget_cpu", budget.cpu_seconds, self._spent_cpu + cpu

    def _forget(self) -> bool:
        """Give the memory of the checkpoint for undo back; whether that was still to be had."""
        if self._forgot:
            return False
        self._forgot = True
        self._ladder.forget()
        return True

    @staticmethod
    def _is_dangerous(watch: Watch) -> bool:
        limits, reading = watch.limits, watch.reading
        return (
            limits.sandbox_memory_bytes is not None
            and reading.memory_bytes > limits.sandbox_memory_bytes
        ) or (
            limits.memory_bytes is not None
            and reading.growth_bytes > limits.memory_bytes * MEMORY_WITHOUT_GRACE
        )

    # -- the steps ---------------------------------------------------------------------------------

    def _exceed(self, watch: Watch, excess: Excess) -> None:
        watch.excess = excess
        watch.interrupted_at = time.monotonic()
        # A cell that waits for the user is over its limit for another reason.
        watch.clock.resume()
        # An interrupt reaches the main thread only: that of a subshell would hit another cell.
        if self._is_dangerous(watch) or watch.cell.request.lane_id is not None:
            self._roll_back()
        else:
            watch.graced = True
            self._ladder.interrupt()

    def _roll_back(self) -> None:
        if self._rolling_back:
            return
        self._rolling_back = True
        for watch in self._watches.values():
            watch.ending = True
            watch.look()
            watch.clock.pause()
        # Not to a later state: a cell may have ended before it was killed, and is said to be undone.
        self._ladder.roll_back(self._finished, self._restored)

    def _restored(self, restored: Restored | None) -> None:
        self._rolling_back = False
        state: State = "lost" if restored is None else "rolled_back"
        not_restored = () if restored is None else restored.not_restored
        if restored is not None:
            if restored.label != self._finished:
                not_restored = (*not_restored, "what cells that ended meanwhile changed")
            self._finished = restored.label
        how = self._how_it_died or "another cell, which ran beside it, had to be stopped"
        self._how_it_died = ""
        insisted, self._insisted = self._insisted, False
        if not self._watches:
            self._concluding.notice(str(sandbox_lost(how, state, not_restored)))
        for watch in list(self._watches.values()):
            error: SandboxError
            outcome: Outcome
            exceeded = None
            if watch.excess is not None:
                action: Action = "replaced" if restored is None else "rolled_back"
                over, exceeded = self._limit_error(watch, action, state, not_restored)
                error, outcome = over, over.outcome
            elif insisted:
                error, outcome = CellInterrupted(state, not_restored), "interrupted"
            else:
                error, outcome = sandbox_lost(how, state, not_restored), "lost"
            ending = Ending(watch.usage(), state, error, outcome, exceeded, not_restored)
            self._conclude(watch, ending)

    def _conclude_kept(self, watch: Watch) -> None:
        if watch.cell.request.msg_id not in self._watches:
            return  # the sandbox was lost meanwhile
        error, exceeded = self._limit_error(watch, "interrupted", "kept", ())
        self._conclude(
            watch,
            Ending(watch.usage(), "kept", error, outcome=error.outcome, exceeded=exceeded),
        )

    def _conclude(self, watch: Watch, ending: Ending) -> None:
        del self._watches[watch.cell.request.msg_id]
        if ending.state == "kept":
            self._finished = max(self._finished, watch.cell.serial)
        elif ending.state == "lost":
            self._finished = 0
        self._spent_wall += ending.usage.wall_seconds
        self._spent_cpu += ending.usage.cpu_seconds
        self._concluding.conclude(watch.cell, ending)

    def _limit_error(
        self, watch: Watch, action: Action, state: State, not_restored: tuple[str, ...]
    ) -> tuple[CellLimitExceeded, Exceeded]:
        excess = watch.excess
        assert excess is not None
        error = LIMIT_ERRORS[excess.limit](
            excess.limit,
            allowed=excess.allowed,
            used=excess.used,
            action=action,
            state=state,
            not_restored=not_restored,
            grace_seconds=watch.limits.grace_seconds if watch.graced else 0.0,
            policy=self._policy.name,
            own=excess.limit in LIMITS and watch.limits.tightens(self._policy.limits, excess.limit),
        )
        return error, Exceeded(excess.limit, excess.allowed, excess.used, action)


def _until_full(allowed: int | None, used: int, rate: float) -> float:
    """Seconds until all that is allowed is used, at this rate."""
    return math.inf if allowed is None or rate <= 0 else max(0, allowed - used) / rate


def sandbox_lost(how: str, state: State, not_restored: tuple[str, ...]) -> SandboxLost:
    """The error of a cell whose process or sandbox has ended under it."""
    if state == "lost":
        return SandboxLost(
            f"The sandbox ended ({how}), and the variables of this notebook are gone.",
            hint="A new sandbox has been started: run the earlier cells again.",
        )
    lacking = f" (not restored: {', '.join(not_restored)})" if not_restored else ""
    return SandboxLost(
        f"The cell's process ended ({how}). The kernel went back to the state before the cell: all "
        f"variables of earlier cells are kept, what this cell changed is undone{lacking}.",
        hint="Mend the cell and run it again.",
    )


def own_memory_bytes() -> int:
    """The wrapper's own resident memory."""
    return int(read("/proc/self/statm").split()[1]) * PAGE_BYTES
