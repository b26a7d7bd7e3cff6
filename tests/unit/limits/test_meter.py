from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sandbox_kernel.limits import growth
from sandbox_kernel.limits import meter as module
from sandbox_kernel.limits.cgroup import Memory
from sandbox_kernel.limits.host import host_virtual_memory, sandbox_virtual_memory
from sandbox_kernel.limits.meter import CellMeter, Meter
from sandbox_kernel.limits.proc import Status
from sandbox_kernel.limits.reading import Baseline, Snapshot

MIB = 1 << 20


@contextmanager
def python() -> Iterator[subprocess.Popen[str]]:
    """A process that does what it is told, line by line: see ``tell``."""
    read = "import sys\nfor line in sys.stdin: exec(line); print(flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", read], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        tell(process, "import os, time, subprocess")
        yield process
        process.kill()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    print(line, file=process.stdin, flush=True)
    process.stdout.readline()


def test_a_tree_includes_grandchildren_and_their_memory() -> None:
    hold = "data = bytearray(64 << 20); print(flush=True); input()"
    with python() as process:
        meter = Meter(process.pid)
        cell = CellMeter(meter)
        assert cell.sample().processes == 1
        tell(
            process,
            f"p = subprocess.Popen([{sys.executable!r}, '-c', {hold!r}], stdin=-1, stdout=-1); "
            "p.stdout.readline()",
        )
        reading = cell.sample()
        assert meter.source == "/proc"
        assert reading.processes == reading.tasks == 2
        assert 64 * MIB < reading.growth_bytes < 90 * MIB
        assert reading.memory_bytes > 64 * MIB
        assert reading.complete
        tell(process, "p.kill(); p.wait()")
        assert cell.sample().growth_bytes < 10 * MIB
        assert cell.memory_peak_bytes > 64 * MIB
        assert cell.processes_peak == 2


def test_memory_up_to_the_limit_is_an_upper_bound_and_exact_beyond() -> None:
    with python() as process:
        tell(process, "data = bytearray(b'x') * (64 << 20)")
        tell(process, "pid = os.fork() or time.sleep(600)")
        meter = Meter(process.pid)
        assert meter.memory_bytes(limit=1 << 40) > 130 * MIB
        assert 64 * MIB < meter.memory_bytes(limit=MIB) < 90 * MIB
        assert 64 * MIB < meter.memory_bytes() < 90 * MIB
        tell(process, "os.kill(pid, 9)")


def test_what_was_used_last_is_what_an_ended_sandbox_has_used() -> None:
    with python() as process:
        cell = CellMeter(Meter(process.pid))
        tell(process, "data = bytearray(b'x') * (64 << 20)")
        tell(process, "while time.process_time() < 0.3: pass")
        cell.sample()
        before = (cell.cpu_seconds, cell.memory_peak_bytes, cell.growth_bytes)
        process.kill()
        process.wait()
        reading = cell.sample()
        assert reading.tasks == 0
        assert cell.cpu_seconds > 0.2
        assert (cell.cpu_seconds, cell.memory_peak_bytes, cell.growth_bytes) == before


def test_too_many_processes_are_not_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROCESSES", 2)
    with python() as process:
        cell = CellMeter(Meter(process.pid))
        assert cell.sample().complete
        tell(process, "pid = os.fork() or time.sleep(600)")
        assert not cell.sample().complete
        tell(process, "os.kill(pid, 9)")


def test_what_a_child_had_before_it_ran_its_own_program_is_not_its_own() -> None:
    """It was looked at while it was still a copy of its parent, with all that this has."""
    before = Snapshot(Memory(0, 0, 0), {}, {}, {}, complete=True)
    baseline = Baseline(0, 0.0, before, os.getpid(), None)
    with subprocess.Popen(["sleep", "60"]) as child:
        now = Snapshot(Memory(0, 0, 0), {child.pid: 1 << 30}, {}, {}, complete=True)
        processes = growth.sort_processes(baseline, now, os.getpid())
        assert processes.started == {child.pid}
        assert growth.gained_bytes(baseline, now, processes, 0) < 16 << 20
        child.kill()


def test_cpu_is_a_percentage_between_two_answers() -> None:
    with python() as process:
        meter = Meter(process.pid)
        assert meter.usage_reply()["kernel_cpu"] == 0
        tell(process, "while time.process_time() < 0.3: pass")
        assert 5 < meter.usage_reply()["kernel_cpu"] <= 130
        assert meter.usage_reply()["pid"] == os.getpid()


def test_a_limit_is_shown_as_the_memory_there_is() -> None:
    with python() as process:
        meter = Meter(process.pid)
        assert meter.usage_reply()["host_virtual_memory"]["total"] == host_virtual_memory()["total"]
        meter.memory_limit = 512 * MIB
        reply = meter.usage_reply()
        assert reply["host_virtual_memory"]["total"] == 512 * MIB
        assert reply["host_virtual_memory"]["used"] == reply["kernel_memory"] > MIB


def test_without_a_sandbox_nothing_is_used() -> None:
    reply = Meter().usage_reply()
    assert reply["kernel_memory"] == reply["kernel_cpu"] == 0
    reading = CellMeter(Meter()).sample()
    assert (reading.cpu_seconds, reading.memory_bytes, reading.tasks) == (0, 0, 0)


def test_memory_has_the_keys_frontends_read() -> None:
    memory = host_virtual_memory()
    assert memory["total"] > memory["available"] > 0
    assert memory["active"] > 0
    of_sandbox = sandbox_virtual_memory(Memory(anon=300, shmem=30, kernel=3), limit=200)
    assert of_sandbox.keys() == memory.keys()
    assert (of_sandbox["available"], of_sandbox["percent"]) == (0, 166.5)


@pytest.mark.parametrize(
    ("highest", "mapped", "grown"),
    [(100, 20, 0), (160, 20, 60), (160, 50, 30), (160, 10, 60)],
    ids=["no new peak", "a peak", "a peak with files", "a peak after files"],
)
def test_a_peak_is_what_was_resident_but_for_files(highest: int, mapped: int, grown: int) -> None:
    def status(highest: int, anon: int, mapped: int) -> Status:
        return Status(b"python", 1, 2, 2, 1, highest, anon + mapped, anon, 0, 0)

    assert growth.highest_growth(status(100, 80, 20), status(highest, 80, mapped)) == grown
