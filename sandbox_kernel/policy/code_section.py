"""The section `code` of a policy: lists of names, and a decision for each rule of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Final, NamedTuple

from sandbox_kernel.policy import rules
from sandbox_kernel.policy.document import Node, read_choice, read_items, read_list, read_word
from sandbox_kernel.policy.find import Source
from sandbox_kernel.policy.model import LONGEST_NAME, MAX_SIZE, NAME_RULES, Code, Names
from sandbox_kernel.policy.units import UnitError, shown
from sandbox_kernel.policy.verdict import DECISIONS, Decision

NAMES_KEYS: Final = ("otherwise", *DECISIONS)
_read_decision = partial(read_choice, DECISIONS)


class Part(NamedTuple):
    """One language in the section: where its names are decided, and how names look there."""

    name_rule: str | None  # the rule on names, if it has one
    key: str | None  # where its lists are; None if they stand in the part itself
    pattern: str  # of an entry, as a regular expression that JSON Schema reads alike
    wanted: str  # what to write as an entry


_IDENTIFIER: Final = r"[^\W\d]\w*"
# The key of each part in YAML. A rule belongs to the part whose key begins with the rule's first word.
PARTS: Final[Mapping[str, Part]] = {
    "python": Part(
        "python.import",
        "imports",
        rf"{_IDENTIFIER}(\.{_IDENTIFIER})*",
        "a module such as os or os.path",
    ),
    "shell": Part(
        "shell.command",
        "commands",
        r"[A-Za-z0-9_.\[:][A-Za-z0-9_.+-]*",
        "a command such as curl, without its folder and arguments",
    ),
    "magics": Part("magic", None, _IDENTIFIER, "a magic such as timeit, without %"),
    "javascript": Part(None, None, "", ""),
}


@cache
def rules_of(part: str) -> tuple[str, ...]:
    """The ids that may stand in ``code.<part>.rules``."""
    return tuple(id for id in rules.all_ids() if _part_of(id) == part and id not in NAME_RULES)


def _part_of(rule: str) -> str | None:
    word = rule.partition(".")[0]
    return next((part for part in PARTS if part in (word, f"{word}s")), None)


# Reading ---------------------------------------------------------------------------------------


def read_code(source: Source, section: str, node: Node) -> dict[str, Any]:
    """What one file sets, flat: ``max_bytes``, the lists by field of ``Code``, ``rules``."""
    read: dict[str, Any] = {"rules": {}}
    for key, value in read_items(source, node, section, ["max_size", *PARTS]):
        if key == "max_size":
            read[MAX_SIZE.field] = _read_size(source, f"{section}.{key}", value)
        else:
            _read_part(source, key, f"{section}.{key}", value, read)
    return read


def _read_size(source: Source, key: str, node: Node) -> float | None:
    try:
        return MAX_SIZE.read(read_word(source, key, node))
    except UnitError as error:
        source.refuse(node.start_mark, f"{key}: {error}", f"Write {MAX_SIZE.wanted}.")


def _read_part(source: Source, name: str, where: str, node: Node, read: dict[str, Any]) -> None:
    part = PARTS[name]
    own = [part.key] if part.key else NAMES_KEYS if part.name_rule else []
    where_names = f"{where}.{part.key}" if part.key else where
    names: list[tuple[str, Node]] = []
    for key, value in read_items(source, node, where, [*own, "rules"]):
        if key == "rules":
            read["rules"] |= _read_rules(source, name, f"{where}.rules", value)
        elif key == part.key:
            names += read_items(source, value, where_names, NAMES_KEYS)
        else:
            names.append((key, value))
    if names and part.name_rule:
        read[NAME_RULES[part.name_rule]] = _read_names(source, part, where_names, names)


def _read_rules(source: Source, part: str, where: str, node: Node) -> dict[str, str]:
    known = rules_of(part)
    items = read_items(source, node, where, known, partial(_misplaced, where))
    return {rule: _read_decision(source, rule, value) for rule, value in items}


def _misplaced(where: str, rule: str) -> tuple[str, str] | None:
    """What to say of a rule that exists, but not there."""
    if rule not in rules.all_ids():
        return None
    what = f"{rule!r} is not a key of {where}"
    for name, part in PARTS.items():
        if part.name_rule == rule:
            return what, f"The lists of code.{name}{f'.{part.key}' if part.key else ''} decide it."
    home = _part_of(rule)
    return what, f"Write it in code.{home}.rules." if home else "It is always denied: remove it."


def _read_names(
    source: Source, part: Part, where: str, items: list[tuple[str, Node]]
) -> dict[str, Any]:
    pattern = re.compile(part.pattern)
    read: dict[str, Any] = {}
    first: dict[str, tuple[str, int]] = {}
    for key, node in items:
        if key == "otherwise":
            read[key] = _read_decision(source, f"{where}.{key}", node)
            continue
        read[key] = []
        for entry, item in read_list(source, f"{where}.{key}", node):
            if not pattern.fullmatch(entry) or len(entry) > LONGEST_NAME:
                what = f"{where}.{key}: {shown(entry)} is not a name"
                source.refuse(item.start_mark, what, f"Write {part.wanted}.")
            if entry in first:
                list_, line = first[entry]
                what = f"{entry!r} is in {key}, but already in {list_} in line {line}"
                source.refuse(item.start_mark, what, "Remove one of them.")
            first[entry] = (key, item.start_mark.line + 1)
            read[key].append(entry)
    return read


# From several files ----------------------------------------------------------------------------


def merge_code(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What a file sets, over what it extends: each rule and each name for itself."""
    merged = {**base, **own, "rules": {**base.get("rules", {}), **own["rules"]}}
    for field in NAME_RULES.values():
        if field in base and field in own:
            merged[field] = _merge_names(base[field], own[field])
    return merged


def _merge_names(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A list adds to the one it extends: to deny one more name must not allow all the others.

    What the file says itself wins: a name that it lists is in no list it inherits, and what is
    decided more mildly below that name is not there either. An empty list empties. Only a file that
    states all of the table has lists of its own: so does one that is shown whole.
    """
    if all(key in own for key in NAMES_KEYS):
        return dict(own)
    stated = {entry: decision for decision in DECISIONS for entry in own.get(decision, ())}
    merged = {**base, **own}
    for decision in DECISIONS:
        given = own.get(decision)
        if given == []:
            continue
        inherited = [
            entry for entry in base.get(decision, ()) if not _overruled(entry, decision, stated)
        ]
        merged[decision] = [*inherited, *(given or ())]
    return merged


def _overruled(entry: str, decision: Decision, stated: Mapping[str, Decision]) -> bool:
    """Whether the file itself lists this name, or one above it more strictly."""
    if entry in stated:
        return True
    above = entry.rpartition(".")[0]
    while above and above not in stated:
        above = above.rpartition(".")[0]
    return bool(above) and DECISIONS.index(stated[above]) > DECISIONS.index(decision)


def code_gaps(settings: Mapping[str, Any]) -> list[str]:
    """The keys that the section lacks to be complete."""
    gaps = [] if MAX_SIZE.field in settings else ["code.max_size"]
    for name, part in PARTS.items():
        if part.name_rule:
            given = settings.get(NAME_RULES[part.name_rule], {})
            where = f"code.{name}.{part.key}" if part.key else f"code.{name}"
            gaps += [f"{where}.{key}" for key in NAMES_KEYS if key not in given]
        stated = settings.get("rules", {})
        gaps += [f"code.{name}.rules.{rule}" for rule in rules_of(name) if rule not in stated]
    return gaps


def build_code(settings: Mapping[str, Any]) -> Code:
    """The section of a complete policy."""
    names = {field: _build_names(settings[field]) for field in NAME_RULES.values()}
    return Code(max_bytes=settings[MAX_SIZE.field], rules=settings["rules"], **names)


def _build_names(settings: Mapping[str, Any]) -> Names:
    entries: dict[str, Decision] = {
        entry: decision for decision in DECISIONS for entry in settings[decision]
    }
    return Names(settings["otherwise"], entries)
