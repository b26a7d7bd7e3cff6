"""What cells leave running: who pays for it, who is told, and what ends it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sandbox_kernel.audit.query import AuditReader
from sandbox_kernel.limits.proc import TICKS_PER_SECOND, process_tree, read_stat
from tests.kernel import Kernel, containers_of, eventually, running_kernel
from tests.tiers import FULL

pytestmark = pytest.mark.every_level

LIMIT = 0.6
LIMITED = f"limits: {{background: {{cpu: {LIMIT}s}}}}\n"
UNLIMITED = "limits: {background: {cpu: none}}\n"
LOOK_SECONDS = 0.4
# Longer than a timer takes to end the kernel again.
QUIET_SECONDS, LATE_SECONDS = 1.5, 3.0

FORKED = """
keep = 42
import os
for _ in range(2):
    if not os.fork():
        os.setsid()
        while True:
            pass
"""
THREAD = """
keep = 42
import threading
def spin():
    while True:
        sum(range(10_000))
threading.Thread(target=spin, daemon=True).start()
"""
LEFTOVERS = {"processes": FORKED, "a thread": THREAD}

# What a checkpoint holds, so that going back to it begins it anew.
TIMER = """
keep = 42
import asyncio, os, threading, time
def again():
    asyncio.get_event_loop().call_later(0.2, tick)
def tick():
    {body}
again()
"""
# A second after the kernel woke, so that going back seems to have helped.
LATE = TIMER.format(body="again(); ticks.append(1); len(ticks) > 4 and os.kill(os.getpid(), 9)")
LATE = f"ticks = []\n{LATE}"
LOOPS = {
    "a timer that kills the process later": LATE,
    "a timer that ends the process": TIMER.format(body="os._exit(3)"),
    "a timer that kills the process": TIMER.format(body="os.kill(os.getpid(), 9)"),
    "a timer that spins": TIMER.format(body="again(); time.sleep(0); sum(range(10_000_000))"),
    "a timer that takes memory": TIMER.format(
        body="again(); globals().setdefault('hoard', []).append(bytearray(os.urandom(1)) * (64 << 20))"
    ),
    "a hook at each fork that starts a thread": f"{THREAD}\n"
    "import os\n"
    "os.register_at_fork(after_in_parent="
    "lambda: threading.Thread(target=spin, daemon=True).start())\n",
}
if os.geteuid() != 0 and not FULL:
    # What differs for an ordinary user is who measures: these are measured.
    LOOPS = {how: LOOPS[how] for how in LOOPS if "later" in how or "spins" in how or "takes" in how}
LOOP_LIMITS = "limits: {background: {cpu: 1s}}\n"
# Without a cgroup, shared memory that another test takes meanwhile may count as the sandbox's: only the loop
# that is about memory has so little.
LOOP_MEMORY_LIMITS = "limits: {sandbox_memory: 256MiB, background: {cpu: 1s}}\n"


@pytest.fixture
def log(state_home: Path) -> Path:
    return state_home / "audit" / "log.db"


def events(log: Path) -> list[str]:
    with AuditReader(log) as reader:
        return [record.word for record in reader.records() if record.kind == "event"]


def reasons(log: Path) -> str:
    """What the log says of each event: for a failure's message."""
    with AuditReader(log) as reader:
        return "\n".join(f"{each.word}: {each.body!r}" for each in reader.records() if each.body)


def cpu_seconds(kernel: Kernel) -> float:
    """Of all that runs in the sandbox, as the host counts it.

    A look may miss a process while another one ends, so there are several.
    """
    return max(look_once(kernel) for _ in range(3))


def look_once(kernel: Kernel) -> float:
    if kernel.level == "process":
        roots = [pid for pid in process_tree(kernel.wrapper_pid) if pid != kernel.wrapper_pid]
    else:
        containers = containers_of(kernel.wrapper_pid)
        roots = [pid for each in containers for pid in process_tree(each["State"]["Pid"])]
    stats = [stat for pid in roots if (stat := read_stat(pid)) is not None]
    return sum(stat.own_ticks + stat.waited_ticks for stat in stats) / TICKS_PER_SECOND


def share_at_work(kernel: Kernel, seconds: float = LOOK_SECONDS) -> float:
    """How many processors the sandbox keeps busy, by the host's clock."""
    began, before = time.monotonic(), cpu_seconds(kernel)
    time.sleep(seconds)
    return (cpu_seconds(kernel) - before) / (time.monotonic() - began)


def await_use(kernel: Kernel, seconds: float, before: float) -> None:
    """Until the sandbox has used this much more than ``before``."""
    eventually(lambda: cpu_seconds(kernel) - before >= seconds, within=30, what="CPU time used")


@pytest.mark.parametrize("left", LEFTOVERS)
def test_what_cells_leave_running_is_stopped_at_its_own_limit(
    tmp_path: Path, level: str, left: str
) -> None:
    with running_kernel(cwd=tmp_path, level=level, policy=LIMITED) as kernel:
        before = cpu_seconds(kernel)
        assert kernel.run(LEFTOVERS[left]).status == "ok"
        await_use(kernel, LIMIT / 2, before)
        eventually(lambda: share_at_work(kernel) < 0.1, within=30, what="the sandbox to rest")
        after = kernel.run("keep")
        assert after.result == "42"
        assert "limits.background.cpu" in after.text("stderr")
        assert after.receipt["state"] == "kept"
        assert after.receipt["usage"]["background"]["cpu_seconds"] >= LIMIT / 2
        assert after.receipt["usage"]["cpu_seconds"] < LIMIT / 2
        quiet = kernel.run("keep")
        assert quiet.text("stderr") == ""
        assert "background" not in quiet.receipt["usage"]


@pytest.mark.alone
def test_without_that_limit_it_goes_on_and_the_next_receipt_tells(
    tmp_path: Path, level: str
) -> None:
    with running_kernel(cwd=tmp_path, level=level, policy=UNLIMITED) as kernel:
        before = cpu_seconds(kernel)
        assert kernel.run(FORKED).status == "ok"
        await_use(kernel, 3 * LIMIT, before)
        assert share_at_work(kernel) > 0.15
        after = kernel.run("keep")
        assert after.result == "42"
        assert after.text("stderr") == ""
        assert after.receipt["usage"]["background"]["cpu_seconds"] >= 2 * LIMIT
        shown = [each["content"]["data"] for each in after.messages if "data" in each["content"]]
        assert "left running by earlier ones: CPU" in shown[-1]["text/plain"]


@pytest.mark.alone
@pytest.mark.every_level(gvisor="there the host knows no more than the sandbox's total")
@pytest.mark.parametrize("left", LEFTOVERS)
def test_a_cell_is_not_billed_for_what_earlier_cells_left_at_work(
    tmp_path: Path, level: str, left: str
) -> None:
    with running_kernel(cwd=tmp_path, level=level, policy=UNLIMITED) as kernel:
        own = kernel.run(f"{LEFTOVERS[left]}\nimport time; time.sleep(1)")
        assert own.receipt["usage"]["cpu_seconds"] > 0.1, "the control: this cell's doing"
        await_use(kernel, 1.5, cpu_seconds(kernel))
        before = cpu_seconds(kernel)
        innocent = kernel.run_within({"cpu": "300ms"}, "import time; time.sleep(1)")
        assert innocent.status == "ok", innocent.evalue
        assert cpu_seconds(kernel) - before > 0.3, "the control: it went on"
        assert innocent.receipt["usage"]["cpu_seconds"] < 0.3
        assert innocent.receipt["usage"]["background"]["cpu_seconds"] > 1.5


POOL = """
import multiprocessing, time
def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
pool = multiprocessing.get_context("fork").Pool(2)
_ = pool.map(work, [0.01, 0.01])
"""


@pytest.mark.alone
def test_workers_that_sleep_between_cells_work_for_the_cell_that_wakes_them(
    tmp_path: Path, level: str
) -> None:
    with running_kernel(cwd=tmp_path, level=level, policy=LIMITED) as kernel:
        assert kernel.run(POOL).status == "ok"
        eventually(lambda: share_at_work(kernel) < 0.1, what="the pool to sleep")
        cell = kernel.run("_ = pool.map(work, [0.8, 0.8])")
        # gVisor's own clock of CPU time is ahead of the host's.
        assert cell.receipt["usage"]["cpu_seconds"] >= (0.5 if level == "gvisor" else 1.5)
        assert "background" not in cell.receipt["usage"]
        # It is not stopped for that.
        again = kernel.run("pool.map(work, [0.01]); 'there'")
        assert again.result == "'there'"
        assert again.text("stderr") == ""


def test_the_budget_pays_for_what_cells_leave_running(tmp_path: Path, level: str) -> None:
    policy = f"{UNLIMITED}budget: {{cpu: 4s}}\n"
    with running_kernel(cwd=tmp_path, level=level, policy=policy) as kernel:
        before = cpu_seconds(kernel)
        assert kernel.run(FORKED).status == "ok"
        await_use(kernel, 2, before)
        eventually(lambda: share_at_work(kernel) < 0.1, within=30, what="the sandbox to rest")
        refused = kernel.run("keep")
        assert refused.ename == "CellCpuExceeded"
        assert refused.receipt["outcome"] != "ok"


def await_rest(kernel: Kernel, log: Path, seconds: float) -> None:
    """Until something has happened between cells, and nothing more does for so long."""

    def rests() -> bool:
        before = events(log)
        quiet = share_at_work(kernel, seconds) < 0.1
        return quiet and bool(before) and events(log) == before

    eventually(rests, within=60, what=lambda: f"an end of {events(log)}")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_state_that_ends_its_own_process_is_given_up_for_the_one_before(
    tmp_path: Path, level: str, log: Path, loop: str
) -> None:
    policy = LOOP_MEMORY_LIMITS if "memory" in loop else LOOP_LIMITS
    with running_kernel(cwd=tmp_path, level=level, policy=policy) as kernel:
        first = kernel.run("before = 1")
        assert first.status == "ok", first.evalue
        eventually(lambda: len(kernel.checkpoints()) > 0, what="a checkpoint")
        kernel.run(LOOPS[loop])
        await_rest(kernel, log, LATE_SECONDS if LOOPS[loop] is LATE else QUIET_SECONDS)
        happened = events(log)
        assert happened.count("rollback") <= 2, happened
        assert happened.count("process_ended") <= 3, happened
        assert happened.count("sandbox_replaced") <= 1, happened
        after = kernel.run("'before' in dir(), 'keep' in dir()")
        # Where memory is short the older checkpoint may be given up first of all.
        replaced = "sandbox_replaced" in happened
        assert not replaced or "memory" in loop, reasons(log)
        assert after.result == f"({not replaced}, False)"
        told = "variables of this notebook are gone" if replaced else "an older state"
        assert told in after.text("stderr")


def test_a_sandbox_whose_checkpoints_all_end_it_is_replaced_once(
    tmp_path: Path, level: str, log: Path
) -> None:
    with running_kernel(cwd=tmp_path, level=level, policy=LOOP_LIMITS) as kernel:
        for code in (LATE, "more = 1", "still = 1"):
            assert kernel.run(code).status == "ok"
        await_rest(kernel, log, LATE_SECONDS)
        happened = events(log)
        assert happened.count("sandbox_replaced") == 1, happened
        assert happened.count("process_ended") <= 3, happened
        after = kernel.run("'keep' in dir()")
        assert after.result == "False"
        assert "variables of this notebook are gone" in after.text("stderr")


@pytest.mark.process
def test_a_process_that_ends_once_between_cells_costs_no_variable(
    tmp_path: Path, log: Path
) -> None:
    with running_kernel(cwd=tmp_path, policy=LIMITED) as kernel:
        first = kernel.run("keep = 42")
        assert first.status == "ok", first.evalue
        # Another one, so that whichever checkpoint is the newest by now, it holds the variable.
        assert kernel.run("1").result == "1"
        eventually(lambda: len(kernel.checkpoints()) == 2, what="checkpoints")
        kernel.kill(kernel.kernel_process)
        eventually(lambda: "rollback" in events(log), what="the kernel to go back")
        assert kernel.run("keep").result == "42"
