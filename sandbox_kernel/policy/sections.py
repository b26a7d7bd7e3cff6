"""What each section of a policy may say. What this build cannot enforce is refused, never ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, get_args

from sandbox_kernel.policy import model
from sandbox_kernel.policy.audit_section import read_audit
from sandbox_kernel.policy.code_section import read_code
from sandbox_kernel.policy.document import Node, read_choice, read_items, read_list, read_word
from sandbox_kernel.policy.find import Source
from sandbox_kernel.policy.model import Setting, suggestion
from sandbox_kernel.policy.units import UnitError, shown

# Of `isolation`: what an engine can have as the name of an image or a runtime.
NAMES: Final = {
    "image": re.compile(r"[a-z0-9][\w./:-]{0,200}(@sha256:[0-9a-f]{64})?", re.ASCII),
    "runtime": re.compile(r"[A-Za-z][\w.-]{0,60}", re.ASCII),
}
# Runtimes that have no kernel of their own: with one of them `gvisor` would be `container` by another
# name.
SHARING: Final = re.compile(
    r"(io\.containerd\.)?(runc|crun|youki|nvidia|sysbox-runc)(\.v[0-9]+)?"
    r"|io\.containerd\.runtime\.v1\.linux"
)
_EXAMPLES: Final = {
    "image": "`python`, a tag such as `team/analysis:3`, or one with its digest, `TAG@sha256:…`",
    "runtime": "`runsc`, or another runtime by its name in the engine's configuration",
}
# Of `environment`: a variable, and those that the sandbox sets itself or its Python starts by.
VARIABLE: Final = re.compile(r"[A-Za-z_]\w{0,200}", re.ASCII)
OWN_VARIABLE: Final = re.compile(
    r"(HOME|USER|LOGNAME|TMPDIR|PATH|VIRTUAL_ENV|IPYTHONDIR|(PYTHON|LD_|GLIBC_|SANDBOX_KERNEL).*)"
)


def _read_amounts(
    table: Mapping[str, Setting], source: Source, section: str, node: Node
) -> dict[str, float | None]:
    return {
        table[key].field: _read_amount(table[key], source, f"{section}.{key}", value)
        for key, value in read_items(source, node, section, table)
    }


def _read_amount(setting: Setting, source: Source, path: str, node: Node) -> float | None:
    try:
        return setting.read(read_word(source, path.rpartition(".")[2], node))
    except UnitError as error:
        source.refuse(node.start_mark, f"{path}: {error}", f"Write {setting.wanted}.")


def _read_limits(source: Source, section: str, node: Node) -> dict[str, float | None]:
    amounts: dict[str, float | None] = {}
    table = TABLES["limits"]
    for key, value in read_items(source, node, section, [*table, "background"]):
        if key == "background":
            amounts |= _read_amounts(model.BACKGROUND, source, f"{section}.background", value)
        else:
            amounts[table[key].field] = _read_amount(table[key], source, f"{section}.{key}", value)
    return amounts


def _read_isolation(source: Source, section: str, node: Node) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for key, value in read_items(source, node, section, model.Isolation._fields):
        if key in NAMES:
            word = read_word(source, key, value)
            if not NAMES[key].fullmatch(word):
                what = f"{section}.{key}: {shown(word)} is no name that an engine could have"
                source.refuse(value.start_mark, what, f"Write {_EXAMPLES[key]}.")
            if key == "runtime" and SHARING.fullmatch(word):
                what = (
                    f"{section}.runtime: {shown(word)} runs cells on the host's own kernel: with "
                    "it the level `gvisor` would be no more than `container`"
                )
                hint = "Write `runsc`, or prefer the level `container`, which needs no runtime."
                source.refuse(value.start_mark, what, hint)
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
    levels = get_args(model.Level)
    if word in levels:
        return word
    what = f"{key}: {shown(word)} is not a level of isolation"
    source.refuse(node.start_mark, what, suggestion(word, levels))


def _read_possible(words: Sequence[str], why: str, source: Source, section: str, node: Node) -> str:
    """A word; another than ``words`` asks for what this build does not have."""
    word = read_word(source, section, node)
    if word not in words:
        what = f"{section}: {shown(word)} is not possible in this build: {why}"
        source.refuse(node.start_mark, what, f"Write `{section}: {words[0]}`.")
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
        words = list(read_list(source, f"{section}.{key}", value))
        for word, item in words:
            if not VARIABLE.fullmatch(word):
                what = f"environment.pass: {shown(word)} is not the name of a variable"
                source.refuse(item.start_mark, what, "Write names such as `TZ`, without values.")
            if OWN_VARIABLE.fullmatch(word):
                what = (
                    f"environment.pass: {shown(word)} decides how the sandbox's own Python starts"
                )
                source.refuse(item.start_mark, what, "Leave it out; set it in a cell if need be.")
        read[key] = tuple(dict.fromkeys(word for word, _ in words))
    return read


# A new section: its table or its own reader here, its type in model.py, its argument in
# `load.load_policy`, and its lines in effective.py and schema.py.
TABLES: Final = {"limits": model.LIMITS | model.SANDBOX_LIMITS, "budget": model.BUDGET}
READERS: Final[Mapping[str, Callable[[Source, str, Node], Any]]] = {
    "isolation": _read_isolation,
    "limits": _read_limits,
    "budget": partial(_read_amounts, TABLES["budget"]),
    "network": partial(_read_possible, get_args(model.Network), "its sandboxes have no network"),
    "workspace": _read_workspace,
    "environment": _read_environment,
    "code": read_code,
    "outputs": partial(
        _read_possible, get_args(model.Outputs), "what cells show reaches the browser as it is"
    ),
    "stdin": partial(read_choice, get_args(model.Stdin)),
    "audit": read_audit,
    "checkpoint": partial(read_choice, get_args(model.Checkpoint)),
    "annotate": partial(read_choice, get_args(model.Annotate)),
    "late_output": partial(read_choice, get_args(model.LateOutput)),
}
