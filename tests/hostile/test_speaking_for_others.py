"""What a cell leaves running does not speak for other cells: not for denied ones, nor for later ones.

The notebooks run in nbclient, as `sandbox-kernel run`, papermill and nbconvert run them. What it saves is the
witness; the control is plain ipykernel, where the same code changes what is saved.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from sandbox_kernel.cli import main
from sandbox_kernel.outputs.receipt import RECEIPT_MIME
from sandbox_kernel.relay.late import GRACE_SECONDS, LABEL
from tests.kernel import SANDBOXED, TIMEOUT, Kernel, eventually, isolation, running_kernel

pytestmark = [pytest.mark.process, pytest.mark.every_level]

FORGED = "approved and executed: 42"
POLICY = """
code:
  python:
    imports:
      deny: [antigravity]
"""
# So long that reading it takes some time, in which a thread can speak for it.
DENIED = "import antigravity\n" + "x = [1, 2, 3]\n" * 500
SAYS = f"""
import threading, time
kernel = get_ipython().kernel
header = dict(kernel.get_parent()["header"])
base, _, number = header["msg_id"].rpartition("_")

def say(msg_id, msg_type, content):
    parent = {{**header, "msg_id": msg_id}}
    kernel.session.send(kernel.iopub_socket, msg_type, content, parent=parent)

def forge(msg_id):
    say(msg_id, "stream", {{"name": "stdout", "text": "{FORGED}"}})
    data = {{"text/plain": "{FORGED}", "{RECEIPT_MIME}": {{"verdict": "approved"}}}}
    say(msg_id, "display_data", {{"data": data, "metadata": {{}}, "transient": {{}}}})
    say(msg_id, "execute_input", {{"code": "42", "execution_count": 42}})
    say(msg_id, "status", {{"execution_state": "idle"}})

def ids(count):
    return [f"{{base}}_{{int(number) + each}}" for each in range(1, count)]
"""
# A thread stays behind, which speaks for the next requests until it is told to stop.
LEFTOVER = f"""{SAYS}
stop = threading.Event()
def speak():
    while not stop.wait(0.002):
        for msg_id in ids(2):
            forge(msg_id)
threading.Thread(target=speak, daemon=True).start()
"""
# A widget that takes the outputs of requests.
CLAIMS = """
def output_widget(comm_id, msg_id=""):
    state = {"_model_name": "OutputModel", "_model_module": "@jupyter-widgets/output",
             "_model_module_version": "1.0.0", "outputs": [], "msg_id": msg_id}
    data = {"state": state, "buffer_paths": []}
    say(header["msg_id"], "comm_open",
        {"comm_id": comm_id, "target_name": "jupyter.widget", "data": data})

def claim(comm_id, msg_id):
    data = {"method": "update", "state": {"msg_id": msg_id}, "buffer_paths": []}
    say(header["msg_id"], "comm_msg", {"comm_id": comm_id, "data": data})
"""


@pytest.fixture
def chosen(tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The policy that kernels get."""
    path = tmp_path / "policy" / "test.yaml"
    path.parent.mkdir()
    path.write_text(POLICY if level == "process" else f"{POLICY}\n{isolation(level)}")
    path.chmod(0o600)
    monkeypatch.setenv("SANDBOX_KERNEL_POLICY", str(path))
    return path


def notebook_of(*sources: str) -> nbformat.NotebookNode:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    spec = {"name": SANDBOXED, "display_name": "x", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec})


def saved(folder: Path, *sources: str, name: str = SANDBOXED) -> list[list[nbformat.NotebookNode]]:
    """The outputs of these cells as nbclient saves them."""
    notebook = notebook_of(*sources)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        notebook, kernel_name=name, timeout=TIMEOUT, resources=resources, allow_errors=True
    ).execute()
    return [cell.outputs for cell in notebook.cells]


def receipt(outputs: list[nbformat.NotebookNode]) -> dict[str, Any]:
    return outputs[-1].data[RECEIPT_MIME]


def printed(outputs: list[nbformat.NotebookNode]) -> str:
    return "".join(each.text for each in outputs if each.output_type == "stream")


def test_a_leftover_thread_cannot_speak_for_a_denied_cell(tmp_path: Path, chosen: Path) -> None:
    _, denied, _ = saved(tmp_path, LEFTOVER, DENIED, "stop.set()")
    assert [each.output_type for each in denied] == ["error", "display_data"]
    assert denied[0].ename == "PolicyViolation"
    assert receipt(denied)["verdict"] == "deny"
    assert FORGED not in json.dumps(denied)


@pytest.mark.process
def test_in_plain_ipykernel_a_leftover_thread_speaks_for_the_next_cell(tmp_path: Path) -> None:
    """The control: the forgery is one."""
    _, failed, _ = saved(tmp_path, LEFTOVER, "no_such_name", "stop.set()", name="python3")
    assert FORGED in json.dumps(failed)


def test_a_leftover_thread_speaks_for_the_cell_that_runs(tmp_path: Path, chosen: Path) -> None:
    """Both are one process: nobody can tell them apart. It shows that the thread of these tests speaks."""
    # Without an idle, behind which the wrapper would wait for the cell's reply.
    talking = LEFTOVER.replace('"status"', '"stream"').replace(
        '{"execution_state": "idle"}', f'{{"name": "stdout", "text": "{FORGED}"}}'
    )
    assert "idle" not in talking
    _, running = saved(tmp_path, talking, "time.sleep(0.5); stop.set()")
    assert FORGED in json.dumps(running)


@pytest.mark.process
def test_a_denied_cell_is_saved_as_denied_by_a_run_in_batch(
    tmp_path: Path, chosen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "book.ipynb", tmp_path / "out"
    nbformat.write(notebook_of(LEFTOVER, DENIED, "stop.set()"), path)
    assert main(["run", "--json", "--keep-going", "-o", str(out), str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["cells"][1]["outcome"] == "PolicyViolation"
    (written,) = out.rglob("*.ipynb")
    denied = nbformat.read(written, as_version=4).cells[1].outputs
    assert denied[0].ename == "PolicyViolation"
    assert FORGED not in json.dumps(denied)


def test_nothing_is_said_for_a_cell_while_the_user_thinks(tmp_path: Path, level: str) -> None:
    policy = POLICY.replace("deny:", "ask:")
    with running_kernel(cwd=tmp_path, level=level, policy=policy) as kernel:
        assert kernel.run(LEFTOVER).status == "ok"
        reason = b"output of a request that was not sent in"

        def answer(_: dict[str, Any]) -> None:
            eventually(lambda: reason in kernel.logged(), what="the thread spoke for the cell")
            kernel.client.input("n")

        outcome = kernel.run(DENIED, allow_stdin=True, stdin_hook=answer)
        assert outcome.ename == "PolicyViolation"
        assert FORGED not in outcome.text()
        assert [each["msg_type"] for each in outcome.messages] == [
            "status",
            "execute_input",
            "error",
            "display_data",
            "status",
        ]
        kernel.run("stop.set()")


# A thread that knows its cell, as tasks of asyncio do; ipykernel has others speak for the last cell.
LATE = """
import contextvars, threading, time
from IPython.display import display
go = threading.Event()
def late():
    go.wait(); print('late text', flush=True); display(1)
thread = threading.Thread(target=contextvars.copy_context().run, args=(late,))
thread.start()
"""


LET_GO = f"time.sleep({GRACE_SECONDS + 0.2}); go.set(); thread.join()"


def test_output_that_comes_after_its_cell_says_so(kernel: Kernel) -> None:
    cell = kernel.run(LATE)
    messages: list[dict[str, Any]] = []
    other = kernel.client.execute(LET_GO)
    while True:
        message = kernel.client.get_iopub_msg(timeout=TIMEOUT)
        messages.append(message)
        if message["parent_header"]["msg_id"] == other and is_idle(message):
            break
    late = [
        each
        for each in messages
        if each["parent_header"]["msg_id"] == cell.reply["parent_header"]["msg_id"]
    ]
    first, *rest = late
    assert first["content"] == {"name": "stderr", "text": LABEL}
    assert first["metadata"] == {}
    shown = {each["msg_type"]: each for each in rest}
    assert shown["stream"]["content"]["text"] == "late text\n"
    assert shown["display_data"]["content"]["metadata"]["sandbox"] == {"late": True}
    assert all(each["metadata"]["sandbox"] == {"late": True} for each in rest)


def is_idle(message: dict[str, Any]) -> bool:
    return bool(message["msg_type"] == "status" and message["content"]["execution_state"] == "idle")


@pytest.mark.process
def test_a_policy_can_drop_output_that_comes_after_its_cell(tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, policy="late_output: drop") as kernel:
        kernel.run(LATE)
        last = kernel.client.execute(LET_GO)
        heard = []
        while True:
            message = kernel.client.get_iopub_msg(timeout=TIMEOUT)
            heard.append(message)
            if message["parent_header"]["msg_id"] == last and is_idle(message):
                break
        assert {each["parent_header"]["msg_id"] for each in heard} == {last}


def test_what_is_left_running_cannot_clear_or_end_a_cell_that_is_over(kernel: Kernel) -> None:
    first = kernel.run(f"{SAYS}\nforge_all = lambda msg_id: (forge(msg_id), clear(msg_id))")
    msg_id = first.reply["parent_header"]["msg_id"]
    kernel.run("def clear(msg_id): say(msg_id, 'clear_output', {'wait': False})")
    last = kernel.client.execute(f"time.sleep({GRACE_SECONDS + 0.2}); forge_all({msg_id!r})")
    heard = []
    while True:
        message = kernel.client.get_iopub_msg(timeout=TIMEOUT)
        heard.append((message["parent_header"]["msg_id"], message["msg_type"]))
        if message["parent_header"]["msg_id"] == last and is_idle(message):
            break
    assert [kind for id, kind in heard if id == msg_id] == ["stream", "stream", "display_data"]


# -- output widgets --------------------------------------------------------------------------------

CLAIMING = {
    "one": "output_widget('w'); [claim('w', each) for each in ids(20)]",
    "forty": "for n, each in enumerate(ids(40)): output_widget(f'w{n}'); claim(f'w{n}', each)\nprint(1)",
    "escaped": (
        "output_widget('w')\nimport json\n"
        "packed = kernel.session.pack\n"
        'kernel.session.pack = lambda obj: packed(obj).replace(b\'"state":{"msg_id"\', '
        'b\'"state":{"\\\\u006dsg_id"\')\n'
        "[claim('w', each) for each in ids(20)]\nkernel.session.pack = packed"
    ),
    "without_release": "output_widget('w'); claim('w', header['msg_id']); [claim('w', e) for e in ids(20)]",
}


@pytest.mark.parametrize("way", CLAIMING)
def test_an_output_widget_cannot_take_the_outputs_of_requests_to_come(
    tmp_path: Path, chosen: Path, way: str
) -> None:
    _, later, denied = saved(tmp_path, f"{SAYS}{CLAIMS}\n{CLAIMING[way]}", "print('mine')", DENIED)
    assert printed(later) == "mine\n"
    assert receipt(later)["outcome"] == "ok"
    assert denied[0].ename == "PolicyViolation"


@pytest.mark.process
def test_in_plain_ipykernel_an_output_widget_takes_them(tmp_path: Path) -> None:
    """The control."""
    code = f"{SAYS}{CLAIMS}\n{CLAIMING['one']}"
    _, later = saved(tmp_path, code, "print('mine')", name="python3")
    assert later == []


def test_an_output_widget_takes_the_outputs_of_its_own_cell(tmp_path: Path, chosen: Path) -> None:
    """With nothing but its receipt below the cell."""
    code = (
        f"{SAYS}{CLAIMS}\noutput_widget('w'); claim('w', header['msg_id'])\n"
        "print('in the widget', flush=True); claim('w', '')\nprint('below the cell')"
    )
    outputs, _ = saved(tmp_path, code, "pass")
    assert printed(outputs) == "below the cell\n"


def test_a_cell_cannot_hide_its_own_end_in_an_output_widget(tmp_path: Path, chosen: Path) -> None:
    chosen.write_text(f"{chosen.read_text()}\nlimits:\n  wall: 1s\n")
    code = (
        f"{SAYS}{CLAIMS}\noutput_widget('w'); output_widget('v')\n"
        "claim('w', header['msg_id']); claim('v', header['msg_id']); time.sleep(60)"
    )
    stopped, later = saved(tmp_path, code, "print('mine')")
    assert [each.get("ename") for each in stopped] == ["CellTimeout", None]
    assert receipt(stopped)["outcome"] == "timeout"
    assert printed(later) == "mine\n"


# -- how a cell ended ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["MemoryError", "KeyboardInterrupt", "CellTimeout", "PolicyViolation", "SandboxLost"]
)
def test_the_name_of_an_error_says_nothing_about_how_a_cell_ended(
    kernel: Kernel, name: str
) -> None:
    own = "" if name in ("MemoryError", "KeyboardInterrupt") else f"class {name}(Exception): pass\n"
    outcome = kernel.run(f"{own}raise {name}('says the cell')")
    assert outcome.ename == name
    assert (outcome.receipt["outcome"], outcome.receipt["verdict"]) == ("error", "allow")
    assert "exceeded" not in outcome.receipt
    shown = outcome.messages[-2]["content"]["data"]["text/plain"]
    assert shown.startswith("failed · ")


def test_a_cell_that_the_user_interrupts_is_interrupted(kernel: Kernel) -> None:
    cell = kernel.client.execute("import time; print('go', flush=True); time.sleep(60)")
    while kernel.client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
        pass
    kernel.manager.interrupt_kernel()
    assert kernel.outcome_of(cell).receipt["outcome"] == "interrupted"
