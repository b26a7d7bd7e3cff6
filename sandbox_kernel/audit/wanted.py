"""Which cells a list is to have, and how the log's index is asked for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sandbox_kernel.audit.records import Record

# Answers by which a question counts as approved; any other is a no.
_APPROVED: Final = ("yes", "always", "earlier")
# Whether there is another record of the same cell, of some kind.
_OTHER: Final = (
    "EXISTS (SELECT 1 FROM record AS other INDEXED BY cells WHERE other.cell <> '' "
    "AND other.cell = intent.cell AND other.kind = '{}' {})"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which cells: those that all of this is true of. Nothing said is true of all."""

    since_us: int | None = None
    kernel: str | None = None
    verdict: str | None = None
    outcome: str | None = None
    user: str | None = None
    limit: int | None = 100  # the newest


def verdict_of(intent: Record, approval: Record | None) -> str:
    """As the receipt has it: what the user has answered counts, where the policy asks."""
    if approval is None:
        return intent.word
    return "approved" if approval.word in _APPROVED else "deny"


def conditions_of(wanted: Wanted) -> tuple[list[str], list[Any]]:
    """What the index is asked, which has all of this."""
    conditions, values = ["intent.cell <> ''", "kind = 'intent'"], []
    for column, value in (("kernel", wanted.kernel), ("user", wanted.user)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    if wanted.since_us is not None:
        # Ids begin with the time, in milliseconds.
        digits = f"{max(0, wanted.since_us // 1000):012x}"
        conditions.append("intent.cell >= ?")
        values.append(f"{digits[:8]}-{digits[8:]}")
    if wanted.verdict is not None:
        # As `verdict_of` has it.
        approval = _OTHER.format("approval", "")
        if wanted.verdict == "approved":
            conditions.append(_OTHER.format("approval", "AND other.word IN (?, ?, ?)"))
            values += _APPROVED
        elif wanted.verdict == "deny":
            refused = _OTHER.format("approval", "AND other.word NOT IN (?, ?, ?)")
            conditions.append(f"(word = 'deny' AND NOT {approval} OR {refused})")
            values += _APPROVED
        else:
            conditions.append(f"word = ? AND NOT {approval}")
            values.append(wanted.verdict)
    if wanted.outcome is not None:
        conditions.append(_OTHER.format("outcome", "AND other.word = ?"))
        values.append(wanted.outcome)
    return conditions, values
