"""What is done to a cell that reaches a limit, in which order, and what is said of it then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from sandbox_kernel.limits.cgroup import Memory
from sandbox_kernel.limits.endings import NOT_KEPT
from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.limits.ladder import Restored
from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.limits.own_memory import OwnMemory
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
    sweeps: list[Callable[[int], None]] = field(default_factory=list)
    restored: Callable[[Restored | None], None] | None = None
    timer: Timer = field(default_factory=lambda: Timer(lambda: None))
    source: str = "none"
    ready: bool = True
    held: int = 0
    # The moment that readings are of: now, unless they come late.
    heard_at: float = math.inf

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
        return Baseline(0, 0.0, snapshot, 2, KERNEL)

    def read(self, baseline: Baseline, memory_limit: int | None) -> Reading:
        return replace(self.reading, memory_bytes=self.memory_bytes)

    def look_ahead(self) -> None:
        pass

    def oom_kills(self) -> int:
        return 0

    # -- the ladder --

    def meter(self) -> Meter:
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

        return cast(Meter, Metering())

    def interrupt(self) -> None:
        self.done.append("interrupt")

    def forget(self) -> None:
        self.done.append("forget")

    def sweep(self, since_ticks: int, done: Callable[[int], None]) -> None:
        self.done.append("sweep")
        self.sweeps.append(done)

    def roll_back(self, to: object, done: Callable[[Restored | None], None]) -> None:
        self.done.append("roll back")
        self.restored, self.ready = done, False

    # -- who is told --

    def conclude(self, cell: RunningCell, ending: Ending) -> None:
        self.endings.append(ending)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def held_bytes(self) -> int:
        return self.held

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
) -> RunningCell:
    header = {"msg_id": str(serial), "msg_type": msg_type, "subshell_id": lane}
    frames = (b"{}", b"{}", b"{}", encode_object({"code": "1"}))
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


# -- memory of the wrapper -------------------------------------------------------------------------


@pytest.fixture
def swamp(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have the wrapper grow."""

    def grow(size: int) -> None:
        monkeypatch.setattr(OwnMemory, "growth_bytes", size)

    return grow


def test_a_cell_that_fills_the_wrapper_is_killed(
    world: World, enforcer: Enforcer, swamp: Callable[[int], None]
) -> None:
    begin(enforcer)
    swamp(150 * MIB)
    world.tick()
    assert world.done == ["roll back"]
    world.go_back()
    assert "150 MiB of output" in world.said


def test_what_the_frontend_has_sent_is_not_the_cells(
    world: World, enforcer: Enforcer, swamp: Callable[[int], None]
) -> None:
    begin(enforcer)
    world.held = 150 * MIB
    swamp(300 * MIB)
    world.tick()
    assert world.done == []


def test_nothing_hangs_up_on_a_sandbox_that_is_not_there(
    world: World, enforcer: Enforcer, swamp: Callable[[int], None]
) -> None:
    world.ready = False
    swamp(300 * MIB)
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
    assert "ran for more than 5 s" in str(told.error)
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
    assert "Mend" not in said


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
