"""Compare two recordings, and tell which differences are meant."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import Any

from .declared import DECLARED, Declared
from .exchange import Exchange
from .normalise import Record, records
from .recorder import Recording

ABSENT = "(absent)"
# As repr writes it.
_COLOUR = re.compile(r"\\x1b\[[\d;]*m")


@dataclass(frozen=True)
class Difference:
    """One place where the two kernels do not say the same."""

    request: str
    where: str
    plain: str
    other: str

    def is_declared_by(self, declared: Declared) -> bool:
        return fnmatchcase(self.request, declared.request) and fnmatchcase(
            self.where, declared.where
        )

    def __str__(self) -> str:
        return "\n".join(
            (
                f"{self.request}  [{self.where}]",
                _shown("plain", self.plain),
                _shown("other", self.other),
            )
        )


def _shown(side: str, text: str) -> str:
    return textwrap.indent(textwrap.shorten(f"{side}: {_COLOUR.sub('', text)}", 1200), "    ")


def differences(exchange: Exchange, plain: Recording, other: Recording) -> list[Difference]:
    """Every difference in one exchange, declared or not."""
    ours, theirs = records(plain, exchange), records(other, exchange)
    # Silence on both sides would look the same, but shows that the script asks for too much.
    found = [
        Difference(exchange.name, "unanswered", *waited)
        for waited in [[side.missing.get(exchange.name, "-") for side in (plain, other)]]
        if waited != ["-", "-"]
    ]
    for channel in sorted(ours.keys() | theirs.keys()):
        pairs = _aligned(ours.get(channel, []), theirs.get(channel, []))
        for left, right in pairs:
            kind = (left or right or {})["msg_type"]
            parts = _unequal(left, right) if left and right else [("", left, right)]
            for path, before, after in parts:
                where = f"{channel}: {kind}{path}"
                found.append(Difference(exchange.name, where, _told(before), _told(after)))
    return found


def _told(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, dict) and "msg_type" in value:
        value = {key: value[key] for key in ("parent", "content")}
    return repr(value)


def _aligned(left: list[Record], right: list[Record]) -> list[tuple[Record | None, Record | None]]:
    """Pair the messages of two sequences by what they are; None where one side has none."""
    kinds = [[_kind(record) for record in side] for side in (left, right)]
    pairs: list[tuple[Record | None, Record | None]] = []
    matcher = SequenceMatcher(None, *kinds, autojunk=False)
    for _, start, end, other_start, other_end in matcher.get_opcodes():
        lefts, rights = left[start:end], right[other_start:other_end]
        if [_kind(record) for record in lefts] == [_kind(record) for record in rights]:
            pairs += zip(lefts, rights, strict=True)
        else:
            pairs += [(record, None) for record in lefts]
            pairs += [(None, record) for record in rights]
    return pairs


def _kind(record: Record) -> tuple[str, str, str]:
    state = record.get("content", {}).get("execution_state", "")
    return record["msg_type"], record["parent"], state


def _unequal(left: Any, right: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """The paths at which two values differ, with both values."""
    if left == right:
        return []
    if isinstance(left, dict) and isinstance(right, dict):
        found = []
        for key in sorted(left.keys() | right.keys()):
            found += _unequal(left.get(key), right.get(key), f"{path}.{key}")
        return found
    return [(path, left, right)]


def undeclared(found: list[Difference]) -> list[Difference]:
    return [one for one in found if not any(one.is_declared_by(entry) for entry in DECLARED)]


def unused(found: list[Difference]) -> list[Declared]:
    """Declared differences that no longer occur."""
    return [entry for entry in DECLARED if not any(one.is_declared_by(entry) for one in found)]


def table(script: tuple[Exchange, ...], plain: Recording, other: Recording) -> str:
    """One line per exchange, then every difference in full."""
    lines, details = [f"{'requests':>8}  {'messages':>8}  {'result':<22} exchange"], []
    everything = []
    for exchange in script:
        found = differences(exchange, plain, other)
        everything += found
        wrong = undeclared(found)
        result = f"{len(wrong)} differences" if wrong else "declared" if found else "the same"
        messages = sum(map(len, records(plain, exchange).values()))
        lines.append(f"{len(exchange.requests):>8}  {messages:>8}  {result:<22} {exchange.name}")
        details += [str(difference) for difference in wrong]
    if any(everything):
        details += [f"declared, but does not occur: {entry.what}" for entry in unused(everything)]
    return "\n".join((*lines, "", *details))
