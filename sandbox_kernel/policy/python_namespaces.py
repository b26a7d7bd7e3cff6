"""What is taken out of a namespace by a name that only the run knows: ``globals()[name]``, ``vars(m).items()``.

A namespace is a mapping whose values are what names stand for. With a constant key it is followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from sandbox_kernel.policy.python_names import Names, is_namespace
from sandbox_kernel.policy.python_nodes import Nodes
from sandbox_kernel.policy.python_report import Report

_RULE: Final = "python.dynamic_attribute"
_VALUES: Final = frozenset({"items", "values", "popitem"})
_TAKES_KEY: Final = frozenset({"get", "pop", "setdefault", "__getitem__"})
# They give names, numbers or texts, or run code with it, on which there are rules of their own.
_HARMLESS: Final = frozenset(
    {
        f"builtins.{name}"
        for name in ("print", "len", "list", "sorted", "set", "tuple", "str", "repr")
    }
    | {f"builtins.{name}" for name in ("eval", "exec", "isinstance", "iter", "enumerate", "type")}
    | {"timeit.timeit", "timeit.repeat", "timeit.Timer", "doctest.testmod", "cProfile.runctx"}
)
_CONTAINERS: Final = (ast.List, ast.Tuple, ast.Set)
_GIVING: Final = frozenset({"builtins.globals", "builtins.locals", "builtins.vars"})


def examine_namespaces(nodes: Nodes, names: Names, report: Report) -> None:
    """Report values that are taken by unknown names, or all at once, and namespaces that are handed on."""
    if not _mentions_one(nodes, names):
        return
    for node, about in (*_taken(nodes, names), *_handed_on(nodes, names)):
        standing = next(filter(is_namespace, names.resolve(node)), None)
        if standing is not None and not _is_other(standing):
            report.hit(_RULE, f"{standing.removeprefix('builtins.')}{about}", node)


def _is_other(standing: str) -> bool:
    """The list of modules, on which there is a rule of its own, or the attributes of some object."""
    of_object = standing.endswith(").__dict__") and standing != "builtins.type().__dict__"
    return of_object or standing == "sys.modules"


def _mentions_one(nodes: Nodes, names: Names) -> bool:
    """Whether there may be any: nearly no cell has one."""
    if any(
        node.attr in ("__dict__", "user_ns", "user_global_ns") for node in nodes.of(ast.Attribute)
    ):
        return True
    seen = {node.id for node in nodes.of(ast.Name)}
    return any(
        is_namespace(standing) or standing in _GIVING
        for name in seen
        for standing in names.name(name)
    )


def _taken(nodes: Nodes, names: Names) -> Iterator[tuple[ast.expr, str]]:
    for node in nodes.of(ast.Subscript):
        if type(node.ctx) is ast.Load and not isinstance(names.fold(node.slice), str):
            yield node.value, "[…]"
    with_key = {
        id(node.func)
        for node in nodes.of(ast.Call)
        if node.args and isinstance(names.fold(node.args[0]), str)
    }
    for node in nodes.of(ast.Attribute):
        if node.attr in _VALUES or (node.attr in _TAKES_KEY and id(node) not in with_key):
            yield node.value, f".{node.attr}"


def _handed_on(nodes: Nodes, names: Names) -> Iterator[tuple[ast.expr, str]]:
    for node in nodes.of(*_CONTAINERS):
        for element in node.elts:
            yield element, ""
    for node in nodes.of(ast.Return, ast.Yield):
        if node.value is not None:
            yield node.value, ""
    for node in nodes.of(ast.Call):
        standings = names.resolve(node.func)
        is_followed = any(map(is_namespace, names.resolve(node)))  # dict(globals())
        if is_followed or not _HARMLESS.isdisjoint(standings):
            continue
        takes_item = any(
            name.endswith(tuple(f".{key}" for key in _TAKES_KEY)) for name in standings
        )
        if takes_item and len(node.args) > 1 and isinstance(names.fold(node.args[1]), str):
            continue  # dict.get(globals(), 'name')
        is_format = isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "update")
        for argument in node.args:
            yield argument, ""
        for keyword in node.keywords:
            if not (is_format and keyword.arg is None):  # '…'.format(**locals())
                yield keyword.value, ""
