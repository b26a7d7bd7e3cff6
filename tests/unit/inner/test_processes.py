"""What the supervisor does to processes, tried on children of the test's."""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Iterator

import pytest

from sandbox_kernel.inner.processes import alive, forbid_forks


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    """Two children that are stopped as soon as they are there."""
    pids = []
    for _ in range(2):
        if not (pid := os.fork()):
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, os.WUNTRACED)
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_who_is_doomed_gets_no_more_children_and_cannot_change_that(sleepers: list[int]) -> None:
    doomed, spared = sleepers
    before = resource.prlimit(spared, resource.RLIMIT_NPROC)
    assert before != (0, 0)
    forbid_forks(lambda pid: pid == doomed, math.inf)
    assert resource.prlimit(doomed, resource.RLIMIT_NPROC) == (0, 0)
    assert resource.prlimit(spared, resource.RLIMIT_NPROC) == before
    assert all(map(alive, sleepers))


def test_only_processes_below_the_supervisor_are_asked_about(sleepers: list[int]) -> None:
    """Without a namespace there are others: not even those of the same user are its own."""
    asked: list[int] = []
    forbid_forks(lambda pid: bool(asked.append(pid)), math.inf)
    assert set(sleepers) <= set(asked)
    assert os.getpid() not in asked
    assert os.getppid() not in asked


def test_one_that_has_ended_meanwhile_is_passed_over(sleepers: list[int]) -> None:
    newest, oldest = max(sleepers), min(sleepers)
    ended = []

    def end(pid: int) -> bool:
        if pid == newest and not ended:
            ended.append(pid)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            sleepers.remove(pid)
        return pid in (newest, oldest)

    forbid_forks(end, math.inf)
    assert ended == [newest]
    assert resource.prlimit(oldest, resource.RLIMIT_NPROC) == (0, 0)


def test_who_never_comes_to_an_end_is_left_at_the_deadline() -> None:
    """Where the limit is not held, there are always new ones."""
    asked: list[int] = []
    forbid_forks(lambda pid: bool(asked.append(pid)), 0.0)
    assert asked == []
