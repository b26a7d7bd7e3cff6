"""All nodes of a syntax tree by kind, read in one walk that knows the whole grammar."""

from __future__ import annotations

import ast
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from sandbox_kernel.policy.source import TOO_LONG, Unreadable

# The fields of each kind of node that hold further nodes. Contexts and operators hold nothing.
_FUNCTION: Final = "args body decorator_list returns type_params"
_LOOP: Final = "target iter body orelse"
_COMPREHENSION: Final = "elt generators"
_GRAMMAR: Final[Mapping[str, str]] = {
    "Module": "body",
    "Expression": "body",
    "FunctionDef": _FUNCTION,
    "AsyncFunctionDef": _FUNCTION,
    "ClassDef": "bases keywords body decorator_list type_params",
    "Return": "value",
    "Delete": "targets",
    "Assign": "targets value",
    "TypeAlias": "name type_params value",
    "AugAssign": "target value",
    "AnnAssign": "target annotation value",
    "For": _LOOP,
    "AsyncFor": _LOOP,
    "While": "test body orelse",
    "If": "test body orelse",
    "With": "items body",
    "AsyncWith": "items body",
    "Match": "subject cases",
    "Raise": "exc cause",
    "Try": "body handlers orelse finalbody",
    "TryStar": "body handlers orelse finalbody",
    "Assert": "test msg",
    **dict.fromkeys(
        ["Import", "ImportFrom", "Global", "Nonlocal", "Pass", "Break", "Continue"], ""
    ),
    "Expr": "value",
    "BoolOp": "values",
    "NamedExpr": "target value",
    "BinOp": "left right",
    "UnaryOp": "operand",
    "Lambda": "args body",
    "IfExp": "test body orelse",
    "Dict": "keys values",
    "Set": "elts",
    "ListComp": _COMPREHENSION,
    "SetComp": _COMPREHENSION,
    "GeneratorExp": _COMPREHENSION,
    "DictComp": "key value generators",
    "Await": "value",
    "Yield": "value",
    "YieldFrom": "value",
    "Compare": "left comparators",
    "Call": "func args keywords",
    "FormattedValue": "value format_spec",
    "JoinedStr": "values",
    "TemplateStr": "values",
    "Interpolation": "value format_spec",
    "Constant": "",
    "Attribute": "value",
    "Subscript": "value slice",
    "Starred": "value",
    "Name": "",
    "List": "elts",
    "Tuple": "elts",
    "Slice": "lower upper step",
    "comprehension": "target iter ifs",
    "ExceptHandler": "type body",
    "arguments": "posonlyargs args vararg kwonlyargs kw_defaults kwarg defaults",
    "arg": "annotation",
    "keyword": "value",
    "withitem": "context_expr optional_vars",
    "match_case": "pattern guard body",
    "MatchValue": "value",
    "MatchSingleton": "",
    "MatchSequence": "patterns",
    "MatchMapping": "keys patterns",
    "MatchClass": "cls patterns kwd_patterns",
    "MatchStar": "",
    "MatchAs": "pattern",
    "MatchOr": "patterns",
    "TypeVar": "bound default_value",
    "ParamSpec": "default_value",
    "TypeVarTuple": "default_value",
}
FIELDS: Final[Mapping[type[ast.AST], tuple[str, ...]]] = {
    kind: tuple(field for field in fields.split() if field in kind._fields)
    for name, fields in _GRAMMAR.items()
    if (kind := getattr(ast, name, None)) is not None
}
_SCOPES: Final = frozenset(
    {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda}
    | {ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp}
)


class Nodes(defaultdict[type[ast.AST], list[Any]]):
    """All nodes of a tree by kind, those within functions before those of the cell itself.

    Inner ones come first: what an expression stands for follows from its parts.
    """

    def __init__(self, tree: ast.Module, deadline: float | None) -> None:
        super().__init__(list)
        self.unknown: list[ast.AST] = []
        self.deadline = deadline
        inner: list[ast.AST] = []
        self._walk([tree], inner)
        self.outer_count = {kind: len(found) for kind, found in self.items()}
        within = [getattr(node, field) for node in inner for field in FIELDS[type(node)]]
        flat = (value if type(value) is list else [value] for value in within)
        self._walk(list(chain.from_iterable(flat)), None)
        for found in self.values():
            found.reverse()

    def _walk(self, stack: list[Any], inner: list[Any] | None) -> None:
        pop, push, extend, fields_of = stack.pop, stack.append, stack.extend, FIELDS.get
        add_to: dict[type[ast.AST], Callable[[ast.AST], None]] = {}
        count = 0
        while stack:
            node = pop()
            kind = type(node)
            fields = fields_of(kind)
            if fields is None:
                if node is not None:  # as the keys of {**x} are
                    self.unknown.append(node)
                    extend(ast.iter_child_nodes(node))
                continue
            add = add_to.get(kind)
            if add is None:
                add = add_to[kind] = self[kind].append
            add(node)
            if not fields:
                continue  # names and constants: two thirds of all
            if inner is not None and kind in _SCOPES:
                inner.append(node)
                continue
            for field in fields:
                value = getattr(node, field)
                if type(value) is list:
                    extend(value)
                elif value is not None:
                    push(value)
            count += 1
            if count % 1024 == 0 and self.deadline and time.thread_time() > self.deadline:
                raise Unreadable(TOO_LONG)

    def of(self, *kinds: type[ast.AST]) -> Sequence[Any]:
        if len(kinds) == 1:
            return self.get(kinds[0], ())
        return [node for kind in kinds if kind in self for node in self[kind]]

    def outer(self, *kinds: type[ast.AST]) -> Iterator[Any]:
        """Those outside of functions and classes."""
        for kind in kinds:
            if (count := self.outer_count.get(kind)) is not None:
                yield from self[kind][-count:]
