"""Whatever a cell hangs in, it is stopped in time, nothing of it is left and no variable is lost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

from sandbox_kernel.limits.meter import process_tree
from tests.kernel import Kernel, Outcome, eventually, is_running
from tests.tiers import FULL, repetitions

pytestmark = [pytest.mark.every_level, pytest.mark.slow, pytest.mark.alone]

WALL, GRACE = 0.3, 0.2
LIMITS = {"wall": f"{WALL}s", "grace": f"{GRACE}s"}
# The requirement: a cell that hangs is answered, and the next one can run, this long after its grace.
ALLOWANCE = 1.0
# The processors of a busy machine are shared out by group: a container is one, as all tests are.
BUSY_MACHINE = {"process": 0.0, "container": 1.0, "gvisor": 1.0}
REPETITIONS = 20
CONTROL_SECONDS = 0.7
CONTROL_LIMITS = {"wall": f"{CONTROL_SECONDS}s", "grace": f"{GRACE}s"}

SETUP = """
import asyncio, collections, ctypes, hashlib, itertools, os, pickle, re, signal, subprocess, sys
import threading, time
import numpy

class Account:
    def __init__(self, owner, balance):
        self.owner, self.balance = owner, balance

number = 41
words = ['spam', 'ham'] * 500
nested = {'words': words, 7: [1.5, None, {'deep': b'bytes'}]}
array = numpy.arange(200_000, dtype=float).reshape(400, 500) ** 0.5
account = Account('Ann', 100)
file = open('/tmp/notes.txt', 'w+')
file.write('0123456789')
file.flush()
file.seek(4)

def fingerprint():
    state = [
        number, words, nested, vars(account), array.shape, array.tobytes(), file.tell(), file.closed,
        nested['words'] is words, type(account) is Account, open('/tmp/notes.txt').read(),
        sorted(name for name in globals() if not name.startswith('_')),
    ]
    return hashlib.sha256(pickle.dumps(state)).hexdigest()
"""
IGNORE_ALL = "for n in signal.valid_signals() - {9, 19}: signal.signal(n, signal.SIG_IGN)"
# Alone, and with a program of its own.
STUBBORN = f"import signal, time\n{IGNORE_ALL}\nwhile True: time.sleep(1)"
FORK_FOR_EVER = "while True:\n    try: os.fork()\n    except OSError: pass\n"

HANGS = {
    "python loop": "while True: pass",
    "sleep": "time.sleep(600)",
    "KeyboardInterrupt caught": (
        "while True:\n    try: time.sleep(600)\n    except BaseException: pass"
    ),
    "SIGINT ignored": "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "SIGINT handler sleeps": (
        "signal.signal(signal.SIGINT, lambda *_: time.sleep(600))\nwhile True: pass"
    ),
    "signals blocked in C": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "while True: ctypes.CDLL(None).pause()"
    ),
    "C loop with the GIL": "collections.deque(itertools.repeat(None), maxlen=0)",
    "huge power": "pow(3, 1 << 400_000_000, (1 << 500_000) - 1)",
    "catastrophic regex": "re.match('(a+)+$', 'a' * 60 + 'b')",
    "fork storm": FORK_FOR_EVER,
    "fork storm in the background": (
        f"if not os.fork():\n    {IGNORE_ALL}\n    exec({FORK_FOR_EVER!r})\ntime.sleep(600)"
    ),
    "thread storm": (
        "def work():\n"
        "    while True: time.sleep(0.01)\n"
        "while True:\n"
        "    try: threading.Thread(target=work, daemon=True).start()\n"
        "    except RuntimeError: time.sleep(0.01)"
    ),
    "child that ignores signals": (
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {STUBBORN!r}])\n"
        "while True:\n    try: child.wait()\n    except BaseException: pass"
    ),
    "child in a session of its own": (
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    if not os.fork():\n"
        f"        exec({STUBBORN!r})\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(600)"
    ),
    "asyncio.sleep": "while True: await asyncio.sleep(3600)",
    "async loop": "while True: await asyncio.sleep(0)",
    "stdin nobody answers": "get_ipython().kernel._allow_stdin = True\ninput('name? ')",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "everything stopped": "os.kill(-1, signal.SIGSTOP)\nos.kill(os.getpid(), signal.SIGSTOP)",
}


def timed(run: Callable[[], Outcome]) -> tuple[float, Outcome]:
    began = time.monotonic()
    outcome = run()
    return time.monotonic() - began, outcome


@pytest.mark.parametrize("how", HANGS)
def test_a_cell_that_hangs_is_stopped_in_time_and_nothing_is_lost(
    kernel: Kernel, level: str, how: str
) -> None:
    assert kernel.run(SETUP).status == "ok"
    # The first error of a kernel takes Python a while to show, which is not what is tested here.
    assert kernel.run("1 / 0").ename == "ZeroDivisionError"
    before = kernel.run("fingerprint()").result
    threads = kernel.kernel_process.threads
    wrapper = kernel.wrapper_pid

    times, states = [], []
    for number in range(repetitions(level, REPETITIONS)):
        seconds, stopped = timed(lambda: kernel.run_within(LIMITS, HANGS[how]))
        about = f"repetition {number}: {seconds:.2f} s, {stopped.evalue}"
        assert stopped.ename == "CellTimeout", about
        receipt = stopped.receipt
        assert receipt["outcome"] == "timeout", about
        assert receipt["exceeded"]["limit"] == "wall", about
        assert receipt["state"] in ("kept", "rolled_back"), about
        assert stopped.evalue.startswith(("The cell ran for ", "The cell was stopped at ")), about
        assert "0.3 s" in stopped.evalue, about
        assert seconds > WALL, about
        assert seconds <= WALL + GRACE + ALLOWANCE + BUSY_MACHINE[level], about
        assert kernel.cell_pids() == set(), about
        assert kernel.kernel_process.threads <= threads, about
        # The next cell runs, and finds everything as it was.
        assert kernel.run("fingerprint()").result == before, about
        times.append(seconds - WALL)
        states.append(receipt["state"])

    assert kernel.wrapper_pid == wrapper
    kept = states.count("kept")
    print(
        f"{how}: answered {statistics.median(times):.3f} s after the limit (median), "
        f"{max(times):.3f} s at most; {kept} kept, {len(states) - kept} rolled back"
    )
    # The control: without a limit that is near, it does hang.
    if FULL and level == "process":
        expect_hanging_until_the_end(kernel, HANGS[how])
    else:  # the kernel is wanted by others
        seconds, ended = timed(lambda: kernel.run_within(CONTROL_LIMITS, HANGS[how]))
        assert seconds > CONTROL_SECONDS, (ended.ename, ended.evalue)


def expect_hanging_until_the_end(kernel: Kernel, code: str) -> None:
    """The cell goes on and on; with the kernel it ends."""
    cell = kernel.client.execute(code)
    deadline = time.monotonic() + CONTROL_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        if kernel.client.iopub_channel.socket.poll(left * 1000):
            message = kernel.client.get_iopub_msg(timeout=1)
            if message["parent_header"].get("msg_id") == cell:
                assert message["content"].get("execution_state") != "idle"
    pids = list(process_tree(kernel.wrapper_pid))
    kernel.manager.shutdown_kernel()
    eventually(lambda: not any(map(is_running, pids)), what="an end of all processes")


def test_what_a_stopped_cell_had_set_is_in_the_next_checkpoint(kernel: Kernel, level: str) -> None:
    """The checkpoint made after a cell that was stopped is neither swept away with what the cell
    left, nor stopped for good."""
    assert kernel.run("import signal, time\nnumber = -1").status == "ok"
    assert kernel.run("1 / 0").ename == "ZeroDivisionError"
    expected = -1
    for number in range(repetitions(level, REPETITIONS)):
        kept = kernel.run_within(LIMITS, f"number = {number}; time.sleep(600)")
        assert kept.receipt["outcome"] == "timeout", kept.evalue
        if kept.receipt["state"] == "kept":
            expected = number
        seconds, killed = timed(lambda: kernel.run_within(LIMITS, HANGS["SIGINT ignored"]))
        about = f"repetition {number}: {seconds:.2f} s, {killed.evalue}"
        assert killed.receipt["state"] == "rolled_back", about
        assert seconds <= WALL + GRACE + ALLOWANCE + BUSY_MACHINE[level], about
        assert kernel.run("number").result == str(expected), about
    assert expected >= 0
