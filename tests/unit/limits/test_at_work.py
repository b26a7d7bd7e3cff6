"""Who is at work between cells, and what of it is beside the next cell."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from sandbox_kernel.limits import at_work
from sandbox_kernel.limits.at_work import AtWork, Beside
from sandbox_kernel.limits.proc import TICKS_PER_SECOND, Stat


class Host:
    """Tasks with the CPU time they have used, and the time."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.used: dict[str, float] = {}
        self.starts: dict[str, int] = {}

    def read(self, task: str) -> Stat | None:
        if task not in self.used:
            return None
        ticks = int(self.used[task] * TICKS_PER_SECOND)
        return Stat(1, 0, ticks, 0, 1, self.starts.get(task, 1))

    def run(self, seconds: float, **shares: float) -> None:
        self.seconds += seconds
        for task, share in shares.items():
            name = {"main": "7/task/7", "thread": "7/task/8", "child": "9"}[task]
            self.used[name] = self.used.get(name, 0.0) + share * seconds


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    host = Host()
    monkeypatch.setattr(time, "monotonic", lambda: host.seconds)
    monkeypatch.setattr(at_work, "read_stat", host.read)
    monkeypatch.setattr(at_work, "thread_ids", lambda _: frozenset({"7", "8"}))
    host.run(0, main=0, thread=0, child=0)
    return host


def looked(host: Host, **shares: float) -> AtWork:
    found = AtWork()
    found.look([7, 9], 7)
    host.run(1.0, **shares)
    found.look([7, 9], 7)
    return found


def test_a_child_and_a_thread_that_spin_are_at_work(host: Host) -> None:
    found = looked(host, child=1.0, thread=0.5)
    assert {task: worker.share for task, worker in found.workers.items()} == {
        "9": 1.0,
        "7/task/8": 0.5,
    }
    assert found.has_process is True


def test_the_main_thread_is_the_cells(host: Host) -> None:
    found = looked(host, main=1.0)
    assert found.workers == {}
    assert found.has_process is False


def test_who_sleeps_between_cells_is_not_at_work(host: Host) -> None:
    found = looked(host, child=0.01, thread=0.01)
    assert found.workers == {}


def test_beside_a_cell_it_counts_only_about_as_fast_as_before(host: Host) -> None:
    found = looked(host, child=0.2)
    beside = Beside(found.workers)
    host.run(1.0, child=0.3)
    assert beside.seconds() == pytest.approx(0.3)
    host.run(1.0, child=1.0)
    assert beside.seconds() == pytest.approx(0.8), "the rest it does for the cell"


def test_what_one_used_that_has_ended_stays_used(host: Host) -> None:
    beside = Beside(looked(host, child=1.0).workers)
    host.run(1.0, child=1.0)
    assert beside.seconds() == pytest.approx(1.0)
    del host.used["9"]
    assert beside.seconds() == pytest.approx(1.0)


def test_another_process_with_its_number_is_not_taken_for_it(host: Host) -> None:
    beside = Beside(looked(host, child=1.0).workers)
    host.used["9"], host.starts["9"] = 5.0, 2
    host.run(1.0, child=1.0)
    assert beside.seconds() == 0


def test_a_sandbox_that_rests_has_nobody_at_work(host: Host) -> None:
    found = looked(host, child=1.0)
    found.rest()
    assert found.workers == {}
    assert found.has_process is None


def test_real_threads_are_read() -> None:
    found = AtWork()
    found.look([os.getpid()], os.getpid())
    assert f"{os.getpid()}/task/{os.getpid()}" in found._ticks
