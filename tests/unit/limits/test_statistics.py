"""What engines say of a container, and what a cell is charged for by such late words."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sandbox_kernel.limits.cgroup import Memory
from sandbox_kernel.limits.meter import CellMeter, Meter
from sandbox_kernel.limits.proc import ticks_now
from sandbox_kernel.limits.statistics import Statistics, Used, parse

MIB = 1 << 20
IDLE = Used(cpu_seconds=1.0, anon=100 * MIB, shmem=0, kernel=MIB, tasks=5)


def said(memory: dict[str, Any]) -> dict[str, Any]:
    """As engines put it."""
    return {
        "cpu_stats": {"cpu_usage": {"total_usage": 1_500_000_000}},
        "memory_stats": memory,
        "pids_stats": {"current": 7},
    }


def test_version_1_of_cgroups_has_files_in_memory_among_the_anonymous_pages() -> None:
    stats = {
        "total_rss": 10 * MIB,
        "total_active_anon": 4 * MIB,
        "total_inactive_anon": 26 * MIB,
        "total_cache": 50 * MIB,
    }
    used = parse(said({"usage": 63 * MIB, "stats": stats}))
    assert used == Used(1.5, 10 * MIB, 20 * MIB, 3 * MIB, 7)


def test_version_2_of_cgroups_tells_each_kind() -> None:
    stats = {"anon": 10 * MIB, "file": 9 * MIB, "shmem": 2 * MIB, "slab": MIB, "kernel_stack": MIB}
    used = parse(said({"usage": 30 * MIB, "stats": stats}))
    assert used == Used(1.5, 10 * MIB, 2 * MIB, 2 * MIB, 7)


def test_where_an_engine_tells_nothing_apart_all_of_it_counts() -> None:
    assert parse(said({"usage": 30 * MIB})) == Used(1.5, 30 * MIB, 0, 0, 7)


def test_one_that_runs_has_a_process_whatever_is_said() -> None:
    used = parse({**said({"usage": MIB}), "pids_stats": {}})
    assert used is not None
    assert used.tasks == 1


@pytest.mark.parametrize(
    "nothing",
    [{}, said({}), said({"usage": 0}), {"memory_stats": {"usage": 1}, "cpu_stats": {}}, {"cpu_stats": None}],
)  # fmt: skip
def test_a_container_that_does_not_run_uses_nothing(nothing: dict[str, Any]) -> None:
    assert parse(nothing) is None


def test_a_cell_is_charged_for_what_comes_after_a_look_at_rest() -> None:
    statistics = Statistics(IDLE, asked_at=time.monotonic())
    meter = Meter(account=statistics)
    assert meter.source == "engine"
    cell = CellMeter(meter)
    statistics.renew(
        IDLE._replace(cpu_seconds=3.0, anon=160 * MIB, tasks=9), asked_at=time.monotonic()
    )
    reading = cell.sample()
    assert reading.cpu_seconds == 2.0
    assert reading.growth_bytes == cell.memory_peak_bytes == 60 * MIB
    assert reading.memory_bytes == 161 * MIB
    assert reading.tasks == 9
    assert not reading.complete
    assert meter.usage_reply()["kernel_memory"] == 161 * MIB


def test_a_cell_is_not_charged_for_what_the_one_before_it_did_unseen() -> None:
    statistics = Statistics(IDLE, asked_at=time.monotonic())
    meter = Meter(account=statistics)
    first = CellMeter(meter)
    assert first.sample().growth_bytes == 0
    second = CellMeter(meter)
    ticks = second.baseline.ticks
    # Asked for before the second one began: what is in it is the first one's doing.
    statistics.renew(IDLE._replace(anon=300 * MIB, cpu_seconds=2.0), asked_at=time.monotonic() - 1)
    assert second.sample().growth_bytes == 0
    assert second.sample().cpu_seconds == 0
    # From here on it is its own.
    statistics.renew(IDLE._replace(anon=310 * MIB, cpu_seconds=2.1), asked_at=time.monotonic())
    assert second.sample().growth_bytes == 0
    statistics.renew(IDLE._replace(anon=350 * MIB, cpu_seconds=3.1), asked_at=time.monotonic())
    assert second.sample().growth_bytes == 40 * MIB
    assert second.sample().cpu_seconds == pytest.approx(1.0)
    # What it had started by then is swept away with it all the same.
    assert second.baseline.ticks == ticks


def test_words_are_as_old_as_the_question() -> None:
    statistics = Statistics(IDLE, asked_at=5.0)
    assert statistics.as_of == 5.0
    assert statistics.memory() == Memory(100 * MIB, 0, MIB)
    meter = Meter(account=statistics)
    assert meter.covers(5.0)
    assert not meter.covers(5.1)


def test_no_baseline_is_taken_ahead_by_words_that_come_late() -> None:
    """The last one does not show whether anything has run since, and what has would be swept away."""
    meter = Meter(account=Statistics(IDLE, asked_at=time.monotonic()))
    meter.look_ahead()
    before = ticks_now()
    while ticks_now() == before:
        time.sleep(0.001)
    assert meter.begin().ticks > before
