"""Who asks is always to be seen, and what is asked."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from sandbox_kernel.policy.judge import MAX_FINDINGS, Judge
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.verdict import Answer
from sandbox_kernel.relay.approvals import Subject
from sandbox_kernel.relay.asking import LABEL, MAX_PROMPT_CHARACTERS, MAX_TRIES, Asking, told_apart
from sandbox_kernel.relay.cells import Request, RunningCell
from sandbox_kernel.relay.wire import Author

MIB = 1 << 20


@pytest.mark.parametrize("prompt", [f"{LABEL} Run? ", "[Sandbox-Kernel] Run? "])
def test_a_prompt_that_could_be_the_wrappers_says_that_the_cell_asks(prompt: str) -> None:
    content = json.dumps({"prompt": prompt, "password": True}).encode()
    assert json.loads(told_apart(content)) == {
        "prompt": f"(the cell asks:) {prompt}",
        "password": True,
    }


# Each looks like the wrapper's label, in some font.
IMITATIONS = {
    "cyrillic": "[ѕаndbох-kеrnеl] Run? ",
    "cyrillic_and_greek_capitals": "[SΑNDΒΟΧ-ΚΕRΝΕL] Run? ",
    "digits": "[5andb0x-kerne1] Run? ",
    "capital_i_for_l": "[sandbox-kerneI] Run? ",
    "small_capitals": "[ꜱᴀɴᴅʙᴏx-ᴋᴇʀɴᴇʟ] Run? ",
    "fullwidth": "［ｓａｎｄｂｏｘ－ｋｅｒｎｅｌ］ Run? ",
    "mathematical": "[𝐬𝐚𝐧𝐝𝐛𝐨𝐱-𝐤𝐞𝐫𝐧𝐞𝐥] Run? ",
    "marks": "[s\u0323andbox-ke\u0323rnel] Run? ",
    "accents": "[śándbóx-kérnél] Run? ",
    "invisible": "[sand\u200bbox-ker\u2060nel] Run? ",
    "spaced": "[s a n d b o x - k e r n e l] Run? ",
    "misspelt": "[sanbdox-kernal] Run? ",
    "drawn": "[sandb()x-kerne|] Run? ",
    "cherokee": "[ꮪandbox-ꮶernel] Run? ",
    "armenian": "[sաndbօx-kerոel] Run? ",
    "unknown_letters": "[ꙅandbꙭx-ʞernel] Run? ",
    "reversed": "\u202e[lenrek-xobdnas]\u202c Run? ",
    "after_an_escape": "\x1b[2K\x1b[1G[harmless] Run? ",
    "carriage_return": "name?\r[harmless] ",
    "the_question": "line 1, ctypes: it loads a module. Run this cell? [y]es, [a]lways, [N]o: ",
    "the_question_in_cyrillic": "ctypes. Run thіѕ сеll? [y]es ",
    "far_below": "\n" * 80 + "[sandbox-kernel] Run? ",
}


@pytest.mark.parametrize("how", IMITATIONS)
def test_a_prompt_that_looks_like_the_wrappers_says_that_the_cell_asks(how: str) -> None:
    content = json.dumps({"prompt": IMITATIONS[how]}).encode()
    prompt = json.loads(told_apart(content))["prompt"]
    assert prompt.startswith("(the cell asks:) ")
    assert prompt.isprintable()


@pytest.mark.parametrize(
    "prompt",
    [
        "Name: ",
        "Введите имя пользователя и пароль для входа в систему: ",
        "请输入您的用户名和密码以继续使用本系统: ",
        "Παρακαλώ εισάγετε το όνομά σας: ",
        "Bitte geben Sie Ihren Namen ein: ",
        "Which kernel of the SVM (linear, rbf)? ",
        "Path of the sandbox folder: ",
        "Run this model again? [y/n] ",
        "1. one\n2. two\nWhich? ",
        "パスワードを入力してください: ",
    ],
)
def test_an_honest_prompt_is_left_alone(prompt: str) -> None:
    content = json.dumps({"prompt": prompt}, ensure_ascii=False).encode()
    assert told_apart(content) == content


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
        self.texts: list[str] = []

    def ask(self, request: Request, content: dict[str, Any]) -> str:
        self.asked.append(request.msg_id)
        self.texts.append(content["prompt"])
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
    assert {each.decision for each in cell.verdict.findings} == {"ask"}
    return cell


@pytest.mark.parametrize("recorded", [True, False])
def test_always_is_remembered_if_it_could_be_recorded(asking: Asking, recorded: bool) -> None:
    heard: list[Answer] = []
    asking.ask(asked_about(), lambda answer: recorded)
    asking.answer("always")
    asking.ask(asked_about(), lambda answer: heard.append(answer) is None)
    assert heard == (["earlier"] if recorded else [])


def heard_about(asking: Asking, code: str) -> list[Answer]:
    """What is known about a cell before the user is asked."""
    heard: list[Answer] = []
    asking.ask(asked_about(code), lambda answer: heard.append(answer) is None)
    known = list(heard)
    asking.withdraw()
    return known


def test_a_question_names_all_that_always_would_hold_for(asking: Asking, prompts: Prompts) -> None:
    asking.ask(asked_about("import tempfile\nimport pathlib\nimport tempfile"), Mock())
    (text,) = prompts.texts
    assert "[a]lways for module `tempfile`, module `pathlib`, [N]o" in text


def test_always_holds_for_the_module_that_was_asked_about(asking: Asking) -> None:
    asking.ask(asked_about("import tempfile"), lambda answer: True)
    asking.answer("always")
    assert heard_about(asking, "import tempfile as t\nt.gettempdir") == ["earlier"]
    assert heard_about(asking, "import pathlib") == []
    assert heard_about(asking, "import tempfile\nimport pathlib") == []


def test_always_holds_for_the_same_code_where_the_finding_has_no_name(asking: Asking) -> None:
    code = "open('x', 'w')"
    asking.ask(cell := asked_about(code), lambda answer: True)
    assert cell.verdict is not None
    assert all(each.rule not in ("python.import", "magic") for each in cell.verdict.findings)
    asking.answer("a")
    assert heard_about(asking, code) == ["earlier"]
    assert heard_about(asking, f"{code} ") == []


def test_findings_beyond_those_that_are_named_are_asked_about_again(
    asking: Asking, prompts: Prompts
) -> None:
    """What is not named in the verdict was not approved."""
    asking.ask(asked_about(), lambda answer: True)
    asking.answer("always")
    cell = asked_about()
    assert cell.verdict is not None
    cell.verdict = replace(cell.verdict, is_cut=True)
    asking.ask(cell, lambda answer: True)
    assert asking.open
    assert "[a]lways" not in prompts.texts[-1]


def test_a_verdict_says_that_there_are_more_findings_than_it_names() -> None:
    code = "\n".join(
        f"import {name} as t{n}" for n in range(20) for name in ("tempfile", "pathlib", "glob")
    )
    verdict = Judge(load_policy("strict").code).judge(code, ())
    assert (verdict.is_cut, len(verdict.findings)) == (True, MAX_FINDINGS)


@pytest.mark.parametrize("word", ["maybe", "yep", "\x00", None, 1, "alwayss"])
def test_an_answer_that_means_nothing_is_asked_for_again_and_then_is_a_no(
    asking: Asking, prompts: Prompts, word: object
) -> None:
    heard: list[Answer] = []
    asking.ask(asked_about(), lambda answer: heard.append(answer) is None)
    for tries in range(1, MAX_TRIES + 1):
        assert (len(prompts.texts), heard) == (tries, [])
        asking.answer(word)
    assert heard == ["unclear"]
    assert "is not one of the answers. line 1, tempfile" in prompts.texts[-1]
    assert prompts.texts[-1].isprintable()


def test_the_answer_after_a_mistyped_one_counts(asking: Asking) -> None:
    heard: list[Answer] = []
    asking.ask(asked_about(), lambda answer: heard.append(answer) is None)
    asking.answer("yy")
    asking.answer("Yes ")
    assert heard == ["yes"]
    assert not asking.open


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


def test_the_log_of_what_was_revoked_holds_no_code() -> None:
    secret = Subject("shell.dynamic_command", "$TOOL --password hunter22x", "5f" * 32)
    assert secret.recorded == f"shell.dynamic_command in code {'5f' * 32}"
    assert Subject("python.import", "socket", "").recorded == "module `socket`"
