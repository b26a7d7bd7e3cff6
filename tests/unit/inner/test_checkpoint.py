from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sandbox_kernel.inner import checkpoint as module
from sandbox_kernel.inner.descriptors import (
    InternetSocket,
    PipeEnd,
    connections_to,
    far_ends,
    file_positions,
    open_descriptors,
    put,
)
from sandbox_kernel.inner.hot_pages import runs, written_pages
from sandbox_kernel.inner.renewal import is_for_zmq, renew_event_loop


def ends_of(*own: int) -> dict[int, PipeEnd | InternetSocket]:
    return far_ends(open_descriptors(), set(own))


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    yield read_end, write_end
    for number in (read_end, write_end):
        if os.path.exists(f"/proc/self/fd/{number}"):  # noqa: PTH110
            os.close(number)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], []),
        ([5], [(5, 1)]),
        ([5, 6, 7], [(5, 3)]),
        ([5, 7, 8], [(5, 4)]),  # one page between is not worth a call of its own
        ([5, 8, 9], [(5, 1), (8, 2)]),
    ],
)
def test_pages_are_copied_in_runs(numbers: list[int], expected: list[tuple[int, int]]) -> None:
    assert runs(numbers) == expected


def test_pages_that_were_written_to_since_a_fork_are_found() -> None:
    script = """
        import ctypes, mmap, os, signal
        from sandbox_kernel.inner.hot_pages import PAGE_BYTES, written_pages
        memory = mmap.mmap(-1, 64 * PAGE_BYTES, mmap.MAP_PRIVATE)
        memory[:] = b"x" * len(memory)
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory)) // PAGE_BYTES
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(read_end, 1)
        memory[PAGE_BYTES * 7] = memory[PAGE_BYTES * 9] = 1
        print(*[page - first for page in written_pages() if 0 <= page - first < 64])
        os.kill(child, signal.SIGKILL)
    """
    assert run(script) == "7 9\n"
    assert len(set(written_pages())) > 100


def test_positions_are_those_of_regular_files_only(tmp_path: Path, pipe: tuple[int, int]) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    with path.open() as file:
        file.read(3)
        os.lseek(file.fileno(), 3, os.SEEK_SET)
        positions = file_positions(open_descriptors())
        assert positions[file.fileno()] == 3
        assert not set(positions) & set(pipe)


def test_a_pipe_with_both_ends_here_is_kept_and_one_with_its_other_end_elsewhere_is_not(
    pipe: tuple[int, int],
) -> None:
    read_end, write_end = pipe
    assert not set(pipe) & set(ends_of())
    os.close(write_end)
    copy = os.dup(read_end)
    assert ends_of()[read_end] == ends_of()[copy] == PipeEnd(os.O_RDONLY)
    # The kernel's own, and all copies of it, stay open.
    assert not {read_end, copy} & set(ends_of(copy))
    os.close(copy)


def test_the_end_of_a_pipe_is_made_again_as_one_whose_other_end_is_closed() -> None:
    read_end, write_end = PipeEnd(os.O_RDONLY).again(), PipeEnd(os.O_WRONLY).again()
    assert os.read(read_end, 1) == b""
    with pytest.raises(BrokenPipeError):
        os.write(write_end, b"x")
    os.close(read_end)
    os.close(write_end)


def again(each: socket.socket) -> socket.socket:
    """The socket made again as after a fork, in the same descriptor."""
    end = ends_of()[each.fileno()]
    number = each.fileno()
    os.close(number)
    put(end.again(), number)
    return each


@pytest.mark.parametrize(
    "family",
    [
        socket.AF_INET,
        pytest.param(
            socket.AF_INET6, marks=pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
        ),
    ],
)
def test_a_listening_socket_listens_again_at_the_same_port(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    try:
        listening = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"{family.name} cannot be used here: {error}")
    with listening:
        listening.setblocking(False)
        address = listening.getsockname()
        again(listening)
        assert listening.getsockname() == address
        assert not os.get_blocking(listening.fileno())
        with socket.create_connection(address[:2]):
            listening.setblocking(True)
            listening.accept()[0].close()


def test_a_connection_is_made_again_as_one_that_has_ended() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as server,
    ):
        assert ends_of()[client.fileno()].is_connection
        again(client)
        assert client.recv(1) == b""
        with pytest.raises(BrokenPipeError):
            client.send(b"x")
        assert server.recv(1) == b""


def test_sockets_without_connection_are_made_again_as_they_were() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiving,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending,
        socket.socket() as fresh,
    ):
        receiving.bind(("127.0.0.1", 0))
        sending.connect(receiving.getsockname())
        assert not any(ends_of()[each.fileno()].is_connection for each in (sending, fresh))
        again(receiving)
        again(sending).send(b"arrived")
        assert receiving.recv(99) == b"arrived"
        with socket.create_server(("127.0.0.1", 0)) as listening:
            again(fresh).connect(listening.getsockname())


def test_what_a_thread_has_closed_since_it_was_listed_is_passed_over(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    with socket.create_server(("127.0.0.1", 0)) as server:
        listed = open_descriptors()
        number = server.fileno()
    os.close(read_end)
    os.close(write_end)
    assert not {number, read_end, write_end} & set(far_ends(listed, set()))


@pytest.mark.parametrize("call", ["getsockopt", "getsockname"])
def test_a_socket_that_is_closed_while_it_is_looked_at_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def closed(*_: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(socket.socket, call, closed, raising=False)
        assert InternetSocket.of(server.fileno()) is None


def test_unix_sockets_are_left_alone() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert not {near.fileno(), far.fileno()} & set(ends_of())


def test_connections_are_found_by_the_name_of_what_they_are_connected_to(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(str(tmp_path / "name-1"))
        listening.listen()
        assert connections_to("name-") == set()
        client.connect(str(tmp_path / "name-1"))
        assert {found.number for found in connections_to("name-")} == {client.fileno()}
        assert connections_to("other-") == set()


def test_an_event_loop_goes_on_with_another_selector(pipe: tuple[int, int]) -> None:
    loop = asyncio.new_event_loop()
    before = open_descriptors()
    read_end, write_end = pipe
    heard: list[str] = []

    async def task() -> str:
        await asyncio.sleep(0.05)
        return "task"

    running = loop.create_task(task())
    loop.call_later(0.02, heard.append, "timer")
    loop.call_soon(heard.append, "soon")
    loop.add_reader(read_end, lambda: heard.append(os.read(read_end, 9).decode()))
    loop.add_reader(write_end, heard.append, "dropped")
    old = loop._selector  # type: ignore[attr-defined]
    renew_event_loop(loop, {write_end})
    assert loop._selector is not old  # type: ignore[attr-defined]
    os.write(write_end, b"reader")
    assert loop.run_until_complete(running) == "task"
    assert sorted(heard) == ["reader", "soon", "timer"]
    loop.call_soon_threadsafe(heard.append, "wakes")
    loop.run_until_complete(asyncio.sleep(0.01))
    assert heard[-1] == "wakes"
    assert len(open_descriptors()) == len(before)
    assert signal.set_wakeup_fd(-1) == loop._csock.fileno()  # type: ignore[attr-defined]
    loop.close()
    asyncio.set_event_loop(None)


def test_callbacks_into_zmq_are_known_by_their_module() -> None:
    loop = asyncio.new_event_loop()

    def ordinary() -> None: ...

    def of_zmq() -> None: ...

    of_zmq.__module__ = "zmq.eventloop.zmqstream"
    for callback, args, expected in (
        (ordinary, (), False),
        (of_zmq, (), True),
        (partial(of_zmq), (), True),
        (ordinary, (of_zmq,), True),
        (ordinary, (partial(of_zmq), 1), True),
        ([].append, (1,), False),
    ):
        assert is_for_zmq(asyncio.Handle(callback, args, loop)) is expected
    loop.close()


# -- whole checkpoints, each in a process of its own -----------------------------------------------

# A kernel process with a supervisor's end of the desk; `wake` lets the last checkpoint take over.
PROCESS = """
import os, socket, sys, threading, time
desk, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
if end.fileno() != 3:
    if desk.fileno() == 3:
        desk = socket.socket(fileno=os.dup(desk.detach()))
    os.dup2(end.detach(), 3, inheritable=False)
else:
    end.detach()
from sandbox_kernel.inner import checkpoint
from sandbox_kernel.inner.checkpoint import Checkpoints
# Here are the host's, not a sandbox's.
checkpoint.count_older_processes = lambda _: 0
checkpoints = Checkpoints(lambda: {threading.main_thread()})
streams = {0, 1, 2}

def take(label=1):
    return checkpoints.take(label, set(), streams)

def asleep():
    word, [wake], _, _ = socket.recv_fds(desk, 99, 1)
    return word.decode().split(), wake

def end_all():
    # Each holds a copy of the supervisor's end as well, so the wakes never close by themselves.
    for pid in checkpoints._sleeping:
        os.kill(pid, 9)
"""


def run(script: str) -> str:
    code = textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_checkpoint_that_is_woken_has_what_was_and_tells_what_it_has_lost() -> None:
    assert (
        run(
            PROCESS
            + """
import random
random.seed(1); state = random.getstate(); x = "before"
open("/proc/self/comm", "w").write("mine")
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
awakening = take(7)
if awakening is None:
    x = "after"
    word, wake = asleep()
    names = [open(f"/proc/{pid}/comm").read().strip() for pid in ("self", word[2])]
    print(word[:2], names, flush=True)
    os.write(wake, b"prefix")
    os._exit(os.waitpid(int(word[2]), 0)[1])
random.setstate(awakening.random_state)
print(x, awakening.socket_prefix, awakening.lost, random.getstate() == state, flush=True)
print(open("/proc/self/comm").read().strip(), open("/proc/self/oom_score_adj").read().strip())
checkpoints.announce(7, {"threads": 1, "sockets": 0})
"""
        )
        == "['checkpoint', '7'] ['mine', 'checkpoint']\n"
        "before prefix {'threads': 1, 'children': 0, 'sockets': 0, 'shared': 0, 'gpu': 0, "
        "'openmp': 0} True\nmine 1000\n"
    )


def test_a_checkpoint_whose_wake_is_closed_ends_without_running_what_is_for_the_end() -> None:
    assert (
        run(
            PROCESS
            + """
import atexit
take()
word, wake = asleep()
atexit.register(print, "the end")
os.close(wake)
print(os.waitpid(int(word[2]), 0)[1])
"""
        )
        == "0\nthe end\n"
    )


FAILING = """
import errno, resource
before = checkpoint.open_descriptors()
def fail():
    try:
        print(take(5))
    except checkpoint.NotMade as error:
        print(error)
"""
REFUSED_FORK = """
def refuse():
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
checkpoint.plain_fork = refuse
fail()
"""
# With no descriptor left, with one for a list of them, and with enough for one pipe but not for two.
FEW_DESCRIPTORS = """
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
highest = max(descriptor.number for descriptor in before)
holes = highest + 1 - len(before)
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + {left} - holes, most))
fail()
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
"""


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (REFUSED_FORK, "Resource temporarily unavailable"),
        *((FEW_DESCRIPTORS.format(left=left), "Too many open files") for left in (0, 1, 2, 3)),
    ],
    ids=["fork", "no_descriptor", "one", "two", "three"],
)
def test_a_checkpoint_for_which_there_is_no_room_is_told_and_leaves_nothing_open(
    how: str, reason: str
) -> None:
    said = """
print(checkpoint.open_descriptors() == before, desk.recv(99).decode())
print(take(6), asleep()[0][:2])
end_all()
"""
    again = "checkpoint.plain_fork = os.fork\n"
    assert run(PROCESS + FAILING + how + again + said) == (
        f"{reason}\nTrue unmade 5\nNone ['checkpoint', '6']\n"
    )


def test_a_checkpoint_that_nobody_can_be_told_of_is_ended() -> None:
    script = """
os.dup2(os.open("/dev/null", os.O_RDONLY), 3)
fail()
os.waitid(os.P_PID, checkpoints._sleeping[0], os.WEXITED | os.WNOWAIT)
print(len(checkpoint.open_descriptors() - before))
"""
    assert run(PROCESS + FAILING + script) == "Socket operation on non-socket\n2\n"


def test_descriptors_with_large_numbers_are_no_obstacle() -> None:
    """Those past 1024 are too large for ``select``."""
    script = """
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
many = [os.dup(1) for _ in range(1100)]
read_end, write_end = os.pipe()
os.close(write_end)
print(take(), asleep()[0][:2])
end_all()
"""
    assert run(PROCESS + FAILING + script) == "None ['checkpoint', '1']\n"


NATIVE_THREAD = """
import ctypes
libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
def start():
    libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.pause, ctypes.c_void_p), None)
"""
TAKE_OVER = """
if (awakening := take()) is None:
    word, wake = asleep()
    os.write(wake, f"prefix {word[4]}".encode())
    os._exit(os.waitpid(int(word[2]), 0)[1])
print(awakening.lost["threads"], awakening.lost["openmp"], flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("threads", "lost"),
    [
        ("", "0 0"),
        ("start(); start()", "2 0"),
        # OpenBLAS has a thread, ends it before a fork, and starts it again when it is needed.
        ("import numpy as np; np.ones((500, 500)) @ np.ones((500, 500))", "0 0"),
        ("import numpy as np; np.ones((500, 500)) @ np.ones((500, 500)); start()", "1 0"),
        ("start(); checkpoint.threads_come_again = lambda: True", "0 0"),
        ("start(); checkpoint.calm_openmp = lambda: 1", "0 1"),
    ],
    ids=["none", "some", "of_numpy", "beside_numpy", "that_come_again", "of_openmp"],
)
def test_threads_of_libraries_are_lost_but_for_those_that_come_again(
    threads: str, lost: str
) -> None:
    # There is no zmq here.
    start = "from sandbox_kernel.inner import renewal; renewal.ZMQ_THREADS = 0\n"
    assert run(PROCESS + NATIVE_THREAD + start + threads + TAKE_OVER) == f"{lost}\n"


def test_libraries_that_start_their_threads_again_are_known_by_what_is_mapped(
    tmp_path: Path,
) -> None:
    library = tmp_path / "libarrow.so.2300"
    library.write_bytes(bytes(4096))
    script = f"""
        import mmap
        from sandbox_kernel.inner.renewal import threads_come_again
        print(threads_come_again())
        with open({str(library)!r}, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
        print(threads_come_again())
    """
    assert run(script) == "False\nTrue\n"


def test_waiting_never_tells_of_checkpoints() -> None:
    assert (
        run(
            PROCESS
            + """
import signal, subprocess
def end_one():
    take()
    word, wake = asleep()
    os.kill(int(word[2]), signal.SIGKILL)
    os.waitid(os.P_PID, int(word[2]), os.WEXITED | os.WNOWAIT)
take()
for wait in (os.wait, lambda: os.waitpid(-1, 0), lambda: os.waitid(os.P_ALL, 0, os.WEXITED)):
    end_one()
    try:
        wait()
    except ChildProcessError as error:
        print(error.strerror)
    end_one()
    child = subprocess.Popen(["true"])
    found = wait()
    print((found.si_pid if hasattr(found, "si_pid") else found[0]) == child.pid)
    child.returncode = 0
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
take(); end_all(); time.sleep(0.1); take()
print(len(checkpoints._sleeping))
end_all()
"""
        )
        == "No child processes\nTrue\n" * 3 + "1\n"
    )


def test_thread_pools_start_threads_again_after_a_takeover() -> None:
    assert (
        run(
            PROCESS
            + """
from concurrent.futures import ThreadPoolExecutor
busy, idle = ThreadPoolExecutor(1), ThreadPoolExecutor(2)
print(list(idle.map(abs, [-1, -2, -3])))
held = threading.Event()
busy.submit(held.wait); queued = busy.submit(abs, -4)
awakening = take()
if awakening is None:
    word, wake = asleep()
    held.set()
    sys.stdout.flush()
    os.write(wake, b"prefix")
    os._exit(os.waitpid(int(word[2]), 0)[1])
print(awakening.lost["threads"] >= 2, list(idle.map(abs, [-1, -2, -3])), queued.result(10))
sys.stdout.flush(); os._exit(0)
"""
        )
        == "[1, 2, 3]\nTrue [1, 2, 3] 4\n"
    )


def test_shared_memory_is_counted_but_for_locks() -> None:
    script = """
        import mmap, multiprocessing
        from multiprocessing.shared_memory import SharedMemory
        from sandbox_kernel.inner.renewal import count_shared_memory
        lock, private = multiprocessing.Lock(), mmap.mmap(-1, 4096, mmap.MAP_PRIVATE)
        print(count_shared_memory())
        anonymous, array = mmap.mmap(-1, 4096), multiprocessing.Array("i", 3)
        named = SharedMemory(create=True, size=10)
        print(count_shared_memory())
        named.close(); named.unlink()
    """
    assert run(script) == "0\n3\n"


def test_a_debugger_that_replaces_fork_is_not_asked() -> None:
    assert module.plain_fork is not module.fork
    assert module.plain_fork.__name__ == "fork"
