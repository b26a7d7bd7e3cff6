from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sandbox_kernel.limits import proc
from sandbox_kernel.limits.files import start_ticks

HOLD = "print('up', flush=True); input()"
MIB = 1 << 20


@contextmanager
def python(code: str) -> Iterator[int]:
    """A process that runs ``code``, is ready when that prints, and ends after the block."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate("\n")


def ended_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize("name", [b") R 1 1 1", b"a\nb\n", b"\xff\xfe(((", b"", b"Name:\tx\nPid:"])
def test_a_process_cannot_lie_by_its_name(name: bytes) -> None:
    rename = f"import ctypes; ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0); "
    with python(rename + HOLD) as pid:
        stat, status = proc.read_stat(pid), proc.read_status(pid)
        assert stat is not None
        assert status is not None
        assert stat.parent == status.parent == os.getpid()
        assert stat.threads == status.threads == 1
        assert status.inner_pid == pid
        assert start_ticks(pid) == stat.start


def test_sizes_are_those_of_the_process() -> None:
    with python(f"data = bytearray(b'x') * (64 << 20); {HOLD}") as pid:
        status, rollup = proc.read_status(pid), proc.read_rollup(pid)
        assert status is not None
        assert rollup is not None
        for anon in (status.anon, rollup.anon, rollup.private, proc.anon_bytes(pid)):
            assert 64 * MIB < anon < 90 * MIB
        assert status.resident >= status.anon + status.shmem
        assert status.highest >= status.resident
        assert 0 < status.page_tables < MIB


def test_the_highest_size_counts_from_when_it_is_reset() -> None:
    with python(f"data = bytearray(b'x') * (64 << 20); del data; {HOLD}") as pid:
        before = proc.read_status(pid)
        assert before is not None
        assert before.highest - before.resident > 60 * MIB
        assert proc.reset_highest(pid)
        after = proc.read_status(pid)
        assert after is not None
        assert after.highest - after.resident < MIB


def test_a_fork_is_told_from_a_program_of_its_own() -> None:
    with python(HOLD) as pid:
        stat = proc.read_stat(pid)
        assert stat is not None
        assert not stat.forked
    with python(f"import os\nif os.fork(): os.wait()\nelse: {HOLD}") as pid:
        _, fork = proc.process_tree(pid)
        stat = proc.read_stat(fork)
        assert stat is not None
        assert stat.forked


def test_a_file_in_memory_counts_once_however_many_hold_it() -> None:
    make = "import os; f = os.memfd_create('x'); os.write(f, bytes(8 << 20)); g = os.dup(f); "
    with python(f"{make}\nif os.fork(): os.wait()\nelse: {HOLD}") as pid:
        files = [proc.open_files(each) for each in proc.process_tree(pid)]
        assert len(files) == 2
        assert files[0].memfds == files[1].memfds
        assert sum(files[0].memfds.values()) == 8 * MIB
    assert proc.open_files(ended_pid()) == proc.NO_FILES


def test_what_is_gone_is_no_error() -> None:
    pid = ended_pid()
    assert proc.read_stat(pid) is None
    assert proc.read_status(pid) is None
    assert proc.read_rollup(pid) is None
    assert proc.anon_bytes(pid) == 0
    assert not proc.reset_highest(pid)
    assert proc.find_leaders(pid, [pid]) is None
    assert list(proc.process_tree(pid)) == [pid]


def test_a_zombie_uses_nothing_but_has_its_time() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert proc.read_status(process.pid) is None
    assert proc.anon_bytes(process.pid) == 0
    assert proc.read_stat(process.pid) is not None
    process.wait()


def test_a_walk_is_bounded() -> None:
    forks = (
        "import os, sys\nfor _ in range(20):\n  if not os.fork(): sys.stdin.read(); os._exit(0)\n"
    )
    with python(forks + HOLD) as pid:
        assert len(list(proc.process_tree(pid))) == 21
        assert len(list(proc.process_tree(pid, limit=5))) == 5


def test_without_a_namespace_the_root_runs_cells() -> None:
    with python(HOLD) as pid:
        assert proc.find_leaders(pid, [pid]) == proc.Leaders(supervisor=None, kernel=pid)
