"""Finds secrets in text that is not code: settings, shells, options, queries of URLs, JSON within a string."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sandbox_kernel.audit.secret_names import Promise, is_secret, promise

# `name=`, `name: `, `"name": `, `\"name\": `, `['name'] = `, `--name `.
_NAME: Final = re.compile(
    r"(?<![\w$])(?P<name>[A-Za-z_][\w.-]{0,80}+)(?:"
    r"(?:\\?[\"'`])?\]?(?P<sign>[^\S\n]{0,8}(?:=>|:=|={1,2}|:(?!//))[^\S\n]{0,8})|"
    r"(?P<space>[^\S\n]{1,8}(?:\\\n\s{0,8})?))"
)
_VALUE: Final = re.compile(
    r"[rbuf]{0,2}(?P<escape>\\?)(?P<quote>[\"'`])"
    r"(?P<quoted>(?:\\(?![\"'`])[^\n]|(?!(?P=escape)(?P=quote))[^\\\n]){4,4000}+)(?P=escape)(?P=quote)|"
    r"(?P<bare>[^\s'\"`;&<>\\|-][^\s'\"`;&<>\\]{3,4000}+)(?P<end>[^\S\n]*+(?:$|\\n|;|\#|\Z))?",
    re.MULTILINE,
)
_YAML_PAIR: Final = re.compile(
    r"\bname:[^\S\n]{0,8}[\"']?(?P<name>[\w-]{1,80}+)[\"']?[^\S\n]*+\n[^\S\n]*+"
    r"value:[^\S\n]{0,8}[\"']?(?P<bare>[^\s\"'{$<]{4,4000}+)"
)
# What is no value but code, or stands for one: `get(…)`, `tokens[0]`, `$NAME`, `{name}`, `%s`.
_CODE: Final = re.compile(
    r"[A-Za-z_][\w.]{0,100}+[(\[]|[$<{(\[%]|(?:self|os|None|True|False|lambda)\b"
)
_AFTER: Final = ",.)]}:"


def secrets_in_settings(text: str) -> Iterator[tuple[int, int]]:
    """Where values under names of secrets stand in a text."""
    at = 0
    while name := _NAME.search(text, at):
        at = name.end()
        promised = promise(name["name"])
        if not promised or (name["space"] and text[max(0, name.start() - 1) : name.start()] != "-"):
            continue
        if _CODE.match(text, at) or (value := _VALUE.match(text, at)) is None:
            continue
        at = value.end()
        if value["quoted"] is not None:
            if is_secret(value["quoted"], promised):
                yield value.span("quoted")
        elif _is_value(value, name, promised):
            yield _trimmed(value)
    if "value:" in text:
        for pair in _YAML_PAIR.finditer(text):
            if is_secret(pair["bare"], promise(pair["name"])):
                yield _trimmed(pair)


def _is_value(value: re.Match[str], name: re.Match[str], promised: Promise) -> bool:
    bare = value["bare"]
    if bare == name["name"] or not is_secret(bare, promised):
        return False
    # Behind a colon or a space there may be prose: there, a value ends its line or looks random.
    is_tight = name["sign"] == "=" or name["space"] is not None
    return is_tight or value["end"] is not None or is_secret(bare, Promise.WEAK)


def _trimmed(value: re.Match[str]) -> tuple[int, int]:
    start = value.start("bare")
    return start, start + len(value["bare"].rstrip(_AFTER))
