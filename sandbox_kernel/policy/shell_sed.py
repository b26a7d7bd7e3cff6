"""The commands that a script for ``sed`` runs: GNU's ``e``, and the flag ``e`` of ``s/…/…/e``.

Read once from left to right: a pattern that looks for the same takes time that grows with the cube of
the script's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from sandbox_kernel.policy.shell_words import UNKNOWN

_BETWEEN: Final = re.compile(r"[\s;{}!,\d$+~]*")  # commands, and numbers of lines before one
_FLAGS: Final = re.compile(r"[gpiImMe\d]*")
_LINE: Final = re.compile(r"[^\n]*")
_LABEL: Final = re.compile(r"[^\n;]*")


def run_by(args: Sequence[str]) -> Iterator[str]:
    """The texts that a shell will read, of all scripts among the words of ``sed``."""
    for script in _scripts(args):
        yield from _commands(script)


def _scripts(args: Sequence[str]) -> Iterator[str]:
    first_plain: str | None = None
    is_given = False
    at = 0
    while at < len(args):
        word = args[at]
        at += 1
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            if name in ("--expression", "--file"):
                is_given = True
                at += not sign
                if name == "--expression":
                    yield value if sign else "".join(args[at - 1 : at])
        elif word.startswith("-") and len(word) > 1:
            for place, letter in enumerate(word[1:], 2):
                if letter in "efl":
                    is_given |= letter != "l"
                    value = word[place:]
                    at += not value
                    if letter == "e":
                        yield value or "".join(args[at - 1 : at])
                    break
                if letter == "i":
                    break  # the rest is the ending of a copy
        elif first_plain is None:
            first_plain = word
    if first_plain is not None and not is_given:
        yield first_plain


def _commands(script: str) -> Iterator[str]:
    at = 0
    while True:
        at = _end(_BETWEEN, script, at)
        command = script[at : at + 1]
        at += 1
        if not command:
            return
        if command in "/\\":  # an address
            mark = command if command == "/" else script[at : at + 1]
            at = _behind(script, mark, at + (command == "\\"))
            while script[at : at + 1] in ("I", "M"):
                at += 1
        elif command in "sy":
            mark = script[at : at + 1]
            middle = _behind(script, mark, at + 1)
            behind = _behind(script, mark, middle)
            at = _end(_FLAGS, script, behind)
            if command == "s" and "e" in script[behind:at]:
                yield script[middle : behind - 1]
        elif command == "e":
            end = _end(_LINE, script, at)
            yield script[at:end].strip() or UNKNOWN  # the line that was read
            at = end
        elif command in "aicrRwW#":
            at = _end(_LINE, script, at)
        elif command in "btT:":
            at = _end(_LABEL, script, at)


def _end(pattern: re.Pattern[str], script: str, at: int) -> int:
    match = pattern.match(script, at)
    return match.end() if match else at


def _behind(script: str, mark: str, at: int) -> int:
    """The place behind the next such mark that no backslash is before."""
    while at < len(script):
        letter = script[at]
        if letter == mark:
            return at + 1
        at += 2 if letter == "\\" else 1
    return len(script)
