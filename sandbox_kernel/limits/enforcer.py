"""The ladder: interrupt, grace, kill and roll back, replace the sandbox.

A cell that reaches a limit is interrupted. If it ends within its grace, what it left running is swept
away and the user keeps everything. If it does not end, or has left threads in the kernel process, that
process is killed and the checkpoint made before the cell takes its place. Only if there is none, the
sandbox is replaced and the variables are lost. The error says which of these it was.

All cells share one sandbox, so what is done to one ends those of other subshells too.

What is sent in while something else runs waits in line, there as here: its limits count from its turn on.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Final

from sandbox_kernel.limits import endings
from sandbox_kernel.limits.background import Background
from sandbox_kernel.limits.budget import Spending
from sandbox_kernel.limits.endings import Fate
from sandbox_kernel.limits.ladder import Concluding, Ladder, Restored
from sandbox_kernel.limits.line import Line, Waiting
from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.limits.proc import ticks_now
from sandbox_kernel.limits.shortage import Shortage
from sandbox_kernel.limits.watch import Excess, Watch
from sandbox_kernel.policy.model import Limits, Policy
from sandbox_kernel.relay.cells import RunningCell
from sandbox_kernel.relay.loop import Loop, Timer
from sandbox_kernel.relay.settle import NOTHING_USED, Ending

# Threads that cells have left can send without end, too.
IDLE_TICK_SECONDS: Final = 0.5
# The first look after a cell: by then its checkpoint is made, and the sandbox sleeps.
REST_SECONDS: Final = 0.05
# What was looked at when the first of a cell's reply and its idle came need not be again at the second.
LAST_LOOK_SECONDS: Final = 0.005
# A second interrupt this long after the first one means it.
INSIST_SECONDS: Final = 1.0
# A subshell that was asked for so long before a cell may get its thread while that runs.
SUBSHELL_SECONDS: Final = 1.0
SUBSHELLS_REMEMBERED: Final = 64
# So often a sandbox goes back with no cell in between, the last time to an older state. What ends it then
# must be in the state itself (a timer, say), and goes with it.
RETURNS: Final = 2


class Enforcer:
    """Watches the cells in flight and the sandbox between them. Runs in the loop's thread only."""

    def __init__(self, loop: Loop, policy: Policy, ladder: Ladder, concluding: Concluding) -> None:
        self._loop = loop
        self._policy = policy
        self._ladder = ladder
        self._concluding = concluding
        self._line = Line()
        self._watches: dict[str, Watch] = {}
        ladder.finished = 0
        self._spending = Spending(policy.budget)
        self._background = Background(policy.limits.background_cpu_seconds)
        # How often the sandbox went back since the last cell began, and with none running.
        self._returns = 0
        self._shortage = Shortage(policy.limits.sandbox_memory_bytes, ladder.forget)
        # When subshells were asked for, by the monotonic clock.
        self._subshells: deque[float] = deque(maxlen=SUBSHELLS_REMEMBERED)
        self._insisted = False
        # Whether the sandbox was looked at since the last cell.
        self._rested = False
        self._rolling_back = False
        # Whether a cell has ended beside one that runs on: if that goes back, it goes to before both.
        self._ended_beside = False
        self._how_it_died = ""
        # When it was last decided what to do about the sandbox between cells.
        self._decided_at = 0.0
        self._timer: Timer | None = None

    # -- told by the router ------------------------------------------------------------------------

    @property
    def watching(self) -> bool:
        return bool(self._watches or self._line)

    @property
    def busy(self) -> bool:
        """Whether the main lane has something to do that is not being ended."""
        return self._line.holds(None) or any(
            cell.request.lane_id is None for cell in self._running()
        )

    def watches(self, cell: RunningCell) -> bool:
        """Whether the cell answers for what it does: not before its turn."""
        return cell.request.msg_id in self._watches

    def check_budget(self) -> None:
        """Raise the error of a cell that comes when the notebook's budget is used up."""
        excess = self._spending.excess()
        if excess is not None:
            raise endings.refused(excess, self._policy)

    def begin(self, cell: RunningCell, limits: Limits) -> None:
        """It is sent in: from its turn on it is watched."""
        self._line.join(cell, limits)
        self._call_up()

    def began(self, cell: RunningCell) -> None:
        """The inner kernel has come to the cell: what was ahead of it is over, whether it says so or not."""
        if (waiting := self._line.leave(cell)) is not None:
            self._watch(waiting)

    def _call_up(self) -> None:
        """Watch what has its turn by now."""
        while not self._rolling_back and (waiting := self._line.next(self._running())) is not None:
            self._watch(waiting)

    def _running(self) -> list[RunningCell]:
        return [watch.cell for watch in self._watches.values() if not watch.ending]

    def _watch(self, waiting: Waiting) -> None:
        cell, limits = waiting
        meter = self._ladder.meter()
        assert meter is not None
        watch = Watch.begin(cell, limits, meter)
        if not self._watches:
            used = self._background.close(watch.meter.baseline.cpu_seconds)
            self._spending.add_background(used)
        if cell.request.is_cell:
            self._background.renew()
            self._returns = 0
        self._watches[cell.request.msg_id] = watch
        if cell.request.is_cell and cell.request.lane_id is None:
            self._ended_beside = False  # a checkpoint is made before it
        watch.began_over = self._shortage.before_cell(watch.meter.baseline.memory_bytes)
        self._shortage.renew()
        self._rested = False
        self._schedule()

    def pause(self, cell: RunningCell) -> None:
        """The cell waits for the user: that time is not its own."""
        self.began(cell)
        if watch := self._watches.get(cell.request.msg_id):
            watch.clock.wait()

    def expect_thread(self) -> None:
        """A subshell is asked for: its thread is the kernel's own, whatever runs meanwhile."""
        self._subshells.append(time.monotonic())

    def resume(self) -> None:
        for watch in self._watches.values():
            if not watch.ending:
                watch.clock.resume()
        self._schedule()

    def output(self, cell: RunningCell) -> bool:
        """Whether the cell may still show what it has just sent; if not, it is stopped."""
        watch = self._watches.get(cell.request.msg_id)
        if watch is None:
            return True
        excess = watch.output_excess()
        if excess is not None and watch.excess is None and not watch.ending:
            self._exceed(watch, excess)
        return excess is None

    def stopped(self, cell: RunningCell) -> bool:
        """Whether the cell is being stopped: the error it shows then is not its own."""
        watch = self._watches.get(cell.request.msg_id)
        return watch is not None and watch.excess is not None

    def insist(self) -> None:
        """The user has interrupted. The second time, what does not stop is killed."""
        now = time.monotonic()
        self.resume()  # whatever it waited for
        for watch in self._watches.values():
            if watch.interrupted_at is None:
                watch.interrupted_at = now
            elif now - watch.interrupted_at > INSIST_SECONDS and not watch.ending:
                self._insisted = True
                self._roll_back()
                return

    def nearly_over(self, cell: RunningCell) -> None:
        """The first of its reply and its idle is here: while the other is on its way there is time."""
        watch = self._watches.get(cell.request.msg_id)
        if watch is not None and not watch.ending:
            self._look(watch)
            watch.last_look_at = watch.looked_at

    def over(self, cell: RunningCell) -> None:
        """The cell's reply and idle are here."""
        if not cell.request.is_cell and self._line.leave(cell) is not None:
            # It was so short, or beside a cell that answers for it.
            self._concluding.conclude(cell, Ending(NOTHING_USED))
            self._call_up()
            return
        self.began(cell)
        watch = self._watches.get(cell.request.msg_id)
        if watch is None or watch.ending:
            return
        if time.monotonic() - watch.last_look_at > LAST_LOOK_SECONDS:
            self._look(watch)
        if watch.excess is None:
            watch.excess = self._memory_excess(watch, ended=True)
            if watch.excess is not None:
                # It was faster than any look at it, and has the memory still.
                self._roll_back()
                return
        if watch.excess is None:
            self._conclude(watch, endings.of_itself(watch))
        elif not self._left_threads(watch, watch.reading.kernel_threads_added):
            watch.ending = True
            watch.clock.pause()
            ticks = watch.meter.baseline.ticks
            self._ladder.sweep(ticks, lambda threads: self._swept(watch, threads))
            # Behind it there may be something that hangs.
            self._call_up()

    def cut_off(self, cell: RunningCell) -> Ending:
        """How a cell ends whose kernel ends: with what it has used so far."""
        watch = self._watches.get(cell.request.msg_id)
        if watch is None:
            return Ending(NOTHING_USED, "lost", outcome="lost")
        if not watch.ending:
            self._look(watch)
        return Ending(watch.usage(), "lost", outcome="lost")

    # -- told by the lifecycle ---------------------------------------------------------------------

    def went_back(self, restored: Restored) -> None:
        """The state is that of an earlier cell, because the user wanted it so."""
        self._ladder.finished = restored.label
        self._background.went_back()

    def died(self, how: str) -> None:
        """The kernel process has ended by itself: go back to the state before the cell."""
        # What it was stopped for says more than that it did not answer.
        self._how_it_died = self._how_it_died or how
        meter = self._ladder.meter()
        for watch in self._watches.values():
            watch.fell_silent = watch.ending and not self._rolling_back
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
        idle = IDLE_TICK_SECONDS if self._rested else REST_SECONDS
        return min((w.next_look() for w in self._watches.values()), default=idle)

    def _tick(self) -> None:
        self._timer = None
        if not self._ladder.ready:
            pass  # it is going back, or is not there: nothing can be done to it, nor need be
        elif self._watches:
            for watch in list(self._watches.values()):
                if not watch.ending:
                    self._look_at(watch)
        else:
            self._look_at_idle()
        self._schedule()

    def _look(self, watch: Watch) -> None:
        """And see anew what it has found there, if that is known only now."""
        before = watch.meter.baseline
        watch.look()
        if watch.meter.baseline is not before:
            watch.began_over = self._shortage.before_cell(watch.meter.baseline.memory_bytes)

    def _look_at(self, watch: Watch) -> None:
        self._look(watch)
        if watch.excess is None:
            excess = self._excess(watch)
            if excess is not None:
                self._exceed(watch, excess)
        elif watch.grace_is_over or watch.dangerous:
            watch.outlasted_grace = watch.grace_is_over
            self._roll_back()

    def _look_at_idle(self) -> None:
        self._rested = True
        meter = self._ladder.meter()
        if meter is None:
            return
        meter.look_ahead()
        self._background.note_memory(meter.idle_bytes())
        self._spending.add_background(self._background.look(meter))
        over_budget = self._spending.excess() is not None
        match self._background.step(meter, over_budget=over_budget):
            case "end processes":
                self._end_processes(meter, over_budget=over_budget)
                return
            case "roll back":
                self._how_it_died = self._too_much_cpu(over_budget=over_budget)
                self._roll_back()
                return
        allowed = self._policy.limits.sandbox_memory_bytes
        # Whether the last step was enough is not known by older words.
        if allowed is None or not meter.covers(self._decided_at):
            return
        self._decided_at = time.monotonic()
        used = meter.memory_bytes(allowed)
        match self._shortage.between_cells(used):
            case "roll back":
                self._how_it_died = "what earlier cells left running took too much memory"
                self._roll_back()
            case "tell":
                told = endings.still_too_much(used, allowed, self._policy)
                self._concluding.notice(told, "memory_not_freed")

    def _end_processes(self, meter: Meter, *, over_budget: bool) -> None:
        """End those that cells have left, and keep the kernel process. If it does not answer, it goes
        back."""
        why = self._how_it_died = self._too_much_cpu(over_budget=over_budget)

        def ended(_: int) -> None:
            self._how_it_died = ""
            self._concluding.notice(endings.processes_ended(why), "background_stopped")

        # Not those that a cell starts which comes now.
        self._ladder.sweep(0, ended, ticks_now())

    def _too_much_cpu(self, *, over_budget: bool) -> str:
        allowed = self._policy.limits.background_cpu_seconds
        return endings.too_much_cpu(
            self._background.used_seconds, None if over_budget else allowed, self._policy
        )

    def _excess(self, watch: Watch) -> Excess | None:
        return (
            self._memory_excess(watch)
            or watch.time_excess()
            or watch.processes_excess()
            or watch.pipes_excess()
            or watch.terminals_excess()
            or self._spending.excess(
                watch.clock.seconds, watch.reading.cpu_seconds + watch.reading.background_seconds
            )
        )

    def _memory_excess(self, watch: Watch, *, ended: bool = False) -> Excess | None:
        excess = watch.sandbox_memory_excess()
        if excess is not None and self._shortage.give_up_undo():
            for each in self._watches.values():
                each.relieve()
            # One that has ended takes no more: whether that was enough is seen when there is time.
            excess = None if ended else watch.sandbox_memory_excess()
        return excess or watch.memory_excess()

    # -- the steps ---------------------------------------------------------------------------------

    def _exceed(self, watch: Watch, excess: Excess) -> None:
        watch.excess = excess
        watch.interrupted_at = time.monotonic()
        # A cell that waits for the user is over its limit for another reason.
        watch.clock.resume()
        # An interrupt reaches the main thread only: that of a subshell would hit another cell.
        if watch.dangerous or watch.cell.request.lane_id is not None:
            self._roll_back()
        else:
            self._ladder.interrupt()

    def _roll_back(self) -> None:
        if self._rolling_back:
            return
        self._rolling_back = True
        for watch in self._watches.values():
            watch.ending = True
            self._look(watch)
            watch.clock.pause()
        # Not to a later state: a cell may have ended before it was killed, and is said to be undone.
        to = self._ladder.finished
        # A cell, or a question that exceeds its limit, is the cause itself; else the state may be.
        if not any(watch.cell.request.is_cell or watch.excess for watch in self._watches.values()):
            self._returns += 1
            if self._returns > RETURNS:
                self._ladder.replace(endings.returns_in_vain(self._returns, self._how_it_died))
                return
            if self._returns == RETURNS:
                to -= 1
        self._ladder.roll_back(to, self._restored)

    def _restored(self, restored: Restored | None) -> None:
        self._rolling_back = False
        if restored is not None and self._ended_beside:
            restored = replace(restored, is_older=True)
        self._ended_beside = False
        how = self._how_it_died or "another cell, which ran beside it, had to be stopped"
        fate = Fate.after(restored, self._ladder.finished, how, insisted=self._insisted)
        self._how_it_died, self._insisted = "", False
        self._background.went_back()
        if restored is None:
            self._returns = 0  # the state that was the cause is gone
        self._ladder.finished = 0 if restored is None else restored.label
        if not self._watches:
            event = "state_lost" if restored is None else "rollback"
            self._concluding.notice(str(endings.between_cells(fate)), event)
        never_begun = self._line.leave_all()
        for watch in list(self._watches.values()):
            self._conclude(watch, endings.ended(watch, self._policy, fate))
        for cell, _ in never_begun:
            self._concluding.conclude(cell, endings.never_begun(cell, fate))

    def _swept(self, watch: Watch, threads: int) -> None:
        if watch.cell.request.msg_id not in self._watches:
            return  # the sandbox was lost meanwhile
        # Under a second kernel threads cannot be seen from here: then what is said inside counts.
        seen = watch.meter.baseline.kernel is not None
        if seen or not self._left_threads(watch, threads):
            self._conclude(watch, endings.kept(watch, self._policy))

    def _left_threads(self, watch: Watch, started: int) -> bool:
        """Roll back if the cell has: they cannot be ended from outside, and may go on with what was
        stopped."""
        own = sum(asked > watch.began - SUBSHELL_SECONDS for asked in self._subshells)
        watch.threads_left = max(0, started - own)
        if watch.threads_left:
            self._roll_back()
        return watch.threads_left > 0

    def _keeps_from_checkpoint(self) -> bool:
        """Whether something runs that must be over before the kernel makes its next checkpoint."""
        requests = (watch.cell.request for watch in self._watches.values())
        return any(request.is_cell or request.lane_id is None for request in requests)

    def _conclude(self, watch: Watch, ending: Ending) -> None:
        del self._watches[watch.cell.request.msg_id]
        if not self._watches:
            self._end_billing(watch, ending)
            self._schedule()
        self._shortage.renew()
        if ending.state == "kept":
            self._ladder.finished = max(self._ladder.finished, watch.cell.serial)
            self._ended_beside |= watch.cell.request.is_cell
        self._ended_beside &= self._keeps_from_checkpoint()
        self._spending.add(ending.usage)
        request = watch.cell.request
        if not request.is_cell:
            self._background.add_callback(ending.usage.cpu_seconds)
        elif not request.silent and (told := self._background.tell()) is not None:
            ending = replace(ending, usage=replace(ending.usage, background=told))
        self._concluding.conclude(watch.cell, ending)
        self._call_up()

    def _end_billing(self, watch: Watch, ending: Ending) -> None:
        """The last of what ran is over: what is used from now on is not its own."""
        beside = watch.meter.background_seconds
        if beside:
            self._background.add_beside(beside)
            self._spending.add_background(beside)
        meter = self._ladder.meter()
        if meter is None or ending.state != "kept":
            self._background.went_back()
        else:
            self._background.after_cell(meter)
