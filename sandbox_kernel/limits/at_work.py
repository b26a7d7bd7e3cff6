"""Who is at work in a sandbox while no cell runs, and what they use beside the next cell.

A worker of a pool and the threads of a numerical library sleep between cells and wake for the next one:
what they do then is that cell's. Only who works on between cells is nobody's, and only about as fast as
before: a worker that sleeps most of the time cannot take over a cell's work unseen.
The kernel's main thread cannot be told apart: it runs the cells.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from sandbox_kernel.limits.proc import (
    MAX_THREADS,
    TICKS_PER_SECOND,
    Stat,
    read_stat,
    thread_ids,
)

# Who uses less of a processor than this sleeps.
WORKING_SHARE: Final = 0.1
# By this factor a busy machine may have slowed it down before.
FASTER: Final = 2.0
# CPU time of single tasks is counted in ticks: a shorter look says nothing.
SHORTEST_SECONDS: Final = 10 / TICKS_PER_SECOND

# A process, or a thread of the kernel process as ``PID/task/TID``.
Task = str


class Worker(NamedTuple):
    """A task that was at work between cells: since when it exists, and the share of a processor."""

    start: int
    share: float


class AtWork:
    """Compares the tasks of one sandbox from look to look. A sandbox that rests is not looked at."""

    def __init__(self) -> None:
        self._ticks: dict[Task, tuple[int, int]] = {}
        self._looked_at = 0.0
        self.workers: dict[Task, Worker] = {}
        # Whether a process is among them that is not the kernel's; ``None``: not known yet.
        self.has_process: bool | None = None

    def rest(self) -> None:
        """Nothing runs."""
        self._ticks, self.workers, self.has_process = {}, {}, None

    def look(self, pids: Iterable[int], kernel_pid: int) -> None:
        now = time.monotonic()
        seconds = now - self._looked_at
        if self._ticks and seconds < SHORTEST_SECONDS:
            return
        before, self._ticks = self._ticks, dict(_read(_tasks(pids, kernel_pid)))
        self._looked_at = now
        if not before:
            return
        workers = {}
        for task, (start, ticks) in self._ticks.items():
            old_start, old_ticks = before.get(task, (start, 0))
            share = (
                (ticks - old_ticks if old_start == start else ticks) / TICKS_PER_SECOND / seconds
            )
            if share >= WORKING_SHARE:
                workers[task] = Worker(start, share)
        self.has_process = any("/" not in task for task in workers)
        workers.pop(f"{kernel_pid}/task/{kernel_pid}", None)
        self.workers = workers


class Beside:
    """The CPU time of such workers since a cell began."""

    def __init__(self, workers: Mapping[Task, Worker]) -> None:
        self._workers = workers
        self._began = time.monotonic()
        self._before = dict(_read(workers))
        self._used: dict[Task, float] = {}

    def seconds(self) -> float:
        elapsed = time.monotonic() - self._began
        for task, (start, ticks) in _read(self._before):
            then, ticks_then = self._before[task]
            if start == then == self._workers[task].start:
                used = (ticks - ticks_then) / TICKS_PER_SECOND
                self._used[task] = min(used, FASTER * self._workers[task].share * elapsed)
        return sum(self._used.values())


def _tasks(pids: Iterable[int], kernel_pid: int) -> Iterable[Task]:
    for pid in pids:
        if pid != kernel_pid:
            yield str(pid)
    for number, thread in enumerate(thread_ids(kernel_pid)):
        if number < MAX_THREADS:
            yield f"{kernel_pid}/task/{thread}"


def _read(tasks: Iterable[Task]) -> Iterable[tuple[Task, tuple[int, int]]]:
    """Each one's start and CPU time in ticks; those of children count for a process that waited."""
    for task in tasks:
        stat: Stat | None = read_stat(task)
        if stat is not None:
            waited = 0 if "/" in task else stat.waited_ticks
            yield task, (stat.start, stat.own_ticks + waited)
