"""What code does with IPython's shell, the object that ``get_ipython()`` gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from sandbox_kernel.policy import python_tables as tables
from sandbox_kernel.policy.python_names import Names
from sandbox_kernel.policy.python_nodes import Nodes
from sandbox_kernel.policy.python_report import Report

# They do nothing with it but ask what it is: `'google.colab' in str(get_ipython())`.
_ASKING: Final = frozenset({"builtins.str", "builtins.repr", "builtins.hasattr"})


def examine_shell_attribute(node: ast.Attribute, report: Report, *, is_called: bool) -> None:
    """``get_ipython().name``."""
    about = f"get_ipython().{node.attr}"
    if node.attr in tables.SHELL_RUNS and not is_called:
        report.hit("python.ipython_exec", about, node)
    if node.attr in tables.SHELL_HOOKS:
        report.hit("python.ipython_hooks", about, node)
    elif node.attr not in tables.SHELL_KNOWN and node.attr != "__class__":
        report.hit("python.ipython_internals", about, node)


def examine_shell(nodes: Nodes, names: Names, report: Report) -> None:
    """Report the shell where it is handed on: what becomes of it there is not followed."""
    followed = set(_followed(nodes, names))
    for node in report.shells:
        if id(node) not in followed:
            report.hit("python.ipython_internals", "get_ipython", node)


def _followed(nodes: Nodes, names: Names) -> Iterator[int]:
    """Places where whatever is done with the shell is seen, by the node's identity."""
    named = {id(node.value) for node in nodes.of(ast.Attribute) if node.attr == "__name__"}
    for node in nodes.of(ast.Attribute):
        # `get_ipython().__class__.__name__` is a word, the class itself has all methods.
        if node.attr != "__class__" or id(node) in named:
            yield id(node.value)
    for node in nodes.of(ast.Call):
        yield id(node.func)
        asks = names.resolve(node.func)
        if len(asks) == 1 and asks[0] in _ASKING and asks[0][9:] not in names.bound:
            yield from map(id, node.args[:1])
    for node in nodes.of(ast.Compare):
        if all(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops):
            yield from map(id, (node.left, *node.comparators))
    for node in nodes.outer(ast.Assign):
        if all(_is_shell(target, names) for target in node.targets):
            yield id(node.value)


def _is_shell(target: ast.expr, names: Names) -> bool:
    """Whether the name is known to stand for it from here on."""
    if not isinstance(target, ast.Name):
        return False
    return not tables.SHELL_ITSELF.isdisjoint(names.name(target.id))
