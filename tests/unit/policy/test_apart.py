"""What reads shell text and scripts can do nothing else, and nothing that it says is believed blindly."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox_kernel.policy import apart
from sandbox_kernel.policy.judge import NOT_CONFINED, SECONDS, TOO_LONG, Judge
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.verdict import Verdict
from tests.kernel import eventually, running_kernel

LARGE = "# a long line of a comment\n" * 400

# What a hostile parser would try, by what it would get. Each is code whose success is an exception's absence.
ATTEMPTS = {
    "open a file": "os.close(os.open('/etc/passwd', os.O_RDONLY))",
    "list a folder": "os.listdir('/')",
    "ask about a file": "os.stat('/etc/passwd')",
    "make a file": "os.close(os.open('/tmp', os.O_TMPFILE | os.O_WRONLY, 0o600))",
    "make a memfd": "os.close(os.memfd_create('x'))",
    "make a pipe": "os.pipe()",
    "make a socket": "socket.socket(socket.AF_UNIX).close()",
    "make an internet socket": "socket.socket(socket.AF_INET).close()",
    "fork": "os.fork() or os._exit(0)",
    "run a program": "os.posix_spawn('/bin/true', ['true'], dict())",
    "signal its parent": "os.kill(os.getppid(), 0)",
    "signal the wrapper": "os.kill({wrapper}, 0)",
    "open the wrapper's memory": "os.close(os.open('/proc/{wrapper}/mem', os.O_RDONLY))",
    "read the wrapper's memory": "read_memory({wrapper}, {address})",
    "trace the wrapper": "call('ptrace', 0x4206, {wrapper}, 0, 0)",
    "map code": "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)",
    "set its clock anew": "signal.setitimer(signal.ITIMER_PROF, 60)",
    "ignore its clock": "signal.signal(signal.SIGPROF, signal.SIG_IGN)",
    "lift a limit": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "use a descriptor": "os.fstat(2)",
    "sleep": "time.sleep(0.001)",
}

HOSTILE = """
import ctypes, json, mmap, os, resource, signal, socket, sys, time
sys.path[:] = json.loads(sys.argv[2])
from sandbox_kernel.policy import worker
libc = ctypes.CDLL(None, use_errno=True)

class Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

def read_memory(pid, address):
    into = ctypes.create_string_buffer(16)
    ours, theirs = Piece(ctypes.addressof(into), 16), Piece(address, 16)
    call("process_vm_readv", pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)

def attempt(question):
    succeeded = []
    for name, code in json.loads(question).items():
        try:
            eval(code)
        except (OSError, ValueError):  # the latter: of a limit
            continue
        succeeded.append(name)
    return json.dumps(succeeded).encode()
"""
CONFINED = HOSTILE + "worker.main(int(sys.argv[1]), attempt)\n"
UNCONFINED = (
    HOSTILE
    + "worker.confine = lambda libc, program, channel: os.dup2(channel, 0)\n"
    + "worker.main(int(sys.argv[1]), attempt)\n"
)


@contextmanager
def working(program: str) -> Iterator[apart.Worker]:
    started = apart.Worker(program)
    try:
        yield started
    finally:
        started.close()


def attempts() -> bytes:
    secret = ctypes.create_string_buffer(b"a secret of the wrapper's")
    _kept.append(secret)
    values = {"wrapper": os.getpid(), "address": ctypes.addressof(secret)}
    return json.dumps({name: code.format(**values) for name, code in ATTEMPTS.items()}).encode()


_kept: list[object] = []


def test_a_hostile_parser_can_do_nothing_but_answer() -> None:
    with working(CONFINED) as confined:
        assert json.loads(confined.ask(attempts())) == []


def test_the_same_code_can_do_it_all_where_nothing_confines_it() -> None:
    with working(UNCONFINED) as unconfined:
        succeeded = set(json.loads(unconfined.ask(attempts())))
    needs_root = {"read the wrapper's memory", "open the wrapper's memory", "trace the wrapper"}
    expected = set(ATTEMPTS) if os.geteuid() == 0 else set(ATTEMPTS) - needs_root
    assert expected <= succeeded


def test_a_fork_that_reads_has_one_descriptor_a_filter_and_no_capability() -> None:
    waiting = "import sys; sys.path[:] = __import__('json').loads(sys.argv[2])\n" + (
        "from sandbox_kernel.policy import worker\nworker.main(int(sys.argv[1]), lambda _: b'')\n"
    )
    with working(waiting) as held:
        ours, theirs = apart.socket.socketpair()
        with ours, theirs:
            os.close(held._fork(theirs))
            children = Path(f"/proc/{held.process.pid}/task/{held.process.pid}/children")
            [pid] = children.read_text().split()
            status = Path(f"/proc/{pid}/status")
            eventually(lambda: "Seccomp:\t2" in status.read_text(), what="it has its filter")
            told = dict(re.findall(r"(\w+):\t(.*)", status.read_text()))
            assert told["NoNewPrivs"] == "1"
            assert {told[f"Cap{kind}"] for kind in ("Eff", "Prm", "Inh", "Amb")} == {"0" * 16}
            if os.geteuid() == 0:
                assert [each.name for each in Path(f"/proc/{pid}/fd").iterdir()] == ["0"]
                limits = Path(f"/proc/{pid}/limits").read_text()
                assert re.search(r"Max open files +0 +0", limits)
                assert re.search(r"Max processes +0 +0", limits)


@pytest.mark.skipif(os.geteuid() != 0, reason="reads the memory of other processes")
@pytest.mark.process
def test_the_frontends_key_is_in_no_memory_but_the_wrappers(tmp_path: Path) -> None:
    token = f"token-{os.urandom(16).hex()}"
    environment = {"SOME_TOKEN": token}
    with running_kernel(cwd=tmp_path, policy="extends: default", env=environment) as kernel:
        assert kernel.run("!ls").status == "ok"
        key = kernel.client.session.key
        [parser] = [
            int(pid)
            for pid in children_of(kernel.wrapper_pid)
            if b"policy.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert not holds(parser, key)
        assert not holds(parser, token.encode())
        assert holds(kernel.wrapper_pid, key)
        assert holds(kernel.wrapper_pid, token.encode())


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def holds(pid: int, secret: bytes) -> bool:
    """Whether a secret is anywhere in the memory of a process."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            if line.split()[1].startswith("r") and "[v" not in line:
                try:
                    memory.seek(first)
                    if secret in memory.read(last - first):
                        return True
                except OSError:
                    continue  # a part that nobody can read, a guard page for example
    return False


# What goes wrong -----------------------------------------------------------------------------------


@pytest.fixture
def judge() -> Judge:
    return Judge(load_policy("default").code)


@contextmanager
def instead(monkeypatch: pytest.MonkeyPatch, answer: str) -> Iterator[None]:
    """Have cells read by a worker that answers with what ``answer`` evaluates to."""
    apart.close()
    program = (
        "import json, os, sys, time; sys.path[:] = json.loads(sys.argv[2])\n"
        "from sandbox_kernel.policy import worker\n"
        "def hang():\n    while True: pass\n"
        f"worker.main(int(sys.argv[1]), lambda question: {answer})\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(apart, "Worker", lambda: _Worker(program))
        yield
        apart.close()


_Worker = apart.Worker


EMPTY = '"names": {}, "texts": {}, "log": ""'
FAULTS = {
    "hangs": "hang()",
    "waits": "__import__('ctypes').CDLL(None).sem_wait(bytes(32))",
    "crashes": "__import__('ctypes').string_at(0)",
    "raises": "1 / 0",
    "says nothing": "b''",
    "says half": """b'{"hits": [], "na'""",
    "says a list": "b'[]'",
    "says too deep a thing": "b'[' * 100000",
    "names no rule": f"""b'{{"hits": [["no.rule", "", 1, 0, ""]], {EMPTY}}}'""",
    "gives a number for a text": f"""b'{{"hits": [[1, 2, 1, 0, ""]], {EMPTY}}}'""",
    "says too much": "b'x' * (32 << 20)",
    "pickles": "__import__('pickle').dumps(print)",
}
CASES = [
    *(("!ls", fault) for fault in FAULTS),
    *((cell, fault) for cell in ("%%js\n1", LARGE) for fault in ("hangs", "crashes")),
]


@pytest.mark.parametrize(("cell", "fault"), CASES, ids=lambda each: each[:5].strip())
def test_a_parser_that_fails_costs_one_cell(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, cell: str, fault: str
) -> None:
    with instead(monkeypatch, FAULTS[fault]):
        began = time.monotonic()
        [found] = judge.judge(cell).findings
        assert time.monotonic() - began < 10  # with the start of the process
    assert (found.rule, found.decision, found.about) == ("cell.unreadable", "deny", TOO_LONG)
    assert judge.judge(cell) == Verdict("allow")


@pytest.mark.parametrize(("seconds", "decision"), [(SECONDS + 0.02, "allow"), (1.0, "deny")])
def test_what_was_read_in_time_is_answered(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, seconds: float, decision: str
) -> None:
    """Though unpacking the question and packing the answer take some time, too."""
    burn = f"[0 for _ in iter(lambda: time.process_time() < begun + {seconds}, False)]"
    answer = f"""(begun := time.process_time(), {burn}, b'{{"hits": [], {EMPTY}}}')[-1]"""
    with instead(monkeypatch, answer):
        assert judge.judge("!ls").decision == decision


def test_a_place_beyond_the_cell_is_moved_into_it(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit = """["python.frames", "x", 1000000, -5, ""]"""
    answer = f"""b'{{"hits": [{hit}], {EMPTY}}}'"""
    with instead(monkeypatch, answer):
        [found] = judge.judge("!ls").findings
    assert (found.line, found.column) == (1, 0)


def test_the_wrapper_decides_whatever_the_parser_says(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit = """["shell.command", "ls", 1, 0, ""]"""
    answer = f"""b'{{"hits": [{hit}], {EMPTY}}}'"""
    with instead(monkeypatch, answer):
        assert judge.judge("!ls") == Verdict("allow")


def test_where_nothing_can_be_confined_the_cell_is_denied(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apart.close()
    without = apart.PROGRAM.replace(
        "main(int",
        "import sandbox_kernel.policy.worker as w; w.PARSER_SECCOMP = 'missing.json'; main(int",
    )
    with monkeypatch.context() as patch:
        patch.setattr(apart, "Worker", lambda: _Worker(without))
        [found] = judge.judge("!ls").findings
    assert (found.rule, found.decision, found.about) == ("cell.unreadable", "deny", NOT_CONFINED)
    said = capsys.readouterr().err
    assert "missing.json" in said
    assert "Traceback" not in said
    assert judge.judge("!ls") == Verdict("allow")


def test_a_filter_that_cannot_be_loaded_means_that_nothing_is_read(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart.close()
    broken = apart.PROGRAM.replace(
        "main(int",
        "import sandbox_kernel.policy.worker as w; w.compile_profile = lambda _: bytes(8); main(int",
    )
    with monkeypatch.context() as patch:
        patch.setattr(apart, "Worker", lambda: _Worker(broken))
        [found] = judge.judge("!ls").findings
        assert found.rule == "cell.unreadable"
        apart.close()


def test_a_worker_that_was_killed_is_started_anew(judge: Judge) -> None:
    assert judge.judge("!ls") == Verdict("allow")
    killed = apart._shared[0].process
    killed.kill()
    killed.wait()
    assert judge.judge("!ls") == Verdict("allow")


def test_a_machine_that_gives_no_process_costs_one_cell(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError

    apart.close()
    with monkeypatch.context() as patch:
        patch.setattr(apart.subprocess, "Popen", refuse)
        [found] = judge.judge("!ls").findings
    assert found.about == NOT_CONFINED
    assert "BlockingIOError" in capsys.readouterr().err
    assert judge.judge("!ls") == Verdict("allow")
    gc.collect()  # a socket that nobody closed would say so


def test_a_cell_of_plain_python_starts_no_process(judge: Judge) -> None:
    apart.close()
    assert judge.judge("import math\nx = math.pi") == Verdict("allow")
    assert not apart._shared


def test_it_ends_with_the_process_that_it_is_for() -> None:
    program = (
        "from sandbox_kernel.policy import apart; import os\n"
        "worker = apart.Worker(); print(worker.process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = apart.subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    place = Path("/proc", done.stdout.decode().strip())
    eventually(
        lambda: not place.exists() or "State:\tZ" in (place / "status").read_text(),
        what="the worker has ended",
    )
