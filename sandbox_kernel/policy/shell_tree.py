"""Parts of a shell's tree, and of the words of an interpreter."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from sandbox_kernel.policy.shell_words import name_set

if TYPE_CHECKING:
    from tree_sitter import Node

SHELLS: Final = name_set("bash sh dash zsh ksh mksh ash fish rbash csh tcsh")
_MOST_BELOW: Final = 64
PYTHON: Final = re.compile(r"(i?python|pypy)[\d.]*w?")


def words_of(command: Node, parent: Node | None) -> list[Node]:
    """The command's name and arguments, also those that stand behind a redirection."""
    nodes = [
        child
        for child in command.named_children
        if child.type
        not in ("variable_assignment", "file_redirect", "herestring_redirect", "comment")
    ]
    redirects = [child for child in command.children if child.type == "file_redirect"]
    if parent is not None and parent.type == "redirected_statement":
        redirects += [child for child in parent.children if child.type == "file_redirect"]
    for redirect in redirects:
        # The grammar takes every word after `> file` for part of the redirection.
        targets = [child for child in redirect.named_children if child.type != "file_descriptor"]
        nodes += [child for child in targets[1:] if child.type != "number"]
    return nodes


class Order:
    """Where nodes of some kinds stand among all of a tree, so that a part of it need not be walked."""

    def __init__(self, nodes: Sequence[Node], kinds: Sequence[str]) -> None:
        self._places: dict[int, int] = {}
        self._of_kind: dict[str, list[Node]] = {kind: [] for kind in kinds}
        self._at: dict[str, list[int]] = {kind: [] for kind in kinds}
        for place, node in enumerate(nodes):
            self._places[node.id] = place
            if (same := self._of_kind.get(node.type)) is not None:
                same.append(node)
                self._at[node.type].append(place)

    def below(self, node: Node, kind: str) -> list[Node]:
        """The first nodes of a kind among this one and all below it, which stand behind it in a row."""
        first = self._places[node.id]
        start = bisect_left(self._at[kind], first)
        end = bisect_left(self._at[kind], first + node.descendant_count, start)
        return self._of_kind[kind][start : min(end, start + _MOST_BELOW)]


class Given(NamedTuple):
    """What the words of an interpreter say that it runs; neither: what it reads."""

    code: str | None = None
    script: str | None = None


def given(name: str, args: Sequence[str]) -> Given:
    """What an interpreter is given to run: code among its arguments, or a script."""
    if name in SHELLS:
        return _of_shell(args)
    if PYTHON.fullmatch(name):
        return _of_python(args)
    return _of_other(args)


def _of_shell(args: Sequence[str]) -> Given:
    """``-c`` may be one of several letters; the code is the first word behind all options."""
    runs_code = reads_input = False
    at = 0
    while at < len(args) and args[at][:1] in ("-", "+") and len(args[at]) > 1:
        sign, letters = args[at][0], args[at][1:]
        at += 1
        if letters == "-":
            break
        if letters[0] == "-":
            if letters.startswith("-command"):
                return Given(code=letters.partition("=")[2] or _word(args, at))
            at += letters in ("-rcfile", "-init-file")
            continue
        if letters[0] == "c" and not letters.isalpha():
            return Given(code=letters[1:])
        runs_code |= sign == "-" and "c" in letters
        reads_input |= sign == "-" and "s" in letters
        at += letters.count("o") + letters.count("O")  # names of settings
    if runs_code:
        return Given(code=_word(args, at))
    return Given(script=None if reads_input else _word(args, at))


def _of_python(args: Sequence[str]) -> Given:
    at = 0
    while at < len(args) and args[at].startswith("-") and len(args[at]) > 1:
        word = args[at]
        at += 1
        if word.startswith("--"):
            at += word == "--check-hash-based-pycs"
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter == "c":
                return Given(code=word[place:] or _word(args, at))
            if letter == "m":
                return Given(script=word[place:] or _word(args, at))
            if letter in "WXQ":
                at += place == len(word)  # the value is the rest of the word, or the next one
                break
    return Given(script=_word(args, at))


def _of_other(args: Sequence[str]) -> Given:
    for index, arg in enumerate(args):
        if re.fullmatch(r"-\w*[ep]|--eval|--print|eval", arg) and index + 1 < len(args):
            return Given(code=args[index + 1])
        if match := re.fullmatch(r"-c(.+)|--eval=(.+)", arg, re.DOTALL):
            return Given(code=match[1] or match[2])
        if arg == "-" or not arg.startswith(("-", "+")):
            return Given(script=arg)
    return Given()


def _word(args: Sequence[str], at: int) -> str | None:
    return args[at] if at < len(args) else None
