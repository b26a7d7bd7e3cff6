"""The error of a cell that the policy does not let run: what, where, why, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sandbox_kernel.errors import PolicyViolation
from sandbox_kernel.policy.verdict import Answer, Finding, Verdict
from sandbox_kernel.text import printable
from sandbox_kernel.words import count

SHOWN: Final = 5
LINE_CHARACTERS: Final = 100
_RED, _BOLD, _DIM, _OFF = "\x1b[31m", "\x1b[1m", "\x1b[2m", "\x1b[0m"


# How it came about that a cell does not run which the policy asks about.
_REFUSED: Final[Mapping[Answer, str]] = {
    "no": "You said no to this cell",
    "unclear": "You were asked about this cell, and none of the answers was yes, always or no",
    "withdrawn": "You interrupted the question about this cell",
    "nobody": "Policy `{}` asks about this cell, and this client cannot be asked",
}


class CodeViolation(PolicyViolation):
    """A cell does not run because of what it says: the policy denies it, or the user did not say yes."""

    def __init__(
        self, verdict: Verdict, policy: str, text: str, answer: Answer | None = None
    ) -> None:
        self.findings = tuple(f for f in verdict.findings if f.decision in ("ask", "deny"))
        self._lines = text.split("\n")
        first = self.findings[0]
        more = len(self.findings) - 1
        others = f" ({count(more, 'more finding')} below)" if more else ""
        denied = "Policy `{}` does not let this cell run"
        head = denied if answer is None else _REFUSED.get(answer, denied)
        may_ask = answer in ("no", "unclear", "withdrawn")
        instead = "Run the cell again to be asked again" if may_ask else first.instead
        super().__init__(
            f"{head.format(policy)}: {place(first)}, "
            f"`{printable(first.about)}`: {first.reason}{others}. The cell was not run.",
            hint=f"{instead}. `sandbox-kernel policy explain {first.rule}` says more.",
        )

    @property
    def ename(self) -> str:
        return PolicyViolation.__name__

    def traceback(self, inner: Sequence[str] = ()) -> list[str]:
        head, *rest = super().traceback(inner)
        pointers = [line for f in self.findings[:SHOWN] for line in self._pointer(f)]
        hidden = len(self.findings) - SHOWN
        if hidden > 0:
            pointers.append(f"  {_DIM}… and {hidden} more{_OFF}")
        return [head, *pointers, *rest]

    def _pointer(self, finding: Finding) -> list[str]:
        """The line of the cell, what it is about underlined, and the reason."""
        lines = finding.expression.split("\n") if finding.expression else self._lines
        shown, before, marked = excerpt(lines, finding)
        caret = " " * len(before) + "^" * len(marked)
        number = str(finding.line)
        margin = " " * len(number)
        return [
            f"  {_DIM}{number} |{_OFF} {shown}",
            f"  {_DIM}{margin} |{_OFF} {_RED}{caret}{_OFF}",
            f"  {margin}   {_BOLD}{finding.rule}{_OFF} ({finding.risk} risk): {finding.reason}. "
            f"{finding.instead}.",
        ]


class Excerpt(NamedTuple):
    """A part of a cell's line, and in that what stands before the place of a finding and at it."""

    line: str
    before: str
    marked: str


def place(finding: Finding) -> str:
    """Where it stands: in the cell, or in an expression that is evaluated behind it."""
    line = f"line {finding.line}"
    return f"{line} of an expression behind it" if finding.expression else line


def excerpt(lines: Sequence[str], finding: Finding) -> Excerpt:
    """What to show of a finding: a window of its line, as generated code may have it all in one."""
    source = lines[finding.line - 1] if finding.line <= len(lines) else ""
    start = max(0, finding.column - LINE_CHARACTERS // 2)
    line = printable(source[start : start + LINE_CHARACTERS])
    offset = finding.column - start
    width = len(finding.about) if source.startswith(finding.about, finding.column) else 1
    return Excerpt(line, line[:offset], line[offset : offset + width] or " ")
