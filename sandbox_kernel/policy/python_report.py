"""Where the facts about a cell are gathered."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Final

from sandbox_kernel.policy.verdict import Embedded, Hit, Language, Magic

Item = Hit | Embedded | Magic
_MOST_OF_A_KIND: Final = 20  # the first places of one finding are enough for anybody


class Report:
    """Items with their places in the code, each once."""

    def __init__(self, code: str) -> None:
        # The parser counts columns in bytes of UTF-8.
        self._lines = None if code.isascii() else code.encode(errors="replace").splitlines()
        self._items: dict[Item, None] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._rules: set[str] = set()
        self.shells: list[ast.expr] = []  # what stands for IPython's shell, or for what gives it

    def hit(self, rule: str, about: str, node: ast.AST) -> None:
        count = self._counts.get((rule, about), 0)
        if count < _MOST_OF_A_KIND:
            self._counts[rule, about] = count + 1
            self._rules.add(rule)
            self._items[Hit(rule, about, *self._place(node))] = None

    def embedded(self, language: Language, text: str, node: ast.AST) -> None:
        self._items[Embedded(language, text, *self._place(node))] = None

    def magic(self, name: str, arguments: str, body: str | None, node: ast.AST) -> None:
        self._items[Magic(name, arguments, body, *self._place(node))] = None

    def within(self, node: ast.AST, items: Iterable[Hit | Embedded]) -> None:
        """What was found in a text that begins at this node."""
        line, column = self._place(node)
        for item in items:
            moved = item._replace(line=line + item.line - 1, column=column if item.line == 1 else 0)
            self._items[moved] = None

    def has(self, rule: str) -> bool:
        return rule in self._rules

    def items(self) -> list[Item]:
        """In the order of the code."""
        return sorted(self._items, key=lambda item: (item.line, item.column))

    def _place(self, node: ast.AST) -> tuple[int, int]:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        if self._lines is not None and 0 < line <= len(self._lines):
            column = len(self._lines[line - 1][:column].decode(errors="replace"))
        return line, column
