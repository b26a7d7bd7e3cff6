"""What a shell text does, as far as the text tells: every command in it, and rules that they break.

The text is that of ``!command`` or of a ``%%bash`` cell. IPython may put values of Python variables
into the first kind before a shell sees it: such parts count as unknown words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sandbox_kernel.policy.shell_rules import RULES as RULES
from sandbox_kernel.policy.shell_text import Text
from sandbox_kernel.policy.shell_words import BREAK, UNKNOWN, shown
from sandbox_kernel.policy.syntax import Edit, Effort, Parsed, parse_shell
from sandbox_kernel.policy.verdict import Embedded, Hit

_DEEPEST: Final = 6
_MOST_LETTERS: Final = 64 * 1024
_MOST_TEXTS: Final = 100  # read within one another
# IPython's `{expression}` where it is no shell, and `{a,b}` where the grammar does not expect it.
_BRACES: Final = re.compile(r"(?<![$\\{])\{(?=[^\s{}])((?:[^{}]|\{[^{}]*\})*)\}")
_SLICE: Final = re.compile(r"\$\{[A-Za-z_]\w*(\[[^][]*\])?:[^{}]*\}")  # `${x:$i:1}`
_READ_WRITE: Final = re.compile(r"<>(?!\()")
_JOINED: Final = re.compile(r"(?<=[^\s\\])\\\n(?=\S)")


def examine(text: str, deadline: float | None = None) -> list[Hit | Embedded]:
    """Hits and embedded texts, in order. Raises ``Unreadable`` for what takes too long to read, or
    goes on past the deadline on ``time.thread_time``.
    """
    reader = _Reader(Effort(deadline))
    reader.read(text, 0, None)
    return list(dict.fromkeys(reader.items))


class _Reader:
    """Reads one text and, in turn, the texts that its commands hand to a shell."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self.items: list[Hit | Embedded] = []
        self.texts = 0
        self.letters = 0  # of all texts within the first
        self.commands = 0
        self.other_path = ""
        self.downloads: set[str] = set()

    def read(self, text: str, depth: int, place: tuple[int, int] | None) -> None:
        self.texts += 1
        self.letters += len(text) if depth else 0
        if depth > _DEEPEST or self.texts > _MOST_TEXTS or self.letters > _MOST_LETTERS:
            self.items.append(Hit("shell.too_deep", shown(text), *(place or (1, 0))))
            return
        # A line continued within a word is one word; but not in a comment, which the grammar tells
        # and a pattern does not. Both readings are reported.
        joined = [Edit(match.start(), match.end(), "") for match in _JOINED.finditer(text)]
        for edits in ([], joined) if joined else ([],):
            Text(self, self._parsed(text, edits, place), depth, place).read()

    def _parsed(self, text: str, edits: list[Edit], place: tuple[int, int] | None) -> Parsed:
        parsed = parse_shell(text, edits, self.effort.deadline)
        if not parsed.root.has_error:
            return parsed
        masked = sorted([*edits, *_masks(text)])
        # What overlaps stays as it is.
        masked = [edit for i, edit in enumerate(masked) if not i or edit.start >= masked[i - 1].end]
        if len(masked) > len(edits):
            again = parse_shell(text, masked, self.effort.deadline)
            if not again.root.has_error:
                return again
        if text.strip():
            self.items.append(Hit("shell.unparseable", shown(text.strip()), *(place or (1, 0))))
        return parsed


def _masks(text: str) -> Iterator[Edit]:
    """Parts of a text that shells or IPython read, and the grammar does not."""
    for match in _BRACES.finditer(text):
        inside = match[1]
        if inside.strip() == "sys.executable":
            value = "python"
        elif "," in inside and not re.search(r"[\s()\"']", inside):
            value = inside.replace(",", BREAK)
        else:
            value = UNKNOWN
        yield Edit(match.start(), match.end(), value)
    for match in _SLICE.finditer(text):
        yield Edit(match.start(), match.end(), UNKNOWN)
    for match in _READ_WRITE.finditer(text):
        yield Edit(match.start(), match.end(), ">>")
