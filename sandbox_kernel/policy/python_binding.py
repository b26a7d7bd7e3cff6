"""Which names a cell binds, and to what."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from typing import Final

from sandbox_kernel.policy.python_memory import LONGEST_TEXT, STARS, Memory
from sandbox_kernel.policy.python_names import Names
from sandbox_kernel.policy.python_nodes import Nodes

_PLAIN: Final = (ast.Constant, ast.BinOp, ast.JoinedStr, ast.Name)
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bind_names(nodes: Nodes, memory: Memory | None, paths: Container[str] = frozenset()) -> Names:
    """What the names of a cell stand for, with those of earlier cells."""
    names = Names(memory, nodes.deadline, paths)
    for node in nodes.of(ast.Name):
        if type(node.ctx) is not ast.Load:
            names.bound.add(node.id)
    names.bound.update(node.arg for node in nodes.of(ast.arg))
    names.bound.update(node.name for node in nodes.of(*_DEFINITIONS))
    names.bound.update(node.name for node in nodes.of(ast.ExceptHandler) if node.name)
    names.bound.update(node.name for node in nodes.of(ast.MatchAs, ast.MatchStar) if node.name)
    names.outer.update(_outer_names(nodes))
    for node in nodes.of(ast.Import):
        names.bind_import(node)
    for node in nodes.of(ast.ImportFrom):
        names.bind_import_from(node)
    for node in nodes.of(ast.AugAssign, ast.For, ast.AsyncFor, ast.comprehension):
        if isinstance(node.target, ast.Name):
            names.unsteady(node.target.id)
    for node in nodes.of(ast.arg):
        names.unsteady(node.arg)
    pairs = list(_assignments(nodes))
    imported = len(names.standing)
    for target, value in pairs:
        names.bind(target, value)
    if len(names.standing) > imported:  # some may stand for what is bound further down
        for target, value in reversed(pairs):
            names.rebind(target, value)
    names.settle()
    return names


def _assignments(nodes: Nodes) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in nodes.of(ast.Assign):
        for target in node.targets:
            yield target, node.value
    for node in nodes.of(ast.AnnAssign, ast.NamedExpr):
        if node.value is not None:
            yield node.target, node.value
    for node in nodes.of(ast.withitem):
        if node.optional_vars is not None:
            yield node.optional_vars, node.context_expr
    for node in nodes.of(ast.arguments):
        named = [*node.posonlyargs, *node.args]
        for arg, default in zip(reversed(named), reversed(node.defaults), strict=False):
            yield ast.Name(arg.arg), default
        for arg, default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
            if default is not None:
                yield ast.Name(arg.arg), default


def _outer_names(nodes: Nodes) -> Iterator[str]:
    for node in nodes.outer(ast.Name):
        if type(node.ctx) is ast.Store:
            yield node.id
    yield from (node.name for node in nodes.outer(*_DEFINITIONS))
    for node in nodes.outer(ast.Import, ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    for node in nodes.of(ast.Global):
        yield from node.names


def standings_of(nodes: Nodes, names: Names) -> dict[str, tuple[str, ...] | None]:
    """What later cells will find under the names that this one binds; None for what it deletes."""
    standings: dict[str, tuple[str, ...] | None] = {name: names.known(name) for name in names.outer}
    if names.stars:
        standings[STARS] = names.stars
    for node in nodes.outer(ast.Name):
        if type(node.ctx) is ast.Del:
            # What is notable may outlive it: the line may never be reached.
            standings[node.id] = names.known(node.id) or None
    return standings


def texts_of(names: Names) -> dict[str, str]:
    """Short texts that this cell binds names to, such as parts of a path."""
    found = {}
    for name in names.outer:
        value = names.value(name)
        if value is not None and type(value) in _PLAIN:
            text = names.fold(value)
            if type(text) is str and len(text) <= LONGEST_TEXT:
                found[name] = text
    return found
