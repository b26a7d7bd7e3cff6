"""Parts of a shell's tree, and of the words of an interpreter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from sandbox_kernel.policy.shell_words import name_set
from sandbox_kernel.policy.syntax import Parsed, walk

if TYPE_CHECKING:
    from tree_sitter import Node

SHELLS: Final = name_set("bash sh dash zsh ksh mksh ash fish rbash csh tcsh")
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


def commands_in(node: Node, most: int = 200) -> list[Node]:
    found: list[Node] = []
    for index, each in enumerate(walk(node)):
        if index > most:
            break
        if each.type == "command":
            found.append(each)
    return found


def is_fork_bomb(parsed: Parsed, body: Node, name: str) -> bool:
    """Whether a function calls itself twice in one pipeline, or itself in the background."""
    kinds: set[str] = set()
    calls = 0
    for index, node in enumerate(walk(body)):
        if index > 500:
            break
        kinds.add(node.type)
        calls += node.type == "command_name" and parsed.text(node).strip("\"'\\") == name
    return calls > 0 and ("&" in kinds or (calls > 1 and "pipeline" in kinds))


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
