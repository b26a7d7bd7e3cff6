"""Where messages go, over real sockets: to whom, in which turn, and what becomes of those that nobody can
read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.relay.kernel_info import QUESTION_SECONDS
from tests.unit.relay.stage import ASKED, DENIED, KERNEL_INFO, Kernel, Stage

DEEP = b'{"a":' * 960 + b"1" + b"}" * 960
NO_SANDBOX = SandboxUnavailable("There is none.", hint="Wait.")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


@pytest.fixture
def kernel(stage: Stage) -> Kernel:
    return stage.attach()


# -- what nobody can read --------------------------------------------------------------------------


def test_a_cell_whose_metadata_has_odd_bytes_runs(stage: Stage, kernel: Kernel) -> None:
    """As jupyter_client sends the name of a file that is no UTF-8."""
    client, metadata = stage.client(), b'{"path":"caf\xe9"}'
    client.send("shell", "execute_request", {"code": "1"}, msg_id="1", metadata=metadata)
    (cell,) = kernel.messages("shell")
    assert cell.metadata["path"] == "caf\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("part", ["content", "metadata"])
@pytest.mark.parametrize(
    "body",
    [b'{"x":1e400}', b'{"x":"\\ud83d"}', b'{"x":NaN}', b"[]", DEEP],
    ids=["huge_number", "half_a_character", "nan", "no_object", "deep"],
)
def test_a_request_of_which_only_the_header_can_be_read_is_answered_with_an_error(
    stage: Stage, kernel: Kernel, part: str, body: bytes
) -> None:
    client = stage.client()
    about = {"content": {"code": "1"}, part: body}
    client.send("shell", "execute_request", msg_id="odd", **about)
    (reply,) = client.heard()
    assert (reply.msg_type, reply.parent_id) == ("execute_reply", "odd")
    assert reply.content["ename"] == "PolicyViolation"
    assert stage.published() == [("busy", "odd"), ("idle", "odd")]
    client.execute("next")
    assert kernel.got() == [("execute_request", "next")]


def test_an_answer_that_cannot_be_read_is_dropped(stage: Stage, kernel: Kernel) -> None:
    client = stage.client()
    client.execute("asked", ASKED)
    client.send("stdin", "input_reply", b'{"value":1e400}', msg_id="odd")
    assert kernel.got() == []
    client.answer("y")
    assert kernel.got() == [("execute_request", "asked")]


# -- ids that two clients share --------------------------------------------------------------------


def test_an_interrupt_with_the_id_of_the_running_cell_reaches_the_kernel(
    stage: Stage, kernel: Kernel
) -> None:
    client, manager = stage.client(), stage.client("manager")
    client.execute("0")
    stage.go_on(0.1)
    stage.published()
    manager.send("control", "interrupt_request", msg_id="0")
    assert stage.around.done == ["interrupt"]
    assert [each.content for each in manager.heard("control")] == [{"status": "ok"}]
    # An idle would seem to be that of the cell.
    assert stage.published() == []
    assert kernel.got("control") == []


def test_a_question_with_the_id_of_a_cell_before_it_is_no_second_run_of_that_cell(
    stage: Stage, kernel: Kernel
) -> None:
    one, other = stage.client("one"), stage.client("other")
    one.execute("running")
    one.execute("same")
    other.send("shell", "complete_request", {"code": "im"}, msg_id="same")
    kernel.end("running")
    assert kernel.got() == [("execute_request", "running"), ("execute_request", "same")]
    kernel.end("same")
    assert kernel.got() == [("complete_request", "same")]
    kernel.reply("complete_reply", "same")
    assert [each.msg_type for each in other.heard()] == ["complete_reply"]


def test_cells_of_one_id_in_two_lanes_run_one_after_the_other(stage: Stage, kernel: Kernel) -> None:
    one, other = stage.client("one"), stage.client("other")
    one.execute("same", lane="subshell")
    other.execute("same")
    assert kernel.got() == [("execute_request", "same")]
    kernel.end("same")
    assert [each.msg_type for each in one.heard()] == ["execute_reply"]
    assert kernel.got() == [("execute_request", "same")]
    kernel.end("same")
    assert [each.msg_type for each in other.heard()] == ["execute_reply"]


def test_a_reply_to_a_question_is_not_that_of_a_cell_that_waits_for_a_yes_under_its_id(
    stage: Stage, kernel: Kernel
) -> None:
    one, other = stage.client("one"), stage.client("other")
    one.send("shell", "complete_request", {"code": "im"}, msg_id="same")
    other.execute("same", ASKED)
    kernel.reply("complete_reply", "same")
    assert [each.msg_type for each in one.heard()] == ["complete_reply"]


# -- turns -----------------------------------------------------------------------------------------


def test_a_question_behind_waiting_cells_is_answered_soon(stage: Stage, kernel: Kernel) -> None:
    client, joining = stage.client(), stage.client("joining")
    client.execute("running")
    client.execute("waiting")
    stage.published()
    joining.send("shell", "kernel_info_request", msg_id="question")
    assert joining.heard() == []
    stage.go_on(QUESTION_SECONDS)
    assert [each.content for each in joining.heard()] == [KERNEL_INFO]
    # The idle that came with it was not the kernel's.
    told = [("busy", "question"), ("idle", "question"), ("busy", "running")]
    assert stage.published() == told
    kernel.end("running")
    kernel.end("waiting")
    assert joining.heard() == []


def test_a_question_sent_together_with_cells_waits_for_its_turn(
    stage: Stage, kernel: Kernel
) -> None:
    client = stage.client()
    client.execute("running")
    client.execute("waiting")
    client.send("shell", "kernel_info_request", msg_id="question")
    stage.go_on(QUESTION_SECONDS)
    kernel.end("running")
    kernel.end("waiting")
    assert [each.parent_id for each in client.heard()] == ["running", "waiting", "question"]


def test_a_question_held_behind_cells_until_there_is_a_kernel_is_answered_soon(
    stage: Stage,
) -> None:
    client, joining = stage.client(), stage.client("joining")
    client.execute("first")
    client.execute("second")
    joining.send("shell", "kernel_info_request", msg_id="question")
    stage.go_on(QUESTION_SECONDS)
    assert joining.heard() == []
    stage.attach()
    assert [each.content for each in joining.heard()] == [KERNEL_INFO]


def test_what_was_held_of_control_does_not_wait_for_held_cells(stage: Stage) -> None:
    client = stage.client()
    client.execute("first")
    client.execute("second")
    client.send("control", "create_subshell_request", msg_id="third")
    kernel = stage.attach()
    assert kernel.got("control") == [("create_subshell_request", "third")]
    assert kernel.got() == [("execute_request", "first")]


def test_any_number_of_cells_that_are_denied_one_after_the_other_is_answered(
    stage: Stage, kernel: Kernel
) -> None:
    client, number = stage.client(), 200
    client.execute("running")
    for each in range(number):
        content = {"code": DENIED, "stop_on_error": False}
        client.send("shell", "execute_request", content, msg_id=f"{each}", seconds=0.001)
    kernel.end("running")
    heard: list[object] = []
    end = time.monotonic() + 10
    while len(heard) < number + 1 and time.monotonic() < end:
        stage.go_on()
        heard += [each.content.get("ename") for each in client.heard()]
    assert heard == [None, *["PolicyViolation"] * number]


# -- no sandbox ------------------------------------------------------------------------------------


def test_a_cell_that_is_approved_when_no_sandbox_could_be_had_is_a_reason_to_try_again(
    stage: Stage, kernel: Kernel
) -> None:
    client = stage.client()
    client.execute("asked", ASKED)
    stage.router.suspend()
    stage.router.refuse(NO_SANDBOX)
    client.answer("y")
    stage.go_on(0.2)
    assert stage.around.done == ["revive"]
    stage.router.refuse(NO_SANDBOX)
    assert [each.content["ename"] for each in client.heard()] == ["SandboxUnavailable"]


def test_a_cell_that_is_approved_when_no_sandbox_could_be_had_runs_in_the_next(
    stage: Stage, kernel: Kernel
) -> None:
    client = stage.client()
    client.execute("asked", ASKED)
    stage.router.suspend()
    stage.router.refuse(NO_SANDBOX)
    client.answer("y")
    assert stage.attach().got() == [("execute_request", "asked")]


def test_an_exception_over_a_cell_that_waited_is_its_answer_and_the_next_one_runs(
    stage: Stage, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stage.client()
    client.execute("first")
    client.execute("second", stop_on_error=False)
    assert kernel.got() == [("execute_request", "first")]
    with monkeypatch.context() as patch:
        patch.setattr(Judge, "judge", Mock(side_effect=OverflowError))
        kernel.end("first")
    assert [each.content.get("ename") for each in client.heard()] == [None, "WrapperFailed"]
    client.execute("third")
    assert kernel.got() == [("execute_request", "third")]
