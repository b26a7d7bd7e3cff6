"""Each limit of a policy holds, a client can tighten it for one cell, and the user is told which it was."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.limits.endings import NOT_KEPT
from tests.kernel import TIMEOUT, Kernel, Outcome, at, eventually, running_kernel
from tests.lender import Lender

pytestmark = pytest.mark.every_level

MIB = 1 << 20
Run = Callable[[str], Outcome]

SLEEP = "import time; reached = 1; time.sleep(60)"
BURN = "reached = 1\nwhile True: pass"
BURNING_CHILDREN = (
    "import subprocess, sys\nreached = 1\n"
    "children = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(2)]\n"
    "[child.wait() for child in children]"
)
BURNING_THREADS = (
    "import hashlib, threading\nreached = 1\ndata = bytes(1 << 20)\n"
    "def burn():\n    while True: hashlib.sha256(data)\n"
    "threads = [threading.Thread(target=burn, daemon=True) for _ in range(2)]\n"
    "[thread.start() for thread in threads]\n[thread.join() for thread in threads]"
)
# Each has less than the limit.
GREEDY_CHILDREN = (
    "import subprocess, sys, time\nreached = 1\n"
    "code = \"x = b'x' * (48 << 20); import time; time.sleep(60)\"\n"
    "children = [subprocess.Popen([sys.executable, '-S', '-c', code]) for _ in range(4)]\n"
    "[child.wait() for child in children]"
)
GREEDY_CELL = "reached = 1\nbig = [b'%d' % n * (16 << 20) for n in range(24)]; time.sleep(60)"


def as_yaml(limits: dict[str, Any], section: str = "limits") -> str:
    return "".join([f"{section}:\n", *(f"  {name}: {value}\n" for name, value in limits.items())])


def in_either_way(gvisor: str | None = None) -> pytest.MarkDecorator:
    """Limits come from the policy, or because the client asks for them.

    That is the wrapper's affair: for the other levels one way will do. ``gvisor``: what cannot be there.
    """
    parameters = [
        at("process", "policy"),
        at("process", "metadata"),
        at("container", "metadata"),
        at("gvisor", "metadata", exception=gvisor),
    ]
    return pytest.mark.parametrize(("level", "limits_by"), parameters, scope="module")


@pytest.fixture
def limited(limits_by: str, level: str, tmp_path: Path, lender: Lender) -> Any:
    """A kernel whose cells have these limits."""

    @contextmanager
    def run_with(limits: dict[str, Any]) -> Iterator[tuple[Kernel, Run]]:
        by_policy = limits_by == "policy"
        if level == "process":
            policy = as_yaml(limits) if by_policy else None
            running = running_kernel(cwd=tmp_path, policy=policy)
        else:
            running = lender.lend()
        with running as kernel:
            assert kernel.run("keep = 42\nimport time").status == "ok"
            if by_policy:
                yield kernel, lambda code: kernel.outcome_of(kernel.client.execute(code))
            else:
                yield kernel, lambda code: kernel.run_within(limits, code)

    return run_with


def expect_told(outcome: Outcome, ename: str, limit: str, result: str) -> None:
    """What was exceeded, by how much, what was done, what became of the variables."""
    assert outcome.ename == ename
    assert outcome.receipt["outcome"] == result
    exceeded = outcome.receipt["exceeded"]
    assert exceeded["limit"] == limit
    assert exceeded["used"] >= exceeded["allowed"]
    actions = {"kept": "interrupted", "rolled_back": "rolled_back"}
    assert exceeded["action"] == actions[outcome.receipt["state"]]
    assert "allows" in outcome.evalue or "was stopped at " in outcome.evalue
    assert "all variables" in outcome.evalue
    shown = [m["content"]["evalue"] for m in outcome.messages if m["msg_type"] == "error"]
    assert shown == [outcome.evalue]


def expect_state(kernel: Kernel, outcome: Outcome) -> None:
    """The receipt says truly what became of what the cell had set, and nothing else was touched."""
    assert kernel.run("keep").result == "42"
    kept = outcome.receipt["state"] == "kept"
    assert kernel.run("'reached' in globals()").result == str(kept)
    if not kept:
        assert "undone" in outcome.evalue


# -- time, memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "code", "told"),
    [
        ({"wall": "500ms"}, SLEEP, ("CellTimeout", "wall", "timeout")),
        ({"cpu": "500ms"}, BURN, ("CellCpuExceeded", "cpu", "cpu")),
        ({"cpu": "500ms"}, BURNING_CHILDREN, ("CellCpuExceeded", "cpu", "cpu")),
        ({"cpu": "500ms"}, BURNING_THREADS, ("CellCpuExceeded", "cpu", "cpu")),
        ({"memory": "128MiB"}, GREEDY_CHILDREN, ("CellMemoryExceeded", "memory", "memory")),
        (
            {"sandbox_memory": "300MiB"},
            GREEDY_CELL,
            ("CellMemoryExceeded", "sandbox_memory", "memory"),
        ),
    ],
    ids=[
        "wall",
        "cpu",
        "cpu_of_children",
        "cpu_of_threads",
        "memory_of_children",
        "sandbox_memory",
    ],
)
@in_either_way()
def test_a_cell_that_uses_too_much_is_stopped_and_told(
    limited: Any, limits: dict[str, Any], code: str, told: tuple[str, str, str]
) -> None:
    with limited({**limits, "grace": "1s"}) as (kernel, run):
        began = time.monotonic()
        outcome = run(code)
        if told[1] == "wall":
            assert 0.5 <= time.monotonic() - began < 0.5 + 1 + 1
        expect_told(outcome, *told)
        expect_state(kernel, outcome)
        assert kernel.cell_pids() == set()


def test_threads_that_a_stopped_cell_has_started_do_not_go_on(kernel: Kernel) -> None:
    """They cannot be ended but with their process, though the cell itself stops when told."""
    assert kernel.run("keep = 42\nimport time").status == "ok"
    threads = kernel.kernel_process.threads
    start = (
        "import threading\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    outcome = kernel.run_within({"wall": "700ms"}, start + SLEEP)
    expect_told(outcome, "CellTimeout", "wall", "timeout")
    assert outcome.receipt["state"] == "rolled_back"
    expect_state(kernel, outcome)
    assert kernel.kernel_process.threads <= threads


def test_threads_of_a_stopped_cell_do_not_go_on_because_others_have_ended(kernel: Kernel) -> None:
    """It counts which ones were started, not how many more there are."""
    assert kernel.run("import threading, time").status == "ok"
    assert kernel.run("threading.Timer(0.5, bool).start()").status == "ok"
    code = (
        "def spin():\n    while True: time.sleep(0.01)\n"
        "threading.Thread(target=spin, daemon=True).start()\n"
    )
    outcome = kernel.run_within({"wall": "1s"}, code + SLEEP)
    assert outcome.receipt["state"] == "rolled_back"
    assert "It left 1 thread running, which cannot be ended from outside" in outcome.evalue
    assert kernel.run("threading.active_count() - len(threading.enumerate())").result == "0"


def test_a_thread_of_the_kernels_own_does_not_cost_a_stopped_cell_its_results(
    kernel: Kernel,
) -> None:
    """A subshell that a frontend opens while a cell runs; large outputs, which pyzmq has threads for."""
    assert kernel.run("keep = 42\nimport time").status == "ok"
    threads = kernel.kernel_process.threads
    show = "display({'text/plain': 'x' * 300_000}, raw=True)\n"
    cell = begin(kernel, {"wall": "1s"}, show + SLEEP)
    while kernel.client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "display_data":
        pass
    subshell_id = subshell(kernel)
    outcome = kernel.outcome_of(cell)
    expect_told(outcome, "CellTimeout", "wall", "timeout")
    assert outcome.receipt["state"] == "kept", outcome.evalue
    expect_state(kernel, outcome)
    assert kernel.kernel_process.threads == threads + 1
    client = kernel.client
    client.control_channel.send(
        client.session.msg("delete_subshell_request", {"subshell_id": subshell_id})
    )
    client.get_control_msg(timeout=TIMEOUT)


def test_what_an_earlier_cell_left_running_is_not_swept_away_with_the_next(kernel: Kernel) -> None:
    """The kernel dates processes in hundredths of a second: two cells of a "Run all" can share one."""
    assert kernel.run("import subprocess, time\nservers = []").status == "ok"
    start = "servers.append(subprocess.Popen(['sleep', '600'], start_new_session=True))"
    for number in range(12):
        kernel.client.execute(start)
        own = start.replace("servers.append", "child = ")
        stopped = kernel.run_within({"wall": "400ms"}, f"{own}\ntime.sleep(60)")
        assert stopped.receipt["outcome"] == "timeout"
        assert stopped.receipt["state"] == "kept", stopped.evalue
        states = kernel.value("([server.poll() for server in servers], child.wait())")
        assert states == ([None] * (number + 1), -9), number
    assert kernel.run("for server in servers: server.kill(); server.wait()").status == "ok"


@in_either_way(gvisor="gVisor does not hold RLIMIT_DATA: the wrapper stops the cell")
def test_memory_beyond_the_limit_is_refused_to_python_first(limited: Any) -> None:
    """Nothing is stopped and nothing is lost: the cell can catch it."""
    with limited({"memory": "64MiB"}) as (kernel, run):
        caught = run("try: big = b'x' * (300 << 20)\nexcept MemoryError: print('caught')")
        assert caught.text() == "caught\n"
        assert caught.receipt["outcome"] == "ok"
        outcome = run("reached = 1; big = b'x' * (300 << 20)")
        assert (outcome.ename, outcome.receipt["outcome"]) == ("MemoryError", "error")
        expect_state(kernel, outcome)


@in_either_way()
def test_time_that_passes_is_no_cpu_time(limited: Any) -> None:
    with limited({"cpu": "500ms"}) as (_, run):
        assert run("time.sleep(1.5); 'rested'").result == "'rested'"


@in_either_way()
def test_cells_within_their_limits_are_not_stopped_for_those_before(limited: Any) -> None:
    """Limits are a cell's own: neither the time nor the memory of earlier cells counts."""
    with limited({"cpu": "1s", "memory": "128MiB"}) as (_, run):
        for n in range(3):
            outcome = run(
                f"part{n} = b'x' * (64 << 20)\n"
                "end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
            )
            assert outcome.status == "ok", outcome.evalue


def test_the_checkpoint_for_undo_is_given_up_before_a_cell_is_stopped(tmp_path: Path) -> None:
    """Once the wrapper has had the supervisor forget it, its memory takes a moment to come back."""
    with running_kernel(cwd=tmp_path, policy=as_yaml({"sandbox_memory": "600MiB"})) as kernel:
        assert kernel.run("import time\nbig = bytearray(b'x') * (180 << 20)").status == "ok"
        # Now the checkpoint before this cell has another 180 MiB.
        assert kernel.run("big[::4096] = bytes(len(big) // 4096)").status == "ok"
        grow = (
            "more = []\nfor n in range(48): more.append(b'x' * (5 << 20)); time.sleep(0.05)\n"
            "len(more)"
        )
        outcome = kernel.run(grow)
        assert outcome.status == "ok", outcome.evalue
        assert outcome.result == "48"


def test_a_sandbox_that_files_make_too_large_is_not_rolled_back_for_ever(tmp_path: Path) -> None:
    """Files survive a rollback: the user is told, keeps everything and can delete them."""
    with running_kernel(cwd=tmp_path, policy=as_yaml({"sandbox_memory": "500MiB"})) as kernel:
        assert kernel.run("keep = bytearray(b'x') * (190 << 20)\nimport subprocess").status == "ok"
        victim = kernel.kernel_pid
        child = "sleep 0.3; head -c 300M /dev/zero > /tmp/large; sleep 600"
        assert kernel.run(f"child = subprocess.Popen(['sh', '-c', {child!r}])").status == "ok"

        def rolled_back() -> bool:
            return [each.threads > 1 and each.pid != victim for each in kernel._awake()] == [True]

        eventually(rolled_back, what="another kernel process, and none beside it")
        after = kernel.kernel_pid
        time.sleep(2.5)
        assert kernel.kernel_pid == after
        outcome = kernel.run(
            "import os\nprint(len(keep) >> 20, os.path.getsize('/tmp/large') >> 20)"
        )
        assert outcome.text() == "190 300\n", outcome.evalue
        said = outcome.text("stderr")
        assert "allows 500 MiB" in said
        assert "files in /tmp" in said
        assert kernel.run("!rm /tmp/large").status == "ok"
        again = kernel.run("more = b'x' * (100 << 20); len(keep) >> 20")
        assert again.result == "190"
        assert again.text("stderr") == ""


# -- processes and files: refused inside, nothing is stopped ---------------------------------------


@in_either_way()
def test_too_many_processes_are_an_error_inside_and_nothing_more(limited: Any) -> None:
    with limited({"processes": 20}) as (kernel, run):
        outcome = run(
            "import subprocess, time\nchildren, failed = [], None\n"
            "try:\n"
            "    for _ in range(200): children.append(subprocess.Popen(['sleep', '60']))\n"
            "except OSError as error: failed = error.errno\n"
            "time.sleep(0.3)\n"  # until they have been looked at
            "for child in children: child.kill(); child.wait()\n"
            "print(len(children), failed)"
        )
        count, failed = map(int, outcome.text().split())
        assert failed == errno.EAGAIN
        assert 5 <= count <= 60
        assert outcome.receipt["usage"]["processes_peak"] >= 5
        assert run("subprocess.run(['true']).returncode").result == "0"
        assert kernel.run("keep").result == "42"


@in_either_way()
def test_too_many_threads_are_an_error_inside_and_nothing_more(limited: Any) -> None:
    with limited({"processes": 20}) as (kernel, run):
        outcome = run(
            "import threading\nend = threading.Event()\nthreads = []\n"
            "try:\n"
            "    for _ in range(200):\n"
            "        thread = threading.Thread(target=end.wait)\n"
            "        thread.start(); threads.append(thread)\n"
            "except RuntimeError as error: print(error)\n"
            "end.set(); [thread.join() for thread in threads]\n"
            "print(len(threads))"
        )
        said, count = outcome.text().splitlines()
        assert "can't start new thread" in said
        assert 5 <= int(count) <= 60
        assert kernel.run("keep").result == "42"


@pytest.mark.every_level
def test_a_cell_cannot_lift_the_limit_on_processes(kernel: Kernel) -> None:
    """It fails beyond the policy's, and the sandbox lives on with its variables."""
    assert kernel.run("keep = 42").status == "ok"
    outcome = kernel.run(
        "import resource, subprocess\nchildren = []\n"
        "try: resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))\n"
        "except (OSError, ValueError): pass\n"
        "try:\n"
        "    for _ in range(600): children.append(subprocess.Popen(['sleep', '60']))\n"
        "except OSError as error: print(error.errno)\n"
        "for child in children: child.kill()\n"
        "for child in children: child.wait()\n"
        "print(len(children))"
    )
    assert outcome.status == "ok", outcome.evalue
    failed, count = map(int, outcome.text().split())
    assert failed == errno.EAGAIN
    assert 100 < count < 256 + 64
    assert kernel.run("keep").result == "42"


@pytest.mark.every_level(gvisor="its own threads cannot be told from those of cells")
def test_a_cell_that_lifts_its_own_limit_on_processes_is_stopped(kernel: Kernel) -> None:
    assert kernel.run("keep = 42").status == "ok"
    outcome = kernel.run_within(
        {"processes": 20, "grace": "500ms", "wall": "10s"},
        "import resource, subprocess, time\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NPROC)\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))\n"
        "children = [subprocess.Popen(['sleep', '60']) for _ in range(150)]\n"
        "time.sleep(60)",
    )
    expect_told(outcome, "CellLimitExceeded", "processes", "error")
    assert kernel.cell_pids() == set()
    assert kernel.run("keep").result == "42"


@in_either_way()
def test_too_large_a_file_is_an_error_inside_and_nothing_more(limited: Any) -> None:
    with limited({"file_size": "1MiB"}) as (kernel, run):
        outcome = run(
            "import os\n"
            "try:\n"
            "    with open('/tmp/file', 'wb', 0) as file:\n"
            "        for _ in range(3): file.write(bytes(512 << 10))\n"
            "except OSError as error: print(error.errno, os.path.getsize('/tmp/file'))"
        )
        assert outcome.text() == f"{errno.EFBIG} {MIB}\n"
        assert kernel.run("keep").result == "42"


# -- output ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "code", "limit"),
    [
        ({"text": "1KiB"}, "while True: print('x' * 99, flush=True)", "text"),
        ({"text": 0}, "print('x', flush=True)\ntime.sleep(60)", "text"),
        ({"output": "64KiB"}, "while True: display('x' * 999)", "output"),
        ({"output": "64KiB", "text": "32KiB"}, "while True: display('x' * 999)", "output"),
        ({"messages": 10}, "while True: display(1)", "messages"),
    ],
    ids=["text", "no_text", "output", "output_but_not_text", "messages"],
)
@in_either_way()
def test_a_cell_that_shows_too_much_is_stopped_and_told(
    limited: Any, limits: dict[str, Any], code: str, limit: str
) -> None:
    with limited(limits) as (kernel, run):
        outcome = run(f"reached = 1\n{code}")
        expect_told(outcome, "CellOutputExceeded", limit, "output")
        expect_state(kernel, outcome)
        shown = [m for m in outcome.messages if m["msg_type"] in ("stream", "display_data")]
        if limit == "messages":
            assert len(shown) == 10 + 1  # and the receipt
        if limits.get("text") == 0:
            assert outcome.text() == ""
        assert run("x = 1").status == "ok"


CHATTY = """
import threading
go = threading.Event()
def talk():
    go.wait(); print('from a thread', flush=True)
threading.Thread(target=talk).start()
def hear(*_):
    print('from a callback', flush=True); go.set()
get_ipython().kernel.comm_manager.register_target('chatty', hear)
"""


def test_what_is_shown_after_a_cell_that_showed_too_much_is_not_lost(kernel: Kernel) -> None:
    client = kernel.client
    assert kernel.run(CHATTY).status == "ok"
    stopped = kernel.run_within({"text": "1KiB"}, "while True: print('x' * 99)")
    assert stopped.receipt["state"] == "kept", stopped.evalue
    content = {"comm_id": "c", "target_name": "chatty", "data": {}}
    client.shell_channel.send(client.session.msg("comm_open", content))
    heard = ""
    while heard != "from a callback\nfrom a thread\n":
        message = client.get_iopub_msg(timeout=TIMEOUT)
        heard += message["content"]["text"] if message["msg_type"] == "stream" else ""


# -- a budget for the whole notebook ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "code", "ename", "limit", "result"),
    [
        ({"wall": "4s"}, "import time; time.sleep({})", "CellTimeout", "budget_wall", "timeout"),
        (
            {"cpu": "1500ms"},
            "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass",
            "CellCpuExceeded",
            "budget_cpu",
            "cpu",
        ),
    ],
    ids=["wall", "cpu"],
)
def test_a_budget_stops_the_cell_that_uses_it_up_and_refuses_the_next(
    tmp_path: Path,
    level: str,
    budget: dict[str, str],
    code: str,
    ename: str,
    limit: str,
    result: str,
) -> None:
    with running_kernel(cwd=tmp_path, level=level, policy=as_yaml(budget, "budget")) as kernel:
        assert kernel.run(f"keep = 42\n{code.format(1)}").status == "ok"
        stopped = kernel.run(f"reached = 1\n{code.format(30)}")
        expect_told(stopped, ename, limit, result)
        assert stopped.receipt["usage"]["wall_seconds"] < 10
        for _ in range(2):
            refused = kernel.run("print('ran', flush=True)")
            assert refused.ename == ename
            assert refused.receipt["outcome"] == result
            assert "in all" in refused.evalue
            assert "Restart the kernel" in refused.evalue
            assert refused.receipt["usage"]["wall_seconds"] == 0
            assert refused.text() == ""
        kernel.manager.restart_kernel()
        kernel.client.wait_for_ready(timeout=TIMEOUT)
        assert kernel.run("'a new budget'").result == "'a new budget'"


def test_a_cell_refused_for_the_budget_is_told_that_it_did_not_run(tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, policy=as_yaml({"wall": "500ms"}, "budget")) as kernel:
        assert kernel.run("import time; time.sleep(30)").ename == "CellTimeout"
        refused = kernel.run("ran = 1")
        assert "interrupted" not in refused.evalue
        assert "had set before it stopped" not in refused.evalue
        assert refused.receipt["exceeded"]["limit"] == "budget_wall"


# -- clocks that stand still -----------------------------------------------------------------------


def begin(kernel: Kernel, limits: dict[str, Any], code: str) -> str:
    """Send a cell with limits of its own that may ask for input; its id."""
    content = {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": True,
        "stop_on_error": True,
    }
    metadata = {"sandbox": {"limits": limits}}
    message = kernel.client.session.msg("execute_request", content, metadata=metadata)
    kernel.client.shell_channel.send(message)
    return message["header"]["msg_id"]


def test_the_wall_clock_pauses_while_the_cell_waits_for_input(kernel: Kernel) -> None:
    cell = begin(kernel, {"wall": "1s"}, "print(input('colour? '), input('really? '))")
    for answer in ("blue", "yes"):
        kernel.client.get_stdin_msg(timeout=TIMEOUT)
        time.sleep(1.5)
        kernel.client.input(answer)
    outcome = kernel.outcome_of(cell)
    assert outcome.status == "ok", outcome.evalue
    assert outcome.text() == "blue yes\n"
    assert outcome.receipt["usage"]["wall_seconds"] < 1


def test_after_an_interrupt_the_wall_clock_goes_on(kernel: Kernel) -> None:
    code = f"try: input()\nexcept KeyboardInterrupt: pass\n{SLEEP}"
    cell = begin(kernel, {"wall": "1s", "grace": "500ms"}, code)
    kernel.client.get_stdin_msg(timeout=TIMEOUT)
    kernel.manager.interrupt_kernel()
    expect_told(kernel.outcome_of(cell), "CellTimeout", "wall", "timeout")


def test_after_the_answer_the_wall_clock_goes_on(kernel: Kernel) -> None:
    cell = begin(kernel, {"wall": "1s", "grace": "500ms"}, f"input(); {SLEEP}")
    kernel.client.get_stdin_msg(timeout=TIMEOUT)
    time.sleep(1.5)
    answered = time.monotonic()
    kernel.client.input("go")
    outcome = kernel.outcome_of(cell)
    expect_told(outcome, "CellTimeout", "wall", "timeout")
    assert time.monotonic() - answered < 3


def test_cpu_time_is_counted_while_the_cell_waits_for_input(kernel: Kernel) -> None:
    code = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'while True: pass'])\ninput('never answered')"
    )
    cell = begin(kernel, {"cpu": "700ms", "grace": "500ms"}, code)
    kernel.client.get_stdin_msg(timeout=TIMEOUT)
    outcome = kernel.outcome_of(cell)
    expect_told(outcome, "CellCpuExceeded", "cpu", "cpu")
    assert kernel.cell_pids() == set()
    assert kernel.run("6 * 7").result == "42"


def test_a_cell_cannot_stop_its_own_clock_with_a_question_that_it_does_not_wait_for(
    kernel: Kernel,
) -> None:
    code = (
        "import threading\nkernel = get_ipython().kernel\nparent = kernel.get_parent()\n"
        "ident = kernel._parent_ident['shell']\n"
        "def ask():\n"
        "    question = {'prompt': 'name? ', 'password': False}\n"
        "    kernel.session.send(kernel.stdin_socket, 'input_request', question, parent, ident)\n"
        "asking = threading.Thread(target=ask)\nasking.start()\nasking.join()\n"
        f"{BURN}"
    )
    began = time.monotonic()
    cell = begin(kernel, {"wall": "1s", "grace": "500ms"}, code)
    assert kernel.client.get_stdin_msg(timeout=TIMEOUT)["content"]["prompt"] == "name? "
    outcome = kernel.outcome_of(cell)
    expect_told(outcome, "CellTimeout", "wall", "timeout")
    assert time.monotonic() - began < TIMEOUT / 2


class Debugger:
    """As JupyterLab debugs a cell."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._sequence = 0

    def ask(self, command: str, arguments: Any = None) -> Any:
        client = self._kernel.client
        self._sequence += 1
        content = {
            "type": "request",
            "seq": self._sequence,
            "command": command,
            "arguments": arguments or {},
        }
        request = client.session.msg("debug_request", content)
        client.control_channel.send(request)
        while True:
            reply = client.get_control_msg(timeout=TIMEOUT)
            if reply["parent_header"]["msg_id"] == request["header"]["msg_id"]:
                return reply["content"].get("body")

    def attach(self, code: str, line: int) -> None:
        client = {"clientID": "test", "adapterID": "", "pathFormat": "path", "locale": "en"}
        self.ask("initialize", client | {"linesStartAt1": True, "columnsStartAt1": True})
        self.ask("attach")
        path = self.ask("dumpCell", {"code": code})["sourcePath"]
        source = {"breakpoints": [{"line": line}], "source": {"path": path}}
        self.ask("setBreakpoints", source | {"sourceModified": False})
        self.ask("configurationDone")

    def await_stop(self) -> None:
        while True:
            message = self._kernel.client.get_iopub_msg(timeout=TIMEOUT)
            if message["content"].get("event") == "stopped":
                return


def test_the_wall_clock_pauses_at_a_breakpoint(kernel: Kernel) -> None:
    code = "import time\nstopped_here = 1\ntime.sleep(0.2)\nstopped_here + 1"
    debugger = Debugger(kernel)
    debugger.attach(code, 2)
    cell = begin(kernel, {"wall": "4s"}, code)  # the debugger itself takes some of it
    debugger.await_stop()
    time.sleep(4.5)
    debugger.ask("continue", {"threadId": 1})
    outcome = kernel.outcome_of(cell)
    assert outcome.result == "2"
    assert outcome.receipt["usage"]["wall_seconds"] < 4


def test_cpu_time_is_counted_at_a_breakpoint(kernel: Kernel) -> None:
    # No Python: debugpy would follow it there. It begins at the breakpoint, not on the way to it.
    go = kernel.folder / "at-the-breakpoint"
    script = f"until [ -e {go} ]; do sleep 0.1; done; while :; do :; done"
    code = (
        f"import subprocess\nchild = subprocess.Popen(['sh', '-c', {script!r}])\nstopped_here = 1"
    )
    debugger = Debugger(kernel)
    debugger.attach(code, 3)
    debuggers = kernel.cell_pids()  # they end with the kernel process, if that must be killed
    cell = begin(kernel, {"cpu": "4s", "grace": "500ms"}, code)
    debugger.await_stop()
    go.touch()
    outcome = kernel.outcome_of(cell)
    expect_told(outcome, "CellCpuExceeded", "cpu", "cpu")
    assert kernel.cell_pids() <= debuggers
    assert kernel.run("6 * 7").result == "42"


@pytest.mark.every_level(fresh=True)  # no debugger has been here
def test_a_cell_cannot_stop_its_own_clock_with_the_debuggers_words(kernel: Kernel) -> None:
    # As JupyterLab asks when it opens a notebook.
    Debugger(kernel).ask("debugInfo")
    code = (
        "import time\nkernel = get_ipython().kernel\n"
        "stopped = {'type': 'event', 'event': 'stopped', 'body': {'reason': 'breakpoint'}}\n"
        "kernel.session.send(kernel.iopub_socket, 'debug_event', stopped, kernel.get_parent())\n"
        "time.sleep(60)"
    )
    outcome = kernel.run_within({"wall": "1s"}, code)
    expect_told(outcome, "CellTimeout", "wall", "timeout")


# -- code that is no cell --------------------------------------------------------------------------

HANGING = """
import signal, time
keep = 42

class Slow:
    def __dir__(self):
        wait()

def wait():
    time.sleep(60)

def hear(comm, _):
    comm.on_msg(lambda _: wait())

slow = Slow()
get_ipython().kernel.comm_manager.register_target('slow', hear)
"""
DEAF = "def wait():\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n    time.sleep(60)"


def heard_error(kernel: Kernel) -> str:
    while True:
        message = kernel.client.get_iopub_msg(timeout=TIMEOUT)
        if message["msg_type"] == "error":
            return message["content"]["evalue"]


@pytest.mark.parametrize("deaf", [False, True], ids=["stops_when_told", "must_be_killed"])
@pytest.mark.parametrize("kind", ["completion", "callback"])
def test_code_that_is_no_cell_and_hangs_is_stopped_and_the_user_told(
    tmp_path: Path, level: str, kind: str, deaf: bool
) -> None:
    client_limits = as_yaml({"wall": "700ms", "grace": "300ms"})
    with running_kernel(cwd=tmp_path, level=level, policy=client_limits) as kernel:
        assert kernel.run(HANGING + (DEAF if deaf else "")).status == "ok"
        client = kernel.client
        if kind == "completion":
            client.complete("slow.", 5)
        else:
            for msg_type in ("comm_open", "comm_msg"):
                content = {"comm_id": "c", "target_name": "slow", "data": {}}
                client.shell_channel.send(client.session.msg(msg_type, content))
        told = heard_error(kernel)
        assert "ran for" in told or "stopped at" in told
        assert "all variables" in told
        if kind == "completion":
            assert client.get_shell_msg(timeout=TIMEOUT)["msg_type"] == "complete_reply"
        assert kernel.run("keep").result == "42"


COMMS = """
import asyncio, time
heard = []

def hear(comm, opening):
    def on_msg(message):
        time.sleep(message['content']['data'].get('seconds', 0))
        heard.append(message['content']['data']['value'])
        if awaited is not None:
            awaited.set_result(None)
    comm.on_msg(on_msg)

awaited = None
get_ipython().kernel.comm_manager.register_target('heard', hear)
"""


def send_comm(kernel: Kernel, msg_type: str, target: str = "heard", **data: Any) -> str:
    """Send something to a widget; its id."""
    client = kernel.client
    content = {"comm_id": "c", "target_name": target, "data": data}
    message = client.session.msg(msg_type, content)
    client.shell_channel.send(message)
    return message["header"]["msg_id"]


def await_idle(kernel: Kernel, msg_id: str) -> list[str]:
    """The types of messages about a request, up to its idle."""
    types = []
    while True:
        message = kernel.client.get_iopub_msg(timeout=TIMEOUT)
        if message["parent_header"].get("msg_id") != msg_id:
            continue
        if message["content"].get("execution_state") == "idle":
            return types
        types.append(message["msg_type"])


def await_print(kernel: Kernel) -> None:
    while kernel.client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
        pass


def test_a_widget_whose_callback_was_killed_is_told_that_it_is_over(
    tmp_path: Path, level: str
) -> None:
    """Until then it sends nothing more."""
    limits = as_yaml({"wall": "700ms", "grace": "300ms"})
    with running_kernel(cwd=tmp_path, level=level, policy=limits) as kernel:
        assert kernel.run(HANGING + DEAF).status == "ok"
        send_comm(kernel, "comm_open", "slow")
        assert "error" in await_idle(kernel, send_comm(kernel, "comm_msg", "slow"))
        assert kernel.run("keep").result == "42"


def test_what_is_sent_to_a_widget_before_a_cell_is_killed_arrives_after_it(
    tmp_path: Path, level: str
) -> None:
    limits = as_yaml({"wall": "700ms", "grace": "300ms"})
    with running_kernel(cwd=tmp_path, level=level, policy=limits) as kernel:
        assert kernel.run(COMMS).status == "ok"
        await_idle(kernel, send_comm(kernel, "comm_open"))
        cell = kernel.client.execute(
            "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "print('deaf', flush=True)\ntime.sleep(60)"
        )
        await_print(kernel)
        sent = send_comm(kernel, "comm_msg", value=1)
        assert kernel.reply_to(cell)["content"]["ename"] == "CellTimeout"
        await_idle(kernel, sent)
        assert kernel.run("heard").result == "[1]"


def test_what_is_sent_to_a_widget_while_the_kernel_goes_back_arrives(kernel: Kernel) -> None:
    assert kernel.run(COMMS).status == "ok"
    await_idle(kernel, send_comm(kernel, "comm_open"))
    for number in range(6):
        cell = kernel.client.execute("import os; os._exit(1)")
        time.sleep(0.02 * number)
        sent = send_comm(kernel, "comm_msg", value=number)
        assert kernel.reply_to(cell)["content"]["ename"] == "SandboxLost"
        await_idle(kernel, sent)
        assert kernel.run("heard").result == str(list(range(number + 1)))


def test_a_callback_that_comes_while_a_cell_runs_and_hangs_is_stopped_after_it(
    tmp_path: Path, level: str
) -> None:
    limits = as_yaml({"wall": "2s", "grace": "300ms"})
    with running_kernel(cwd=tmp_path, level=level, policy=limits) as kernel:
        assert kernel.run(COMMS).status == "ok"
        await_idle(kernel, send_comm(kernel, "comm_open"))
        first = kernel.client.execute("print('on', flush=True); time.sleep(0.5)")
        await_print(kernel)
        send_comm(kernel, "comm_msg", value=1, seconds=60)
        behind = kernel.client.execute("time.sleep(1.2); innocent = 1")
        assert kernel.reply_to(first)["content"]["status"] == "ok"
        reply = kernel.reply_to(behind)
        assert reply["content"]["status"] == "ok"
        assert reply["metadata"]["sandbox"]["usage"]["wall_seconds"] < 2
        told = heard_error(kernel)
        assert "ran for" in told or "stopped at" in told
        assert kernel.run("innocent, heard").result == "(1, [])"


def test_what_a_cell_has_awaited_is_not_taken_for_something_that_hangs(
    tmp_path: Path, level: str
) -> None:
    """ipykernel says neither busy nor idle of it."""
    limits = as_yaml({"wall": "1s", "grace": "300ms"})
    with running_kernel(cwd=tmp_path, level=level, policy=limits) as kernel:
        assert kernel.run(COMMS).status == "ok"
        await_idle(kernel, send_comm(kernel, "comm_open"))
        cell = kernel.client.execute(
            "awaited = asyncio.get_running_loop().create_future()\n"
            "print('on', flush=True)\nawait awaited\nawaited = None"
        )
        behind = kernel.client.execute("time.sleep(0.7)")
        await_print(kernel)
        send_comm(kernel, "comm_msg", value=1)
        for each in (cell, behind):
            assert kernel.reply_to(each)["content"]["status"] == "ok"
        time.sleep(1.5)
        later = kernel.run("heard")
        assert later.result == "[1]"
        assert later.text("stderr") == ""
        assert kernel.run("%undo").status == "ok"


def test_a_stopped_cell_keeps_its_results_though_a_widget_keeps_the_kernel_busy(
    tmp_path: Path, level: str
) -> None:
    limits = as_yaml({"wall": "1500ms", "grace": "1s"})
    with running_kernel(cwd=tmp_path, level=level, policy=limits) as kernel:
        assert kernel.run(COMMS).status == "ok"
        await_idle(kernel, send_comm(kernel, "comm_open"))
        cell = kernel.client.execute("reached = 1; print('on', flush=True); time.sleep(60)")
        await_print(kernel)
        sent = [send_comm(kernel, "comm_msg", value=n, seconds=0.8) for n in range(3)]
        reply = kernel.reply_to(cell)
        assert reply["content"]["ename"] == "CellTimeout"
        assert reply["metadata"]["sandbox"]["state"] == "kept"
        await_idle(kernel, sent[-1])
        assert kernel.run("reached, heard").result == "(1, [0, 1, 2])"


# -- interrupts ------------------------------------------------------------------------------------


def test_a_second_interrupt_kills_a_cell_that_ignores_the_first(kernel: Kernel) -> None:
    assert kernel.run("keep = 42").status == "ok"
    client = kernel.client
    cell = client.execute(
        "import signal, time\nreached = 1\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(60)"
    )
    while client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
        pass
    kernel.manager.interrupt_kernel()
    time.sleep(0.3)
    kernel.manager.interrupt_kernel()  # too soon to be meant
    time.sleep(1)
    assert not client.shell_channel.msg_ready()
    kernel.manager.interrupt_kernel()
    outcome = kernel.outcome_of(cell)
    assert outcome.ename == "KeyboardInterrupt"
    assert (outcome.receipt["outcome"], outcome.receipt["state"]) == ("interrupted", "rolled_back")
    assert "killed when interrupted again" in outcome.evalue
    expect_state(kernel, outcome)


def test_an_interrupt_that_a_killed_cell_has_not_heard_is_not_for_the_next(kernel: Kernel) -> None:
    client = kernel.client
    assert kernel.run("import ctypes, time").status == "ok"
    # It holds the interpreter: no thread of the kernel's can answer, once what it shows has left.
    deaf = client.execute(
        "print('deaf', flush=True); time.sleep(0.3); ctypes.PyDLL(None).sleep(60)",
        stop_on_error=False,
    )
    behind = client.execute("time.sleep(0.5)")
    await_print(kernel)
    time.sleep(1)
    for _ in range(2):
        client.control_channel.send(client.session.msg("interrupt_request", {}))
        time.sleep(1.2)
    assert kernel.reply_to(deaf)["content"]["ename"] == "KeyboardInterrupt"
    assert kernel.reply_to(behind)["content"]["status"] == "ok"
    for _ in range(2):
        assert client.get_control_msg(timeout=TIMEOUT)["content"]["status"] == "ok"


def test_one_interrupt_stops_an_ordinary_cell_and_keeps_all(kernel: Kernel) -> None:
    """The control: the first one is enough where it can be."""
    assert kernel.run("keep = 42").status == "ok"
    client = kernel.client
    cell = client.execute("import time\nreached = 1\nprint('on', flush=True)\ntime.sleep(60)")
    while client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
        pass
    kernel.manager.interrupt_kernel()
    outcome = kernel.outcome_of(cell)
    assert outcome.ename == "KeyboardInterrupt"
    assert (outcome.receipt["outcome"], outcome.receipt["state"]) == ("interrupted", "kept")
    expect_state(kernel, outcome)


# -- cells behind and beside -----------------------------------------------------------------------


@pytest.mark.parametrize("stop_on_error", [True, False])
def test_cells_behind_a_stopped_one_run_only_if_it_was_not_to_stop_them(
    tmp_path: Path, stop_on_error: bool
) -> None:
    with running_kernel(cwd=tmp_path, policy=as_yaml({"wall": "700ms"})) as kernel:
        stopped = kernel.client.execute(SLEEP, stop_on_error=stop_on_error)
        after = [kernel.client.execute(f"after{n} = reached") for n in range(2)]
        assert kernel.reply_to(stopped)["content"]["ename"] == "CellTimeout"
        expected = "aborted" if stop_on_error else "ok"
        for cell in after:
            reply = kernel.reply_to(cell)
            assert reply["content"]["status"] == expected
            assert reply["metadata"]["sandbox"]["outcome"] == expected
        ran = kernel.run("'after0' in globals(), 'after1' in globals()").result
        assert ran == ("(False, False)" if stop_on_error else "(True, True)")


def subshell(kernel: Kernel) -> str:
    client = kernel.client
    client.control_channel.send(client.session.msg("create_subshell_request", {}))
    return client.get_control_msg(timeout=TIMEOUT)["content"]["subshell_id"]


def time_out_beside(kernel: Kernel, code: str) -> tuple[Outcome, Outcome]:
    """Run ``code`` while a subshell's cell runs into its limit; the outcomes of the two."""
    assert kernel.run("keep = 42").status == "ok"
    client, subshell_id = kernel.client, subshell(kernel)
    content = {"code": SLEEP, "silent": False, "allow_stdin": False}
    metadata = {"sandbox": {"limits": {"wall": "1s", "grace": "500ms"}}}
    beside = client.session.msg("execute_request", content, metadata=metadata)
    beside["header"]["subshell_id"] = subshell_id
    client.shell_channel.send(beside)
    main = client.execute(code)
    replies = {}
    while len(replies) < 2:
        reply = client.get_shell_msg(timeout=TIMEOUT)
        replies[reply["parent_header"]["msg_id"]] = Outcome(reply)
    stopped = replies[beside["header"]["msg_id"]]
    assert stopped.ename == "CellTimeout"
    assert kernel.run("keep").result == "42"
    return replies[main], stopped


def test_a_cell_beside_a_subshell_that_times_out_is_told_what_became_of_it(kernel: Kernel) -> None:
    """Both share one process: what is done to it must be said to both, and truly."""
    innocent, _ = time_out_beside(kernel, "import time\nmine = 1\ntime.sleep(5)")
    kept = kernel.run("'mine' in globals()").result == "True"
    assert kept == (innocent.receipt["state"] == "kept")
    if innocent.status == "error":
        assert innocent.ename == "SandboxLost"
        assert "()" not in innocent.evalue


def test_a_cell_that_ended_beside_a_subshell_that_times_out_is_not_undone_in_silence(
    kernel: Kernel,
) -> None:
    ended, stopped = time_out_beside(kernel, "mine = 1")
    assert ended.receipt["state"] == "kept"
    if kernel.run("'mine' in globals()").result == "False":
        assert NOT_KEPT in stopped.evalue


# -- a policy that cannot be used ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("limits:\n  wall: 1s\n  walk: 2s\n", ["line 3", "'walk'", "'wall'"]),
        ("limits:\n  wall: soon\n", ["line 2", "'soon'"]),
        ("limits: [\n", ["line"]),
        ("extends: nowhere\n", ["line 1", "'nowhere'"]),
    ],
    ids=["unknown_key", "no_duration", "no_yaml", "no_base"],
)
def test_a_broken_policy_runs_nothing_and_every_cell_says_where_it_is_broken(
    tmp_path: Path, text: str, named: list[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    path.chmod(0o600)
    expect_nothing_runs(tmp_path, str(path), [str(path), *named])


def test_an_unknown_policy_runs_nothing_and_every_cell_names_those_there_are(
    tmp_path: Path,
) -> None:
    expect_nothing_runs(tmp_path, "no-such-policy", ["'no-such-policy'", "strict", "trusted"])
    expect_nothing_runs(tmp_path, "strickt", ["'strickt'", "'strict'"])


def expect_nothing_runs(folder: Path, policy: str, named: list[str]) -> None:
    with running_kernel(cwd=folder, env={"SANDBOX_KERNEL_POLICY": policy}) as kernel:
        assert kernel.sandboxed_pids() == {}
        for code in ("1 + 1", "2 + 2"):
            outcome = kernel.run(code)
            assert outcome.ename == "PolicyError"
            shown = [m["content"]["evalue"] for m in outcome.messages if m["msg_type"] == "error"]
            assert shown == [outcome.evalue]
            for word in named:
                assert word in outcome.evalue
        banner = kernel.client.kernel_info(reply=True, timeout=TIMEOUT)["content"]["banner"]
        assert "PolicyError" in banner
        assert kernel.sandboxed_pids() == {}
