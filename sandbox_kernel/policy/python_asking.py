"""Where code only asks about the types of functions and code: ``isinstance(f, types.FunctionType)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from sandbox_kernel.policy.python_names import Names
from sandbox_kernel.policy.python_nodes import Nodes

_ASKING: Final = frozenset({"builtins.isinstance", "builtins.issubclass"})
_AMONG_OTHERS: Final = (ast.Tuple, ast.List, ast.Set, ast.BinOp, ast.Subscript)


def asked_about(nodes: Nodes, names: Names) -> set[int]:
    """The nodes that are compared with, tested for or annotated with, by their identity.

    Nothing is made of a type there. What an annotation says can be taken out again, so a strict policy
    may want to know of these places all the same.
    """
    found: set[int] = set()
    waiting = list(_asked(nodes, names))
    while waiting:
        node = waiting.pop()
        found.add(id(node))
        # What is called in there is used, not asked about.
        if isinstance(node, _AMONG_OTHERS):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def _asked(nodes: Nodes, names: Names) -> Iterator[ast.AST]:
    for node in nodes.of(ast.Call):
        asks = names.resolve(node.func)
        if len(asks) == 1 and asks[0] in _ASKING and asks[0][9:] not in names.bound:
            yield from node.args[1:]
    for node in nodes.of(ast.Compare):
        yield from (node.left, *node.comparators)
    for node in nodes.of(ast.arg, ast.AnnAssign):
        if node.annotation is not None:
            yield node.annotation
    for node in nodes.of(ast.FunctionDef, ast.AsyncFunctionDef):
        if node.returns is not None:
            yield node.returns
