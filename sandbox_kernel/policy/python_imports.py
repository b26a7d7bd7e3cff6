"""Modules that code imports, or reaches through others."""

from __future__ import annotations

import ast
from collections.abc import Collection

from sandbox_kernel.policy import python_tables as tables
from sandbox_kernel.policy.python_nodes import Nodes
from sandbox_kernel.policy.python_report import Report


def examine_imports(nodes: Nodes, report: Report) -> None:
    """Report every module that an import statement names, or may mean."""
    for node in nodes.of(ast.Import):
        for alias in node.names:
            report.hit("python.import", alias.name, alias)
    for node in nodes.of(ast.ImportFrom):
        _examine_import_from(node, report)


def _examine_import_from(node: ast.ImportFrom, report: Report) -> None:
    module = "." * node.level + (node.module or "")
    listed = report.listed.names
    wholes = [f"{module}.{alias.name}" for alias in node.names]
    # `from IPython import display` is `import IPython.display`, about which a list may say more.
    if not all(whole in listed for whole in wholes):
        report.hit("python.import", module, node)
    for alias, whole in zip(node.names, wholes, strict=True):
        if whole in listed or whole in tables.MODULES:
            report.hit("python.import", whole, alias)
        elif alias.name in tables.MODULE_NAMES:
            report.takes_module(module, alias.name, alias)
        if alias.name in tables.CODE_TYPES:
            report.hit("python.code_access", whole, alias)  # what is made of it is seen where it is
            continue
        for rule in tables.rules_on(whole):
            report.hit(rule, whole, alias)
        if alias.name in tables.ATTRIBUTES and whole not in tables.MODULES:
            report.hit(tables.ATTRIBUTES[alias.name], whole, alias)


def examine_module(node: ast.Attribute, bases: Collection[str], report: Report) -> None:
    """``pathlib.os``: the attribute has a module's name."""
    if not bases:
        report.hit("python.transitive_module", f"….{node.attr}", node)
    for base in bases:
        report.takes_module(base, node.attr, node)
