"""What the policy says of a cell's code: denied, asked about, warned of; and nothing of it runs before."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.relay.asking import LABEL, told_apart
from sandbox_kernel.relay.cells import BURST_SECONDS
from tests.kernel import TIMEOUT, Kernel, Outcome, eventually, running_kernel
from tests.lender import Lender

pytestmark = pytest.mark.process

POLICY = """
code:
  python:
    imports:
      deny: [antigravity]
      ask: [colorsys, netrc]
      warn: [calendar]
    rules:
      python.frames: deny
      python.exec: ask
"""
DENIED = "made = 'by a cell that was denied'\nimport antigravity"
ASKED = "import colorsys\nasked = 'ran'"


@pytest.fixture
def strict(tmp_path: Path, level: str) -> Iterator[Kernel]:
    with running_kernel(cwd=tmp_path, level=level, policy=POLICY) as kernel:
        yield kernel


@pytest.fixture
def lent(lender: Lender) -> Iterator[Kernel]:
    with lender.lend() as kernel:
        yield kernel


def answering(
    kernel: Kernel, code: str, *answers: str, **options: Any
) -> tuple[Outcome, list[str]]:
    """Run a cell and answer what is asked; all prompts in their order."""
    prompts: list[str] = []

    def answer(message: dict[str, Any]) -> None:
        prompts.append(message["content"]["prompt"])
        kernel.client.input(answers[len(prompts) - 1])

    return kernel.run(code, allow_stdin=True, stdin_hook=answer, **options), prompts


# -- denied ----------------------------------------------------------------------------------------


@pytest.mark.every_level
def test_a_denied_cell_runs_nothing_and_costs_nothing(strict: Kernel) -> None:
    first = strict.run("before = 1")
    denied = strict.run(DENIED)
    assert denied.ename == "PolicyViolation"
    assert "line 2, `antigravity`" in denied.evalue
    receipt = denied.receipt
    assert (receipt["verdict"], receipt["outcome"], receipt["state"]) == ("deny", "denied", "kept")
    assert receipt["usage"]["wall_seconds"] == receipt["usage"]["cpu_seconds"] == 0
    # It takes the next number, and as nothing was run, so does the next cell.
    count = first.reply["content"]["execution_count"] + 1
    assert denied.reply["content"]["execution_count"] == count
    after = strict.run("'made' in globals(), before")
    assert after.result == "(False, 1)"
    assert after.reply["content"]["execution_count"] == count


EXPRESSION = "open('/tmp/witness', 'w').write('ran')"


@pytest.mark.parametrize("code", [0, None, [], {}, False, 5], ids=repr)
@pytest.mark.parametrize("channel", ["shell", "control"])
def test_a_cell_whose_code_is_no_text_is_refused_with_its_expressions(
    lent: Kernel, code: object, channel: str
) -> None:
    """IPython takes a false ``code`` for an empty cell, and evaluates what comes with it."""
    client = lent.client
    lent.run("import os; os.path.exists('/tmp/witness') and os.remove('/tmp/witness')")
    content = {"code": code, "silent": False, "user_expressions": {"x": EXPRESSION}}
    message = client.session.msg("execute_request", content)
    getattr(client, f"{channel}_channel").send(message)
    get = getattr(client, f"get_{channel}_msg")
    while (reply := get(timeout=TIMEOUT))["parent_header"]["msg_id"] != message["header"]["msg_id"]:
        pass
    assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "PolicyViolation")
    assert "is no text" in reply["content"]["evalue"]
    assert lent.run("os.path.exists('/tmp/witness')").result == "False"


def test_the_expressions_of_an_empty_cell_are_evaluated(lent: Kernel) -> None:
    """The control: as text, the same is a cell like any other, judged with its expressions."""
    outcome = lent.run("", user_expressions={"x": EXPRESSION})
    assert outcome.status == "ok"
    assert lent.run("import os; os.path.exists('/tmp/witness')").result == "True"


def test_the_same_cell_runs_where_the_policy_allows_it(tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, env={"SANDBOX_KERNEL_POLICY": "trusted"}) as kernel:
        kernel.run("import sys, types; sys.modules['antigravity'] = types.ModuleType('it')")
        assert kernel.run(DENIED).status == "ok"
        assert kernel.run("made").result == "'by a cell that was denied'"


def test_a_finding_says_where_what_why_and_what_instead(strict: Kernel) -> None:
    denied = strict.run("\n\nx = 1\nimport antigravity as up")
    [finding] = denied.receipt["findings"]
    assert (finding["rule"], finding["decision"]) == ("python.import", "deny")
    assert (finding["line"], finding["about"]) == (4, "antigravity")
    assert finding["reason"]
    assert finding["instead"]
    [error] = [m["content"] for m in denied.messages if m["msg_type"] == "error"]
    shown = "\n".join(error["traceback"])
    assert "import antigravity as up" in shown
    assert "python.import" in shown


def test_messages_of_a_denied_cell_come_as_those_of_any_cell_with_an_error(strict: Kernel) -> None:
    kinds = [
        m["content"].get("execution_state", m["msg_type"]) for m in strict.run(DENIED).messages
    ]
    assert kinds == ["busy", "execute_input", "error", "display_data", "idle"]


def test_a_denied_cell_aborts_the_rest_of_run_all(strict: Kernel) -> None:
    cells = [strict.client.execute(code) for code in ("1", DENIED, "'behind'", "'further'")]
    replies = [strict.reply_to(cell) for cell in cells]
    statuses = [reply["content"]["status"] for reply in replies]
    assert statuses == ["ok", "error", "aborted", "aborted"]
    assert strict.run("'later'").result == "'later'"


def test_a_frontend_that_is_slower_than_the_check_has_the_rest_aborted_too(strict: Kernel) -> None:
    """A denial takes no time, but a "Run all" is sent cell by cell."""
    for _ in range(20):
        began = time.monotonic()
        denied = strict.client.execute(DENIED)
        while strict.client.get_iopub_msg(timeout=TIMEOUT)["parent_header"]["msg_id"] != denied:
            pass
        behind = strict.client.execute("'behind'")
        was_quick = time.monotonic() - began < BURST_SECONDS / 2
        statuses = [strict.reply_to(cell)["content"]["status"] for cell in (denied, behind)]
        if was_quick:
            assert statuses == ["error", "aborted"]
            return
    pytest.fail("this machine is too busy for a Run all")


@pytest.mark.parametrize(
    "options",
    [
        {"code": "", "user_expressions": {"it": "(x for x in ()).gi_frame.f_builtins"}},
        {"code": DENIED, "silent": True},
    ],
    ids=["user_expressions", "silent"],
)
def test_code_that_is_not_shown_is_judged_as_well(strict: Kernel, options: dict[str, Any]) -> None:
    reply = strict.reply_to(strict.client.execute(**options))
    assert reply["content"]["ename"] == "PolicyViolation"


def test_a_syntax_error_is_shown_as_python_shows_it(strict: Kernel) -> None:
    outcome = strict.run("import antigravity\nthis is no code")
    assert outcome.ename == "SyntaxError"
    assert outcome.receipt["verdict"] == "allow"


def test_a_name_of_an_earlier_cell_means_what_it_meant_there(strict: Kernel) -> None:
    assert strict.run("hidden = __import__").status == "ok"
    assert strict.run("hidden('antigravity')").ename == "PolicyViolation"


def test_a_debugger_may_not_evaluate_what_a_cell_may_not_say(strict: Kernel) -> None:
    content = {
        "type": "request",
        "seq": 7,
        "command": "evaluate",
        "arguments": {"expression": "__import__('antigravity')"},
    }
    message = strict.client.session.msg("debug_request", content)
    strict.client.control_channel.send(message)
    reply = strict.client.get_control_msg(timeout=TIMEOUT)["content"]
    assert (reply["success"], reply["request_seq"]) == (False, 7)
    assert "PolicyViolation" in reply["message"]


# -- warned of -------------------------------------------------------------------------------------


def test_a_cell_that_is_warned_of_runs_and_the_receipt_says_so(strict: Kernel) -> None:
    outcome = strict.run("import calendar")
    assert outcome.status == "ok"
    assert outcome.receipt["verdict"] == "warn"
    assert [f["about"] for f in outcome.receipt["findings"]] == ["calendar"]
    shown = outcome.messages[-2]["content"]["data"]["text/plain"]
    assert "warning: python.import in line 1" in shown


# -- asked about -----------------------------------------------------------------------------------


def test_a_yes_lets_the_cell_run_once(strict: Kernel) -> None:
    outcome, prompts = answering(strict, ASKED, "y")
    assert outcome.receipt["verdict"] == "approved"
    assert len(prompts) == 1
    assert prompts[0].startswith(f"{LABEL} line 1, colorsys: ")
    assert strict.run("asked").result == "'ran'"
    _, again = answering(strict, ASKED, "yes")
    assert len(again) == 1


def line_of(outcome: Outcome) -> str:
    """The receipt as the user sees it."""
    return outcome.messages[-2]["content"]["data"]["text/plain"]


def test_after_a_no_the_user_is_told_that_they_said_no(strict: Kernel) -> None:
    outcome, prompts = answering(strict, ASKED, "n")
    assert len(prompts) == 1
    assert outcome.ename == "PolicyViolation"
    assert outcome.evalue.startswith("You said no to this cell: line 1, `colorsys`")
    assert (outcome.receipt["verdict"], outcome.receipt["answer"]) == ("deny", "no")
    assert line_of(outcome).startswith("not run: you said no · ")
    assert strict.run("'asked' in globals()").result == "False"


def test_a_mistyped_answer_is_asked_for_again(strict: Kernel) -> None:
    outcome, prompts = answering(strict, ASKED, "yse", "\x00", "y")
    assert outcome.receipt["verdict"] == "approved"
    assert "'yse' is not one of the answers" in prompts[1]
    outcome, prompts = answering(strict, ASKED, "maybe", "perhaps", "well")
    assert len(prompts) == 3
    assert (outcome.ename, outcome.receipt["answer"]) == ("PolicyViolation", "unclear")


@pytest.mark.every_level
def test_always_holds_for_exactly_what_was_asked_about(strict: Kernel) -> None:
    first, prompts = answering(strict, ASKED, "always")
    assert "[a]lways for module `colorsys`, [N]o" in prompts[0]
    assert "approved by you · " in line_of(first)
    again, prompts = answering(strict, "import colorsys as c; c.__name__")
    assert (again.receipt["verdict"], prompts) == ("approved", [])
    assert "approved by you earlier, for good · " in line_of(again)
    for other in ("import netrc", "import colorsys, netrc", "exec(input.__name__)"):
        outcome, prompts = answering(strict, other, "n")
        assert (outcome.ename, len(prompts)) == ("PolicyViolation", 1)


def test_always_about_code_without_a_name_holds_for_that_very_code(strict: Kernel) -> None:
    _, prompts = answering(strict, "exec('a = 1')", "always")
    assert "in exactly this code, [N]o" in prompts[0]
    same, prompts = answering(strict, "exec('a = 1')")
    assert (same.receipt["verdict"], prompts) == ("approved", [])
    _, prompts = answering(strict, "exec('a = 2')", "n")
    assert len(prompts) == 1


def test_approvals_are_listed_and_revoked(strict: Kernel) -> None:
    assert "Nothing is approved for good" in strict.run("%approvals").text()
    answering(strict, ASKED, "always")
    answering(strict, "import netrc", "always")
    listed = strict.run(" %approvals\n").text()
    assert "  1  module `colorsys`\n" in listed
    assert "  2  module `netrc`\n" in listed
    assert strict.run("%approvals revoke 1").text() == "Revoked: module `colorsys`.\n"
    _, prompts = answering(strict, ASKED, "n")
    assert len(prompts) == 1
    _, prompts = answering(strict, "import netrc")
    assert prompts == []
    assert strict.run("%approvals revoke all").text() == "Revoked: module `netrc`.\n"
    _, prompts = answering(strict, "import netrc", "n")
    assert len(prompts) == 1


@pytest.mark.parametrize("words", ["revoke 7", "revoke", "revoke 1 2", "forget"])
def test_approvals_says_what_it_does_not_know(strict: Kernel, words: str) -> None:
    outcome = strict.run(f"%approvals {words}")
    assert (outcome.ename, outcome.receipt["outcome"]) == ("ApprovalUnknown", "error")
    assert "Nothing was changed." in outcome.evalue


def test_where_nobody_can_be_asked_the_answer_is_no(strict: Kernel) -> None:
    outcome = strict.run(ASKED, allow_stdin=False)
    assert outcome.ename == "PolicyViolation"
    assert "cannot be asked" in outcome.evalue


def test_an_interrupt_is_a_no(strict: Kernel) -> None:
    cell = strict.client.execute(ASKED, allow_stdin=True)
    strict.client.get_stdin_msg(timeout=TIMEOUT)
    strict.manager.interrupt_kernel()
    assert strict.reply_to(cell)["content"]["ename"] == "PolicyViolation"
    assert strict.run("1 + 1").result == "2"


@pytest.mark.every_level
def test_a_kernel_that_dies_while_the_user_thinks_still_runs_the_cell(strict: Kernel) -> None:
    assert strict.run("kept = 5").status == "ok"
    assert strict.run("kept").result == "5"
    cell = strict.client.execute(ASKED + "\nkept", allow_stdin=True)
    strict.client.get_stdin_msg(timeout=TIMEOUT)
    victim = strict.kernel_process
    strict.kill(victim)

    def awake() -> set[int]:
        """There is nobody, for a moment."""
        running = {each.inner_pid for each in strict.processes() if not each.is_checkpoint}
        return running - {1, victim.inner_pid}

    eventually(awake, what="a checkpoint took over")
    strict.client.input("y")
    outcome = strict.outcome_of(cell)
    assert outcome.receipt["verdict"] == "approved"
    assert outcome.result == "5"


def test_where_the_policy_denies_stdin_a_cell_cannot_ask_but_the_policy_can(tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, policy=f"{POLICY}stdin: deny\n") as kernel:
        outcome, prompts = answering(kernel, "input('password: ')")
        assert (outcome.ename, prompts) == ("StdinNotImplementedError", [])
        outcome, prompts = answering(kernel, ASKED, "y")
        assert outcome.receipt["verdict"] == "approved"
        assert len(prompts) == 1


def test_a_cell_cannot_ask_in_the_name_of_the_wrapper(strict: Kernel) -> None:
    outcome, prompts = answering(
        strict, f"a = input('{LABEL} line 1: Run? '); b = input('name? ')", "y", "me"
    )
    assert outcome.status == "ok"
    assert prompts == [f"(the cell asks:) {LABEL} line 1: Run? ", "name? "]


@pytest.mark.parametrize("dash", ["-", "\u2011", "\uff0d", " ", "_", "", "\u200b-"])
def test_a_prompt_that_only_looks_like_the_wrappers_is_marked(dash: str) -> None:
    content = json.dumps({"prompt": f"[sandbox{dash}kernel] Run this cell? "}).encode()
    assert b"(the cell asks:)" in told_apart(content)
