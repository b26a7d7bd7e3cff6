"""Trees of shell and JavaScript, read in bounded time, with places as a person counts them.

tree-sitter and a grammar take 70 ms to load: import happens only for a cell that holds such text.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from sandbox_kernel.policy.source import TOO_LONG, Unreadable

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Point

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BACK_QUOTE: Final = re.compile(r"\\.|`", re.DOTALL)
_MAX_BYTES: Final = 256 * 1024
_MAX_NODES: Final = 40_000  # some 100 ms of walking
_MAX_SECONDS: Final = 0.1
_MAX_LETTERS: Final = 512 * 1024  # put together of parts, in one text
_CHUNK: Final = 256
# A broken pipeline takes the parser time that grows with the square of its length, and it asks for no
# more text meanwhile: the deadline would not be seen.
_MAX_PIPES: Final = 1000
_MAX_OPEN_PIPES: Final = (
    8  # behind a back quote that nothing closes, where the time doubles with each
)


class Effort:
    """What reading one text may take: time up to a deadline, and letters that are put together.

    A few letters can stand for many, ``b=$a$a; c=$b$b; …``, so these are counted before they are made.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline  # on ``time.thread_time``
        self._letters = 0

    def look(self) -> None:
        """Raise ``Unreadable`` if the time is over."""
        if self.deadline is not None and time.thread_time() > self.deadline:
            raise Unreadable(TOO_LONG)

    def spend(self, letters: int) -> None:
        """Raise ``Unreadable`` if so many more letters are too many, or the time is over."""
        self._letters += letters
        if self._letters > _MAX_LETTERS:
            raise Unreadable(TOO_LONG)
        self.look()


class Edit(NamedTuple):
    """A part of the text that was replaced before parsing: IPython or the shell would do so too."""

    start: int
    end: int
    text: str


class Parsed:
    """A tree, its bytes, and the way from there back to the text that was given."""

    def __init__(
        self,
        text: str,
        edits: Sequence[Edit],
        language: Callable[[], Language],
        deadline: float | None,
    ) -> None:
        self._text = text
        self._starts: list[int] = [0]  # in the edited text, by characters
        self._origins: list[int] = [0]
        pieces: list[str] = []
        at = length = 0
        for edit in edits:
            pieces += (text[at : edit.start], edit.text)
            length += edit.start - at
            for start, origin in ((length, edit.start), (length + len(edit.text), edit.end)):
                self._starts.append(start)
                self._origins.append(origin)
            length += len(edit.text)
            at = edit.end
        self._edited = "".join(pieces) + text[at:] if edits else text
        # A lone surrogate is no UTF-8, and no part of a name or an operator either.
        self.data = _SURROGATE.sub("\ufffd", self._edited).encode()
        self._plain = len(self.data) == len(self._edited)
        self._lines: list[int] | None = None
        self.root = _parse(self.data, language(), deadline)

    def text(self, node: Node) -> str:
        return self.slice(node.start_byte, node.end_byte)

    def slice(self, start: int, end: int) -> str:
        return self.data[start:end].decode("utf-8", "replace")

    def place(self, node: Node) -> tuple[int, int]:
        """Line from 1 and column from 0 of where it begins, in the text that was given."""
        offset = node.start_byte if self._plain else len(self.slice(0, node.start_byte))
        index = bisect_right(self._starts, offset) - 1
        offset = min(self._origins[index] + offset - self._starts[index], len(self._text))
        if self._lines is None:
            self._lines = [0]
            self._lines += [i + 1 for i, letter in enumerate(self._text) if letter == "\n"]
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1]


def parse_shell(text: str, edits: Sequence[Edit] = (), deadline: float | None = None) -> Parsed:
    """The tree of a shell text. Raises ``Unreadable`` if that would take too long."""
    pipes = text.count("|")
    if pipes > _MAX_PIPES or (pipes > _MAX_OPEN_PIPES and _has_open_back_quote(text)):
        raise Unreadable(TOO_LONG)
    return Parsed(text, edits, _shell, deadline)


def _has_open_back_quote(text: str) -> bool:
    return "`" in text and sum(match == "`" for match in _BACK_QUOTE.findall(text)) % 2 == 1


def parse_javascript(text: str, deadline: float | None = None) -> Parsed:
    """The tree of a JavaScript text. Raises ``Unreadable`` if that would take too long."""
    return Parsed(text, (), _javascript, deadline)


def walk(root: Node) -> Iterator[Node]:
    """Every node below and including this one, in the order of the text. No recursion."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def upwards(root: Node) -> list[Node]:
    """The same nodes, each behind all that is below it."""
    nodes: list[Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(node.children)
    nodes.reverse()
    return nodes


def family(root: Node) -> tuple[list[Node], dict[int, Node]]:
    """All nodes in order, and the parent of each by its id: to ask a node itself takes time that
    grows with its depth.
    """
    nodes = list(walk(root))
    return nodes, {child.id: node for node in nodes for child in node.children}


def _parse(data: bytes, language: Language, latest: float | None) -> Node:
    from tree_sitter import Parser

    if len(data) > _MAX_BYTES:
        raise Unreadable(TOO_LONG)
    parser = Parser(language)  # its own, since threads must not share one
    if len(data) <= _CHUNK:
        return _bounded(parser.parse(data).root_node)
    # Recovery from errors can take quadratic time. The parser's own way to stop it crashes, so it is
    # told instead that the text ends here. Time of this thread, so that a busy host changes nothing.
    deadline = time.thread_time() + _MAX_SECONDS
    if latest is not None:
        deadline = min(deadline, latest)
    late = False

    def read(offset: int, _: Point) -> bytes:
        nonlocal late
        late = late or time.thread_time() > deadline
        if late:
            return b""
        # Whole characters: of a part of one it asks for the rest, and crashes if the text ends there.
        end = offset + _CHUNK
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        return data[offset:end]

    tree = parser.parse(read)
    if late:
        raise Unreadable(TOO_LONG)
    return _bounded(tree.root_node)


def _bounded(root: Node) -> Node:
    if root.descendant_count > _MAX_NODES:
        raise Unreadable(TOO_LONG)
    return root


@cache
def _shell() -> Language:
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


@cache
def _javascript() -> Language:
    import tree_sitter_javascript
    from tree_sitter import Language

    return Language(tree_sitter_javascript.language())
