"""What is done to a cell that reaches a limit, in which order, and what is said of it then."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from sandbox_kernel.limits.cgroup import Memory
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
    swept: Callable[[int], None] | None = None
    restored: Callable[[Restored | None], None] | None = None
    timer: Timer = field(default_factory=lambda: Timer(lambda: None))
    source: str = "none"

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
        self.swept = done

    def roll_back(self, to: object, done: Callable[[Restored | None], None]) -> None:
        self.done.append("roll back")
        self.restored = done

    # -- who is told --

    def conclude(self, cell: RunningCell, ending: Ending) -> None:
        self.endings.append(ending)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    # -- what a test does --

    def go_back(self, *not_restored: str) -> None:
        assert self.restored is not None
        self.restored(Restored(0, not_restored))

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


def begin(enforcer: Enforcer, serial: int = 1) -> RunningCell:
    header = {"msg_id": str(serial), "msg_type": "execute_request"}
    frames = (b"{}", b"{}", b"{}", encode_object({"code": "1"}))
    cell = RunningCell(Request("shell", Message((), header, {}, Outline(), frames)), serial=serial)
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
    assert world.swept is not None
    world.swept(0)
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
