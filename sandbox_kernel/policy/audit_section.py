"""The section ``audit`` of a policy: what is kept of what cells did."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from sandbox_kernel.policy import model
from sandbox_kernel.policy.document import Node, read_choice, read_items, read_list, read_word
from sandbox_kernel.policy.find import Source
from sandbox_kernel.policy.model import ANCHOR_EVERY
from sandbox_kernel.policy.units import UnitError, shown

KEYS: Final = (
    *("enabled", "required", "code", "durability", "redact"),
    *("anchor", "anchor_every", "mirror"),
)
_CHOICES: Final = {
    "enabled": ("true", "false"),
    "required": ("true", "false"),
    "code": get_args(model.AuditCode),
    "durability": get_args(model.Durability),
}
PLACES: Final = {
    "anchor": re.compile(r"none|syslog|file:/[^\x00-\x1f]{1,1000}|command:/[^\x00-\x1f]{1,1000}"),
    "mirror": re.compile(r"none|syslog|file:/[^\x00-\x1f]{1,1000}"),
}
_EXAMPLES: Final = {
    "anchor": "none, syslog, file:/PATH or command:/PROGRAM ARGUMENT …",
    "mirror": "none, syslog or file:/PATH",
}
LONGEST_PATTERN: Final = 500
# A repetition of what is repeated, as in (a+)+: it can take time without end.
_NESTED: Final = re.compile(r"[*+}]\??[^()]*\)\s*(?:[*+]|\{\d*,)")


def read_audit(source: Source, section: str, node: Node) -> dict[str, Any]:
    """What one file sets, by its keys."""
    read: dict[str, Any] = {}
    for key, value in read_items(source, node, section, KEYS):
        where = f"{section}.{key}"
        if key in _CHOICES:
            word = read_choice(_CHOICES[key], source, where, value)
            read[key] = word == "true" if key in ("enabled", "required") else word
        elif key in PLACES:
            read[key] = _read_place(source, key, where, value)
        elif key == "redact":
            read[key] = tuple(
                _read_pattern(source, where, word, item)
                for word, item in read_list(source, where, value)
            )
        else:
            read[key] = _read_duration(source, where, value)
    return read


def merge_audit(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What a file sets, over what it extends. A pattern more must not give away what others hide."""
    merged = {**base, **own}
    if own.get("redact"):  # an empty list empties
        merged["redact"] = tuple(dict.fromkeys((*base.get("redact", ()), *own["redact"])))
    return merged


def build_audit(merged: Mapping[str, Any]) -> model.Audit:
    """The whole section, from what all files say together."""
    rest = {key: value for key, value in merged.items() if key != "anchor_every"}
    return model.Audit(**rest, anchor_seconds=merged["anchor_every"])


def _read_place(source: Source, key: str, where: str, node: Node) -> str:
    word = read_word(source, where, node)
    if not PLACES[key].fullmatch(word):
        what = f"{where}: {shown(word)} is no place that this build can write to"
        source.refuse(node.start_mark, what, f"Write {_EXAMPLES[key]}.")
    return word


def _read_duration(source: Source, where: str, node: Node) -> float | None:
    try:
        return ANCHOR_EVERY.read(read_word(source, where, node))
    except UnitError as error:
        source.refuse(node.start_mark, f"{where}: {error}", f"Write {ANCHOR_EVERY.wanted}.")


def _read_pattern(source: Source, where: str, text: str, node: Node) -> str:
    try:
        matches_nothing = re.compile(text).fullmatch("") is not None
    except (re.error, RecursionError, OverflowError) as error:
        what = f"{where}: {shown(text)} is not a regular expression: {error}"
        source.refuse(node.start_mark, what, "Write it in Python's form, in single quotes.")
    if matches_nothing or len(text) > LONGEST_PATTERN:
        what = f"{where}: {shown(text)} matches the empty text, or is too long"
        source.refuse(
            node.start_mark, what, "Say what the secret begins with, such as `acme_[a-z0-9]{20}`."
        )
    if _NESTED.search(text):
        what = f"{where}: {shown(text)} repeats what is repeated, which can take time without end"
        source.refuse(node.start_mark, what, "Repeat single characters: `[a-z0-9]{20,40}`.")
    return text
