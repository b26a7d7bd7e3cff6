"""What a user reads when a cell is denied."""

from __future__ import annotations

import re

import pytest

from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.verdict import Answer, Decision, Finding, Verdict
from sandbox_kernel.policy.violation import LINE_CHARACTERS, SHOWN, CodeViolation
from sandbox_kernel.text import printable


def plain(lines: list[str]) -> list[str]:
    """Without colours."""
    return [re.sub(r"\x1b\[\d*m", "", line) for line in lines]


def finding(about: str, line: int, column: int, decision: Decision = "deny") -> Finding:
    return Finding("python.eval", decision, "medium", about, line, column, "Because", "Do not")


def violation(text: str, *findings: Finding, answer: Answer | None = None) -> CodeViolation:
    return CodeViolation(Verdict("deny", findings), "strict", text, answer)


def judged(cell: str) -> CodeViolation:
    return CodeViolation(Judge(load_policy("strict").code).judge(cell), "strict", cell)


def test_it_says_what_where_why_and_what_instead() -> None:
    error = judged("x = 1\ny = eval('x')")
    assert error.ename == "PolicyViolation"
    assert "line 2, `eval`" in str(error)
    assert "`strict`" in str(error)
    assert "The cell was not run." in str(error)
    assert error.hint is not None
    assert "ast.literal_eval" in error.hint
    assert "sandbox-kernel policy explain python.eval" in error.hint


def test_the_text_is_underlined() -> None:
    lines = plain(judged("x = 1\ny = eval('x')").traceback())
    [source] = [number for number, line in enumerate(lines) if "y = eval('x')" in line]
    assert lines[source].index("eval") == lines[source + 1].index("^^^^")
    assert lines[source + 1].count("^") == len("eval")
    assert "python.eval (medium risk)" in lines[source + 2]


def test_the_underline_is_one_mark_where_the_text_is_written_otherwise() -> None:
    lines = plain(violation("a = b.c", finding("os.system", 1, 4)).traceback())
    assert any(line.endswith("|     ^") for line in lines)


def test_a_finding_in_an_expression_is_shown_there() -> None:
    cell = "a = 1\nb = 2"
    verdict = Judge(load_policy("strict").code).judge(cell, ["c", "d or eval('1')"])
    error = CodeViolation(verdict, "strict", cell)
    assert "line 1 of an expression behind it, `eval`" in str(error)
    lines = plain(error.traceback())
    assert any("d or eval('1')" in line for line in lines)
    assert not any("a = 1" in line for line in lines)


def test_findings_that_only_warn_are_not_reasons() -> None:
    error = violation("x\ny", finding("x", 1, 0), finding("y", 2, 0, "warn"))
    assert [found.about for found in error.findings] == ["x"]
    assert "more finding" not in str(error)


def test_many_findings_are_counted_and_a_few_are_shown() -> None:
    many = [finding(f"x{n}", n, 0) for n in range(1, SHOWN + 4)]
    error = violation("\n".join(f"x{n}" for n in range(1, SHOWN + 4)), *many)
    assert f"({SHOWN + 2} more findings below)" in str(error)
    lines = plain(error.traceback())
    assert sum("python.eval" in line and "risk" in line for line in lines) == SHOWN
    assert any("… and 3 more" in line for line in lines)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "Policy `strict` does not let this cell run: line 1"),
        ("no", "You said no to this cell: line 1"),
        ("unclear", "none of the answers was yes, always or no: line 1"),
        ("withdrawn", "You interrupted the question about this cell: line 1"),
        ("nobody", "Policy `strict` asks about this cell, and this client cannot be asked: line 1"),
    ],
)
def test_it_says_who_did_not_let_the_cell_run(answer: Answer | None, said: str) -> None:
    error = str(violation("x", finding("x", 1, 0, "ask"), answer=answer))
    assert said in error
    assert ("Policy" in error) == (answer in (None, "nobody"))
    assert "The cell was not run." in error


def test_a_long_line_is_shown_around_the_place() -> None:
    text = "a" * 5000 + "eval" + "b" * 5000
    lines = plain(violation(text, finding("eval", 1, 5000)).traceback())
    [shown] = [number for number, line in enumerate(lines) if "aeval" in line]
    assert len(lines[shown]) <= LINE_CHARACTERS + 10
    assert lines[shown].index("eval") == lines[shown + 1].index("^")


@pytest.mark.parametrize("line", [2, 10_000])
def test_a_place_beyond_the_text_is_no_error(line: int) -> None:
    assert violation("x", finding("x", line, 7)).traceback()


def test_a_strangers_text_cannot_paint_over_what_is_said() -> None:
    bell = "x = 1 # \x1b[2J\x1b[1;1Hall is well\x07\r\u202e"
    error = violation(bell, finding("\x1b[2Jx\u202e", 1, 0))
    said = [*plain(error.traceback()), str(error)]
    assert not any(character in line for line in said for character in "\x1b\x07\r\u202e")


def test_control_characters_are_dots() -> None:
    assert printable("a\tb\x00c\ud800d\u2028e") == "a b·c·d·e"
    assert printable("größe = '…'") == "größe = '…'"


def test_the_traceback_can_be_sent() -> None:
    error = violation("x = '\ud800'", finding("\ud800", 1, 5))
    "\n".join([*error.traceback(), str(error)]).encode()
