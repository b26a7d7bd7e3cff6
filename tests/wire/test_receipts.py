"""Every cell gets one receipt, the wrapper's own: in the reply, beside its outputs, before its idle."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from sandbox_kernel.isolation.container import GVISOR_LIMITATIONS
from sandbox_kernel.outputs.receipt import METADATA_KEY, RECEIPT_MIME
from tests.kernel import TIMEOUT, Kernel, Outcome, running_kernel
from tests.lender import Lender
from tests.wire.test_hostile_cell import FORGE

pytestmark = pytest.mark.every_level

MIB = 1 << 20
SLEEP = "import time; time.sleep(60)"
BURN = "import time\nwhile True: pass"


# -- its form --------------------------------------------------------------------------------------

NUMBER = (int, float)
USAGE = {
    "wall_seconds": NUMBER,
    "cpu_seconds": NUMBER,
    "memory_peak_bytes": int,
    "memory_delta_bytes": int,
    "processes_peak": int,
    "output_bytes": int,
    "source": str,
}
LIMITS = {
    "wall_seconds",
    "cpu_seconds",
    "memory_bytes",
    "sandbox_memory_bytes",
    "processes",
    "file_bytes",
    "output_bytes",
    "text_bytes",
    "messages",
    "grace_seconds",
    "background_cpu_seconds",
}
ALWAYS = {
    *("schema", "audit_id", "verdict", "findings", "outcome", "state"),
    *("isolation", "policy", "usage", "limits"),
}


ENGINES = {"process": "bwrap", "container": "docker runc", "gvisor": "docker runsc"}


def expect_form(receipt: dict[str, Any], level: str) -> None:
    """As DESIGN §6 has it: these keys, these types, in any outcome."""
    assert set(receipt) - {"exceeded", "not_restored"} == ALWAYS
    assert receipt["schema"] == 1
    # A UUID of version 7.
    assert re.fullmatch(
        r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", receipt["audit_id"]
    )
    assert receipt["findings"] == []
    engine = ENGINES[level]
    isolation: dict[str, Any] = {"level": level, "engine": engine, "network": "none"}
    if level == "gvisor":
        isolation["limitations"] = list(GVISOR_LIMITATIONS)
    assert receipt["isolation"] == isolation
    assert set(receipt["policy"]) == {"name", "sha256"}
    assert re.fullmatch(r"[0-9a-f]{64}", receipt["policy"]["sha256"])
    assert set(receipt["usage"]) == set(USAGE)
    for key, kind in USAGE.items():
        value = receipt["usage"][key]
        assert isinstance(value, kind), (key, value)
        assert not isinstance(value, bool)
    assert set(receipt["limits"]) == LIMITS
    assert all(isinstance(value, NUMBER) for value in receipt["limits"].values())
    if "exceeded" in receipt:
        assert set(receipt["exceeded"]) == {"limit", "allowed", "used", "action"}
    json.dumps(receipt, allow_nan=False)


def shown_receipts(outcome: Outcome) -> list[dict[str, Any]]:
    return [
        message["content"]["data"][RECEIPT_MIME]
        for message in outcome.messages
        if RECEIPT_MIME in message["content"].get("data", {})
    ]


def kinds(outcome: Outcome) -> list[str]:
    """What a client hears, in order."""
    heard = []
    for message in outcome.messages:
        content = message["content"]
        if RECEIPT_MIME in content.get("data", {}):
            heard.append("receipt")
        else:
            heard.append(content.get("execution_state") or message["msg_type"])
    return heard


def behind(kernel: Kernel, code: str) -> Outcome:
    """A cell that stands behind one that fails."""
    kernel.client.execute("import time; time.sleep(0.3); 1 / 0")
    return kernel.outcome_of(kernel.client.execute(code))


def interrupted(kernel: Kernel) -> Outcome:
    cell = kernel.client.execute("print('begun', flush=True); import time; time.sleep(60)")
    while kernel.client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
        pass
    kernel.manager.interrupt_kernel()
    return kernel.outcome_of(cell)


# Memory that no limit inside refuses: the wrapper sees it, and stops the cell.
HOARD = (
    "import mmap, time\nbig = mmap.mmap(-1, 200 << 20)\n"
    "for page in range(0, len(big), 4096): big[page] = 1\ntime.sleep(60)"
)
EITHER = ["kept", "rolled_back"]
OUTCOMES: dict[str, tuple[Callable[[Kernel], Outcome], str | None]] = {
    "ok": (lambda kernel: kernel.run("1 + 1"), None),
    "error": (lambda kernel: kernel.run("1 / 0"), "ZeroDivisionError"),
    "denied": (lambda kernel: kernel.run_within({"wall": "2h"}, "1"), "PolicyViolation"),
    "timeout": (lambda kernel: kernel.run_within({"wall": "300ms"}, SLEEP), "CellTimeout"),
    "cpu": (lambda kernel: kernel.run_within({"cpu": "300ms"}, BURN), "CellCpuExceeded"),
    "memory": (
        lambda kernel: kernel.run_within({"memory": "64MiB"}, HOARD),
        "CellMemoryExceeded",
    ),
    "output": (
        lambda kernel: kernel.run_within({"messages": 5}, "for i in range(99): display(i)"),
        "CellOutputExceeded",
    ),
    "interrupted": (interrupted, "KeyboardInterrupt"),
    "aborted": (lambda kernel: behind(kernel, "1 + 1"), None),
    "lost": (lambda kernel: kernel.run("import os; os.kill(os.getpid(), 9)"), "SandboxLost"),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_each_outcome_has_a_receipt_of_the_same_form(kernel: Kernel, name: str) -> None:
    run, ename = OUTCOMES[name]
    outcome = run(kernel)
    stopped = name in ("timeout", "cpu", "memory", "output")
    assert outcome.ename == ename
    expect_form(outcome.receipt, kernel.level)
    assert outcome.receipt["outcome"] == name
    assert outcome.receipt["verdict"] == ("deny" if name == "denied" else "allow")
    states = {"lost": ["rolled_back"], **dict.fromkeys(("output", "memory"), EITHER)}
    if kernel.level == "gvisor":  # a cell may be too slow to stop within its grace
        states |= dict.fromkeys(("timeout", "cpu"), EITHER)
    assert outcome.receipt["state"] in states.get(name, ["kept"])
    assert ("exceeded" in outcome.receipt) == stopped
    ran = name not in ("denied", "aborted")
    assert bool(outcome.receipt["usage"]["wall_seconds"]) == ran
    # The same in all places where it is.
    assert shown_receipts(outcome) == ([] if name == "aborted" else [outcome.receipt])


def test_the_last_output_before_idle_is_the_receipt_in_one_line(kernel: Kernel) -> None:
    outcome = kernel.run("print('shown'); display('also'); 'result'")
    assert kinds(outcome) == [
        *("busy", "execute_input", "stream", "display_data", "execute_result", "receipt", "idle")
    ]
    content = outcome.messages[-2]["content"]
    assert outcome.messages[-2]["msg_type"] == "display_data"
    assert set(content["data"]) == {RECEIPT_MIME, "text/plain"}
    assert "\n" not in content["data"]["text/plain"]
    assert outcome.receipt["audit_id"] in content["data"]["text/plain"]
    assert content["metadata"] == {METADATA_KEY: {"audit_id": outcome.receipt["audit_id"]}}
    assert content["transient"] == {}


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({}, "print('a')\n1 / 0"),
        ({"wall": "300ms"}, f"print('a')\n{SLEEP}"),
        ({"wall": "2h"}, "1"),
        ({}, "print('a', flush=True)\nimport os, time; time.sleep(0.3); os._exit(3)"),
    ],
    ids=["own_error", "stopped", "denied", "lost"],
)
def test_the_error_comes_before_the_receipt_and_idle_after_it(
    kernel: Kernel, limits: dict[str, Any], code: str
) -> None:
    outcome = kernel.run_within(limits, code)
    assert outcome.status == "error"
    assert kinds(outcome)[-3:] == ["error", "receipt", "idle"]
    assert kinds(outcome).count("idle") == 1


def test_the_reply_is_there_when_idle_is(kernel: Kernel) -> None:
    """nbclient waits for the reply only so long; after a cell is idle nothing more is to come."""
    client = kernel.client
    for code in ("1 + 1", "1 / 0"):
        cell = client.execute(code)
        while True:
            message = client.get_iopub_msg(timeout=TIMEOUT)
            if message["parent_header"].get("msg_id") == cell and (
                message["content"].get("execution_state") == "idle"
            ):
                break
        assert client.shell_channel.socket.poll(500)
        assert kernel.reply_to(cell)["metadata"][METADATA_KEY]["schema"] == 1
        assert not client.iopub_channel.socket.poll(100)


# -- where it is -----------------------------------------------------------------------------------


def test_every_display_and_result_names_its_cell(kernel: Kernel) -> None:
    outcome = kernel.run(
        "shown = display(1, display_id='d')\n"
        "display(2, metadata={'text/plain': {'own': True}})\nshown.update(3)\n4"
    )
    displays = [m for m in outcome.messages if "data" in m["content"]]
    assert [m["msg_type"] for m in displays] == [
        *("display_data", "display_data", "update_display_data", "execute_result", "display_data")
    ]
    for message in displays:
        named = message["content"]["metadata"][METADATA_KEY]
        assert named == {"audit_id": outcome.receipt["audit_id"]}
    assert displays[1]["content"]["metadata"]["text/plain"] == {"own": True}
    assert displays[0]["content"]["transient"] == {"display_id": "d"}


def test_annotate_metadata_leaves_outputs_alone(tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, policy="annotate: metadata\n") as kernel:
        for code, heard in (
            ("print('a'); 5", ["busy", "execute_input", "stream", "execute_result", "idle"]),
            ("1 / 0", ["busy", "execute_input", "error", "idle"]),
        ):
            outcome = kernel.run(code)
            assert kinds(outcome) == heard
            expect_form(outcome.receipt, kernel.level)
        stopped = kernel.run_within({"wall": "300ms"}, SLEEP)
        assert kinds(stopped) == ["busy", "execute_input", "error", "idle"]
        assert stopped.receipt["outcome"] == "timeout"


def test_a_silent_cell_shows_no_receipt(kernel: Kernel) -> None:
    outcome = kernel.outcome_of(kernel.client.execute("silent = 1", silent=True))
    assert kinds(outcome) == ["busy", "idle"]
    expect_form(outcome.receipt, kernel.level)
    denied = kernel.run_within({"wall": "2h"}, "1", silent=True)
    assert kinds(denied) == ["busy", "error", "idle"]
    assert denied.receipt["outcome"] == "denied"


def test_what_ipykernel_says_in_a_reply_is_kept(kernel: Kernel) -> None:
    cell = kernel.client.execute("x = 20", user_expressions={"twice": "x * 2", "bad": "1 / 0"})
    outcome = kernel.outcome_of(cell)
    content, metadata = outcome.reply["content"], outcome.reply["metadata"]
    assert content["user_expressions"]["twice"]["data"] == {"text/plain": "40"}
    assert content["user_expressions"]["bad"]["ename"] == "ZeroDivisionError"
    assert set(metadata) == {"started", "dependencies_met", "engine", "status", METADATA_KEY}
    assert metadata["started"]
    assert metadata["status"] == "ok"
    for failed in (kernel.run_within({"wall": "300ms"}, SLEEP), behind(kernel, "1")):
        assert set(failed.reply["metadata"]) == set(metadata)
        assert failed.reply["metadata"]["started"]


def test_a_cell_of_a_subshell_has_its_own_receipt(kernel: Kernel) -> None:
    client = kernel.client
    client.control_channel.send(client.session.msg("create_subshell_request", {}))
    subshell_id = client.get_control_msg(timeout=TIMEOUT)["content"]["subshell_id"]
    main = client.execute("import time; time.sleep(1.5)")
    content = {"code": "display('beside'); 6 * 7", "silent": False, "allow_stdin": False}
    message = client.session.msg("execute_request", content)
    message["header"]["subshell_id"] = subshell_id
    client.shell_channel.send(message)
    beside = kernel.outcome_of(message["header"]["msg_id"])
    assert beside.result == "42"
    expect_form(beside.receipt, kernel.level)
    assert kinds(beside)[-2:] == ["receipt", "idle"]
    assert shown_receipts(beside) == [beside.receipt]
    reply = kernel.reply_to(main)
    expect_form(reply["metadata"][METADATA_KEY], kernel.level)
    assert reply["metadata"][METADATA_KEY]["audit_id"] < beside.receipt["audit_id"]


def test_a_notebook_with_receipts_is_valid(tmp_path: Path) -> None:
    sources = ("print('a')", "display('b'); 'c'", "1 / 0", "'after'")
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(notebook, kernel_name="sandboxed-python", allow_errors=True, timeout=60)
    client.execute(cwd=str(tmp_path))
    path = tmp_path / "ran.ipynb"
    nbformat.write(notebook, path)
    again = nbformat.read(path, as_version=4)
    nbformat.validate(again)
    outcomes = [cell.outputs[-1].data[RECEIPT_MIME]["outcome"] for cell in again.cells]
    assert outcomes == ["ok", "ok", "error", "ok"]
    for cell in again.cells:
        expect_form(cell.outputs[-1].data[RECEIPT_MIME], "process")


def test_ids_are_unique_and_in_order(kernel: Kernel) -> None:
    cells = [kernel.client.execute(f"{n}") for n in range(4)]
    cells += [kernel.client.execute("1 / 0"), kernel.client.execute("'aborted'")]
    ids = [kernel.reply_to(cell)["metadata"][METADATA_KEY]["audit_id"] for cell in cells]
    ids += [kernel.run_within({"wall": "2h"}, "1").receipt["audit_id"]]
    ids += [kernel.run("5").receipt["audit_id"]]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_a_cell_that_did_not_run_used_nothing(kernel: Kernel) -> None:
    for outcome in (behind(kernel, "1"), kernel.run_within({"wall": "2h"}, "1")):
        usage = dict(outcome.receipt["usage"])
        assert usage.pop("source") == "none"
        assert set(usage.values()) == {0}


# -- what it says ----------------------------------------------------------------------------------


def test_cpu_time_is_seen(kernel: Kernel) -> None:
    usage = kernel.run(
        "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    ).receipt["usage"]
    assert (0.15 if kernel.level == "gvisor" else 0.28) < usage["cpu_seconds"] < 0.7
    assert usage["wall_seconds"] > 0.28
    idle = kernel.run("time.sleep(0.4)").receipt["usage"]
    assert idle["cpu_seconds"] < (0.8 if kernel.level == "gvisor" else 0.2)  # its own share
    assert 0.4 <= idle["wall_seconds"] < 2


def test_cpu_time_of_children_and_threads_is_seen(kernel: Kernel) -> None:
    usage = kernel.run(
        "import subprocess, sys\n"
        "code = 'import time\\nwhile time.process_time() < 0.3: pass'\n"
        "children = [subprocess.Popen([sys.executable, '-S', '-c', code]) for _ in range(2)]\n"
        "[child.wait() for child in children]"
    ).receipt["usage"]
    # gVisor's clock for processes goes by time on the wall while they run.
    assert (0.3 if kernel.level == "gvisor" else 0.55) < usage["cpu_seconds"] < 1.5


@pytest.mark.every_level(gvisor="memory is that of the whole sandbox, and is given back later")
def test_memory_is_seen(kernel: Kernel) -> None:
    kernel.run("1")
    usage = kernel.run("big = b'x' * (100 << 20)").receipt["usage"]
    assert 95 * MIB < usage["memory_delta_bytes"] < 125 * MIB
    before = usage["memory_peak_bytes"]
    assert before > 120 * MIB
    passing = kernel.run("_ = len(b'x' * (100 << 20))").receipt["usage"]
    assert passing["memory_delta_bytes"] < 20 * MIB
    assert passing["memory_peak_bytes"] > before + 80 * MIB
    freed = kernel.run("del big").receipt["usage"]
    assert freed["memory_delta_bytes"] < -80 * MIB


def test_processes_are_counted(kernel: Kernel) -> None:
    code = "import subprocess\nchildren = [subprocess.Popen(['sleep', '0.6']) for _ in range(2)]"
    usage = kernel.run(f"{code}\n[child.wait() for child in children]").receipt["usage"]
    # gVisor's are none of the host's, which sees some of them or none.
    assert usage["processes_peak"] in ((1, 2, 3) if kernel.level == "gvisor" else (3,))
    assert kernel.run("1").receipt["usage"]["processes_peak"] == 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("print('x' * 1000)", 1000),
        ("display({'text/plain': 'x' * 50_000}, raw=True)", 50_000),
        ("'x' * 1000", 1000),
        ("print('x' * 3_000_000)", 3_000_000),
    ],
)
def test_output_is_counted(kernel: Kernel, code: str, expected: int) -> None:
    used = kernel.run(code).receipt["usage"]["output_bytes"]
    assert expected <= used <= expected + 300


def test_limits_are_those_of_the_cell(kernel: Kernel) -> None:
    ordinary = kernel.run("1").receipt["limits"]
    assert (ordinary["wall_seconds"], ordinary["memory_bytes"]) == (600, 2 << 30)
    own = kernel.run_within({"wall": "5s", "memory": "128MiB", "messages": 7}, "1").receipt[
        "limits"
    ]
    assert (own["wall_seconds"], own["memory_bytes"], own["messages"]) == (5, 128 * MIB, 7)
    assert {key: own[key] for key in ("cpu_seconds", "text_bytes")} == {
        key: ordinary[key] for key in ("cpu_seconds", "text_bytes")
    }
    assert kernel.run("1").receipt["limits"] == ordinary


# -- what a client may ask for ---------------------------------------------------------------------


# The wrapper refuses, whatever sandbox it has.
@pytest.mark.process
@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"wall": "20min"}, "'wall' of '20min'"),
        ({"memory": "3GiB"}, "'memory' of '3GiB'"),
        ({"messages": 10**6}, "'messages'"),
        ({"grace": "1h"}, "'grace'"),
        ({"text": 10**30}, "'text'"),
        ({"wall": "5s", "cpu": "1h"}, "'cpu'"),
        ({"wall": "soon"}, "'wall'"),
        ({"wall": "none"}, "'wall'"),
        ({"wall": None}, "'wall'"),
        ({"wall": True}, "'wall'"),
        ({"wall": -1}, "'wall'"),
        ({"wall": 0}, "'wall'"),
        ({"memory": {"max": 1}}, "'memory'"),
        ({"memory": "1e9"}, "'memory'"),
        ({"walk": "5s"}, "'walk'"),
        ({"": 1}, "''"),
        ("5s", "not a mapping"),
        ([], "not a mapping"),
        (7, "not a mapping"),
        (False, "not a mapping"),
    ],
    ids=repr,
)
def test_a_limit_that_cannot_be_had_is_refused_by_name_and_nothing_runs(
    refusing: Kernel, limits: Any, named: str
) -> None:
    outcome = refusing.run_within(limits, "ran = True\nopen('/tmp/witness', 'w').close()")
    assert outcome.ename == "PolicyViolation"
    assert named in outcome.evalue
    assert (outcome.receipt["verdict"], outcome.receipt["outcome"]) == ("deny", "denied")
    assert kinds(outcome) == ["busy", "execute_input", "error", "receipt", "idle"]
    assert outcome.messages[2]["content"]["evalue"] == outcome.evalue
    # The witnesses: in the state, in the files and in the history.
    assert refusing.value("'ran' in globals()") is False
    assert refusing.value("__import__('os').path.exists('/tmp/witness')") is False
    assert refusing.value("any('ran = ' + 'True' in line for line in In)") is False


@pytest.fixture
def refusing(lender: Lender) -> Iterator[Kernel]:
    """One kernel for all refusals: nothing of them may be left in it."""
    with lender.lend() as kernel:
        yield kernel


def test_a_refused_cell_aborts_those_behind_it(kernel: Kernel) -> None:
    client = kernel.client
    running = client.execute("import time; time.sleep(0.5)")
    content = {"code": "1", "silent": False, "allow_stdin": False, "stop_on_error": True}
    metadata = {"sandbox": {"limits": {"wall": "2h"}}}
    refused = client.session.msg("execute_request", content, metadata=metadata)
    client.shell_channel.send(refused)
    after = client.execute("after = 1")
    replies = [kernel.reply_to(each) for each in (running, refused["header"]["msg_id"], after)]
    assert [reply["content"]["status"] for reply in replies] == ["ok", "error", "aborted"]
    assert replies[2]["metadata"][METADATA_KEY]["outcome"] == "aborted"
    assert kernel.run("'after' in globals()").result == "False"


@pytest.mark.parametrize("sandbox", [{}, {"limits": {}}, {"limits": {"wall": "10min"}}])
def test_nothing_and_the_policys_own_limit_may_be_asked_for(
    kernel: Kernel, sandbox: dict[str, Any]
) -> None:
    content = {"code": "6 * 7", "silent": False, "allow_stdin": False}
    message = kernel.client.session.msg(
        "execute_request", content, metadata={"sandbox": sandbox, "cellId": "mine"}
    )
    kernel.client.shell_channel.send(message)
    assert kernel.outcome_of(message["header"]["msg_id"]).result == "42"


# -- what a cell may not say -----------------------------------------------------------------------

FORGED = "FORGED"
LIES = {
    "display_with_metadata": "display(1, metadata={'sandbox': LIE})",
    "display_of_a_receipt": "display({MIME: LIE, 'text/plain': 'x'}, raw=True)",
    "metadata_for_the_receipts_type": "display({'text/plain': 'x'}, raw=True, metadata={MIME: LIE})",
    "update_of_a_display": (
        "shown = display({'text/plain': 'x'}, raw=True, display_id=True)\n"
        "shown.update({MIME: LIE, 'text/plain': 'y'}, raw=True, metadata={'sandbox': LIE})"
    ),
    "a_result": (
        "class Liar:\n"
        "    def _repr_mimebundle_(self, **kwargs):\n"
        "        return {MIME: LIE, 'text/plain': 'x'}, {'sandbox': LIE, MIME: LIE}\n"
        "Liar()"
    ),
    "raw_display": "say('display_data', {'data': {MIME: LIE}, 'metadata': {'sandbox': LIE}})",
    "raw_update": "say('update_display_data', {'data': {MIME: LIE}, 'metadata': {'sandbox': LIE}})",
    "raw_result": (
        "say('execute_result', {'data': {MIME: LIE}, 'metadata': {'sandbox': LIE}, "
        "'execution_count': 1})"
    ),
    "other_spellings": (
        "raw = json.dumps({'data': {MIME.upper(): LIE}, 'metadata': {'Sandbox': LIE}})\n"
        "on_iopub(frames('display_data', {}, me(), raw={3: raw.encode()}))\n"
        "raw = raw.replace('Sandbox', '\\\\u0073andbox').replace('VND', '\\\\u0076nd')\n"
        "on_iopub(frames('display_data', {}, me(), raw={3: raw.encode()}))"
    ),
    "keys_that_are_there_twice": (
        "lie = json.dumps(LIE)\n"
        'raw = \'{"data":{"%s":1,"%s":%s},"metadata":{},"metadata":{"sandbox":%s}}\'\n'
        "raw = raw % (MIME, MIME, lie, lie)\n"
        "on_iopub(frames('display_data', {}, me(), raw={3: raw.encode()}))"
    ),
    "metadata_of_a_stream": "with_metadata('stream', {'name': 'stdout', 'text': 'x'})",
    "metadata_of_an_error": "with_metadata('error', {'ename': 'x', 'evalue': '', 'traceback': []})",
    "metadata_of_a_display": "with_metadata('display_data', {'data': {}, 'metadata': {}})",
    "metadata_of_clear_output": "with_metadata('clear_output', {'wait': False})",
    "metadata_of_comm_msg": "with_metadata('comm_msg', {'comm_id': 'x', 'data': {}})",
    "metadata_of_execute_input": "with_metadata('execute_input', {'code': '', 'execution_count': 3})",
    "metadata_of_busy": "with_metadata('status', {'execution_state': 'busy'})",
    "metadata_of_idle": "with_metadata('status', {'execution_state': 'idle'}); time.sleep(0.5)",
    "metadata_of_the_reply": (
        "finish = kernel.finish_metadata\n"
        "kernel.finish_metadata = lambda *args: {**finish(*args), 'sandbox': LIE, 'own': 1}"
    ),
    "a_reply_of_its_own": (
        "p = me(); raw = {2: json.dumps({'sandbox': LIE}).encode()}\n"
        "on_iopub(frames('status', {'execution_state': 'idle'}, p))\n"
        "on_shell(frames('execute_reply', {'status': 'ok', 'execution_count': 3}, p, raw=raw))\n"
        "time.sleep(0.5)"  # another socket has the true one, which must not be the first to come
    ),
}
KIT = FORGE + textwrap.dedent(f"""
    import time
    MIME = {RECEIPT_MIME!r}
    LIE = {{"schema": 1, "audit_id": {FORGED!r}, "outcome": "ok", "usage": {{}}}}

    def say(msg_type, content):
        kernel.session.send(kernel.iopub_socket, msg_type, content, parent=kernel.get_parent())

    def with_metadata(msg_type, content):
        on_iopub(frames(msg_type, content, me(), raw={{2: json.dumps({{"sandbox": LIE}}).encode()}}))
""")


# What comes from inside is the wrapper's to clean, whatever there is around it.
@pytest.mark.process
@pytest.mark.parametrize("name", LIES)
def test_a_receipt_cannot_be_forged(kernel: Kernel, name: str) -> None:
    assert kernel.run(KIT).status == "ok"
    outcome = kernel.run(LIES[name])
    assert outcome.status == "ok", outcome.evalue
    # Of the wrapper's own there is one, the last; of the forged ones nothing is left.
    assert FORGED not in repr([m for m in outcome.messages if m["msg_type"] != "execute_input"])
    assert FORGED not in repr(outcome.reply)
    assert shown_receipts(outcome) == [outcome.receipt]
    expect_form(outcome.receipt, kernel.level)


@pytest.mark.process
def test_the_kit_of_lies_works(kernel: Kernel) -> None:
    """The control: what is not the wrapper's own passes the same ways."""
    kit = KIT.replace(RECEIPT_MIME, "application/x-mine").replace('"sandbox": LIE', '"mine": LIE')
    assert kernel.run(kit).status == "ok"
    for name, code in LIES.items():
        if name == "keys_that_are_there_twice":
            continue  # of these one is passed on, which is then the other one
        if name == "metadata_of_busy":
            continue  # the wrapper has said it itself
        outcome = kernel.run(code.replace("'sandbox'", "'mine'").replace("Sandbox", "Mine"))
        told = [m for m in outcome.messages if m["msg_type"] != "execute_input"] + [outcome.reply]
        told += [m for m in outcome.messages if m["metadata"]]
        assert FORGED in repr(told), name
        if name == "metadata_of_the_reply":
            kernel.run("kernel.finish_metadata = finish")
        time.sleep(0.1)
