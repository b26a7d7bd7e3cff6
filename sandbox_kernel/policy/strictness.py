"""Whether one check of code lets something pass that another does not."""

from __future__ import annotations

from collections.abc import Iterator

from sandbox_kernel.policy.model import NAME_RULES, Code
from sandbox_kernel.policy.verdict import DECISIONS, Decision


def looser_than(strict: Code, own: Code) -> list[str]:
    """All that ``own`` decides more mildly than ``strict``, in words; the size of cells is no matter."""
    return [
        f"{about} is {mine} (there: {theirs})"
        for about, mine, theirs in _decisions(own, strict)
        if DECISIONS.index(mine) < DECISIONS.index(theirs)
    ]


def _decisions(own: Code, strict: Code) -> Iterator[tuple[str, Decision, Decision]]:
    for rule, theirs in strict.rules.items():
        yield rule, own.rules[rule], theirs
    for field in NAME_RULES.values():
        mine, others = getattr(own, field), getattr(strict, field)
        yield f"{field}.otherwise", mine.otherwise, others.otherwise
        # A name that neither lists is decided as the one above it is.
        for name in sorted({*mine.entries, *others.entries}):
            yield f"{name} ({field})", mine.decide(name), others.decide(name)
