"""Parts of a shell's tree, and of the words of an interpreter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

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


def script_of(args: Sequence[str]) -> str | None:
    """The first argument of an interpreter that is no option."""
    return next((arg for arg in args if arg == "-" or not arg.startswith(("-", "+"))), None)


def code_of(name: str, args: Sequence[str], is_shell: bool) -> str | None:
    """The code among an interpreter's arguments."""
    pattern = (
        r"-\w*c|--command"
        if is_shell or PYTHON.fullmatch(name)
        else r"-\w*[ep]|--eval|--print|eval"
    )
    for index, arg in enumerate(args):
        if re.fullmatch(pattern, arg) and index + 1 < len(args):
            rest = [
                word
                for word in args[index + 1 :]
                if not is_shell or not re.fullmatch(r"[-+]\w+", word)
            ]
            return rest[0] if rest else None
        if not is_shell and (match := re.fullmatch(r"-c(.+)|--eval=(.+)", arg, re.DOTALL)):
            return match[1] or match[2]
        if not arg.startswith(("-", "+")):
            return None
    return None
