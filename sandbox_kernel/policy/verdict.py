"""What the static check says about a cell: facts by the validators, decisions by the policy.

A validator reads one language. It reports *hits* (a rule that matches, and where) and text of another
language that it comes upon, which is read in turn. It decides nothing: the policy says what each hit
means, and the verdict is the gravest of these decisions.

The check is policy and early warning, never the boundary: that is the sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

Decision = Literal["allow", "warn", "ask", "deny"]
Risk = Literal["low", "medium", "high", "critical"]
Language = Literal["python", "shell", "javascript"]

# What became of a question to the user. `earlier`: always, said about another cell; `nobody`: the client
# cannot be asked; `withdrawn`: the user has interrupted; `unclear`: no answer was one of those offered.
Answer = Literal["yes", "always", "earlier", "no", "nobody", "withdrawn", "unclear"]

# From mild to grave.
DECISIONS: Final[tuple[Decision, ...]] = ("allow", "warn", "ask", "deny")
RISKS: Final[tuple[Risk, ...]] = ("low", "medium", "high", "critical")


class Rule(NamedTuple):
    """Something that a policy can decide about."""

    id: str  # such as python.frames
    risk: Risk
    reason: str  # what the code does, for its user: "it starts a program", no full stop
    instead: str  # what to do instead: "Use a Python library", no full stop
    # The control at run time that holds if the check is bypassed, by its key in `backstops`.
    backstop: str | None


class Hit(NamedTuple):
    """A rule matches. ``about`` is what it matches, as the user would write it: ``os.system``.

    Of rules on names (``python.import``, ``shell.command``, ``magic``) it is the name alone, which the
    policy's lists decide about. Lines count from 1 and columns from 0, in the text that was read.
    """

    rule: str
    about: str
    line: int
    column: int


class Embedded(NamedTuple):
    """Text of some language within another text, whose first character stands at this place."""

    language: Language
    text: str
    line: int
    column: int


class Magic(NamedTuple):
    """An IPython magic: ``%name arguments``, or ``%%name arguments`` with a body."""

    name: str
    arguments: str
    body: str | None
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A hit that the policy does not simply allow."""

    rule: str
    decision: Decision
    risk: Risk
    about: str
    line: int
    column: int
    reason: str
    instead: str
    # The expression behind the cell that it is about, in which the line is counted; empty: the cell.
    expression: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "decision": self.decision,
            "risk": self.risk,
            "about": self.about,
            "line": self.line,
            "column": self.column,
            "reason": self.reason,
            "instead": self.instead,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The policy's word on a cell, with what it is founded on, gravest first."""

    decision: Decision
    findings: tuple[Finding, ...] = ()
    # Whether there are more findings than these.
    is_cut: bool = False

    @property
    def risk(self) -> Risk:
        return max((finding.risk for finding in self.findings), key=RISKS.index, default="low")
