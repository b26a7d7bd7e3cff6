"""What is done to a cell that reaches a limit, in which order, and what is said of it then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from sandbox_kernel.errors import CellLimitExceeded
from sandbox_kernel.limits.cgroup import Memory
from sandbox_kernel.limits.endings import NOT_KEPT
from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.limits.ladder import Restored
from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.limits.proc import Status
from sandbox_kernel.limits.reading import Baseline, Reading, Snapshot
from sandbox_kernel.limits.watch import NOTHING_READ
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.relay.cells import Request, RunningCell
from sandbox_kernel.relay.loop import Loop, Timer
from sandbox_kernel.relay.settle import Ending
from sandbox_kernel.relay.wire import Message, Outline, encode_object

MIB = 1 << 20
POLICY = load_policy("default")
KERNEL = Status(b"python", 1, 2, 2, 8, 0, 0, 0, 0, 0)
ALLOWED = 1024 * MIB
MARGIN = ALLOWED // 16


@dataclass
class World:
    """The sandbox, the loop and the router of an enforcer, and the time."""

    seconds: float = 100.0
    reading: Reading = NOTHING_READ
    # Of the sandbox.
    memory_bytes: int = 0
    finished: int = 0
    done: list[str] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    sweeps: list[Callable[[int], None]] = field(default_factory=list)
    restored: Callable[[Restored | None], None] | None = None
    timer: Timer = field(default_factory=lambda: Timer(lambda: None))
    source: str = "none"
    ready: bool = True
    # The moment that readings are of: now, unless they come late.
    heard_at: float = math.inf
    # Of the sandbox, and who uses it between cells.
    cpu_seconds: float = 0.0
    processes_at_work: bool | None = None
    replaced_because: str = ""
    metering: Meter | None = None
    went_to: list[int] = field(default_factory=list)

    # -- the loop --

    def now(self) -> float:
        self.seconds += 1e-6  # no two moments are the same
        return self.seconds

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self.due, self.timer = self.seconds + seconds, Timer(callback)
        return self.timer

    def tick(self) -> None:
        """The enforcer looks."""
        self.seconds = max(self.seconds, self.due)
        self.timer.callback()

    # -- the meter --

    def begin(self) -> Baseline:
        snapshot = Snapshot(Memory(self.memory_bytes, 0, 0), {}, {}, {}, complete=True)
        return Baseline(0, self.cpu_seconds, snapshot, 2, KERNEL)

    def read(self, baseline: Baseline, memory_limit: int | None) -> Reading:
        return replace(self.reading, memory_bytes=self.memory_bytes)

    def look_ahead(self) -> None:
        pass

    def replace(self, how: str) -> None:
        self.done.append("replace")
        self.replaced_because = how

    def oom_kills(self) -> int:
        return 0

    # -- the ladder --

    def meter(self) -> Meter:
        if self.metering is not None:
            return self.metering
        world = self

        class Metering:
            source = "none"
            covers_last_cell = property(lambda _: world.heard_at >= world.seconds - 1e-3)

            def covers(self, moment: float) -> bool:
                return world.heard_at >= moment

            begin, read = staticmethod(world.begin), staticmethod(world.read)
            look_ahead, oom_kills = staticmethod(world.look_ahead), staticmethod(world.oom_kills)

            def memory_bytes(self, limit: int | None) -> int:
                return world.memory_bytes

            is_late = property(lambda _: world.heard_at < math.inf)
            cpu_seconds = property(lambda _: world.cpu_seconds)

            def cpu_seconds_now(self) -> float:
                return world.cpu_seconds

            def idle_bytes(self) -> int:
                return world.memory_bytes

            def processes_at_work(self) -> bool | None:
                return world.processes_at_work

            def beside(self) -> None:
                return None

        self.metering = cast(Meter, Metering())
        return self.metering

    def interrupt(self) -> None:
        self.done.append("interrupt")

    def forget(self) -> None:
        self.done.append("forget")

    def sweep(
        self, since_ticks: int, done: Callable[[int], None], before_ticks: int | None = None
    ) -> None:
        self.done.append("sweep")
        self.sweeps.append(done)

    def roll_back(self, to: int, done: Callable[[Restored | None], None]) -> None:
        self.done.append("roll back")
        self.went_to.append(to)
        self.restored, self.ready = done, False

    # -- who is told --

    def conclude(self, cell: RunningCell, ending: Ending) -> None:
        self.endings.append(ending)

    def notice(self, text: str, event: str) -> None:
        self.notices.append(text)
        self.events.append(event)

    # -- what a test does --

    def pass_time(self, seconds: float) -> None:
        """In which the enforcer looks as often as it wants to."""
        end = self.seconds + seconds
        while self.due < end:
            self.tick()
        self.seconds = end

    def go_back(self, *not_restored: str, label: int = 0) -> None:
        assert self.restored is not None
        self.ready = True
        self.restored(Restored(label, not_restored))

    @property
    def said(self) -> str:
        (ending,) = self.endings
        return str(ending.error)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(time, "monotonic", world.now)
    return world


@pytest.fixture
def enforcer(world: World) -> Enforcer:
    limits = replace(POLICY.limits, sandbox_memory_bytes=ALLOWED, wall_seconds=5.0)
    around: Any = world
    policy = replace(POLICY, limits=limits)
    enforcer = Enforcer(cast(Loop, around), policy, around, around)
    enforcer.watch_idle()
    return enforcer


def begin(
    enforcer: Enforcer,
    serial: int = 1,
    msg_type: str = "execute_request",
    lane: str | None = None,
    *,
    silent: bool = False,
) -> RunningCell:
    header = {"msg_id": str(serial), "msg_type": msg_type, "subshell_id": lane}
    frames = (b"{}", b"{}", b"{}", encode_object({"code": "1", "silent": silent}))
    cell = RunningCell(Request("shell", Message((), header, {}, Outline(), frames)), serial=serial)
    cell.reply = cell.request.message  # whatever it says
    enforcer.begin(cell, enforcer._policy.limits)
    return cell


def time_out(world: World, enforcer: Enforcer) -> RunningCell:
    cell = begin(enforcer)
    world.seconds += 5
    world.tick()
    assert world.done == ["interrupt"]
    return cell


# -- memory of the sandbox -------------------------------------------------------------------------


def test_a_growing_cell_is_saved_by_the_forgotten_checkpoint_if_that_is_enough(
    world: World, enforcer: Enforcer
) -> None:
    cell = begin(enforcer)
    world.memory_bytes = ALLOWED + MIB
    world.tick()
    assert world.done == ["forget"]
    for _ in range(20):  # the supervisor is still at it, and the cell goes on
        world.memory_bytes += MIB
        world.tick()
    world.memory_bytes = ALLOWED - 100 * MIB
    world.seconds += 1
    world.tick()
    enforcer.over(cell)
    assert world.done == ["forget"]
    assert world.endings[0].error is None


def test_a_cell_that_has_too_much_after_it_was_forgotten_is_killed(
    world: World, enforcer: Enforcer
) -> None:
    begin(enforcer)
    world.memory_bytes = ALLOWED + MIB
    world.tick()
    world.seconds += 0.6
    world.tick()
    assert world.done == ["forget", "roll back"]


def test_a_cell_that_grows_fast_is_not_waited_for(world: World, enforcer: Enforcer) -> None:
    """The kernel's own limit, at which something dies without a word, is near."""
    begin(enforcer)
    world.memory_bytes = ALLOWED + MARGIN + MIB
    world.tick()
    assert world.done == ["forget", "roll back"]


def test_a_sandbox_that_going_back_does_not_help_is_left_as_it_is_and_the_user_told_once(
    world: World, enforcer: Enforcer
) -> None:
    world.memory_bytes = ALLOWED + 10 * MIB
    for _ in range(10):
        world.tick()
        if world.done[-1:] == ["roll back"] and len(world.notices) == 0:
            world.go_back()
    assert world.done == ["forget", "roll back"]
    went_back, still = world.notices
    assert world.events == ["rollback", "memory_not_freed"]
    assert "between two cells" in went_back
    assert "policy `default` allows 1 GiB" in still
    assert "/tmp" in still


def test_a_cell_that_begins_over_the_limit_may_free_memory(
    world: World, enforcer: Enforcer
) -> None:
    world.memory_bytes = ALLOWED + 10 * MIB
    cell = begin(enforcer)
    world.reading = replace(world.reading, growth_bytes=5 * MIB)
    for _ in range(50):
        world.tick()
    world.memory_bytes = ALLOWED // 2
    enforcer.over(cell)
    assert world.done == []
    assert world.endings[0].error is None


def test_a_cell_that_begins_over_the_limit_may_not_add_to_it(
    world: World, enforcer: Enforcer
) -> None:
    world.memory_bytes = ALLOWED + 10 * MIB
    begin(enforcer)
    world.reading = replace(world.reading, growth_bytes=MARGIN + MIB)
    world.memory_bytes += MARGIN + MIB
    world.tick()
    assert world.done == ["forget", "roll back"]


def test_a_cell_that_begins_over_the_limit_is_not_blamed_where_that_is_heard_of_late(
    world: World, enforcer: Enforcer
) -> None:
    world.heard_at = world.seconds - 10  # before the last cell, which has taken it all
    begin(enforcer)
    world.memory_bytes = ALLOWED + 10 * MIB
    for _ in range(20):
        world.tick()
    assert world.done == []


def test_whether_giving_up_helps_a_cell_is_not_decided_by_older_words(
    world: World, enforcer: Enforcer
) -> None:
    begin(enforcer)
    world.heard_at = world.seconds
    world.memory_bytes = ALLOWED + MIB
    world.tick()
    world.seconds += 2
    world.tick()
    assert world.done == ["forget"]
    world.heard_at = world.seconds
    world.tick()
    assert world.done == ["forget", "roll back"], "the control: now it is known"


def test_whether_giving_up_helps_between_cells_is_not_decided_by_older_words(
    world: World, enforcer: Enforcer
) -> None:
    world.heard_at = world.seconds
    world.memory_bytes = ALLOWED + 10 * MIB
    world.pass_time(5)
    assert world.done == ["forget"]
    world.heard_at = world.seconds
    world.pass_time(5)
    assert world.done == ["forget", "roll back"], "the control: now it is known"


def test_a_sandbox_that_is_going_back_already_is_left_alone(
    world: World, enforcer: Enforcer
) -> None:
    """By an undo: a second rollback would leave the first one without an answer."""
    world.memory_bytes, world.ready = ALLOWED + 10 * MIB, False
    for _ in range(3):
        world.tick()
    assert world.done == []


# -- threads ---------------------------------------------------------------------------------------


def leave_threads(world: World, threads: int) -> None:
    world.reading = replace(world.reading, kernel_threads_added=threads)


def test_a_stopped_cell_that_leaves_threads_is_rolled_back_and_told_so(
    world: World, enforcer: Enforcer
) -> None:
    cell = time_out(world, enforcer)
    leave_threads(world, 2)
    enforcer.over(cell)
    assert world.done == ["interrupt", "roll back"]
    world.go_back()
    assert "It left 2 threads running, which cannot be ended from outside, so it was killed" in (
        world.said
    )
    assert "grace" not in world.said


def test_the_threads_of_subshells_are_not_the_cells(world: World, enforcer: Enforcer) -> None:
    """Those that were asked for just before it, and while it ran."""
    enforcer.expect_thread()
    world.seconds += 0.5
    cell = time_out(world, enforcer)
    enforcer.expect_thread()
    leave_threads(world, 2)
    enforcer.over(cell)
    assert world.done == ["interrupt", "sweep"]
    world.sweeps.pop()(0)
    assert world.endings[0].state == "kept"


def test_the_threads_of_old_subshells_do_not_hide_the_cells(
    world: World, enforcer: Enforcer
) -> None:
    enforcer.expect_thread()
    world.seconds += 10
    cell = time_out(world, enforcer)
    leave_threads(world, 1)
    enforcer.over(cell)
    assert world.done == ["interrupt", "roll back"]


# -- one thing after the other ---------------------------------------------------------------------


def callback(enforcer: Enforcer, serial: int, lane: str | None = None) -> RunningCell:
    return begin(enforcer, serial, "comm_msg", lane)


def test_what_a_cell_leaves_in_line_is_watched_after_it(world: World, enforcer: Enforcer) -> None:
    """A click, while a cell ran, on a button whose handler never ends."""
    cell = begin(enforcer, 1)
    world.pass_time(4)
    callback(enforcer, 2)
    enforcer.over(cell)
    world.pass_time(4)
    assert world.done == []
    world.pass_time(2)
    assert world.done == ["interrupt"]


def test_what_is_over_before_its_turn_is_not_watched(world: World, enforcer: Enforcer) -> None:
    cell, beside = begin(enforcer, 1), callback(enforcer, 2)
    enforcer.over(beside)
    enforcer.over(cell)
    assert not enforcer.watching
    assert [ending.error for ending in world.endings] == [None, None]


def test_a_cell_behind_a_callback_that_hangs_does_not_answer_for_it(
    world: World, enforcer: Enforcer
) -> None:
    hanging = callback(enforcer, 1)
    world.pass_time(1)
    cell = begin(enforcer, 2)
    world.pass_time(4.5)
    assert world.done == ["interrupt"]
    enforcer.over(hanging)
    world.sweeps.pop()(0)
    world.pass_time(4.5)
    enforcer.over(cell)
    told, untold = world.endings
    assert "stopped at the 5 s limit" in str(told.error)
    assert untold.error is None


def test_callbacks_have_their_time_one_after_the_other(world: World, enforcer: Enforcer) -> None:
    """A slider is dragged: each of its callbacks is short, all of them are not."""
    callbacks = [callback(enforcer, number) for number in range(4)]
    for each in callbacks:
        world.pass_time(2)
        enforcer.over(each)
    assert world.done == []
    assert len(world.endings) == 4


def test_a_cell_that_has_begun_is_watched_whatever_is_said_of_what_was_ahead(
    world: World, enforcer: Enforcer
) -> None:
    callback(enforcer, 1)
    cell = begin(enforcer, 2)
    assert not enforcer.watches(cell)
    enforcer.began(cell)
    assert enforcer.watches(cell)


def test_a_cell_of_another_lane_does_not_wait(world: World, enforcer: Enforcer) -> None:
    callback(enforcer, 1)
    assert enforcer.watches(begin(enforcer, 2, lane="s"))
    assert not enforcer.watches(callback(enforcer, 3, lane="t"))


def test_two_that_are_stopped_are_both_swept_and_concluded(
    world: World, enforcer: Enforcer
) -> None:
    first, second = callback(enforcer, 1), callback(enforcer, 2)
    world.pass_time(5.1)
    enforcer.over(first)
    world.pass_time(5.1)
    enforcer.over(second)
    assert world.done == ["interrupt", "sweep", "interrupt", "sweep"]
    for swept in world.sweeps:
        swept(0)
    assert not enforcer.watching
    assert len(world.endings) == 2


def test_what_hangs_behind_a_stopped_cell_is_watched_though_that_is_not_swept_yet(
    world: World, enforcer: Enforcer
) -> None:
    """The question before the sweep stands behind it."""
    cell = time_out(world, enforcer)
    callback(enforcer, 2)
    enforcer.over(cell)
    assert enforcer.busy
    world.pass_time(5.1)
    assert world.done == ["interrupt", "sweep", "interrupt"]


def test_a_stopped_cell_alone_keeps_nobody_busy(world: World, enforcer: Enforcer) -> None:
    """So its process must answer at once."""
    cell = time_out(world, enforcer)
    assert enforcer.busy
    enforcer.over(cell)
    assert not enforcer.busy


def test_what_waits_in_line_when_its_process_ends_is_concluded_too(
    world: World, enforcer: Enforcer
) -> None:
    callback(enforcer, 1)
    callback(enforcer, 2)
    begin(enforcer, 3)
    enforcer.died("killed by SIGKILL")
    world.go_back()
    ran, waited, cell = world.endings
    assert not enforcer.watching
    assert waited.error is None  # it is sent again
    assert "killed by SIGKILL" in str(cell.error)
    assert {ending.state for ending in world.endings} == {"rolled_back"}
    assert ran.error is not None


# -- what is said ----------------------------------------------------------------------------------


def test_only_a_cell_whose_grace_is_over_is_said_not_to_have_stopped(
    world: World, enforcer: Enforcer
) -> None:
    time_out(world, enforcer)
    world.seconds += POLICY.limits.grace_seconds
    world.tick()
    world.go_back()
    assert "It did not stop when interrupted (2 s grace), so it was killed" in world.said


def test_a_cell_whose_process_falls_silent_is_not_said_to_have_gone_on(
    world: World, enforcer: Enforcer
) -> None:
    cell = time_out(world, enforcer)
    enforcer.over(cell)
    assert world.done == ["interrupt", "sweep"]
    enforcer.died("it did not answer any more")
    world.go_back()
    assert "It stopped, but its process did not answer any more, so it was killed" in world.said


def test_a_cell_that_ended_beside_one_that_goes_back_is_said_to_be_undone_too(
    world: World, enforcer: Enforcer
) -> None:
    """It is in no checkpoint, whatever its place among the cells."""
    beside = begin(enforcer, 5, lane="s")
    enforcer.over(begin(enforcer, 6))
    begin(enforcer, 7)
    enforcer.over(beside)
    world.endings.clear()
    enforcer.died("killed by SIGKILL")
    world.go_back(label=6)
    assert "an older state" in world.said
    assert world.endings[0].not_restored == (NOT_KEPT,)


def test_a_cell_that_ended_before_the_last_checkpoint_is_not_said_to_be_undone(
    world: World, enforcer: Enforcer
) -> None:
    beside, first = begin(enforcer, 5, lane="s"), begin(enforcer, 6)
    enforcer.over(beside)
    enforcer.over(first)
    begin(enforcer, 7)
    world.endings.clear()
    enforcer.died("killed by SIGKILL")
    world.go_back(label=6)
    assert "the state before the cell" in world.said
    assert world.endings[0].not_restored == ()


def test_a_death_between_cells_is_not_blamed_on_a_cell(world: World, enforcer: Enforcer) -> None:
    enforcer.died("killed by SIGKILL")
    world.go_back("2 threads")
    (said,) = world.notices
    assert "between two cells (killed by SIGKILL)" in said
    assert "all variables are kept (not restored: 2 threads)" in said
    assert "this cell" not in said
    assert "Fix" not in said


def test_after_a_loss_between_cells_nothing_is_said_to_be_missing_from_the_new_sandbox(
    world: World, enforcer: Enforcer
) -> None:
    enforcer.over(begin(enforcer, serial=7))
    world.endings.clear()
    enforcer.lost("nothing in it could say why")
    enforcer.died("killed by SIGKILL")
    begin(enforcer, serial=8)
    enforcer.died("killed by SIGKILL")
    world.go_back()
    assert "not restored" not in world.said


def test_a_cell_without_a_reply_is_not_said_to_have_gone_well(
    world: World, enforcer: Enforcer
) -> None:
    cell = begin(enforcer)
    cell.reply = None
    enforcer.over(cell)
    assert "has sent no reply" in world.said
    assert (world.endings[0].outcome, world.endings[0].state) == ("error", "kept")


# -- what cells leave running ----------------------------------------------------------------------


@pytest.fixture
def background(world: World) -> Enforcer:
    """An enforcer whose policy allows 10 s of CPU time between cells."""
    limits = replace(POLICY.limits, background_cpu_seconds=10.0)
    around: Any = world
    budget = replace(POLICY.budget, cpu_seconds=60.0)
    policy = replace(POLICY, limits=limits, budget=budget)
    enforcer = Enforcer(cast(Loop, around), policy, around, around)
    enforcer.watch_idle()
    world.tick()
    return enforcer


def spin(world: World, seconds: float) -> None:
    """Something uses one processor while no cell runs."""
    end = world.seconds + seconds
    while world.due < end and world.ready:
        world.cpu_seconds += world.due - world.seconds
        world.tick()


def test_processes_that_spin_are_ended_and_the_user_told(
    world: World, background: Enforcer
) -> None:
    spin(world, 9)
    assert world.done == []
    spin(world, 3)
    assert world.done == ["sweep"]
    world.sweeps.pop()(0)
    world.pass_time(60)
    assert world.done == ["sweep"]
    assert "limits.background.cpu" in world.notices[-1]
    assert "All variables are kept" in world.notices[-1]


def test_when_the_budget_is_used_up_what_helps_is_the_last_step(
    world: World, background: Enforcer
) -> None:
    background._spending.add_background(60.0)
    spin(world, 1.6)
    assert world.done == ["sweep"]
    world.sweeps.pop()(0)
    world.pass_time(60)
    assert world.done == ["sweep"]
    assert "budget" in world.notices[-1]


def test_threads_that_spin_end_with_a_rollback(world: World, background: Enforcer) -> None:
    world.processes_at_work = False
    spin(world, 12)
    assert world.done == ["roll back"]
    world.go_back("1 thread")
    world.pass_time(60)
    assert world.done == ["roll back"]
    assert "limits.background.cpu" in world.notices[-1]


def test_what_spins_after_every_step_ends_with_the_sandbox(
    world: World, background: Enforcer
) -> None:
    for _ in range(6):
        spin(world, 12)
        if world.sweeps:
            world.sweeps.pop()(0)
        elif world.done[-1] == "roll back":
            world.go_back()
        else:
            background.lost(world.replaced_because)
            break
    assert world.done == ["sweep", "roll back", "roll back", "replace"]
    assert "3 times" in world.notices[-1]
    assert "variables of this notebook are gone" in world.notices[-1]
    assert world.events == ["background_stopped", "rollback", "rollback", "state_lost"]


def test_what_polls_now_and_then_goes_on_for_ever(world: World, background: Enforcer) -> None:
    for _ in range(20_000):
        world.cpu_seconds += 0.02 * (world.due - world.seconds)
        world.tick()
    assert world.done == []


def test_a_cell_renews_what_may_be_used_after_it(world: World, background: Enforcer) -> None:
    for number in range(1, 4):
        spin(world, 8)
        background.over(begin(background, number))
    assert world.done == []


def test_the_next_receipt_tells_it_once_and_the_budget_pays(
    world: World, background: Enforcer
) -> None:
    spin(world, 8)
    background.over(begin(background, 1))
    background.over(begin(background, 2))
    told, untold = (ending.usage.background for ending in world.endings)
    assert told is not None
    assert told.cpu_seconds == pytest.approx(8, abs=1)
    assert untold is None
    assert world.endings[0].usage.cpu_seconds == 0
    world.cpu_seconds += 100  # all at once, between two looks
    world.tick()
    with pytest.raises(CellLimitExceeded, match="budget"):
        background.check_budget()


def test_a_silent_cell_does_not_take_what_is_to_be_told(world: World, background: Enforcer) -> None:
    spin(world, 8)
    background.over(begin(background, 1, silent=True))
    background.over(begin(background, 2))
    assert [ending.usage.background is None for ending in world.endings] == [True, False]


# -- a sandbox that goes back again and again ------------------------------------------------------


def test_a_sandbox_that_dies_after_going_back_goes_to_an_older_state_and_is_then_given_up(
    world: World, enforcer: Enforcer
) -> None:
    enforcer.over(begin(enforcer, 7))
    for _ in range(2):
        enforcer.died("killed by SIGKILL")
        world.go_back(label=7)
    enforcer.died("killed by SIGKILL")
    assert world.done == ["roll back", "roll back", "replace"]
    assert world.went_to == [7, 6], "the second time not to the state that it had died in"
    assert "killed by SIGKILL" in world.replaced_because


def test_a_cell_in_between_begins_the_count_anew(world: World, enforcer: Enforcer) -> None:
    for number in range(1, 6):
        enforcer.died("killed by SIGKILL")
        world.go_back()
        enforcer.over(begin(enforcer, number))
    assert world.done == ["roll back"] * 5


def test_a_callback_in_between_does_not(world: World, enforcer: Enforcer) -> None:
    """A frontend that asks for completions is no sign that the state is sound."""
    for number in range(1, 4):
        callback(enforcer, number)
        enforcer.died("killed by SIGKILL")
        if world.done[-1] == "roll back":
            world.go_back()
    assert world.done == ["roll back", "roll back", "replace"]
