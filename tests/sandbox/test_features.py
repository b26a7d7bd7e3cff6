"""What people do with a kernel works through the relay: widgets, plots, input, the debugger's pause."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.kernel import TIMEOUT, Kernel, running_kernel

pytestmark = pytest.mark.every_level


def comm_messages(kernel: Kernel, code: str) -> list[dict[str, Any]]:
    return [m for m in kernel.run(code).messages if m["msg_type"].startswith("comm_")]


def opened(kernel: Kernel, code: str, model: str) -> str:
    """Run code that makes one widget of this model; the id of its comm."""
    found = [
        message["content"]["comm_id"]
        for message in comm_messages(kernel, code)
        if message["msg_type"] == "comm_open"
        and message["content"]["data"]["state"].get("_model_name") == model
    ]
    assert len(found) == 1
    return found[0]


def send_comm(kernel: Kernel, comm_id: str, data: dict[str, Any], buffers: list[bytes]) -> None:
    """Send a frontend's comm_msg and wait until the kernel has taken it in."""
    client = kernel.client
    message = client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
    client.session.send(client.shell_channel.socket, message, buffers=buffers)
    while True:
        heard = client.get_iopub_msg(timeout=TIMEOUT)
        about = heard["parent_header"].get("msg_id") == message["header"]["msg_id"]
        if about and heard["content"].get("execution_state") == "idle":
            return


def test_a_sliders_value_goes_to_the_kernel_and_back(kernel: Kernel) -> None:
    comm_id = opened(
        kernel, "import ipywidgets as w; slider = w.IntSlider(value=3); slider", "IntSliderModel"
    )
    send_comm(kernel, comm_id, {"method": "update", "state": {"value": 42}, "buffer_paths": []}, [])
    assert kernel.run("slider.value").result == "42"
    back = comm_messages(kernel, "slider.value = 7")
    states = [m["content"]["data"].get("state", {}) for m in back]
    assert {"value": 7} in states


def test_binary_buffers_of_a_widget_arrive_intact_both_ways(kernel: Kernel) -> None:
    payload = os.urandom(300_000)
    comm_id = opened(
        kernel, "import ipywidgets as w; image = w.Image(value=b'start'); image", "ImageModel"
    )
    update = {"method": "update", "state": {}, "buffer_paths": [["value"]]}
    send_comm(kernel, comm_id, update, [payload])
    encoded = kernel.value("__import__('base64').b64encode(bytes(image.value)).decode()")
    assert base64.b64decode(encoded) == payload
    back = comm_messages(kernel, "image.value = bytes(image.value)[::-1]")
    buffers = [bytes(buffer) for m in back for buffer in m["buffers"]]
    assert payload[::-1] in buffers


def test_a_cell_that_awaits_a_widget_is_answered_although_cells_wait(kernel: Kernel) -> None:
    client = kernel.client
    comm_id = opened(kernel, "import ipywidgets as w; box = w.IntText(); box", "IntTextModel")
    waiting = client.execute(
        "import asyncio\nfuture = asyncio.get_running_loop().create_future()\n"
        "box.observe(lambda change: future.set_result(change.new), 'value')\n"
        "print('waiting', flush=True)\nprint(await future)"
    )
    behind = client.execute("'behind'")
    while client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
        pass
    message = client.session.msg(
        "comm_msg",
        {
            "comm_id": comm_id,
            "data": {"method": "update", "state": {"value": 5}, "buffer_paths": []},
        },
    )
    client.shell_channel.send(message)
    assert kernel.reply_to(waiting)["content"]["status"] == "ok"
    assert kernel.reply_to(behind)["content"]["status"] == "ok"


def test_matplotlib_draws_inline(kernel: Kernel) -> None:
    outcome = kernel.run("import matplotlib.pyplot as plt; plt.plot([1, 3, 2]); plt.show()")
    assert outcome.status == "ok"
    pictures = [
        m["content"]["data"]["image/png"]
        for m in outcome.messages
        if m["msg_type"] == "display_data" and "image/png" in m["content"]["data"]
    ]
    assert base64.b64decode(pictures[0]).startswith(b"\x89PNG")


def test_input_and_password_go_through_stdin(kernel: Kernel) -> None:
    client = kernel.client
    asked = []

    def answer(message: dict[str, Any]) -> None:
        asked.append(message["content"])
        client.input("blue" if not message["content"]["password"] else "s3cret")

    outcome = kernel.run(
        "import getpass\nprint(input('colour? '), getpass.getpass('word? '))",
        allow_stdin=True,
        stdin_hook=answer,
    )
    assert outcome.text() == "blue s3cret\n"
    assert asked == [
        {"prompt": "colour? ", "password": False},
        {"prompt": "word? ", "password": True},
    ]


def test_control_answers_while_a_cell_runs(kernel: Kernel) -> None:
    client = kernel.client
    cell = client.execute("print('started', flush=True); import time; time.sleep(600)")
    while client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
        pass
    for msg_type in ("kernel_info_request", "usage_request", "connect_request"):
        message = client.session.msg(msg_type, {})
        client.control_channel.send(message)
        reply = client.get_control_msg(timeout=5)
        assert reply["parent_header"]["msg_id"] == message["header"]["msg_id"]
    interrupt = client.session.msg("interrupt_request", {})
    client.control_channel.send(interrupt)
    assert client.get_control_msg(timeout=5)["msg_type"] == "interrupt_reply"
    assert kernel.reply_to(cell)["content"]["ename"] == "KeyboardInterrupt"


def test_a_cell_sent_on_control_takes_its_turn_and_is_answered_there(kernel: Kernel) -> None:
    message = kernel.client.session.msg(
        "execute_request", {"code": "on_control = 1", "silent": False, "user_expressions": {}}
    )
    kernel.client.control_channel.send(message)
    reply = kernel.client.get_control_msg(timeout=TIMEOUT)
    assert (reply["msg_type"], reply["content"]["status"]) == ("execute_reply", "ok")
    assert kernel.run("on_control").result == "1"


def test_everything_a_frontend_sees_carries_one_session_id(kernel: Kernel) -> None:
    outcome = kernel.run("import os; print(1); os._exit(1)")
    again = kernel.run("1 + 1")
    sessions = {m["header"]["session"] for m in (*outcome.messages, *again.messages)}
    sessions |= {outcome.reply["header"]["session"], again.reply["header"]["session"]}
    assert len(sessions) == 1


@pytest.mark.parametrize(
    "code",
    [
        "display({'text/plain': 'x' * (70 << 20)}, raw=True)",
        "'x' * (70 << 20)",
    ],
)
def test_an_output_too_large_for_a_message_is_an_error_in_the_cell(
    kernel: Kernel, code: str
) -> None:
    outcome = kernel.run(code)
    assert outcome.ename == "ValueError"
    assert "16 MiB" in outcome.evalue
    assert kernel.run("1 + 1").result == "2"


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("x = 'x' * (17 << 20)", {"user_expressions": {"x": "x"}}),
        ("get_ipython().set_next_input('x' * (17 << 20))", {}),
    ],
    ids=["expression", "next_input"],
)
def test_a_reply_too_large_for_a_message_is_an_error_in_the_cell(
    kernel: Kernel, code: str, options: dict[str, Any]
) -> None:
    """Else it would never come, and its client wait for ever."""
    outcome = kernel.run(code, **options)
    assert (outcome.ename, outcome.receipt["outcome"]) == ("ValueError", "error")
    shown = [m["content"]["evalue"] for m in outcome.messages if m["msg_type"] == "error"]
    assert shown == [outcome.evalue]
    assert "16 MiB" in outcome.evalue
    assert kernel.run("1 + 1").result == "2"


def test_a_print_of_any_size_arrives_whole_where_the_policy_allows_it(
    tmp_path: Path, level: str
) -> None:
    with running_kernel(cwd=tmp_path, level=level, policy="extends: trusted\n") as kernel:
        outcome = kernel.run("print('x' * 150_000_000)")
    assert len(outcome.text()) == 150_000_001


def test_the_tour_notebook_runs_in_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_KERNEL_POLICY", "tour")
    path = Path(__file__).parents[2] / "notebooks" / "tour.ipynb"
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=120, resources=resources).execute()
    outputs = {cell.id: cell.get("outputs", []) for cell in notebook.cells}
    shown = nbformat.writes(notebook)
    assert "Read-only file system" in shown
    for shows in (
        "CellTimeout",
        "CellCpuExceeded",
        "CellMemoryExceeded",
        "CellOutputExceeded",
        "BlockingIOError",
        "File too large",
        "SandboxLost",
        "not restored: 1 thread",
        "Undone",
        "PolicyViolation",
    ):
        assert shows in shown, [
            output.get("evalue") for cell in outputs.values() for output in cell
        ]
    assert all(output.output_type != "error" for output in outputs["tour-03"])


def test_nothing_that_a_cell_prints_comes_after_its_idle(kernel: Kernel) -> None:
    """Its end may fall into the moment at which ipykernel sends, every 0.2 s, what was printed."""
    kernel.run("import time")
    for number in range(24):
        wait = 0.194 + number / 2000
        outcome = kernel.run(f"print('x' * (3 << 20)); time.sleep({wait})")
        assert len(outcome.text()) == (3 << 20) + 1, f"after {wait} s"
