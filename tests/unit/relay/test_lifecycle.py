"""What is done to a sandbox takes its time, and other things happen meanwhile."""

from __future__ import annotations

import time
from collections import deque
from unittest.mock import Mock

import pytest

from sandbox_kernel.relay import lifecycle
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
        self.inner.started.lifeline.read.return_value = [list(words)]
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
