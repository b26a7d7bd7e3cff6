"""Amounts and limits in words: what errors and receipts say in the same way.

The vocabulary is DESIGN's: a *limit* was exceeded, an *action* was taken, the *state* is what became
of the variables, the *outcome* is how the cell ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Limit = Literal[
    "wall",
    "cpu",
    "memory",
    "sandbox_memory",
    "processes",
    "pipes",
    "terminals",
    "output",
    "text",
    "messages",
    "budget_wall",
    "budget_cpu",
]
Action = Literal["interrupted", "rolled_back", "replaced", "refused"]
State = Literal["kept", "rolled_back", "lost"]
Outcome = Literal[
    "ok",
    "error",
    "denied",
    "timeout",
    "cpu",
    "memory",
    "output",
    "interrupted",
    "aborted",
    "lost",
]

LIMIT_NAMES: Final[Mapping[Limit, str]] = {
    "wall": "wall limit",
    "cpu": "CPU limit",
    "memory": "memory limit",
    "sandbox_memory": "memory limit of the sandbox",
    "processes": "process limit",
    "pipes": "pipe limit",
    "terminals": "terminal limit",
    "output": "output limit",
    "text": "text limit",
    "messages": "message limit",
    "budget_wall": "wall budget",
    "budget_cpu": "CPU budget",
}
_COUNTED: Final[Mapping[Limit, str]] = {
    "processes": "process",
    "pipes": "pipe",
    "terminals": "terminal",
    "messages": "message",
}
_SIZED: Final[frozenset[Limit]] = frozenset({"memory", "sandbox_memory", "output", "text"})


def duration(seconds: float) -> str:
    """As people say it: ``4.2 ms``, ``0.42 s``, ``5 s``, ``2 min 5 s``, ``1 h``."""
    if 0 < seconds < 0.0995:
        milliseconds = seconds * 1000
        return f"{_trimmed(milliseconds, 1 if milliseconds < 9.95 else 0)} ms"
    if seconds < 59.95:
        return f"{_trimmed(seconds, 2 if seconds < 9.995 else 1)} s"
    if round(seconds) < 3600:
        return _in_two(round(seconds), "min", "s")
    return _in_two(round(seconds / 60), "h", "min")


def size(size_bytes: float) -> str:
    """In binary units: ``512 B``, ``87 MiB``, ``1.5 GiB``."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    value = size_bytes / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if value < 1023.5:
            return f"{_tenths(value)} {unit}"
        value /= 1024
    return f"{_tenths(value)} TiB"


def size_change(change_bytes: int) -> str:
    """With its sign: ``+12 MiB``, ``−3 MiB``."""
    return f"{'−' if change_bytes < 0 else '+'}{size(abs(change_bytes))}"


def count(number: float, noun: str) -> str:
    """``1 process``, ``3 processes``, ``10,001 messages``."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,.0f} {noun}{ending}"


def amount(limit: Limit, value: float) -> str:
    """A value of ``limit`` in the unit it is counted in."""
    if limit in _COUNTED:
        return count(value, _COUNTED[limit])
    return size(value) if limit in _SIZED else duration(value)


def amount_beyond(limit: Limit, used: float, allowed: float) -> str:
    """What was used: ``5.03 s``; where the reading does not show the excess, ``more than 5 s``."""
    text, allowed_text = amount(limit, used), amount(limit, allowed)
    return f"more than {allowed_text}" if used < allowed or text == allowed_text else text


def _in_two(number: int, unit: str, sixtieth: str) -> str:
    whole, rest = divmod(number, 60)
    return f"{whole} {unit} {rest} {sixtieth}" if rest else f"{whole} {unit}"


def _tenths(value: float) -> str:
    return _trimmed(value, 1 if value < 99.95 else 0)


def _trimmed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text
