"""Where the facts about a cell are gathered."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterable
from typing import Final, NamedTuple

from sandbox_kernel.policy import python_tables as tables
from sandbox_kernel.policy.model import Names as Decisions
from sandbox_kernel.policy.verdict import DECISIONS, Embedded, Hit, Language, Magic

Item = Hit | Embedded | Magic
_MOST_OF_A_KIND: Final = 20  # the first places of one finding are enough for anybody


class Listed(NamedTuple):
    """Modules within modules that a policy has a word of its own on.

    ``np.f2py`` may be one or a function: it is worth a hit only where the policy tells it from NumPy.
    """

    names: frozenset[str] = frozenset()
    partly: frozenset[str] = frozenset()  # packages of which only some modules are allowed
    paths: frozenset[str] = frozenset()  # the names and all that leads to them

    @classmethod
    def of(cls, imports: Decisions) -> Listed:
        names = frozenset(name for name in imports.entries if "." in name)
        partly = {
            package
            for name in names
            for package in tables.prefixes(name)
            if package not in names  # which are told of themselves
            and DECISIONS.index(imports.decide(package)) > DECISIONS.index(imports.entries[name])
        }
        paths = frozenset(part for name in names for part in tables.prefixes(name))
        return cls(names, frozenset(partly), paths)


NOTHING_LISTED: Final = Listed()


class Report:
    """Items with their places in the code, each once."""

    def __init__(self, code: str, listed: Listed = NOTHING_LISTED) -> None:
        self.listed = listed
        self._parts: dict[tuple[int, str], ast.AST] = {}  # what is listed, by node and name
        # The parser counts columns in bytes of UTF-8.
        self._lines = None if code.isascii() else code.encode(errors="replace").splitlines()
        self._items: dict[Item, None] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._rules: set[str] = set()
        self.shells: list[ast.expr] = []  # what stands for IPython's shell, or for what gives it
        self.asked_about: Callable[[], Container[int]] = (
            frozenset  # nodes that are only asked about
        )

    def hit(self, rule: str, about: str, node: ast.AST) -> None:
        count = self._counts.get((rule, about), 0)
        if count < _MOST_OF_A_KIND:
            self._counts[rule, about] = count + 1
            self._rules.add(rule)
            self._items[Hit(rule, about, *self._place(node))] = None

    def uses(self, names: Iterable[str], node: ast.AST) -> None:
        """What stands there under these qualified names is used."""
        listed, partly, _ = self.listed
        for name in names:
            for rule in tables.rules_on(name):
                if rule == "python.code_objects":
                    self.takes_type(name, node)
                else:
                    self.hit(rule, name.removeprefix("builtins."), node)
            if name in listed:
                self._parts[id(node), name] = node
            elif partly and name.rpartition(".")[0] in partly:
                self.hit("python.import", name, node)

    def takes_type(self, name: str, node: ast.AST) -> None:
        """What makes code of parts, unless it is a type that is only asked about there."""
        is_asked = name.rpartition(".")[2] in tables.CODE_TYPES and id(node) in self.asked_about()
        self.hit("python.code_access" if is_asked else "python.code_objects", name, node)

    def takes_module(self, base: str, attribute: str, node: ast.AST) -> None:
        """``base.attribute``, if that is another module, which ``base`` imported."""
        if (inner := tables.inner_module(base, attribute)) is not None:
            self.hit("python.transitive_module", f"{base}.{attribute}", node)
            self.hit("python.import", inner, node)
        elif (other := tables.reexported(base, attribute)) is not None:
            self.hit("python.import", other, node)

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
        # Of `np.testing.assert_equal`, the longest that is listed: it was named to be told apart.
        longer = {id(getattr(node, "value", None)) for node in self._parts.values()}
        for (key, name), node in self._parts.items():
            if key not in longer:
                self.hit("python.import", name, node)
        return sorted(self._items, key=lambda item: (item.line, item.column))

    def _place(self, node: ast.AST) -> tuple[int, int]:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        if self._lines is not None and 0 < line <= len(self._lines):
            column = len(self._lines[line - 1][:column].decode(errors="replace"))
        return line, column
