"""A yes is for who asked: a cell gets none that is the wrapper's, and none in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_kernel.relay.stdin import MAX_PROMPTS
from tests.unit.relay.stage import ASKED, SESSION, Client, Kernel, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, messages=50, output_bytes=1 << 20)
    yield stage
    stage.close()


@pytest.fixture
def kernel(stage: Stage) -> Kernel:
    return stage.attach()


@pytest.fixture
def client(stage: Stage) -> Client:
    return stage.client()


def prompts(client: Client) -> list[str]:
    """The ids of what the user is asked."""
    return [each.msg_id for each in client.heard("stdin")]


def asks_and_is_asked_about(client: Client, kernel: Kernel) -> tuple[str, str]:
    """A cell waits for input when another one is asked about; the ids of both prompts."""
    client.execute("asking", lane="subshell")
    kernel.ask("asking")
    client.execute("asked", ASKED)
    ours, question = prompts(client)
    assert kernel.got() == [("execute_request", "asking")]
    return ours, question


def test_an_answer_goes_to_the_prompt_that_it_names(client: Client, kernel: Kernel) -> None:
    ours, question = asks_and_is_asked_about(client, kernel)
    client.answer("y", to=ours)
    assert [each.content for each in kernel.messages("stdin")] == [{"value": "y"}]
    assert kernel.got() == []
    client.answer("y", to=question)
    assert kernel.got() == [("execute_request", "asked")]
    assert kernel.messages("stdin") == []


def test_answers_that_name_no_prompt_are_taken_in_order(client: Client, kernel: Kernel) -> None:
    asks_and_is_asked_about(client, kernel)
    client.answer("y")
    assert [each.content for each in kernel.messages("stdin")] == [{"value": "y"}]
    assert kernel.got() == []
    client.answer("y")
    assert kernel.got() == [("execute_request", "asked")]


def test_another_client_cannot_answer(stage: Stage, client: Client, kernel: Kernel) -> None:
    client.execute("asked", ASKED)
    (question,) = prompts(client)
    other = stage.client("other")
    other.answer("y")
    other.answer("y", to=question)
    assert kernel.got() == []
    assert kernel.messages("stdin") == []


def test_only_an_input_reply_is_an_answer(client: Client, kernel: Kernel) -> None:
    client.execute("asked", ASKED)
    client.answer("y", msg_type="comm_msg")
    assert kernel.got() == []


def test_an_answer_to_a_question_that_was_withdrawn_is_no_cells(
    client: Client, kernel: Kernel
) -> None:
    _, question = asks_and_is_asked_about(client, kernel)
    client.send("control", "interrupt_request", msg_id="interrupt")
    client.answer("y", to=question)
    assert kernel.got() == []
    assert kernel.messages("stdin") == []


def test_a_prompt_waits_while_a_question_is_open(client: Client, kernel: Kernel) -> None:
    client.execute("asking", lane="subshell")
    client.execute("asked", ASKED)
    (question,) = prompts(client)
    kernel.ask("asking", msg_id="held")
    assert prompts(client) == []
    client.answer("n", to=question)
    assert prompts(client) == ["held"]


def test_a_prompt_to_another_client_does_not_wait(
    stage: Stage, client: Client, kernel: Kernel
) -> None:
    other = stage.client("other")
    other.execute("asking", lane="subshell")
    client.execute("asked", ASKED)
    kernel.ask("asking", msg_id="prompt")
    assert prompts(other) == ["prompt"]


def test_a_prompt_that_waited_is_put_when_the_question_is_withdrawn(
    client: Client, kernel: Kernel
) -> None:
    client.execute("asking", lane="subshell")
    client.execute("asked", ASKED)
    kernel.ask("asking", msg_id="held")
    prompts(client)
    client.send("control", "interrupt_request", msg_id="interrupt")
    assert prompts(client) == ["held"]


def test_a_prompt_goes_with_the_kernel_that_asked(
    stage: Stage, client: Client, kernel: Kernel
) -> None:
    client.execute("asking", lane="subshell")
    client.execute("asked", ASKED)
    kernel.ask("asking")
    (question,) = prompts(client)
    stage.router.suspend()
    client.answer("n", to=question)
    assert prompts(client) == []


def test_nothing_can_be_asked_for_a_cell_that_waits_for_a_yes(
    stage: Stage, client: Client, kernel: Kernel
) -> None:
    client.execute("asked", ASKED)
    (question,) = prompts(client)
    kernel.ask("asked")
    client.answer("n", to=question)
    assert prompts(client) == []
    assert stage.router.drops == {"input_request without a cell that allows stdin": 1}


def test_a_prompt_cannot_have_the_id_of_a_question(client: Client, kernel: Kernel) -> None:
    """A frontend names what it answers by it, and the next one is easily guessed."""
    client.execute("asking", lane="subshell")
    for number in range(20):
        kernel.ask("asking", msg_id=f"{SESSION}_wrapper_{number}")
    assert prompts(client) == []


def test_prompts_count_as_messages_of_their_cell(
    stage: Stage, client: Client, kernel: Kernel
) -> None:
    client.execute("asking")
    assert stage.limits.messages is not None
    for _ in range(stage.limits.messages):
        kernel.ask("asking")
        assert len(prompts(client)) == 1
        client.answer("")
    kernel.ask("asking")
    assert prompts(client) == []
    assert stage.around.done == ["interrupt"]


def test_a_cell_that_asks_and_asks_is_heard_again_once_somebody_answers(
    stage: Stage, client: Client, kernel: Kernel
) -> None:
    client.execute("asking")
    for _ in range(MAX_PROMPTS + 5):
        kernel.ask("asking")
    assert len(prompts(client)) == MAX_PROMPTS
    assert stage.router.drops == {"input_request beside many that nobody has answered": 5}
    client.answer("")
    kernel.ask("asking")
    assert len(prompts(client)) == 1


def test_prompts_count_as_output_of_their_cell(
    stage: Stage, client: Client, kernel: Kernel
) -> None:
    client.execute("asking")
    for _ in range(3):
        kernel.ask("asking", "x" * (400 << 10))
    assert len(prompts(client)) == 2
    assert stage.around.done == ["interrupt"]


def test_an_answer_to_a_prompt_of_a_cell_that_is_over_approves_nothing(
    stage: Stage, client: Client, kernel: Kernel
) -> None:
    """A client that does not say what it answers reads its prompts one after the other."""
    client.execute("asking")
    client.execute("asked", ASKED)
    kernel.ask("asking")
    kernel.end("asking")
    assert kernel.got() == [("execute_request", "asking")]
    assert len(prompts(client)) == 2
    client.answer("y")
    assert kernel.got() == []
    (again,) = client.heard("stdin")
    assert "That answered an earlier prompt." in again.content["prompt"]
    client.answer("y")
    assert kernel.got() == [("execute_request", "asked")]
    assert stage.router.drops == {"input_reply to a prompt of a cell that is over": 1}
