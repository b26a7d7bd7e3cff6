"""What an everyday notebook does: none of it may be refused. Run as a script, in a sandbox."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory
from pathlib import Path

import pytest


def square(value: int) -> int:
    return value * value


def fill(name: str) -> None:
    block = shared_memory.SharedMemory(name)
    block.buf[:3] = b"abc"
    block.close()


def use_threads() -> None:
    seen: list[int] = []
    lock = threading.Lock()

    def work(value: int) -> None:
        with lock:
            seen.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(16))


def use_subprocess() -> None:
    shell = subprocess.run("echo a | tr a b; ls -l / | wc -l", shell=True, capture_output=True)
    assert shell.returncode == 0, shell.stderr
    assert shell.stdout.startswith(b"b\n")
    own_session = subprocess.run(["true"], start_new_session=True, preexec_fn=os.getpid)
    assert own_session.returncode == 0


def use_multiprocessing() -> None:
    for method in ("fork", "forkserver", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
        with context.Semaphore(1), context.Lock():
            pass
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("forkserver")) as executor:
        assert list(executor.map(square, [3])) == [9]


def use_shared_memory() -> None:
    block = shared_memory.SharedMemory(create=True, size=4096)
    process = multiprocessing.get_context("fork").Process(target=fill, args=(block.name,))
    process.start()
    process.join()
    assert bytes(block.buf[:3]) == b"abc"
    block.close()
    block.unlink()


def use_terminals() -> None:
    import pexpect

    shell = pexpect.spawn("/bin/sh", ["-c", "read x; tty; stty size; echo got $x"], timeout=20)
    shell.setwinsize(31, 77)
    shell.sendline("word")
    shell.expect("/dev/pts/.*31 77.*got word")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 0


def use_numpy() -> None:
    import numpy as np

    matrix = np.random.default_rng(0).random((300, 300))
    assert (matrix @ np.linalg.inv(matrix)).trace() == pytest.approx(300)
    assert np.linalg.eig(matrix)[0].shape == (300,)
    with tempfile.NamedTemporaryFile() as file:
        mapped = np.memmap(file, dtype="f8", mode="w+", shape=(10,))
        mapped[:] = 1
        mapped.flush()


def use_pandas() -> None:
    import pandas as pd

    frame = pd.DataFrame({"key": ["a", "b", "a"], "value": [1, 2, 3]})
    assert frame.groupby("key")["value"].sum().to_dict() == {"a": 4, "b": 2}
    frame.to_csv("frame.csv")
    assert len(pd.read_csv("frame.csv")) == 3


def use_matplotlib() -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.plot([1, 2, 3])
    plt.savefig("figure.png")
    assert Path("figure.png").stat().st_size > 1000


def use_asyncio() -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
        assert (await process.communicate(b"text"))[0] == b"text"
        assert await asyncio.to_thread(square, 4) == 16

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"line\n")
        assert await reader.read() == b"line\n"
        writer.close()
        server.close()

    asyncio.run(main())


def use_sockets() -> None:
    left, right = socket.socketpair()
    left.send(b"x")
    assert right.recv(1) == b"x"
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        socket.create_connection(server.getsockname()[:2]).close()
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("unix.sock")
        unix.listen()
    assert socket.getaddrinfo("127.0.0.1", 80)
    assert (1, "lo") in socket.if_nameindex()
    assert socket.if_nametoindex("lo") == 1
    assert socket.if_indextoname(1) == "lo"
    uuid.uuid1()


def use_zmq() -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.REP) as rep, context.socket(zmq.REQ) as req:
        rep.bind("ipc://zmq.sock")
        req.connect("ipc://zmq.sock")
        req.send(b"question")
        assert rep.recv() == b"question"


def use_psutil() -> None:
    import psutil

    assert "lo" in psutil.net_if_addrs()
    assert "lo" in psutil.net_if_stats()
    process = psutil.Process()
    process.as_dict(["cpu_affinity", "ionice", "memory_full_info", "nice", "num_fds", "open_files"])
    process.cpu_affinity([min(process.cpu_affinity())])
    process.nice(5)
    assert psutil.virtual_memory().total


def use_files() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        (path / "a").write_bytes(b"a" * 100_000)
        shutil.copy2(path / "a", path / "b")
        (path / "b").rename(path / "c")
        (path / "link").symlink_to("c")
        os.link(path / "a", path / "hard")
        os.utime(path / "a", (1, 2))
        os.chown(path / "a", os.getuid(), os.getgid())
        os.truncate(path / "a", 10)
        os.statvfs(path)
        os.mkfifo(path / "fifo")
        os.mknod(path / "regular")
        assert len(list(path.iterdir())) == 6
    with open(os.memfd_create("memory"), "w+b") as file:  # noqa: PTH123 - a descriptor
        os.posix_fallocate(file.fileno(), 0, 4096)
    event = os.eventfd(1)
    assert os.eventfd_read(event) == 1


def use_sqlite() -> None:
    with sqlite3.connect("base.sqlite") as base:
        base.execute("pragma journal_mode=wal")
        base.execute("create table t (a)")
        base.execute("insert into t values (1)")
        assert base.execute("select a from t").fetchall() == [(1,)]
    base.close()


def use_signals() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.sigtimedwait([signal.SIGUSR2], 0.1)
    assert seen == [signal.SIGUSR1, signal.SIGALRM]
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        signal.pidfd_send_signal(os.pidfd_open(sleeper.pid), signal.SIGKILL)
    assert sleeper.returncode == -signal.SIGKILL


def give_up_privileges() -> None:
    """What a supervisor does once the filter is on; last, because there is no way back."""
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    pr_set_no_new_privs, pr_capbset_drop, version_3 = 38, 24, 0x20080522
    assert libc.prctl(pr_capbset_drop, 21, 0, 0, 0) == 0
    assert libc.prctl(pr_set_no_new_privs, 1, 0, 0, 0) == 0
    header = (ctypes.c_uint32 * 2)(version_3, 0)
    assert libc.capset(header, (ctypes.c_uint32 * 6)()) == 0
    assert "CapEff:\t0000000000000000" in Path("/proc/self/status").read_text()


WORKLOAD: dict[str, Callable[[], None]] = {
    step.__name__: step
    for step in (
        use_threads,
        use_subprocess,
        use_multiprocessing,
        use_shared_memory,
        use_terminals,
        use_numpy,
        use_pandas,
        use_matplotlib,
        use_asyncio,
        use_sockets,
        use_zmq,
        use_psutil,
        use_files,
        use_sqlite,
        use_signals,
        give_up_privileges,
    )
}


if __name__ == "__main__":
    for name, step in WORKLOAD.items():
        step()
        print(name, "ok", flush=True)
