"""What cells use is seen from outside, by a cgroup and by /proc alike, as root and as anybody."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox_kernel.limits.cgroup import Cgroup
from sandbox_kernel.limits.cgroup_places import PREFIX
from sandbox_kernel.limits.meter import CellMeter, Meter, Reading, process_tree
from tests.cgroups import cgroup_of, root_of
from tests.kernel import (
    TIMEOUT,
    Kernel,
    eventually,
    is_running,
    running_kernel,
)
from tests.sandbox import test_ordinary_user as ordinary_user

pytestmark = pytest.mark.process

MIB = 1 << 20
AS_A_WHOLE = "memory is that of the whole sandbox: copies, and what is not given back yet"
BURN = "import time\nstart = time.process_time()\nwhile time.process_time() < start + 1: pass\n"
HOLD = "import sys; data = bytearray(b'x') * (200 << 20); print(flush=True); sys.stdin.read()"
# 200 MiB each, made in pieces so that nothing else grows.
ALLOCATIONS = {
    "bytearray": "data = bytearray(b'x') * (200 << 20)",
    "numpy": "data = numpy.ones(200 << 17)",
    "anonymous shared mapping": (
        "data = mmap.mmap(-1, 200 << 20)\nfor _ in range(200): data.write(bytes(1 << 20))"
    ),
    "memfd": ("data = os.memfd_create('x')\nfor _ in range(200): os.write(data, bytes(1 << 20))"),
    "file in /dev/shm": (
        "with open('/dev/shm/x', 'wb') as data:\n"
        "    for _ in range(200): data.write(bytes(1 << 20))"
    ),
    "mapped file in /tmp": (
        "data = open('/tmp/x', 'w+b'); data.truncate(200 << 20)\n"
        "data = mmap.mmap(data.fileno(), 0)\nfor _ in range(200): data.write(bytes(1 << 20))"
    ),
    "child": (
        f"child = subprocess.Popen([sys.executable, '-c', {HOLD!r}], stdin=-1, stdout=-1)\n"
        "child.stdout.readline()"
    ),
    "fork": (
        "read, write = os.pipe()\n"
        "if not os.fork():\n"
        "    data = bytearray(b'x') * (200 << 20); os.write(write, b'x'); time.sleep(600)\n"
        "os.read(read, 1)"
    ),
    "fork that writes to all it inherits": (
        "read, write = os.pipe()\n"
        "if not os.fork():\n"
        "    for page in range(0, len(ballast), 4096): ballast[page] = 1\n"
        "    os.write(write, b'x'); time.sleep(600)\n"
        "os.read(read, 1)"
    ),
}


@dataclass
class Bench:
    """A kernel with meters of its own on it, one for each source there is."""

    kernel: Kernel
    meters: list[Meter]

    def measure(self, code: str) -> dict[str, Reading]:
        """What the cell has used when it has done ``code`` but has not ended yet."""
        cells = {meter.source: CellMeter(meter) for meter in self.meters}
        readings: dict[str, Reading] = {}

        def sample(_: object) -> None:
            readings.update({source: cell.sample() for source, cell in cells.items()})
            self.kernel.client.input("")

        outcome = self.kernel.run(f"{code}\ninput()", allow_stdin=True, stdin_hook=sample)
        assert outcome.status == "ok", outcome.evalue
        return readings

    def sample(self, code: str) -> dict[str, list[Reading]]:
        """Readings all through the cell."""
        cells = {meter.source: CellMeter(meter) for meter in self.meters}
        readings: dict[str, list[Reading]] = {source: [] for source in cells}
        request = self.kernel.client.execute(code)
        while not self.kernel.client.shell_channel.socket.poll(10):
            for source, cell in cells.items():
                readings[source].append(cell.sample())
        assert self.kernel.reply_to(request)["content"]["status"] == "ok"
        for source, cell in cells.items():
            readings[source].append(cell.sample())
        return readings


@pytest.fixture
def bench(kernel: Kernel) -> Bench:
    kernel.run("import mmap, os, signal, subprocess, sys, threading, time\nimport numpy")
    root = root_of(kernel)
    cgroup = cgroup_of(kernel)
    # Under gVisor the host's processes are threads and stubs of the second kernel.
    meters = [] if kernel.level == "gvisor" else [Meter(root, None)]
    if cgroup is not None:
        meters.append(Meter(root, cgroup))
    assert meters[-1].source == ("/proc" if cgroup is None else f"cgroup v{cgroup.version}")
    return Bench(kernel, meters)


def test_root_has_a_cgroup_where_one_can_be_made(bench: Bench) -> None:
    """So that the other tests here do not look at /proc only where there is more to look at."""
    possible = Cgroup.create()
    if possible is None:
        pytest.skip("no cgroup can be made here")
    possible.close()
    assert len(bench.meters) == 2
    # No checkpoint comes or goes while a cell runs.
    bench.kernel.client.execute("print('runs', flush=True); time.sleep(600)")
    while bench.kernel.client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
        pass
    assert set(cgroup_of(bench.kernel).pids()) == {
        root_of(bench.kernel),
        *bench.kernel.sandboxed_pids(),
    }


# -- CPU -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        BURN,
        f"subprocess.run([sys.executable, '-c', {BURN!r}])",
        f"thread = threading.Thread(target=lambda: exec({BURN!r})); thread.start(); thread.join()",
        "read, write = os.pipe()\n"
        "if not os.fork():\n"
        "    if not os.fork():\n"
        f"        exec({BURN!r})\n"
        "    os._exit(0)\n"
        "os.close(write); os.read(read, 1)",
    ],
    ids=["kernel", "child", "thread", "orphan"],
)
@pytest.mark.every_level
def test_a_second_of_cpu_is_a_second(bench: Bench, code: str) -> None:
    # gVisor's clock for processes goes by time on the wall while they run.
    least = 0.4 if bench.kernel.level == "gvisor" else 0.95
    for source, reading in bench.measure(code).items():
        assert least < reading.cpu_seconds < 1.7, source


@pytest.mark.every_level
def test_idle_time_is_not_cpu_time(bench: Bench) -> None:
    for source, reading in bench.measure("time.sleep(1)").items():
        assert reading.cpu_seconds < 0.3, source


def test_the_time_of_a_child_that_nobody_waits_for_is_not_lost(bench: Bench) -> None:
    code = (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "read, write = os.pipe()\n"
        f"if not os.fork():\n    exec({BURN!r})\n    os._exit(0)\n"
        "os.close(write); os.read(read, 1); time.sleep(0.2)\n"
        f"{BURN}"  # what is lost shows when more is used
    )
    for source, readings in bench.sample(code).items():
        assert 1.9 < readings[-1].cpu_seconds < 3, source


def test_cpu_time_adds_up_in_a_storm_of_processes(bench: Bench) -> None:
    burn = "import time\nwhile time.process_time() < 0.05: pass"
    code = (
        "children = []\n"
        "for number in range(40):\n"
        f"    child = subprocess.Popen([sys.executable, '-S', '-c', {burn!r}])\n"
        "    children.append(child) if number % 2 else child.wait()\n"
        "for child in children: child.wait()\n"
    )
    for source, readings in bench.sample(code).items():
        seconds = [reading.cpu_seconds for reading in readings]
        assert seconds == sorted(seconds), source
        assert 2 < seconds[-1] < 6, source
    totals = [readings[-1].cpu_seconds for readings in bench.sample(code).values()]
    assert max(totals) < 1.2 * min(totals) + 0.2


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ALLOCATIONS)
@pytest.mark.every_level
def test_memory_is_seen_however_it_is_had(bench: Bench, how: str) -> None:
    bench.kernel.run("ballast = bytearray(b'x') * (200 << 20)")
    before = {meter.source: meter.memory_bytes() for meter in bench.meters}
    for source, reading in bench.measure(ALLOCATIONS[how]).items():
        # With forks an older checkpoint that ends meanwhile is taken off by what it had copied.
        gvisor = bench.kernel.level == "gvisor"
        least, most = 150 if "fork" in how or gvisor else 190, 290 if gvisor else 240
        assert least * MIB < reading.growth_bytes < most * MIB, source
        assert reading.growth_peak >= reading.growth_bytes
        # What that gives back, and copies for a newer one, are in the total always.
        assert 150 * MIB < reading.memory_bytes - before[source] < 440 * MIB, source


@pytest.mark.every_level(gvisor=AS_A_WHOLE)
def test_a_peak_between_two_looks_is_seen(bench: Bench) -> None:
    bench.kernel.run("data = bytearray(b'x') * (400 << 20); del data")
    for source, reading in bench.measure("1 + 1").items():
        assert reading.growth_peak < 20 * MIB, source
    for source, reading in bench.measure("data = bytearray(b'x') * (300 << 20); del data").items():
        assert reading.growth_bytes < 50 * MIB, source
        assert 290 * MIB < reading.growth_peak < 340 * MIB, source


@pytest.mark.every_level(gvisor=AS_A_WHOLE)
def test_a_checkpoint_made_after_the_cell_is_not_the_cells(bench: Bench) -> None:
    bench.kernel.run("ballast = [str(number) * 9 for number in range(2_000_000)]")
    for source, readings in bench.sample("kept = list(ballast)").items():
        assert 10 * MIB < readings[-1].growth_bytes < 40 * MIB, source
        assert readings[-1].processes == 1, source


@pytest.mark.every_level(gvisor=AS_A_WHOLE)
def test_what_a_cell_frees_is_negative_growth(bench: Bench) -> None:
    """Whether or not a checkpoint, made before the cell runs or after, still has it."""
    for measure in (bench.measure, lambda code: {s: r[-1] for s, r in bench.sample(code).items()}):
        bench.kernel.run("data = bytearray(b'x') * (200 << 20)")
        for source, reading in measure("del data").items():
            assert -240 * MIB < reading.growth_bytes < -190 * MIB, source


def test_a_baseline_taken_ahead_holds_until_something_runs(bench: Bench) -> None:
    meter = bench.meters[-1]
    if meter.source == "/proc":
        meter.look_ahead()
        assert meter.begin() is not meter.begin()  # ticks are too coarse to tell
        return
    deadline = time.monotonic() + TIMEOUT
    while True:
        meter.look_ahead()
        ahead = meter.begin()
        time.sleep(0.1)  # in which nothing may run
        if meter.begin() is ahead:
            break
        assert time.monotonic() < deadline, "the sandbox does not come to rest"
    bench.kernel.run("data = bytearray(b'x') * (100 << 20)")
    after = meter.begin()
    assert after is not ahead
    assert after.snapshot.memory.total - ahead.snapshot.memory.total > 90 * MIB


@pytest.mark.parametrize("checkpoint", [False, True], ids=["own fork", "checkpoint"])
def test_copies_made_for_a_sleeping_fork_are_nobodys_growth(bench: Bench, checkpoint: bool) -> None:
    bench.kernel.run("ballast = [str(number) * 9 for number in range(2_000_000)]")
    if not checkpoint:
        bench.kernel.run("pid = os.fork() or time.sleep(600)")
    before = {meter.source: meter.memory_bytes() for meter in bench.meters}
    # Every reference count is written; without a cgroup, a closer look may be some time off.
    for source, readings in bench.sample("kept = list(ballast); time.sleep(3)").items():
        assert 10 * MIB < readings[-1].growth_bytes < 40 * MIB, source
        assert max(each.memory_bytes for each in readings) - before[source] > 100 * MIB, source


@pytest.mark.every_level(gvisor=AS_A_WHOLE)
def test_forks_do_not_grow_by_what_they_inherit(bench: Bench) -> None:
    bench.kernel.run("ballast = bytearray(b'x') * (400 << 20)")
    code = "pids = [os.fork() or time.sleep(600) for _ in range(4)]; time.sleep(0.1)"
    for source, reading in bench.measure(code).items():
        assert reading.growth_bytes < 60 * MIB, source
        assert reading.processes == 5, source


def test_an_upper_bound_will_do_below_the_limit(bench: Bench) -> None:
    bench.kernel.run("ballast = bytearray(b'x') * (200 << 20)")
    bench.kernel.run("pids = [os.fork() or time.sleep(600) for _ in range(2)]")
    for meter in bench.meters:
        exact, bound = meter.memory_bytes(0), meter.memory_bytes(1 << 40)
        assert 200 * MIB < exact < 400 * MIB, meter.source
        assert bound == pytest.approx(exact, abs=MIB) or bound > 600 * MIB, meter.source


# -- processes and threads -------------------------------------------------------------------------


def test_processes_and_threads_are_counted(bench: Bench) -> None:
    bench.kernel.run("import threading")  # a kernel that has just come up may still have more
    before = {meter.source: meter.read(meter.begin()).tasks for meter in bench.meters}
    code = (
        "for _ in range(3): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "children = [subprocess.Popen(['sleep', '600']) for _ in range(2)]"
    )
    for source, reading in bench.measure(code).items():
        assert reading.kernel_threads_added == 3, source
        assert reading.processes == 3, source
        assert reading.tasks >= before[source] + 5, source
        assert reading.complete


def test_a_pool_of_processes_is_no_growth(bench: Bench) -> None:
    bench.kernel.run("ballast = bytearray(b'x') * (100 << 20)")
    code = "for _ in range(150):\n    if not os.fork(): time.sleep(600)\ntime.sleep(0.1)"
    for source, reading in bench.measure(code).items():
        assert reading.processes == 151, source
        assert reading.growth_bytes < 150 * 2 * MIB, source
        assert reading.memory_bytes < 600 * MIB, source


@pytest.mark.every_level(gvisor="its processes are none of the host's")
def test_the_kernel_process_is_found_again_after_a_checkpoint_took_over(bench: Bench) -> None:
    """Though an older checkpoint, which sleeps on, comes before it."""
    kernel = bench.kernel
    for _ in range(2):
        inner = kernel.value("os.getpid()")
        for meter in bench.meters:
            meter.begin()
            assert meter.kernel_pid is not None
            assert kernel.sandboxed_pids()[meter.kernel_pid] == inner, meter.source
        assert kernel.run("os.kill(os.getpid(), 9)").ename == "SandboxLost"
    assert kernel.value("os.getpid()") != inner


# -- the cgroup's end ------------------------------------------------------------------------------


@pytest.fixture
def cgroups(kernel: Kernel) -> Callable[[], set[Path]]:
    """The directories of the kernel's cgroups that exist."""
    cgroup = cgroup_of(kernel)
    if cgroup is None:
        pytest.skip("no cgroup can be made here")
    parents = {path.parent for path in cgroup.paths}
    pid = kernel.wrapper_pid
    return lambda: {path for parent in parents for path in parent.glob(f"{PREFIX}{pid}-*")}


def test_a_kernel_that_is_shut_down_leaves_no_cgroup(tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path) as kernel:
        assert kernel.run("1 + 1").result == "2"
        cgroup = cgroup_of(kernel)
        if cgroup is None:
            pytest.skip("no cgroup can be made here")
        paths = cgroup.paths
        assert all(path.exists() for path in paths)
    assert not any(path.exists() for path in paths)


def test_a_replaced_sandbox_leaves_no_cgroup(
    kernel: Kernel, cgroups: Callable[[], set[Path]]
) -> None:
    before = cgroups()
    supervisor = next(pid for pid, inner in kernel.sandboxed_pids().items() if inner == 1)
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: not is_running(supervisor))
    # A cell that comes before the wrapper knows of it would be lost.
    eventually(lambda: cgroups() and not cgroups() & before, what="another sandbox")
    assert kernel.run("1 + 1").result == "2"
    assert len(cgroups()) == len(before)


def test_a_wrapper_that_is_killed_leaves_no_cgroup(
    kernel: Kernel, cgroups: Callable[[], set[Path]]
) -> None:
    pids = list(process_tree(kernel.wrapper_pid))
    assert cgroups()
    os.kill(kernel.wrapper_pid, signal.SIGKILL)
    eventually(lambda: not any(map(is_running, pids)), what=f"{pids}")
    eventually(lambda: not cgroups(), what="cgroups")


# -- for anybody -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite runs as an ordinary user already")
def test_an_ordinary_users_cells_are_measured_as_well(home: Path) -> None:
    ordinary_user.test_the_guarantees_hold_for_an_ordinary_user(home, "test_meter")
