"""What Linux counts per user: a cell takes no more than a small share of it from the user's own programs.

Root gives each sandbox a user of its own, so this is about ordinary users; root runs it as one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel import Kernel, running_kernel
from tests.sandbox import test_ordinary_user as ordinary_user

IS_ROOT = os.geteuid() == 0
pytestmark = [pytest.mark.process]
as_ordinary_user = pytest.mark.skipif(IS_ROOT, reason="root's sandboxes have users of their own")

# Each takes all it is given of one thing, keeps it in `kept` and prints how much that is.
GREEDY = {
    "descriptors in flight": """
import os, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
kept, total, null = [], 0, os.open('/dev/null', os.O_RDONLY)
try:
    while total < 20_000:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        pair[0].setblocking(False)
        kept.append(pair)
        for _ in range(4):
            socket.send_fds(pair[0], [b'x'], [null] * 200)
            total += 200
except OSError as error: print(error)
""",
    "inotify instances": """
import ctypes
libc, kept, total = ctypes.CDLL(None, use_errno=True), [], 0
while (number := libc.inotify_init()) >= 0:
    kept.append(number)
    total += 1
""",
    "inotify watches": """
import ctypes, os
libc, total = ctypes.CDLL(None, use_errno=True), 0
kept = [libc.inotify_init()]
os.makedirs('/tmp/watched', exist_ok=True)
while total < 30_000:
    name = f'/tmp/watched/{total}'
    os.mkdir(name)
    if libc.inotify_add_watch(kept[0], name.encode(), 2) < 0: break
    total += 1
""",
    "timers": """
import ctypes
libc, kept, total = ctypes.CDLL(None, use_errno=True), [], 0
while total < 20_000:
    timer = ctypes.c_void_p()
    if libc.timer_create(1, None, ctypes.byref(timer)): break
    total += 1
""",
}
GIVE_BACK = """
import os
for each in kept:
    os.close(each) if isinstance(each, int) else [end.close() for end in each]
kept = pair = None
"""
SEND_ONE = """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
here, there = socket.socketpair()
socket.send_fds(here, [b'x'], [0])
"""
# How much a cell gets, and how much the same code gets in a plain process of the same user's at least.
SHARES = {
    "descriptors in flight": (1024, 1025),
    "inotify instances": (16, 60),
    "inotify watches": (8192, 10_000),
    "timers": (1024, 5_000),
}


def give_back(greedy: Kernel) -> None:
    assert greedy.run(GIVE_BACK).status == "ok"
    for _ in range(2):  # what is kept for undo has it, too
        assert greedy.run("pass").status == "ok"


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory, config_home: Path) -> Iterator[Kernel]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SANDBOX_KERNEL_HOME", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp("state")))
        with running_kernel(cwd=tmp_path_factory.mktemp("folder")) as kernel:
            yield kernel


@as_ordinary_user
@pytest.mark.parametrize("what", GREEDY)
def test_a_cell_gets_a_small_share_of_what_the_user_has(greedy: Kernel, what: str) -> None:
    most, least_outside = SHARES[what]
    taken = int(greedy.run(GREEDY[what] + "\nprint(total)").text().split()[-1])
    try:
        assert 0 < taken <= most
        # The witness: the user's own programs have what they need meanwhile. The control, too: where
        # nothing bounds it the same code takes far more.
        done = subprocess.run(
            [sys.executable, "-c", GREEDY[what] + "\nprint(total)"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd="/",
        )
        outside = int(done.stdout.split()[-1])
        assert outside >= min(least_outside, taken + 1), (taken, outside)
    finally:
        give_back(greedy)
        shutil.rmtree("/tmp/watched", ignore_errors=True)


@as_ordinary_user
def test_other_kernels_of_the_user_make_checkpoints_whatever_a_cell_has_in_flight(
    greedy: Kernel, tmp_path: Path
) -> None:
    assert greedy.run(GREEDY["descriptors in flight"]).status == "ok"
    # Nor are programs kept from sending theirs, with the limit that programs usually have.
    subprocess.run([sys.executable, "-c", SEND_ONE], check=True, timeout=30, cwd="/")
    with running_kernel(cwd=tmp_path) as other:
        assert other.run("kept = 1").status == "ok"
        second = other.run("kept = 2")
        assert second.text("stderr") == ""
        assert other.checkpoints()
        undone = other.run("%undo")
        assert undone.status == "ok", undone.evalue
        assert other.run("kept").result == "1"
    give_back(greedy)


PIPES = """
import os, time
for _ in range(8):
    if not os.fork():
        kept = []
        try:
            while True: kept.append(os.pipe())
        except OSError: time.sleep(600)
time.sleep(20)
"""


@as_ordinary_user
def test_a_cell_that_takes_the_users_pipes_is_stopped(greedy: Kernel) -> None:
    stopped = greedy.run(PIPES)
    assert stopped.ename == "CellLimitExceeded", stopped.evalue
    assert stopped.receipt["exceeded"]["limit"] == "pipes"
    read_end, write_end = os.pipe()
    try:  # the witness: a new pipe of the user's is as large as ever
        assert fcntl.fcntl(read_end, fcntl.F_GETPIPE_SZ) == 65_536
    finally:
        os.close(read_end)
        os.close(write_end)
    assert greedy.run("1 + 1").result == "2"


TERMINALS = """
import os, time
for _ in range(4):
    if not os.fork():
        kept = []
        try:
            while True: kept.append(os.openpty())
        except OSError: time.sleep(600)
time.sleep(20)
"""


def test_a_cell_that_takes_the_machines_terminals_is_stopped(greedy: Kernel) -> None:
    stopped = greedy.run(TERMINALS)
    assert stopped.ename == "CellLimitExceeded", stopped.evalue
    assert stopped.receipt["exceeded"]["limit"] == "terminals"
    # The witness: a program of the host's gets some, and so does a command in another cell.
    for descriptor in os.openpty():
        os.close(descriptor)
    assert greedy.run("print(get_ipython().getoutput('echo there')[0])").text() == "there\n"


@pytest.mark.slow
@pytest.mark.skipif(not IS_ROOT, reason="the whole suite runs as an ordinary user already")
def test_the_users_own_programs_are_safe_from_an_ordinary_users_cells(home: Path) -> None:
    ordinary_user.test_the_guarantees_hold_for_an_ordinary_user(home, "test_neighbours")
