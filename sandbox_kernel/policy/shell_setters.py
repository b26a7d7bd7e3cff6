"""Commands of a shell that set variables by their names, and to what, as far as the text tells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sandbox_kernel.policy.shell_words import UNKNOWN, decoded_escapes, name_set

NAMES: Final = name_set("printf read mapfile readarray getopts let")
_NAME: Final = re.compile(r"([A-Za-z_]\w*)(?:\[.*\])?", re.DOTALL)
_OTHER_PLACE: Final = re.compile("%(?!s)")
_MOST_ROUNDS: Final = 100
_SUM: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)")


def variables(command: str, args: list[str]) -> Iterator[tuple[str, str]]:
    """The name and the value of each variable that the command sets."""
    if command == "printf":
        target, rest = _target(args)
        if match := _NAME.fullmatch(target):
            yield match[1], _formatted(rest)
    elif command == "let":
        for match in filter(None, map(_SUM.match, args)):
            yield match[1], "0"  # some number
    else:
        for match in filter(None, map(_NAME.fullmatch, args)):
            yield match[1], UNKNOWN


def _formatted(args: list[str]) -> str:
    """What ``printf`` makes of a format that only places texts, again and again until all are placed."""
    args = args[1:] if args[:1] == ["--"] else args
    if not args or _OTHER_PLACE.search(args[0]):
        return UNKNOWN
    pieces = decoded_escapes(args[0]).split("%s")
    values = args[1:] or [""]
    placed = len(pieces) - 1
    if not placed:
        return pieces[0]
    rounds = -(-len(values) // placed)
    if rounds > _MOST_ROUNDS:
        return UNKNOWN
    values += [""] * (rounds * placed - len(values))
    turns = iter(values)
    return "".join(
        piece + (next(turns) if index < placed else "")
        for _ in range(rounds)
        for index, piece in enumerate(pieces)
    )


def _target(args: list[str]) -> tuple[str, list[str]]:
    """What ``-v`` names, and the words behind it."""
    first, *rest = args or [""]
    if first == "-v" and rest:
        return rest[0], rest[1:]
    return (first[2:], rest) if first.startswith("-v") else ("", args)
