"""What is done to a sandbox takes its time, and other things happen meanwhile."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.lifeline import Peer
from sandbox_kernel.isolation.supervisor_line import parse
from sandbox_kernel.limits.statistics import Statistics, Used
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.relay import lifecycle
from sandbox_kernel.relay.inner import InnerSockets
from sandbox_kernel.relay.lifecycle import Lifecycle
from sandbox_kernel.relay.loop import Loop
from sandbox_kernel.relay.wire import Author


class Stage:
    """A lifecycle with a kernel process that answers when a test says so."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.serving = Mock()
        self.serving.busy.return_value = False
        self.serving.watching.return_value = False
        self.lifecycle = Lifecycle(
            self.loop, Mock(), Author("session"), Mock(), Mock(), self.serving
        )
        self.inner = Mock(sweeps=deque(), clock_ahead=0, counted=None, rolled_back=None)
        self.inner.link.asked = {}
        self.lifecycle._inner = self.inner
        self.swept: list[tuple[str, int]] = []

    def sweep(self, name: str) -> None:
        self.lifecycle.sweep(0, lambda threads: self.swept.append((name, threads)))

    def answer(self) -> None:
        """The kernel process does, to the first question that is open."""
        asked = self.inner.link.asked
        asked.pop(next(iter(asked)))()

    def hear(self, *words: str) -> None:
        """The supervisor says something."""
        self.inner.started.lifeline.read.return_value = [parse(" ".join(words).encode())]
        self.lifecycle._read_lifeline(self.inner)

    def told(self) -> list[tuple[object, ...]]:
        """What the supervisor was told."""
        return [call.args for call in self.inner.started.lifeline.send.call_args_list]

    def go_on(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.loop.step(int(left * 1000) + 1)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(lifecycle, "SWEEP_SECONDS", 0.02)
    return Stage()


def test_a_process_that_does_not_answer_before_a_sweep_is_given_up(stage: Stage) -> None:
    stage.sweep("cell")
    stage.go_on(0.05)
    stage.serving.died.assert_called_once_with("it did not answer any more")


def test_a_process_that_is_at_something_else_may_take_its_time_to_answer(stage: Stage) -> None:
    stage.serving.busy.return_value = True
    stage.sweep("cell")
    stage.go_on(0.1)
    stage.serving.died.assert_not_called()
    stage.serving.busy.return_value = False
    stage.answer()
    stage.hear("swept", "0", "0")
    stage.go_on(0.05)
    assert stage.swept == [("cell", 0)]
    stage.serving.died.assert_not_called()


def test_each_of_two_sweeps_is_answered(stage: Stage) -> None:
    stage.sweep("first")
    stage.sweep("second")
    for threads in "01":
        stage.answer()
        stage.hear("swept", "0", threads)
    assert stage.swept == [("first", 0), ("second", 1)]
    stage.go_on(0.05)
    stage.serving.died.assert_not_called()


def test_nothing_is_undone_in_a_sandbox_that_has_begun_to_go_back(stage: Stage) -> None:
    """The one of the two that comes first would never be told how it ended."""
    undone, impossible = Mock(), Mock()
    stage.lifecycle.undo(undone, impossible)
    stage.answer()
    stage.inner.rolled_back = Mock()  # because of memory, between the question and its answer
    stage.lifecycle.finished = 1
    stage.hear("checkpoints", "2", "1")
    impossible.assert_called_once_with()
    stage.lifecycle.undo(undone, impossible)
    assert impossible.call_count == 2
    assert stage.told() == [("count",)]


class Newcomer:
    """A sandbox of which the supervisor has just connected."""

    def __init__(self, stage: Stage, peer: Peer, *, inside: bool = False) -> None:
        self.stage = stage
        self.inner = stage.inner
        self.inner.measured = self.inner.serving = False
        self.inner.started.lifeline.peer = peer
        self.inner.started.lifeline.open = False
        self.inner.link.sockets.all = []
        self.sandbox = self.inner.started.sandbox
        self.sandbox.contains.return_value = inside
        self.sandbox.statistics = self.sandbox.cgroup = None
        self.sandbox.root_pid = os.getpid()
        self.sandbox.supervisor_pid = None
        stage.lifecycle._limits = replace(load_policy("default").limits, cpus=None)

    def measure(self) -> None:
        self.stage.lifecycle._measure(self.inner)

    @property
    def refused(self) -> str:
        return "".join(str(call.args[0]) for call in self.stage.serving.refuse.call_args_list)


def test_who_is_seen_in_the_sandbox_is_measured_there(stage: Stage) -> None:
    newcomer = Newcomer(stage, Peer(os.getpid(), 0), inside=True)
    newcomer.measure()
    assert newcomer.inner.measured
    assert newcomer.inner.meter.source == "/proc"
    newcomer.sandbox.ask_for_statistics.assert_not_called()


def test_who_is_seen_elsewhere_is_nobody_to_run_cells_for(stage: Stage) -> None:
    """Whatever an engine may say: it would speak of another one."""
    newcomer = Newcomer(stage, Peer(os.getpid(), 0))
    newcomer.measure()
    assert not newcomer.inner.measured
    assert "cannot be seen from here" in newcomer.refused
    newcomer.sandbox.ask_for_statistics.assert_not_called()


def test_who_is_not_seen_at_all_and_cannot_be_asked_about_is_refused(stage: Stage) -> None:
    newcomer = Newcomer(stage, Peer(0, 1234))
    newcomer.sandbox.ask_for_statistics.return_value = "they are late"
    newcomer.measure()
    assert not newcomer.inner.measured
    assert "cannot be seen from here" in newcomer.refused
    assert "they are late" in newcomer.refused


def test_who_is_not_seen_at_all_is_served_when_the_engine_has_said_what_it_uses(
    stage: Stage,
) -> None:
    newcomer = Newcomer(stage, Peer(0, 1234))
    newcomer.sandbox.ask_for_statistics.return_value = None
    newcomer.measure()
    assert not newcomer.inner.measured
    assert not newcomer.refused
    newcomer.sandbox.statistics = Statistics(Used(1.0, 1, 1, 1, 1), asked_at=0.0)
    newcomer.measure()
    assert newcomer.inner.measured
    assert newcomer.inner.meter.source == "engine"


def test_sockets_that_cannot_be_made_for_a_rollback_end_it(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = stage.inner
    inner.link.sockets = InnerSockets(stage.loop, tmp_path, lambda _: None)
    inner.generation = 1
    for channel in inner.link.sockets.all:
        stage.loop.watch(channel, lambda: None)
    refuse = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(lifecycle, "InnerSockets", refuse)
    done = Mock()
    stage.lifecycle.roll_back(1, done)
    done.assert_called_once_with(None)
    inner.started.close.assert_called()
    (refused,) = stage.serving.refuse.call_args.args
    assert "No space left on device" in str(refused)


@pytest.mark.parametrize(
    ("readings", "is_lost"), [([50, 300, 400], True), ([400, 300, 200], False)]
)
def test_a_sandbox_that_grows_while_its_cell_is_stopped_is_ended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, readings: list[int], is_lost: bool
) -> None:
    """Though its supervisor, which a cell may hold up, does not answer."""
    monkeypatch.setattr(lifecycle, "ROLLBACK_USUALLY_SECONDS", 0.01)
    monkeypatch.setattr(lifecycle, "GUARD_SECONDS", 0.01)
    monkeypatch.setattr(lifecycle, "InnerSockets", Mock(return_value=Mock(all=[])))
    stage.inner.generation, stage.inner.restored = 1, None
    stage.inner.link.sockets.all = []
    stage.lifecycle._limits = Mock(hard_memory_bytes=100)
    stage.lifecycle._starter.start.side_effect = SandboxUnavailable("None.", hint="Wait.")
    stage.inner.meter.memory_bytes.side_effect = [*readings, *[readings[-1]] * 100]
    stage.lifecycle.roll_back(1, Mock())
    stage.go_on(0.2)
    assert stage.serving.lost.called is is_lost
