from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from sandbox_kernel.limits.clock import WAITING_CPU_SECONDS, WAITING_CPU_SHARE, Clock

HOUR = 3600.0


@dataclass
class Now:
    """The time, which passes when a test says so."""

    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    now = Now()
    monkeypatch.setattr(time, "monotonic", now)
    return now


def test_it_stands_still_while_the_cell_waits_and_goes_on_after_the_answer(now: Now) -> None:
    clock = Clock()
    now.seconds += 2
    clock.wait()
    now.seconds += HOUR
    # `input()` looks for its answer a hundred times a second.
    clock.cpu_seconds += HOUR * 0.02
    assert clock.seconds == 2
    assert not clock.running
    clock.resume()
    now.seconds += 3
    assert clock.seconds == 5


def test_a_cell_that_works_while_it_is_said_to_wait_is_on_the_clock(now: Now) -> None:
    clock = Clock()
    clock.wait()
    for _ in range(100):
        now.seconds += 1
        clock.cpu_seconds += 1
        clock.wait()  # again and again: nothing is gained by it
    worked = 100 * (1 - WAITING_CPU_SHARE) - WAITING_CPU_SECONDS
    assert clock.seconds == pytest.approx(worked)
    clock.resume()
    clock.resume()
    now.seconds += 1
    assert clock.seconds == pytest.approx(worked + 1)


def test_many_processors_do_not_make_the_time_pass_faster(now: Now) -> None:
    clock = Clock()
    clock.wait()
    now.seconds += 10
    clock.cpu_seconds += 640
    assert clock.seconds == 10


def test_what_is_used_after_the_end_is_not_the_cells(now: Now) -> None:
    clock = Clock()
    now.seconds += 1
    clock.pause()
    now.seconds += 10
    clock.cpu_seconds += 10
    assert clock.seconds == 1
