"""A sandbox cannot grow, spin or kill its wrapper: what the host sees while a cell tries.

The cells write ZMTP by hand to the connections of their kernel, past everything inside that checks.
"""

from __future__ import annotations

import os
import platform
import resource
import socket
import struct
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.hostile.soak import Soak
from tests.hostile.test_output_floods import KIT, sockets
from tests.kernel import Kernel, eventually, running_kernel

pytestmark = [pytest.mark.every_level, pytest.mark.alone]

MIB = 1 << 20
WRAPPER_GROWTH = 64 * MIB
ANSWER_SECONDS = 1.0
ANSWER_SECONDS_BESIDE_CONTAINERS = 4.0

BY_HAND = KIT + textwrap.dedent("""
    def stream(port):
        # The connection to the wrapper's socket of this number.
        for fd in unix_streams():
            found = sockets.socket(fileno=os.dup(fd))
            if str(found.getpeername()).endswith(f"-{port}"):
                found.settimeout(0.5)
                return found

    def zmtp(parts):
        out = []
        for number, part in enumerate(parts):
            flags = 1 if number < len(parts) - 1 else 0
            if len(part) < 256:
                out.append(bytes((flags, len(part))) + part)
            else:
                out.append(bytes((flags | 2,)) + len(part).to_bytes(8, "big") + part)
        return b"".join(out)

    def put(port, data, times=1):
        with stream(port) as found:
            try:
                for _ in range(times):
                    found.sendall(data)
            except OSError:
                pass  # the wrapper reads no more, or has hung up

    def on_and_off(port, data, seconds):
        # As fast as the wrapper reads, when this cell is over.
        def send():
            found, end = stream(port), time.monotonic() + seconds
            left = memoryview(data)
            while time.monotonic() < end:
                try:
                    left = left[found.send(left):] or memoryview(data)
                except TimeoutError:
                    pass
                except OSError:
                    return
        threading.Timer(0.5, send).start()

    SHELL, IOPUB, STDIN, CONTROL, REPLIES = 1, 2, 3, 4, 5
    MORE = b"\\x03" + (1 << 20).to_bytes(8, "big") + bytes(1 << 20)
""")


@dataclass
class Witness:
    """What the host sees of a wrapper."""

    kernel: Kernel
    rss: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def growth(self) -> int:
        return max(self.rss) - self.rss[0]

    @property
    def in_time(self) -> bool:
        allowed = ANSWER_SECONDS
        if self.kernel.level != "process":
            allowed = ANSWER_SECONDS_BESIDE_CONTAINERS
        return max(self.answers) < allowed

    def cpu_seconds(self) -> float:
        stat = Path(f"/proc/{self.kernel.wrapper_pid}/stat").read_text()
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def share_within_a_second(self) -> float:
        """How much of a processor the wrapper uses."""
        before, started = self.cpu_seconds(), time.monotonic()
        time.sleep(1)
        return (self.cpu_seconds() - before) / (time.monotonic() - started)

    def sample(self) -> None:
        proc = Path(f"/proc/{self.kernel.wrapper_pid}")
        while True:
            self.rss.append(int((proc / "statm").read_text().split()[1]) * 4096)
            self.descriptors.append(len(list((proc / "fd").iterdir())))
            if self.over.wait(0.02):
                return

    def ask(self) -> None:
        import zmq
        from jupyter_client.session import Session

        session = Session(key=self.kernel.manager.session.key)
        with sockets(self.kernel, shell=zmq.DEALER) as channels:
            while True:
                asked = time.monotonic()
                session.send(channels["shell"], "kernel_info_request", {})
                if channels["shell"].poll(20_000):
                    channels["shell"].recv_multipart()
                self.answers.append(time.monotonic() - asked)
                if self.over.wait(0.1):
                    return


@contextmanager
def witnessed(kernel: Kernel) -> Iterator[Witness]:
    witness = Witness(kernel)
    threads = [threading.Thread(target=each) for each in (witness.sample, witness.ask)]
    for thread in threads:
        thread.start()
    eventually(lambda: witness.answers and witness.rss, what="a first look")
    try:
        yield witness
    finally:
        witness.over.set()
        for thread in threads:
            thread.join()
    print(
        f"wrapper +{witness.growth / MIB:.1f} MiB, at most {max(witness.descriptors)} descriptors, "
        f"answers within {max(witness.answers):.3f} s"
    )


# -- it cannot be grown --------------------------------------------------------------------------------

# Each is less than was ever forgiven to one cell; together they are what no wrapper may hold.
CELLS = 6
UNFINISHED = {
    "on_iopub": "put(IOPUB, MORE, 30)",
    "on_shell": "put(SHELL, MORE, 30)",
    "on_control": "put(CONTROL, MORE, 30)",
    "on_stdin": "put(STDIN, MORE, 30)",
    "on_replies": "put(REPLIES, MORE, 30)",
    "on_all_in_turn": "[put(port, MORE, 6) for port in range(1, 6)]",
    "of_small_frames": "put(IOPUB, b'\\x01\\xff' + bytes(255), 100_000)",
    "of_empty_frames": "put(REPLIES, b'\\x01\\x00' * 30_000, 20)",
    "of_frames_that_never_come": (
        "[put(port, b'\\x02' + (16 << 20).to_bytes(8, 'big') + bytes(15 << 20)) for port in (2, 3, 4)]"
    ),
    "by_a_message_of_many_buffers": (
        "put(IOPUB, zmtp(frames('comm_msg', {'comm_id': 'x', 'data': {}}, me()) + [bytes(9 << 20)] * 6))"
    ),
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_cell_after_cell_cannot_fill_the_wrapper_with_unfinished_messages(
    kernel: Kernel, name: str
) -> None:
    assert kernel.run("keep = 42").status == "ok"
    with witnessed(kernel) as witness:
        for _ in range(CELLS):
            # An unfinished message swallows what its cell says last: that cell runs into its limit.
            limits = {"wall": "600ms", "grace": "200ms"}
            kernel.run_within(limits, f"{BY_HAND}\n{UNFINISHED[name]}")
        assert kernel.run("1 + 1").result == "2"
    assert witness.growth < WRAPPER_GROWTH
    assert witness.in_time, max(witness.answers)


STATES = """
keys = ",".join(f'"k{number:x}":1' for number in range(3844))
states = ",".join('"%d":{"state":{"msg_id":1,%s}}' % (n, keys) for n in range(300))
content = b'{"comm_id":"x","data":{"states":{%b}}}' % states.encode()
put(IOPUB, zmtp(frames("comm_msg", {}, me(), raw={3: content})))
"""


def test_a_widgets_message_of_a_million_keys_does_not_either(kernel: Kernel) -> None:
    assert kernel.run(BY_HAND).status == "ok"
    with witnessed(kernel) as witness:
        assert kernel.run(STATES).status == "ok"
        assert kernel.run("1 + 1").result == "2"
    assert witness.growth < WRAPPER_GROWTH
    assert witness.in_time, max(witness.answers)


def test_a_large_message_that_is_finished_arrives(kernel: Kernel) -> None:
    """The control: what the policy lets a cell show passes, written by the same hand."""
    outcome = kernel.run(
        f"{BY_HAND}\nput(IOPUB, zmtp(frames('stream', {{'name': 'stdout', 'text': 'x' * (3 << 20)}}, me())))"
    )
    assert outcome.status == "ok"
    assert len(outcome.text()) == 3 << 20


# -- it cannot be spun ---------------------------------------------------------------------------------

ALMOST = "[b'<IDS|MSG>', b'0' * 64, b'{}', b'{}', b'{}', b'{}']"
STATUS = "'status', {'execution_state': 'busy'}"
DROPPED = {
    "bad_signatures": f"IOPUB, zmtp({ALMOST}) * 200",
    "bad_signatures_on_control": f"CONTROL, zmtp({ALMOST}) * 200",
    "no_delimiters": "STDIN, zmtp([b'x']) * 2000",
    "empty_messages": "SHELL, b'\\x00\\x00' * 20_000",
    "foreign_sessions": f"IOPUB, zmtp(frames({STATUS}, me(), session='other')) * 200",
    "replays_of_one_message": f"IOPUB, zmtp(frames({STATUS}, {{'msg_id': 'x'}})) * 200",
    "replies_to_nobody": (
        "SHELL, b''.join(zmtp(frames('execute_reply', {}, {'msg_id': 'x'})) for _ in range(500))"
    ),
    "replies_about_the_wrappers_own": (
        "IOPUB, b''.join(zmtp(frames('status', {}, {'msg_id': session + '_wrapper_0'}))"
        " for _ in range(500))"
    ),
    "prompts_that_nobody_allowed": (
        "STDIN, b''.join(zmtp(frames('input_request', {}, {'msg_id': 'x'})) for _ in range(500))"
    ),
    "thousands_of_buffers": f"IOPUB, zmtp({ALMOST} + [b''] * 9000) * 10",
    "large_malformed_json": "REPLIES, zmtp([b'<IDS|MSG>', b'', b'{}', b'{}', b'{}', b'[' * (8 << 20)])",
}


@pytest.mark.parametrize("name", DROPPED)
def test_messages_that_nobody_gets_do_not_keep_the_wrapper_busy(kernel: Kernel, name: str) -> None:
    assert kernel.run(BY_HAND).status == "ok"
    with witnessed(kernel) as witness:
        assert kernel.run(f"on_and_off({DROPPED[name]}, 4)").status == "ok"
        time.sleep(1)  # what may come at once has come, if the machine is not a slow one
        share = witness.share_within_a_second()
        if share >= 0.15:
            share = witness.share_within_a_second()
    print(f"CPU {share:.0%}")
    assert share < 0.15
    assert witness.growth < WRAPPER_GROWTH
    assert witness.in_time, max(witness.answers)


# The pipe that the kernel process had for its outputs before ipykernel took their place: the wrapper reads it.
CONSOLE = """
import collections, fcntl, os, time
pipes = collections.defaultdict(list)
for number in map(int, os.listdir('/proc/self/fd')):
    try: target = os.readlink(f'/proc/self/fd/{number}')
    except OSError: continue
    if target.startswith('pipe'):
        pipes[target].append((number, fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE))
[console] = [ends[0][0] for ends in pipes.values() if all(mode == os.O_WRONLY for _, mode in ends)][:1]
if not os.fork():
    os.setsid()
    end = time.monotonic() + 4
    while time.monotonic() < end: os.write(console, b'x' * 65536)
    os._exit(0)
"""


def test_what_is_written_to_the_console_does_not_keep_the_wrapper_busy(kernel: Kernel) -> None:
    with witnessed(kernel) as witness:
        flood = kernel.run(CONSOLE)
        assert flood.status == "ok", flood.evalue
        share = witness.share_within_a_second()
    print(f"CPU {share:.0%}")
    assert share < 0.15
    assert witness.in_time, max(witness.answers)


def test_a_sandbox_that_goes_on_sending_what_nobody_gets_is_ended_and_the_user_told(
    kernel: Kernel,
) -> None:
    assert kernel.run(BY_HAND).status == "ok"
    assert kernel.run("keep = 42").status == "ok"
    assert kernel.run(f"on_and_off({DROPPED['bad_signatures']}, 60)").status == "ok"
    sender = kernel.kernel_process.inner_pid
    eventually(
        lambda: sender not in [each.inner_pid for each in kernel.processes()],
        within=20,
        what="the end of who sends",
    )
    outcome = kernel.run("keep")
    assert "more messages that nobody gets than the wrapper reads" in outcome.text("stderr")
    assert outcome.result == "42"


def test_five_thousand_messages_at_once_are_not_held_up(kernel: Kernel) -> None:
    """The control: what is shown is no waste, however quickly it comes."""
    outcome = kernel.run("for i in range(5000): display(i)")
    assert outcome.status == "ok"
    assert sum(m["msg_type"] == "display_data" for m in outcome.messages) >= 5000


# -- it cannot be held up ------------------------------------------------------------------------------

HELD_SECONDS = 5
# The lock on this process's memory is taken by a thread that gets no time to give it back.
HOLD = f"""
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
size, read_only, private_anonymous = 16 << 30, 1, 0x4022
place = libc.mmap(None, size, read_only, private_anonymous, -1, 0)
libc.madvise(place, size, 15)  # no huge pages
libc.madvise(place, size, 22)  # the page of zeros, everywhere
end = time.monotonic() + {HELD_SECONDS}
def hold():
    time.sleep(0.3)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    turn = 0
    while time.monotonic() < end:
        turn += 1
        libc.mprotect(place, size, turn & 1)
threading.Thread(target=hold, daemon=True).start()
for _ in range(2 * os.cpu_count()):
    if not os.fork():
        time.sleep(0.5)
        while time.monotonic() < end: pass
        os._exit(0)
"""


@pytest.mark.process
def test_a_cell_that_keeps_the_lock_on_its_memory_does_not_hold_up_the_wrapper(
    tmp_path: Path,
) -> None:
    with running_kernel(cwd=tmp_path, policy="limits: {background: {cpu: none}}\n") as kernel:
        assert kernel.run("keep = 42").status == "ok"
        victim = kernel.kernel_pid
        held: list[float] = []

        def touch() -> None:
            """The control: whoever needs that lock waits."""
            began = time.monotonic()
            with suppress(OSError):  # it is killed meanwhile
                Path(f"/proc/{victim}/clear_refs").write_text("5")
            held.append(time.monotonic() - began)

        with witnessed(kernel) as witness:
            assert kernel.run(HOLD).status == "ok"
            time.sleep(1)  # until it has begun
            control = threading.Thread(target=touch)
            control.start()
            began = time.monotonic()
            limits = {"wall": "1s", "grace": "300ms"}
            stopped = kernel.run_within(limits, "import time; time.sleep(30)")
            took = time.monotonic() - began
            control.join()
        print(f"held for {held[0]:.1f} s; the cell was stopped after {took:.1f} s")
        assert held[0] > 1
        assert stopped.ename == "CellTimeout", stopped.evalue
        assert took < 3.5
        assert witness.in_time, max(witness.answers)
        assert kernel.run("keep").result == "42"


LINGERS = """
import errno, struct
def attempt(what):
    try: what()
    except OSError as error: return errno.errorcode[error.errno]
    return 'done'
lingers = sockets.socket()
print(attempt(lambda: lingers.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack('ii', 1, 600))))
"""
HANDS_OVER = """
for port in (SHELL, IOPUB, STDIN, CONTROL, REPLIES):
    with stream(port) as found: print(attempt(lambda: sockets.send_fds(found, [bytes(1)], [0])))
"""


@pytest.mark.process
def test_a_cell_cannot_hand_the_wrapper_a_descriptor_that_takes_long_to_close(
    kernel: Kernel,
) -> None:
    can_refuse = tuple(map(int, platform.release().split(".")[:2])) >= (6, 16)
    outcome = kernel.run(f"{BY_HAND}\n{LINGERS}{HANDS_OVER if can_refuse else ''}")
    linger, *passed = outcome.text().split()
    assert linger == "EPERM"
    with closing(socket.socket()) as outside:  # the control
        outside.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
    assert passed == ["EPERM"] * 5 * can_refuse
    assert kernel.run("1 + 1").result == "2"


# -- it cannot be killed -------------------------------------------------------------------------------

CONNECT = """
import os, resource, socket
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
bridge = type(get_ipython().kernel.parent)
plain = bridge._come_alive
def come_alive(self, awakening):
    # This process takes over: the wrapper's sockets are there to connect to, until it has answered.
    kept = []
    for port in range(1, 6):
        try:
            for _ in range(min(400, hard // 6)):
                kept.append(socket.socket(socket.AF_UNIX))
                kept[-1].settimeout(0.1)
                kept[-1].connect(f"{awakening.socket_prefix}-{port}")
        except OSError:
            pass
    for each in kept:
        each.close()
    plain(self, awakening)
bridge._come_alive = come_alive
"""


@pytest.mark.parametrize("nofile", [256, 1024])
def test_a_sandbox_that_connects_until_it_is_refused_does_not_use_up_descriptors(
    tmp_path: Path, level: str, nofile: int
) -> None:
    with running_kernel(cwd=tmp_path, level=level) as kernel:
        resource.prlimit(kernel.wrapper_pid, resource.RLIMIT_NOFILE, (nofile, nofile))
        assert kernel.run(CONNECT).status == "ok"
        with witnessed(kernel) as witness:
            for _ in range(2):
                assert kernel.run("import os; os.kill(os.getpid(), 9)").ename == "SandboxLost"
            assert kernel.run("1 + 1").result == "2"
        assert kernel.manager.is_alive()
        assert max(witness.descriptors) < witness.descriptors[0] + 40
        assert witness.in_time, max(witness.answers)


def test_the_wrapper_outlives_a_kernel_that_attacks_it_at_random(kernel: Kernel) -> None:
    """A short soak; `benchmarks/hostile_soak.py` runs long ones."""
    soak = Soak(kernel, seed=int.from_bytes(os.urandom(4))).run(8)
    print(soak.summary())
    if kernel.level == "process":
        assert soak.faults() == []
    else:
        assert soak.alive
