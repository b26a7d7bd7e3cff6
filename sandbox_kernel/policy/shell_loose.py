"""Commands in text that a shell expands and the grammar leaves as it is.

Such are here-documents, words with back quotes in ``${x:-…}``, and back quotes within back quotes. Bash
also expands some text late, though it was quoted: subscripts of what it takes for the name of a variable,
as in ``test -v 'x[$(id)]'``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from sandbox_kernel.policy.shell_words import name_set

if TYPE_CHECKING:
    from tree_sitter import Node

    from sandbox_kernel.policy.syntax import Parsed

# Their parts are read where they stand.
_READ: Final = frozenset(("command_substitution", "process_substitution"))
_MARK: Final = re.compile(r"\\.|`|\$\(\(|\$\(", re.DOTALL)
_TICK: Final = re.compile(r"\\.|`", re.DOTALL)
_PAREN: Final = re.compile(r"""\\.|[()]|'[^']*'|"(?:[^"\\]|\\.)*+\"""", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\([\\`$])")
_SUBSCRIPT: Final = re.compile(r"\w\[")
_SUBSCRIPT_PART: Final = re.compile(r"\w?\[|\]|\$\(|`")
_PROMPT: Final = re.compile(r"\$\{[^{}]*@P\}")
# They take some of their words for names of variables, or for sums.
_NAMING: Final = name_set(
    "test [ printf read unset declare typeset local export readonly let mapfile readarray wait getopts"
)
_HANDING_ON: Final = name_set("set shift read mapfile readarray getopts bash sh dash zsh ksh")
# To these, `a[$(NF-1)]` is a field.
_OTHER_LANGUAGES: Final = name_set("awk gawk mawk nawk perl")
_CALCULATING: Final = name_set(
    "test_command declaration_command unset_command variable_assignment subscript "
    "arithmetic_expansion compound_statement c_style_for_statement for_statement"
)


def loose_text(parsed: Parsed, node: Node) -> str:
    """The text of a node without the substitutions that the grammar has found."""
    pieces: list[str] = []
    at = node.start_byte
    stack = list(reversed(node.children))
    while stack:
        child = stack.pop()
        if child.type in _READ:
            pieces.append(parsed.slice(at, child.start_byte))
            at = child.end_byte
        else:
            stack.extend(reversed(child.children))
    pieces.append(parsed.slice(at, node.end_byte))
    return " ".join(pieces)


def substitutions(text: str) -> Iterator[str]:
    """The commands in ``$(…)`` and in back quotes, the outermost of each, read once over the text."""
    at = 0
    while match := _MARK.search(text, at):
        at = match.end()
        if match[0] == "`":
            end = next((m.start() for m in _TICK.finditer(text, at) if m[0] == "`"), len(text))
            yield unescaped(text[at:end])
            at = end + 1
        elif match[0] == "$(":
            end = _closing(text, at)
            yield text[at:end]
            at = end + 1


def _closing(text: str, at: int) -> int:
    depth = 1
    for match in _PAREN.finditer(text, at):
        depth += (match[0] == "(") - (match[0] == ")")
        if not depth:
            return match.start()
    return len(text)


def unescaped(text: str) -> str:
    """What stands between back quotes, as the shell within reads it."""
    return _ESCAPED.sub(r"\1", text)


def is_evaluated_late(word: str, parsed: Parsed, node: Node, parents: dict[int, Node]) -> bool:
    """Whether a word, which stands in this node, runs a command when it is taken for a name or a sum."""
    last = max(word.rfind("$("), word.rfind("`"))
    if last < 0:
        return False
    above = parents.get(node.id)
    if above is not None and above.type == "subscript":
        return True
    if _SUBSCRIPT.search(word, 0, last) is None:
        return False
    return _expects_a_name(parsed, node, parents)


def may_become_a_value(word: str, parsed: Parsed, node: Node, parents: dict[int, Node]) -> bool:
    """The same of a word that the text may hand on: ``f 'x[$(id)]'`` is the ``$1`` of a function."""
    if "[" not in word or not has_command_in_subscript(word):
        return False
    return _command_of(parsed, node, parents) not in _OTHER_LANGUAGES


def hands_on(command: str) -> bool:
    """Whether words become values of variables by it, perhaps those of a command before it."""
    return command in _HANDING_ON


def has_command_in_subscript(text: str) -> bool:
    """``x[$(id)]``, told from ``x[$1] = $(NF)`` of another language; back quotes count in pairs."""
    depth = ticks = 0
    for match in _SUBSCRIPT_PART.finditer(text):
        part = match[0]
        if part == "]":
            depth -= depth > 0
            ticks = ticks if depth else 0
        elif part[-1] == "[":
            depth += depth > 0 or len(part) > 1
        elif depth:
            ticks += part == "`"
            if part == "$(" or ticks > 1:
                return True
    return False


def is_prompt(expansion: str) -> bool:
    """``${x@P}``, which runs the commands in a value."""
    return _PROMPT.fullmatch(expansion) is not None


def _expects_a_name(parsed: Parsed, node: Node, parents: dict[int, Node]) -> bool:
    above = parents.get(node.id)
    while above is not None:
        if above.type in _CALCULATING:
            return True
        if above.type == "command":
            return _command_of(parsed, node, parents) in _NAMING
        above = parents.get(above.id)
    return False


def _command_of(parsed: Parsed, node: Node, parents: dict[int, Node]) -> str:
    """The name of the command that a node is an argument of."""
    above = parents.get(node.id)
    while above is not None and above.type != "command":
        above = parents.get(above.id)
    name = None if above is None else above.child_by_field_name("name")
    return "" if name is None else parsed.text(name).strip("\\\"'")
