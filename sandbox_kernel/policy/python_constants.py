"""Which constant an expression gives, as far as that follows from other constants."""

from __future__ import annotations

import ast
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

from sandbox_kernel.policy import fold
from sandbox_kernel.policy.fold import UNKNOWN
from sandbox_kernel.policy.python_memory import Standing
from sandbox_kernel.policy.source import TOO_LONG, Unreadable

MAX_DEPTH: Final = 40
_MAX_WORK: Final = 300_000  # steps, some 0.3 s
_LOOK_EVERY: Final = 256  # steps between two looks at the clock
_MOST_ITEMS: Final = 1000


class Constants(ABC):
    """The constants of one cell, computed on demand within a bounded amount of work."""

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline
        self._work = 0
        self._next_look = _LOOK_EVERY
        self._values: dict[str, ast.expr | None] = {}  # of names bound once

    @abstractmethod
    def resolve(self, node: ast.expr, depth: int = 0) -> Standing:
        """The qualified names that an expression may stand for."""

    def _step(self, count: int = 1) -> None:
        self._work += count
        if self._work < self._next_look:
            return
        self._next_look = self._work + _LOOK_EVERY
        late = self._deadline is not None and time.thread_time() > self._deadline
        if late or self._work > _MAX_WORK:
            raise Unreadable(TOO_LONG)

    def fold(self, node: ast.expr, depth: int = 0) -> Any:
        """The constant that an expression gives, or ``UNKNOWN``."""
        self._step()
        if type(node) is ast.Constant:
            return fold.bounded(node.value)
        compute = self._FOLD.get(type(node))
        if compute is None or depth > MAX_DEPTH:
            return UNKNOWN
        value = compute(self, node, depth + 1)
        if isinstance(value, str | bytes | list | tuple):
            self._step(len(value) >> 8)  # a step is not the same for a letter and for a long text
        return value

    @abstractmethod
    def earlier(self, name: str) -> str | None:
        """The text that an earlier cell bound it to, if this one does not bind it."""

    def value(self, name: str) -> ast.expr | None:
        """The one expression that it is bound to."""
        return self._values.get(name)

    def _fold_name(self, node: ast.Name, depth: int) -> Any:
        value = self._values.get(node.id)
        if value is not None:
            return self.fold(value, depth)
        text = None if node.id in self._values else self.earlier(node.id)
        return UNKNOWN if text is None else text

    def _fold_binary(self, node: ast.BinOp, depth: int) -> Any:
        left = self.fold(node.left, depth)
        right = UNKNOWN if left is UNKNOWN else self.fold(node.right, depth)
        return UNKNOWN if right is UNKNOWN else fold.binary(type(node.op), left, right)

    def _fold_unary(self, node: ast.UnaryOp, depth: int) -> Any:
        value = self.fold(node.operand, depth)
        negative = isinstance(node.op, ast.USub) and isinstance(value, int | float)
        return -value if negative else UNKNOWN

    def _fold_joined(self, node: ast.JoinedStr, depth: int) -> Any:
        parts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.format_spec is not None or part.conversion not in (-1, ord("s")):
                    return UNKNOWN
                part = part.value
            parts.append(self.fold(part, depth))
        if any(part is UNKNOWN for part in parts):
            return UNKNOWN
        return fold.bounded("".join(map(str, parts)))

    def _fold_items(self, node: ast.List | ast.Tuple, depth: int) -> Any:
        items = []
        for element in node.elts:
            if (item := self.fold(element, depth)) is UNKNOWN:
                return UNKNOWN
            items.append(item)
        return fold.bounded(items)

    def _fold_item(self, node: ast.Subscript, depth: int) -> Any:
        value = self.fold(node.value, depth)
        if value is UNKNOWN:
            return UNKNOWN
        if not isinstance(node.slice, ast.Slice):
            index = self.fold(node.slice, depth)
            return UNKNOWN if index is UNKNOWN else fold.item(value, index)
        ends = (node.slice.lower, node.slice.upper, node.slice.step)
        bounds = [None if end is None else self.fold(end, depth) for end in ends]
        return UNKNOWN if UNKNOWN in bounds else fold.item(value, slice(*bounds))

    def _fold_mapped(self, node: ast.GeneratorExp | ast.ListComp, depth: int) -> Any:
        """``chr(c) for c in [111, 115]``, the one loop that is worth it."""
        [loop, *others] = node.generators
        if others or loop.ifs or not isinstance(loop.target, ast.Name):
            return UNKNOWN
        over = self.fold(loop.iter, depth)
        if not isinstance(over, list | tuple | str | bytes) or len(over) > _MOST_ITEMS:
            return UNKNOWN
        kept = self._values.get(loop.target.id)
        results = []
        try:
            for value in over:
                self._values[loop.target.id] = ast.Constant(value)
                if (result := self.fold(node.elt, depth)) is UNKNOWN:
                    return UNKNOWN
                results.append(result)
        finally:
            self._values[loop.target.id] = kept
        return fold.bounded(results)

    def _fold_call(self, node: ast.Call, depth: int) -> Any:
        if len(node.args) > 3 or any(isinstance(a, ast.Starred) for a in node.args):
            return UNKNOWN
        for name in self.resolve(node.func, depth):
            if name in fold.FUNCTIONS:
                arguments = self._arguments(node, depth)
                return UNKNOWN if arguments is None else fold.call(name, arguments)
            if name == "builtins.map" and len(node.args) == 2:
                return self._fold_map(node, depth)
            if name.startswith(("builtins.str.", "builtins.bytes.")):  # str.lower('X')
                of_class = self._arguments(node, depth)
                if of_class:
                    return fold.method(of_class[0], name.rpartition(".")[2], of_class[1:])
        if not isinstance(node.func, ast.Attribute):
            return UNKNOWN
        value = self.fold(node.func.value, depth)
        if value is UNKNOWN:
            return UNKNOWN
        if node.func.attr == "format" and node.keywords:
            return self._fold_format(value, node, depth)
        arguments = self._arguments(node, depth)
        return UNKNOWN if arguments is None else fold.method(value, node.func.attr, arguments)

    def _fold_format(self, value: Any, node: ast.Call, depth: int) -> Any:
        """``'{a}{b}'.format(a='sys', b='tem')``."""
        arguments = [self.fold(argument, depth) for argument in node.args]
        named = {key.arg: self.fold(key.value, depth) for key in node.keywords if key.arg}
        if len(named) < len(node.keywords) or UNKNOWN in (*arguments, *named.values()):
            return UNKNOWN
        return fold.method(value, "format", arguments, named)

    def _fold_map(self, node: ast.Call, depth: int) -> Any:
        over = self.fold(node.args[1], depth)
        called = [name for name in self.resolve(node.args[0], depth) if name in fold.FUNCTIONS]
        if (
            not called
            or not isinstance(over, list | tuple | str | bytes)
            or len(over) > _MOST_ITEMS
        ):
            return UNKNOWN
        return fold.bounded([fold.call(called[0], [value]) for value in over])

    def _arguments(self, node: ast.Call, depth: int) -> list[Any] | None:
        arguments = [self.fold(argument, depth) for argument in node.args]
        if any(argument is UNKNOWN for argument in arguments) or node.keywords:
            return None
        return arguments

    _FOLD: Final[Mapping[type[ast.expr], Callable[..., Any]]] = {
        ast.Name: _fold_name,
        ast.BinOp: _fold_binary,
        ast.UnaryOp: _fold_unary,
        ast.JoinedStr: _fold_joined,
        ast.List: _fold_items,
        ast.Tuple: _fold_items,
        ast.Subscript: _fold_item,
        ast.GeneratorExp: _fold_mapped,
        ast.ListComp: _fold_mapped,
        ast.Call: _fold_call,
    }
