"""Who asks is always to be seen, and what is asked."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any, cast
from unittest.mock import Mock

import pytest

from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.verdict import Finding
from sandbox_kernel.relay.asking import (
    LABEL,
    MAX_PROMPT_CHARACTERS,
    Answer,
    Asking,
    Question,
    in_words,
    told_apart,
)
from sandbox_kernel.relay.cells import Request, RunningCell
from sandbox_kernel.relay.wire import Author

MIB = 1 << 20


def test_a_question_names_every_rule_that_always_would_be_remembered_for() -> None:
    rules = ["python.deferred", "python.write_file", "python.deferred"]
    findings = [Finding(rule, "ask", "low", "x", 1, 0, "why", "how") for rule in rules]
    prompt = in_words(Question(Mock(), tuple(findings), Mock()))
    assert "[a]lways for python.deferred, python.write_file, [N]o" in prompt


@pytest.mark.parametrize(
    "prompt", [f"{LABEL} Run? ", "[Sandbox-Kernel] Run? ", "\x1b[2KSANDBOX-KERNEL asks"]
)
def test_a_prompt_that_could_be_the_wrappers_says_that_the_cell_asks(prompt: str) -> None:
    content = json.dumps({"prompt": prompt, "password": True}).encode()
    assert json.loads(told_apart(content)) == {
        "prompt": f"(the cell asks:) {prompt}",
        "password": True,
    }


@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt":"name? ","password":false,"more":1}',
        b"{}",
        b'{"password":true}',
    ],
)
def test_any_other_prompt_is_as_the_cell_made_it(content: bytes) -> None:
    assert told_apart(content) == content


@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt":["[sandbox-kernel] Run? "],"password":false}',
        b'{"prompt":"[sandbox-kernel] Run? ","password":1}',
        b'{"prompt":null}',
        b"[]",
    ],
)
def test_a_prompt_that_is_no_text_is_not_shown(content: bytes) -> None:
    assert json.loads(told_apart(content)) == {"prompt": "(the cell asks:) ", "password": False}


def test_an_escaped_imitation_is_one_too() -> None:
    assert b"the cell asks" in told_apart(b'{"prompt":"\\u0073andbox-kernel"}')


def test_what_else_a_cell_puts_into_a_prompt_is_not_built() -> None:
    content = b'{"prompt":"sandbox-kernel","more":[' + b"[]," * (4 * MIB) + b"[]]}"
    tracemalloc.start()
    assert len(told_apart(content)) < 100
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB


def test_a_prompt_of_letters_that_become_many_does_not_keep_the_wrapper_busy() -> None:
    """One such letter is read as eighteen."""
    content = json.dumps({"prompt": "\ufdfa" * (4 * MIB)}, ensure_ascii=False).encode()
    started = time.thread_time()
    prompt = json.loads(told_apart(content))["prompt"]
    assert time.thread_time() - started < 1
    assert len(prompt) < MAX_PROMPT_CHARACTERS + 100


def test_of_a_long_prompt_the_middle_is_left_out_and_it_says_that_the_cell_asks() -> None:
    choices = "".join(f"{number}. " for number in range(MAX_PROMPT_CHARACTERS))
    content = json.dumps({"prompt": f"{choices}Which? ", "password": True}).encode()
    said = json.loads(told_apart(content))
    assert said["password"]
    assert said["prompt"].startswith("(the cell asks:) 0. 1. 2. ")
    assert "characters left out" in said["prompt"]
    assert said["prompt"].endswith(". Which? ")


class Prompts:
    """What the user is asked, in place of a frontend."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, request: Request, content: dict[str, Any]) -> str:
        self.asked.append(request.msg_id)
        return f"prompt {len(self.asked)}"


@pytest.fixture
def prompts() -> Prompts:
    return Prompts()


@pytest.fixture
def asking(prompts: Prompts) -> Asking:
    return Asking(cast(Any, prompts))


def asked_about(code: str = "import tempfile") -> RunningCell:
    """A cell that the policy asks about."""
    content = {"code": code, "allow_stdin": True}
    request = Request("shell", Author("session").message("execute_request", content))
    cell = RunningCell(request)
    cell.verdict = Judge(load_policy("strict").code).judge(code, ())
    assert [each.decision for each in cell.verdict.findings] == ["ask"]
    return cell


@pytest.mark.parametrize("recorded", [True, False])
def test_always_is_remembered_if_it_could_be_recorded(asking: Asking, recorded: bool) -> None:
    heard: list[Answer] = []
    asking.ask(asked_about(), lambda answer: recorded)
    asking.answer("always")
    asking.ask(asked_about(), lambda answer: heard.append(answer) is None)
    assert heard == (["earlier"] if recorded else [])


def test_a_question_that_comes_up_by_an_answer_is_put_once(
    asking: Asking, prompts: Prompts
) -> None:
    first, second = asked_about(), asked_about()

    def answered(answer: Answer) -> bool:
        asking.ask(second, lambda answer: True)
        return True

    asking.ask(first, answered)
    asking.answer("no")
    assert prompts.asked == [first.request.msg_id, second.request.msg_id]
