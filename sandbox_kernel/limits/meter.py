"""What a sandbox and a cell in it use: always read from the host, never anything said from inside.

From the sandbox's cgroup where there is one, else from ``/proc``, and from an engine where neither can be
seen; ``Meter.source`` says which.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, Final

from sandbox_kernel.limits.account import Account
from sandbox_kernel.limits.at_work import WORKING_SHARE, AtWork, Beside
from sandbox_kernel.limits.cgroup import Memory
from sandbox_kernel.limits.growth import (
    Processes,
    gained_bytes,
    heritage_bytes,
    highest_growth,
    sort_processes,
)
from sandbox_kernel.limits.host import host_virtual_memory, sandbox_virtual_memory
from sandbox_kernel.limits.proc import (
    MAX_PROCESSES,
    MAX_THREADS,
    Leaders,
    Status,
    anon_bytes,
    find_leaders,
    is_checkpoint,
    process_tree,
    read_stat,
    read_status,
    reset_highest,
    thread_ids,
    ticks_now,
)
from sandbox_kernel.limits.reading import Baseline, Reading, Snapshot
from sandbox_kernel.limits.surroundings import Surroundings, Unseen
from sandbox_kernel.limits.tree import Tree, TreeMemory

__all__ = ["Baseline", "CellMeter", "Meter", "Reading", "host_virtual_memory", "process_tree"]

PROC: Final = "/proc"
_NOBODY: Final = 0  # no process has this pid
# Less CPU time than this changes nothing that counts.
_REST_SECONDS: Final = 0.001


class Meter:
    """Measures one sandbox: the processes below ``root_pid``, all of them in ``account`` if there is one.

    After the sandbox's end it goes on to say how much CPU time that has used. With neither there is
    nothing to measure. ``supervisor``: its pid, where no pid namespace tells.
    """

    def __init__(
        self,
        root_pid: int | None = None,
        account: Account | None = None,
        supervisor: int | None = None,
    ) -> None:
        # What `usage_reply` shows as the memory there is: the user's budget.
        self.memory_limit: int | None = None
        self._root = _NOBODY if root_pid is None else root_pid
        self._account = account
        self._supervisor = supervisor
        # It may be without one of the two controllers.
        self._has_memory = account is not None and account.memory() is not None
        self._has_cpu = account is not None and account.cpu_seconds() is not None
        # What has run since the last word is not in it: nobody knows from it whether anything has.
        self._is_late = account is not None and account.as_of is not None
        self._tree = Tree(self._root)
        self._tree_memory = TreeMemory()
        # What nobody can attribute to it, where no account has it. And when it had last run, by CPU time.
        watches = root_pid is not None and not self._has_memory
        self._unseen = Unseen(Surroundings()) if watches else None
        self._ran_seconds = 0.0
        self._leaders: Leaders | None = None
        self._kernel_parent = 0
        self._cpu_seconds = 0.0
        self._ahead: Baseline | None = None
        # When a cell was last looked at, by the monotonic clock.
        self._busy_at = 0.0
        self._last_answer: tuple[float, float] | None = None
        self._at_work = AtWork()
        # The CPU time at the last look between cells, and when that was.
        self._idle_look: tuple[float, float] | None = None

    @property
    def source(self) -> str:
        """Where memory is read: ``cgroup v2``, ``cgroup v1``, ``/proc`` or ``engine``."""
        return self._account.source if self._account is not None and self._has_memory else PROC

    @property
    def kernel_pid(self) -> int | None:
        """The host's pid of the process that runs cells, as of the last reading."""
        return None if self._leaders is None else self._leaders.kernel

    def oom_kills(self) -> int:
        """How often the kernel has killed for want of memory; only a cgroup knows."""
        return 0 if self._account is None else self._account.oom_kills()

    def memory_bytes(self, limit: int | None = None) -> int:
        """The whole sandbox's. Without a cgroup it is an upper bound up to ``limit``: that is cheap."""
        now = self._snapshot()
        return self._exact(now, limit).total + self._look_around(now)

    def _look_around(self, now: Snapshot) -> int:
        """What the sandbox holds that is not in ``now``."""
        if self._unseen is None:
            return 0
        cpu_seconds = self._read_cpu()
        ran, self._ran_seconds = cpu_seconds > self._ran_seconds, cpu_seconds
        return self._unseen.look(now.memory.shmem + now.memory.kernel, now.anon, ran=ran)

    # -- between cells -----------------------------------------------------------------------------

    @property
    def cpu_seconds(self) -> float:
        """Of the whole sandbox since its start, as of the last reading."""
        return self._cpu_seconds

    @property
    def is_late(self) -> bool:
        """Whether readings are of some time before."""
        return self._is_late

    def cpu_seconds_now(self) -> float:
        """The same as of now; and see who is at work, if somebody is."""
        if not self._has_cpu and not self._has_memory:
            self._tree.look()
        now, cpu_seconds = time.monotonic(), self._read_cpu()
        then, cpu_then = self._idle_look or (now, cpu_seconds)
        self._idle_look = (now, cpu_seconds)
        if cpu_seconds - cpu_then <= WORKING_SHARE * (now - then):
            self._at_work.rest()
        elif (pids := self._pids()) is not None:
            pid, kernel = self._find_kernel(self._snapshot(scan=False))
            # Under a second kernel all is one process.
            if kernel is not None:
                self._at_work.look(pids, pid)
        return cpu_seconds

    def idle_bytes(self) -> int:
        """The whole sandbox's memory, by an estimate that does not grow with a checkpoint."""
        return self._snapshot(scan=False).estimate_bytes

    def processes_at_work(self) -> bool | None:
        """Whether processes that cells left are; ``None`` where that cannot be seen."""
        return self._at_work.has_process

    def _pids(self) -> list[int] | None:
        if self._account is not None:
            pids = self._account.pids()
            return None if pids is None else pids[:MAX_PROCESSES]
        return list(self._tree.look())

    # -- a cell ------------------------------------------------------------------------------------

    def look_ahead(self) -> None:
        """Take the baseline of the next cell: it holds for as long as nothing runs in the sandbox."""
        if self._has_cpu and not self._is_late and not self._is_at_rest():
            self._ahead = self._baseline()

    def begin(self) -> Baseline:
        """On the way of every cell, so it leaves out what is costly."""
        ahead = self._ahead
        return ahead if ahead is not None and self._is_at_rest() else self._baseline()

    def beside(self) -> Beside | None:
        """Who is at work though no cell runs, and goes on beside the one that begins."""
        workers = self._at_work.workers
        return Beside(workers) if workers else None

    def covers(self, moment: float) -> bool:
        """Whether what is read now has been so since ``moment``; else it is older than that."""
        as_of = None if self._account is None else self._account.as_of
        return as_of is None or as_of >= moment

    @property
    def covers_last_cell(self) -> bool:
        """Whether what is read now has all that the last cell did in it."""
        return self.covers(self._busy_at)

    def _is_at_rest(self) -> bool:
        """Whether nothing has run since the look ahead: only a cgroup's CPU time is exact enough."""
        ahead = self._ahead
        return ahead is not None and self._read_cpu() - ahead.cpu_seconds < _REST_SECONDS

    def _baseline(self) -> Baseline:
        ticks = ticks_now()
        snapshot = self._snapshot(scan=False)
        pid, kernel = self._find_kernel(snapshot)
        if kernel is not None and reset_highest(pid):
            kernel = kernel._replace(highest=kernel.resident)
        threads = frozenset() if kernel is None else thread_ids(pid)
        unseen = self._look_around(snapshot)
        pipes = self._count_pipes(snapshot)
        terminals = self._count_terminals()
        return Baseline(
            ticks, self._read_cpu(), snapshot, pid, kernel, threads, unseen, pipes, terminals
        )

    def read(self, baseline: Baseline, memory_limit: int | None = None) -> Reading:
        """What was used since ``baseline``; on ``memory_limit`` see ``memory_bytes``."""
        self._busy_at = time.monotonic()
        now = self._snapshot()
        pid, kernel = self._find_kernel(now)
        processes = sort_processes(baseline, now, pid)
        growth = peak = self._growth(baseline, now, processes, kernel)
        threads = 0
        if kernel is not None and baseline.kernel is not None:
            # Which ones, not how many: others may have ended meanwhile.
            threads = len(thread_ids(pid) - baseline.kernel_threads)
            if pid == baseline.kernel_pid:
                peak = max(growth, highest_growth(baseline.kernel, kernel))
        unseen = self._look_around(now)
        return Reading(
            cpu_seconds=self._read_cpu() - baseline.cpu_seconds,
            memory_bytes=self._exact(now, memory_limit).total + unseen,
            growth_bytes=growth,
            growth_peak=peak,
            processes=1 + processes.added,
            tasks=self._tasks(now),
            kernel_threads_added=threads,
            complete=now.complete,
            unseen_bytes=max(0, unseen - baseline.unseen_bytes),
            pipes=self._count_pipes(now),
            terminals=self._count_terminals(),
        )

    def _count_terminals(self) -> int:
        if self._leaders is None or self._leaders.supervisor is None:
            return 0
        try:
            # One entry is the file that makes others.
            return len(os.listdir(f"/proc/{self._leaders.supervisor}/root/dev/pts")) - 1  # noqa: PTH208
        except OSError:
            return 0  # it has ended, or has none

    def _count_pipes(self, now: Snapshot) -> int:
        """Linux counts them per user, and root's sandboxes each have a user of their own."""
        return 0 if os.geteuid() == 0 else self._tree_memory.count_pipes(now.anon)

    def _growth(
        self, baseline: Baseline, now: Snapshot, processes: Processes, kernel: Status | None
    ) -> int:
        before = baseline.snapshot.memory
        heritage = heritage_bytes(baseline, kernel)
        gained = gained_bytes(baseline, now, processes, heritage)
        # Files in memory; buffers of sockets and pipes, page tables: of these a cell that frees what it
        # finds there has no more to spend.
        shared = now.memory.shmem - before.shmem + now.memory.kernel_gained(before)
        if self._has_memory:
            total = now.memory.anon - before.anon
            if now.complete:
                # Forks have gained nothing at least and all they have at most.
                total = min(total, gained + sum(now.anon[pid] for pid in processes.forked))
            return shared + max(gained, total)
        forked = {pid: now.statuses[pid] for pid in processes.forked}
        return shared + gained + self._tree_memory.forked_bytes(forked, heritage)

    # -- its parts ---------------------------------------------------------------------------------

    def _snapshot(self, *, scan: bool = True) -> Snapshot:
        """The sandbox now; ``scan``: look through open files for memory as well."""
        if self._account is not None and self._has_memory:
            memory = self._account.memory() or Memory(0, 0, 0)  # it has ended
            if (pids := self._account.pids()) is None:
                return Snapshot(memory, {}, {}, {}, complete=False)
            # One that is about to end is there still, but has nothing any more.
            anon = {pid: anon for pid in pids[:MAX_PROCESSES] if (anon := anon_bytes(pid))}
            return Snapshot(memory, anon, {}, {}, complete=len(pids) <= MAX_PROCESSES)
        stats = self._tree.look()
        statuses = {pid: status for pid in stats if (status := read_status(pid)) is not None}
        supervisor = None if self._leaders is None else self._leaders.supervisor
        memory = self._tree_memory.read(statuses, supervisor, scan=scan)
        anon = {pid: status.anon for pid, status in statuses.items()}
        threads = sum(stat.threads for stat in stats.values())
        complete = len(stats) < MAX_PROCESSES and threads < MAX_THREADS
        return Snapshot(memory, anon, stats, statuses, complete)

    def _find_kernel(self, snapshot: Snapshot) -> tuple[int, Status | None]:
        """The kernel process; another one if the last has ended and a checkpoint took over."""
        if self._leaders is not None:
            status = read_status(self._leaders.kernel)
            same = status is not None and status.parent == self._kernel_parent
            if status is not None and same and not is_checkpoint(status):
                return self._leaders.kernel, status
        self._leaders = find_leaders(self._root, snapshot.anon, self._supervisor)
        status = None if self._leaders is None else read_status(self._leaders.kernel)
        if self._leaders is None or status is None:
            return 0, None
        self._kernel_parent = status.parent
        return self._leaders.kernel, status

    def _exact(self, now: Snapshot, limit: int | None) -> Memory:
        if self._has_memory or (limit is not None and now.memory.total <= limit):
            return now.memory
        return self._tree_memory.exact(now.statuses, now.memory)

    def _read_cpu(self) -> float:
        if self._account is not None and self._has_cpu:
            seconds = self._account.cpu_seconds()
        else:
            if self._has_memory:
                self._tree.look()  # else the snapshot has
            seconds = self._tree.cpu_seconds
        # A cgroup that is removed says no more; what was used stays used.
        self._cpu_seconds = max(self._cpu_seconds, seconds or 0.0)
        return self._cpu_seconds

    def _tasks(self, now: Snapshot) -> int:
        tasks = None if self._account is None else self._account.tasks()
        if tasks is not None:
            return tasks
        stats = now.stats or {pid: stat for pid in now.anon if (stat := read_stat(pid))}
        return sum(stat.threads for stat in stats.values())

    # -- usage_request -----------------------------------------------------------------------------

    def usage_reply(self) -> dict[str, Any]:
        """Content of a ``usage_reply`` in ipykernel's terms: CPU in percent since the last one."""
        snapshot = self._snapshot()
        self._find_kernel(snapshot)
        memory = self._exact(snapshot, None)
        moment, cpu_seconds = time.monotonic(), self._read_cpu()
        then, cpu_then = self._last_answer or (moment, cpu_seconds)
        self._last_answer = (moment, cpu_seconds)
        limit = self.memory_limit
        return {
            "hostname": os.uname().nodename,
            "pid": os.getpid(),
            "kernel_cpu": round(100 * (cpu_seconds - cpu_then) / max(moment - then, 1e-3), 1),
            "kernel_memory": memory.total,
            "cpu_count": os.cpu_count(),
            "host_virtual_memory": (
                host_virtual_memory() if limit is None else sandbox_virtual_memory(memory, limit)
            ),
        }


class CellMeter:
    """One cell's usage as it adds up. ``memory_limit`` is that of the whole sandbox."""

    def __init__(self, meter: Meter, memory_limit: int | None = None) -> None:
        self._meter = meter
        self._memory_limit = memory_limit
        self._began = time.monotonic()
        # A baseline without all that the last cell did would blame this one for it.
        self._has_baseline = meter.covers_last_cell
        self.baseline = meter.begin()
        self._beside = meter.beside()
        self.cpu_seconds = 0.0
        # Of what earlier cells have left at work.
        self.background_seconds = 0.0
        # Of the sandbox, now.
        self.memory_bytes = 0
        # By how much the cell has made the sandbox grow: now, and at most.
        self.growth_bytes = 0
        self.memory_peak_bytes = 0
        self.processes_peak = 1

    @property
    def memory_delta_bytes(self) -> int:
        return self.growth_bytes

    def covers(self, moment: float) -> bool:
        """Whether what was read last has been so since ``moment``."""
        return self._meter.covers(moment)

    def sample(self) -> Reading:
        if not self._has_baseline:
            self._has_baseline = self._meter.covers(self._began)
            # Still, what it has started by now is its own.
            self.baseline = replace(self._meter.begin(), ticks=self.baseline.ticks)
        reading = self._meter.read(self.baseline, self._memory_limit)
        if self._beside is not None:
            self.background_seconds = min(self._beside.seconds(), reading.cpu_seconds)
            own = reading.cpu_seconds - self.background_seconds
            reading = replace(reading, cpu_seconds=own, background_seconds=self.background_seconds)
        self.cpu_seconds = reading.cpu_seconds
        if reading.tasks:  # else the sandbox has ended: what it used last is what counts
            self.memory_bytes = reading.memory_bytes
            self.growth_bytes = reading.growth_bytes
            self.memory_peak_bytes = max(self.memory_peak_bytes, reading.growth_peak)
            self.processes_peak = max(self.processes_peak, reading.processes)
        return reading
