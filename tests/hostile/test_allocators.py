"""However a cell takes memory, it is stopped before the host feels it, and no variable is lost."""

from __future__ import annotations

import os
import signal
import statistics
import threading
from collections import Counter
from pathlib import Path

import pytest

from sandbox_kernel.limits.meter import CellMeter, Meter
from tests.cgroups import cgroup_of, root_of
from tests.hostile.test_hangs import SETUP
from tests.kernel import TIMEOUT, Kernel, eventually, running_kernel
from tests.sandbox import test_ordinary_user as ordinary_user
from tests.tiers import repetitions

IS_ROOT = os.geteuid() == 0
pytestmark = [
    # By way of /proc, each fork is counted with all that earlier tests have left in the kernel.
    pytest.mark.every_level(fresh=not IS_ROOT),
    pytest.mark.alone,
    *([pytest.mark.slow] if IS_ROOT else []),
]
# Root has a cgroup where there is any; an ordinary user's sandbox is measured by way of /proc.
REPETITIONS = 20 if IS_ROOT else 3

MIB = 1 << 20
MEMORY, SANDBOX_MEMORY = 64 * MIB, 512 * MIB
LIMITS = {"memory": MEMORY, "sandbox_memory": SANDBOX_MEMORY, "wall": "20s", "grace": "300ms"}
# A cell takes some more between two looks at it, and until it is dead: usually not more than this.
GROWTH = 3 * MEMORY
# How far the whole sandbox may come.
SANDBOX_GROWTH = SANDBOX_MEMORY * 9 // 8
# From /proc a look takes long, and keeps the processes that are looked at from running.
SAMPLE_SECONDS = 0.005 if IS_ROOT else 0.05
# What Python raises where the limit inside, which counts addresses, comes first.
OWN_ERRORS = ("MemoryError", "_ArrayMemoryError", "OSError")

# What each takes if it is let.
ALLOWED_TO_TAKE = 400 * MIB
FILES = (
    "for _n in range(100):\n"
    "    with open(f'{}/hog-{{_n}}', 'wb') as _data:\n"
    "        for _ in range(4): _data.write(bytes(1 << 20))"
)
ALLOCATORS = {
    "list that grows": "_data = []\nwhile len(_data) < 50 << 20: _data.extend(range(1000))",
    "bytearray that grows": "_data = bytearray()\nfor _ in range(400): _data += b'x' * (1 << 20)",
    "huge bytearray": "_data = bytearray(b'x') * (400 << 20)",
    "numpy arrays": "_data = []\nfor _ in range(400): _data.append(numpy.ones(1 << 17))",
    "huge numpy array": "_data = numpy.ones(400 << 17)",
    "private mappings": (
        "_data = []\n"
        "for _ in range(100):\n"
        "    _data.append(mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))\n"
        "    _data[-1].write(b'x' * (4 << 20))"
    ),
    "huge private mapping": (
        "_data = mmap.mmap(-1, 400 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "_data.write(b'x' * (400 << 20))"
    ),
    "shared mapping": (
        "_data = mmap.mmap(-1, 400 << 20)\nfor _ in range(400): _data.write(bytes(1 << 20))"
    ),
    "shared mapping filled at once": (
        "_data = mmap.mmap(-1, 400 << 20)\n"
        "_first = ctypes.c_char.from_buffer(_data)\n"
        "ctypes.memset(ctypes.byref(_first), 1, 400 << 20)"
    ),
    "memfd": "_data = os.memfd_create('hog')\nfor _ in range(400): os.write(_data, bytes(1 << 20))",
    "files in /tmp": FILES.format("/tmp"),
    "files in the home": FILES.format("/home/sandbox"),
    "files in /dev/shm": FILES.format("/dev/shm"),
    # What a file has in memory and nobody has written out: the page cache.
    "file that is mapped and written to": (
        "_data = open('/tmp/hog', 'w+b')\n"
        "_data.truncate(400 << 20)\n"
        "_first = mmap.mmap(_data.fileno(), 400 << 20)\n"
        "for _ in range(400): _first.write(bytes(b'x') * (1 << 20))"
    ),
    "file that is given its blocks": (
        "_data = open('/tmp/hog', 'wb')\n"
        "for _n in range(400): os.posix_fallocate(_data.fileno(), _n << 20, 1 << 20)"
    ),
    "deleted files": (
        "_data = []\n"
        "for _ in range(100):\n"
        "    _data.append(open('/tmp/hog', 'wb'))\n"
        "    os.remove('/tmp/hog')\n"
        "    for _ in range(4): _data[-1].write(bytes(1 << 20))"
    ),
    "children": (
        "_data = []\n"
        "for _ in range(25):\n"
        "    if not (_pid := os.fork()):\n"
        "        _taken = bytearray(b'x') * (16 << 20)\n"
        "        time.sleep(600)\n"
        "    _data.append(_pid)\n"
        "    time.sleep(0.005)\n"
        "time.sleep(0.1)"
    ),
}
IMPORTS = "import glob, mmap\n"
CLEAN_UP = """
for _pid in globals().get('_data', ()) if HOW == 'children' else ():
    os.kill(_pid, signal.SIGKILL)
    os.waitpid(_pid, 0)
if HOW == 'memfd' and '_data' in globals():
    os.close(_data)
for _name in ('_data', '_first'):
    globals().pop(_name, None)
# IPython keeps the last error, and the C library what was freed.
sys.last_traceback = sys.last_value = None
ctypes.CDLL(None).malloc_trim(0)
for _name in glob.glob('/tmp/hog*') + glob.glob('/dev/shm/hog*') + glob.glob('/home/sandbox/hog*'):
    os.remove(_name)
"""


class Watch(threading.Thread):
    """The most that a cell makes a sandbox grow, and that this has, while it goes on."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._cell = CellMeter(meter)
        self._over = threading.Event()
        self.most = 0

    def run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self._look()
        # What a cell has left is there still, however busy the machine was meanwhile.
        self._look()

    def _look(self) -> None:
        self._cell.sample()
        self.most = max(self.most, self._cell.memory_bytes)

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    @property
    def growth(self) -> int:
        return self._cell.memory_peak_bytes


@pytest.fixture
def prepared(kernel: Kernel) -> Kernel:
    assert kernel.run(IMPORTS + SETUP).status == "ok"
    assert kernel.run("1 / 0").ename == "ZeroDivisionError"
    return kernel


@pytest.fixture
def meter(prepared: Kernel) -> Meter:
    """One of the test's own, from where the wrapper reads."""
    meter = Meter(root_of(prepared), cgroup_of(prepared))
    assert prepared.run("1 + 1").receipt["usage"]["source"] == meter.source
    return meter


@pytest.mark.parametrize("how", ALLOCATORS)
def test_a_cell_that_takes_too_much_memory_is_stopped_and_nothing_is_lost(
    prepared: Kernel, level: str, meter: Meter, how: str
) -> None:
    if level == "gvisor" and how == "file that is given its blocks":
        pytest.skip("gVisor gives a file no memory before it is written to")
    kernel = prepared
    clean_up = CLEAN_UP.replace("HOW", repr(how))
    before = kernel.run("fingerprint()").result
    wrapper, first = kernel.wrapper_pid, meter.memory_bytes()
    ends: Counter[str] = Counter()
    growths = []
    for number in range(repetitions(level, REPETITIONS)):
        with Watch(meter) as watch:
            stopped = kernel.run_within(LIMITS, ALLOCATORS[how])
        left = kernel.cell_pids()
        receipt = stopped.receipt
        about = f"repetition {number}: +{watch.growth / MIB:.0f} MiB, {stopped.evalue} {receipt}"
        if stopped.ename == "CellMemoryExceeded":
            assert receipt["outcome"] == "memory", about
            assert receipt["exceeded"]["limit"] == "memory", about
            assert receipt["state"] in ("kept", "rolled_back"), about
            assert left == set(), about
        else:
            assert stopped.ename in OWN_ERRORS, about
            assert receipt["outcome"] in ("memory", "error"), about
            assert receipt["state"] == "kept", about
        if IS_ROOT:  # by way of /proc, what forks share is in it more than once
            assert watch.most <= SANDBOX_GROWTH, about
        if receipt["state"] == "rolled_back" and "files in" in how:
            assert "changed file" in " ".join(receipt["not_restored"]), about

        # The next cell runs, finds everything as it was and can tidy up.
        cleaned = kernel.run(clean_up)
        assert cleaned.status == "ok", f"{cleaned.ename}: {cleaned.evalue} after {about}"
        assert kernel.run("fingerprint()").result == before, about
        # What is kept for undo has it for one more cell.
        eventually(lambda: meter.memory_bytes() < first + MEMORY, what=f"tidiness, {about}")
        ends[f"{stopped.ename} {receipt['state']}"] += 1
        growths.append(watch.growth / MIB)
    assert kernel.wrapper_pid == wrapper
    if IS_ROOT:  # a look by way of /proc takes longer
        assert statistics.median_low(growths) < GROWTH / MIB, growths
    print(
        f"{how}, by {meter.source}: grew by {statistics.median(growths):.0f} MiB (median), "
        f"{max(growths):.0f} MiB at most; {dict(ends)}"
    )

    # The control: it is the limit that stops it.
    with Watch(meter) as watch:
        allowed = kernel.run(ALLOCATORS[how])
    assert allowed.status == "ok", f"{allowed.ename}: {allowed.evalue}"
    assert watch.growth > ALLOWED_TO_TAKE // 2
    assert kernel.run(clean_up).status == "ok"


# Not what the limit inside counts, at which Python would raise an error.
UNWATCHED = """
_data = mmap.mmap(-1, 1 << 30)
print('ready', flush=True)
time.sleep(1)
for _ in range(1 << 10): _data.write(b'x' * (1 << 20))
"""


@pytest.mark.every_level(fresh=True)
def test_what_nobody_looks_at_in_time_is_held_by_the_hosts_kernel(
    level: str, tmp_path: Path
) -> None:
    """However late the wrapper is. The cell is what dies of it, not the checkpoint; under gVisor, which
    is one process to the host's kernel, all that is inside.
    """
    policy = f"limits: {{memory: 256MiB, sandbox_memory: {SANDBOX_MEMORY}, grace: 300ms}}"
    tmp_path.chmod(0o755)
    with running_kernel(level=level, policy=policy, cwd=tmp_path) as kernel:
        assert kernel.run(IMPORTS + SETUP).status == "ok"
        before = kernel.run("fingerprint()").result
        meter = Meter(root_of(kernel), cgroup_of(kernel))
        if not meter.source.startswith("cgroup"):
            pytest.skip("no cgroup can be made here")
        sent = kernel.client.execute(UNWATCHED)
        while kernel.client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
            pass
        os.kill(kernel.wrapper_pid, signal.SIGSTOP)
        try:
            with Watch(meter) as watch:
                eventually(lambda: meter.oom_kills(), within=30, what="the host's kernel stops it")
        finally:
            os.kill(kernel.wrapper_pid, signal.SIGCONT)
        assert SANDBOX_MEMORY // 2 < watch.growth <= SANDBOX_MEMORY * 9 // 8
        stopped = kernel.outcome_of(sent)
        assert stopped.ename == "CellMemoryExceeded", stopped.evalue
        assert stopped.receipt["outcome"] == "memory"
        if level == "gvisor":
            assert stopped.receipt["state"] == "lost"
            assert kernel.run("1 + 1").result == "2"
        else:
            assert stopped.receipt["state"] == "rolled_back"
            assert kernel.run("fingerprint()").result == before


def test_reading_files_is_no_use_of_memory(prepared: Kernel) -> None:
    """The cache of what was read is the host's, which takes it back at need."""
    read = (
        "_size = 0\n"
        "for _folder in (sys.base_prefix, sys.prefix):\n"
        "    for _name in glob.iglob(f'{_folder}/**/*', recursive=True):\n"
        "        if os.access(_name, os.R_OK) and os.path.isfile(_name) and _size < 200 << 20:\n"
        "            _size += len(open(_name, 'rb').read())\n"
        "_size > 3 * (64 << 20)"
    )
    limits = {**LIMITS, "wall": "60s"}  # gVisor reads slowly
    assert prepared.run_within(limits, read).result == "True"


@pytest.mark.skipif(not IS_ROOT, reason="the whole suite runs as an ordinary user already")
def test_the_same_holds_for_an_ordinary_user(home: Path) -> None:
    ordinary_user.test_the_guarantees_hold_for_an_ordinary_user(home, "../hostile/test_allocators")
