"""What each section of a policy may say. What this build cannot enforce is refused, never ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, get_args

from sandbox_kernel.policy import model
from sandbox_kernel.policy.code_section import read_code
from sandbox_kernel.policy.document import Node, read_choice, read_items, read_list, read_word
from sandbox_kernel.policy.find import Source
from sandbox_kernel.policy.model import Setting, suggestion
from sandbox_kernel.policy.units import UnitError, shown

# From weak to strong; what this build has of them is in `model.Level`.
_LEVELS: Final = ("restricted", "process", "container", "gvisor")
_ABSENT: Final = ("outputs", "audit")
# Of `isolation`: what an engine can have as the name of an image or a runtime.
NAMES: Final = {
    "image": re.compile(r"[a-z0-9][\w./:-]{0,200}(@sha256:[0-9a-f]{64})?", re.ASCII),
    "runtime": re.compile(r"[A-Za-z][\w.-]{0,60}", re.ASCII),
}
_EXAMPLES: Final = {
    "image": "`python`, a tag such as `team/analysis:3`, or one with its digest, `TAG@sha256:…`",
    "runtime": "`runsc`, or another runtime by its name in the engine's configuration",
}


def absent_section(key: str) -> tuple[str, str] | None:
    """What to say of a section that other builds have."""
    if key not in _ABSENT:
        return None
    hint = f"Remove it: nothing would enforce it. Sections: {', '.join(READERS)}."
    return f"section {key!r} is not known to this build", hint


def _read_amounts(
    table: Mapping[str, Setting], source: Source, section: str, node: Node
) -> dict[str, float | None]:
    amounts = {}
    for key, value in read_items(source, node, section, table):
        try:
            amounts[table[key].field] = table[key].read(read_word(source, key, value))
        except UnitError as error:
            hint = f"Write {table[key].wanted}."
            source.refuse(value.start_mark, f"{section}.{key}: {error}", hint)
    return amounts


def _read_isolation(source: Source, section: str, node: Node) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for key, value in read_items(source, node, section, model.Isolation._fields):
        if key in NAMES:
            word = read_word(source, key, value)
            if not NAMES[key].fullmatch(word):
                what = f"{section}.{key}: {shown(word)} is no name that an engine could have"
                source.refuse(value.start_mark, what, f"Write {_EXAMPLES[key]}.")
            read[key] = word
            continue
        if key == "require":
            word = read_word(source, key, value)
            read[key] = _level(source, f"{section}.require", word, value)
            continue
        levels: list[str] = []
        for word, item in read_list(source, f"{section}.prefer", value):
            if word in levels:
                source.refuse(item.start_mark, f"{word!r} is there twice", "Remove one of them.")
            levels.append(_level(source, f"{section}.prefer", word, item))
        if not levels:
            hint = f"Name at least one level: {', '.join(get_args(model.Level))}."
            source.refuse(value.start_mark, f"{section}.prefer is empty", hint)
        read[key] = tuple(levels)
    return read


def _level(source: Source, key: str, word: str, node: Node) -> str:
    available = get_args(model.Level)
    if word in available:
        return word
    if word in _LEVELS:
        what = f"{key}: this build has no level {word!r}"
        source.refuse(node.start_mark, what, f"Write {' or '.join(available)}.")
    what = f"{key}: {shown(word)} is not a level of isolation"
    source.refuse(node.start_mark, what, suggestion(word, _LEVELS))


def _read_network(source: Source, section: str, node: Node) -> str:
    word = read_word(source, section, node)
    if word not in get_args(model.Network):
        what = (
            f"network: {shown(word)} is not possible in this build: its sandboxes have no network"
        )
        source.refuse(node.start_mark, what, "Write `network: none`.")
    return word


def _read_workspace(source: Source, section: str, node: Node) -> dict[str, str]:
    read = {}
    for key, value in read_items(source, node, section, ["mount"]):
        read[key] = read_word(source, key, value)
        if read[key] not in get_args(model.Mount):
            what = (
                f"workspace.mount: {shown(read[key])} is not possible in this build: it mounts the "
                "notebook's folder for reading only"
            )
            source.refuse(value.start_mark, what, "Write `mount: read-only`.")
    return read


def _read_environment(source: Source, section: str, node: Node) -> dict[str, tuple[str, ...]]:
    read: dict[str, tuple[str, ...]] = {}
    for key, value in read_items(source, node, section, ["pass"]):
        for word, item in read_list(source, f"{section}.{key}", value):
            # The sandbox is on its way, with its environment, before the policy is read.
            what = f"environment.pass: {shown(word)} cannot be passed on by this build"
            source.refuse(item.start_mark, what, "Write `pass: []`; set what a cell needs in it.")
        read[key] = ()
    return read


# A new section: its table or its own reader here, its type in model.py, its argument in
# `load.load_policy`, and its lines in effective.py and schema.py.
TABLES: Final = {"limits": model.LIMITS, "budget": model.BUDGET}
READERS: Final[Mapping[str, Callable[[Source, str, Node], Any]]] = {
    "isolation": _read_isolation,
    **{section: partial(_read_amounts, table) for section, table in TABLES.items()},
    "network": _read_network,
    "workspace": _read_workspace,
    "environment": _read_environment,
    "code": read_code,
    "stdin": partial(read_choice, get_args(model.Stdin)),
    "checkpoint": partial(read_choice, get_args(model.Checkpoint)),
    "annotate": partial(read_choice, get_args(model.Annotate)),
}
