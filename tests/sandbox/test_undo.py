"""``%undo`` takes back the last cell: the variables, the numbers and the history are as before it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.kernel import TIMEOUT, Kernel, Outcome, running_kernel

pytestmark = pytest.mark.process

KILL = "import os; os.kill(os.getpid(), 9)"


def run(kernel: Kernel, code: str, **options: Any) -> Outcome:
    outcome = kernel.run(code, **options)
    assert outcome.status == "ok", f"{outcome.ename}: {outcome.evalue}"
    return outcome


def undo(kernel: Kernel, code: str = "%undo") -> Outcome:
    outcome = run(kernel, code)
    assert outcome.text().startswith("Undone: the variables are as they were before the last cell")
    assert outcome.receipt["state"] == "rolled_back"
    assert outcome.receipt["outcome"] == "ok"
    return outcome


def refused(kernel: Kernel) -> Outcome:
    outcome = kernel.run("%undo")
    assert outcome.ename == "UndoUnavailable"
    assert outcome.receipt["state"] == "kept"
    assert "nothing was changed" in outcome.evalue
    return outcome


def undo_request(kernel: Kernel) -> dict[str, Any]:
    message = kernel.client.session.msg("undo_request", {})
    kernel.client.control_channel.send(message)
    while True:
        reply = kernel.client.get_control_msg(timeout=TIMEOUT)
        if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
            assert reply["msg_type"] == "undo_reply"
            return reply["content"]


@pytest.mark.parametrize("code", ["%undo", "  %undo", "\n%undo\n\n", "%undo \t"])
def test_the_last_cell_is_undone_with_its_number_and_its_traces(kernel: Kernel, code: str) -> None:
    run(kernel, "x = 1; y = []; 'first'")
    run(kernel, "x = 2; y.append(1); 'second'")
    time.sleep(0.3)
    undone = undo(kernel, code)
    assert undone.receipt.get("not_restored") is None
    assert kernel.run("print(x, y, len(In), list(Out), _)").text() == "1 [] 3 [1] first\n"
    assert run(kernel, "3").reply["content"]["execution_count"] == 3
    assert run(kernel, "%history").text() == (
        "x = 1; y = []; 'first'\nprint(x, y, len(In), list(Out), _)\n3\n%history\n"
    )


@pytest.mark.every_level(fresh=True)  # what another test has left is lost, and said to be
def test_nothing_is_said_to_be_lost_by_an_undo_at_once(kernel: Kernel) -> None:
    for _ in range(10):
        run(kernel, "x = 1")
        run(kernel, "x = 2")
        assert undo(kernel).receipt.get("not_restored") is None


@pytest.mark.every_level
def test_a_cell_that_failed_is_undone_too(kernel: Kernel) -> None:
    run(kernel, "x = 1")
    assert kernel.run("x = 2; 1 / 0").ename == "ZeroDivisionError"
    undo(kernel)
    assert run(kernel, "x").result == "1"


@pytest.mark.every_level(fresh=True)
def test_one_cell_can_be_undone_once(kernel: Kernel) -> None:
    refused(kernel)
    run(kernel, "x = 1")
    run(kernel, "x = 2")
    undo(kernel)
    refused(kernel)
    assert run(kernel, "x").result == "1"
    run(kernel, "x = 3")
    undo(kernel)
    assert run(kernel, "x").result == "1"


@pytest.mark.every_level(fresh=True)
def test_the_first_cell_of_all_can_be_undone(kernel: Kernel) -> None:
    run(kernel, "x = 1")
    undo(kernel)
    again = kernel.run("x")
    assert (again.ename, again.reply["content"]["execution_count"]) == ("NameError", 1)


def test_programs_undo_with_a_request_on_control(kernel: Kernel) -> None:
    assert undo_request(kernel)["ename"] == "UndoUnavailable"
    run(kernel, "x = 1; import threading; threading.Thread(target=threading.Event().wait).start()")
    run(kernel, "x = 2")
    assert undo_request(kernel) == {"status": "ok", "not_restored": ["1 thread"]}
    refusal = undo_request(kernel)
    assert (refusal["status"], refusal["ename"]) == ("error", "UndoUnavailable")
    assert run(kernel, "x").result == "1"


@pytest.mark.every_level
def test_cells_sent_behind_it_see_the_old_state(kernel: Kernel) -> None:
    run(kernel, "x = 1")
    client = kernel.client
    cells = [client.execute(code) for code in ("x = 2", "%undo", "print(x); x = 3", "print(x)")]
    assert kernel.outcome_of(cells[2]).text() == "1\n"
    assert kernel.outcome_of(cells[3]).text() == "3\n"


def test_cells_sent_behind_one_that_is_refused_are_aborted(kernel: Kernel) -> None:
    client = kernel.client
    cells = [client.execute(code) for code in ("%undo", "x = 1")]
    replies = [kernel.reply_to(cell)["content"]["status"] for cell in cells]
    assert replies == ["error", "aborted"]


@pytest.mark.every_level
def test_nothing_is_undone_while_a_cell_runs(kernel: Kernel) -> None:
    run(kernel, "x = 1")
    run(kernel, "x = 2")
    cell = kernel.client.execute("print('started', flush=True); import time; time.sleep(0.5)")
    while kernel.client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
        pass
    assert undo_request(kernel)["ename"] == "UndoUnavailable"
    assert kernel.reply_to(cell)["content"]["status"] == "ok"
    assert run(kernel, "x").result == "2"


def test_without_checkpoints_there_is_nothing_to_undo() -> None:
    with running_kernel(policy="checkpoint: off\n") as kernel:
        run(kernel, "x = 1")
        run(kernel, "x = 2")
        assert "checkpoint: cell" in refused(kernel).evalue
        assert undo_request(kernel)["ename"] == "UndoUnavailable"
        assert run(kernel, "x").result == "2"


@pytest.mark.every_level
def test_after_a_cell_was_rolled_back_the_one_before_it_is_undone(kernel: Kernel) -> None:
    run(kernel, "x = 1")
    run(kernel, "x = 2")
    assert kernel.run(KILL).receipt["state"] == "rolled_back"
    undo(kernel)
    assert run(kernel, "x").result == "1"
    assert kernel.run(KILL).receipt["state"] == "rolled_back"
    assert run(kernel, "x").result == "1"


@pytest.mark.every_level
def test_a_widgets_callback_is_undone_with_its_cell_and_the_widget_works_on(
    kernel: Kernel,
) -> None:
    opened = run(kernel, "import ipywidgets as w; slider = w.IntSlider(value=3); slider")
    comm_id = next(
        message["content"]["comm_id"]
        for message in opened.messages
        if message["msg_type"] == "comm_open"
        and message["content"]["data"]["state"].get("_model_name") == "IntSliderModel"
    )

    def drag(value: int) -> None:
        data = {"method": "update", "state": {"value": value}, "buffer_paths": []}
        message = kernel.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        kernel.client.shell_channel.send(message)

    run(kernel, "slider.value = 4")
    drag(42)
    assert run(kernel, "slider.value", silent=True).status == "ok"
    time.sleep(0.5)
    undo(kernel)
    undo_once_more = kernel.run("%undo")
    assert undo_once_more.ename == "UndoUnavailable"
    assert run(kernel, "slider.value").result == "3"
    drag(7)
    assert run(kernel, "slider.value").result == "7"
    back = run(kernel, "slider.value = 8").messages
    assert comm_id in [m["content"].get("comm_id") for m in back if m["msg_type"] == "comm_msg"]


@pytest.mark.every_level
def test_what_a_frontend_runs_silently_is_not_what_is_undone(kernel: Kernel) -> None:
    run(kernel, "x = 1")
    run(kernel, "x = 2")
    for _ in range(2):
        run(kernel, "sorted(globals())", silent=True)
    undo(kernel)
    assert run(kernel, "x").result == "1"


NEWEST_CHECKPOINT = """
import os, signal
names = {int(pid): open(f'/proc/{pid}/comm').read().strip() for pid in os.listdir('/proc') if pid.isdecimal()}
os.kill(max(pid for pid, name in names.items() if name == 'checkpoint'), signal.SIGKILL)
x = 3
"""


@pytest.mark.every_level
def test_without_the_checkpoint_of_the_last_cell_nothing_is_changed(kernel: Kernel) -> None:
    run(kernel, "x = 1")
    run(kernel, "x = 2")
    run(kernel, NEWEST_CHECKPOINT)
    refused(kernel)
    assert run(kernel, "x").result == "3"


NO_DESCRIPTORS = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
files, x = [], 2
try:
    while True: files.append(open('/dev/null'))
except OSError: pass
"""


@pytest.mark.every_level(fresh=True)
def test_no_more_than_one_cell_is_undone_where_a_checkpoint_could_not_be_made(
    kernel: Kernel,
) -> None:
    run(kernel, "x = 0")
    run(kernel, "x = 1")
    run(kernel, NO_DESCRIPTORS)
    refused(kernel)
    # There is a checkpoint of this one again, but none of the state before it.
    run(kernel, "for file in files: file.close()\nx = 3")
    refused(kernel)
    assert run(kernel, "x").result == "3"
    run(kernel, "x = 4")
    undo(kernel)
    assert run(kernel, "x").result == "3"


@pytest.mark.every_level
def test_a_second_undo_that_comes_with_the_first_is_refused(kernel: Kernel) -> None:
    run(kernel, "x = 1")
    run(kernel, "x = 2")
    client, replies = kernel.client, {}
    sent = [client.session.msg("undo_request", {}) for _ in range(2)]
    for message in sent:
        client.control_channel.send(message)
    while len(replies) < len(sent):
        reply = client.get_control_msg(timeout=TIMEOUT)
        replies[reply["parent_header"]["msg_id"]] = reply["content"]["status"]
    assert [replies[message["header"]["msg_id"]] for message in sent] == ["ok", "error"]
    assert run(kernel, "x").result == "1"


@pytest.mark.every_level
def test_it_can_be_done_time_and_again(kernel: Kernel) -> None:
    run(kernel, "x = 0")
    for number in range(10):
        run(kernel, f"x = {number + 1}; import time")
        undo(kernel)
        assert kernel.value("x") == 0
