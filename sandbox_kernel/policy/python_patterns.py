"""What patterns take out of things: ``case object(system=f)`` is ``f = subject.system``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from sandbox_kernel.policy import python_tables as tables
from sandbox_kernel.policy.python_names import Names
from sandbox_kernel.policy.python_nodes import Nodes
from sandbox_kernel.policy.python_report import Report

_MATCH_ARGS: Final = "__match_args__"


def examine_patterns(nodes: Nodes, names: Names, report: Report) -> None:
    """Report attributes that patterns name, here or in a class of the cell's own."""
    for node in nodes.of(ast.MatchClass):
        for attribute in node.kwd_attrs:
            _examine_attribute(attribute, node, report)
    for node in nodes.of(ast.Match):
        _examine_match(node, names, report)
    for node in nodes.of(ast.ClassDef):
        _examine_fields(node, report)
    if _MATCH_ARGS in names.bound:
        for target, value in _assigned(nodes):
            for attribute in _plain_names(value):
                _examine_attribute(attribute, target, report)
        for node in nodes.of(ast.FunctionDef):
            if node.name == _MATCH_ARGS:
                report.hit("python.dynamic_attribute", _MATCH_ARGS, node)


def _examine_attribute(attribute: str, node: ast.AST, report: Report) -> None:
    if (rule := tables.ATTRIBUTES_BY_NAME.get(attribute)) is not None:
        report.hit(rule, attribute, node)
    elif attribute[:2] == attribute[-2:] == "__":
        report.hit("python.class_walk", attribute, node)
    elif tables.inner_module("", attribute) is not None:
        report.hit("python.transitive_module", f"….{attribute}", node)


def _examine_fields(node: ast.ClassDef, report: Report) -> None:
    """``class G: gi_frame: object`` is ``__match_args__ = ('gi_frame',)``, once it is a dataclass."""
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            name = field.target.id
            if name in tables.ATTRIBUTES_BY_NAME or (name[0] == "_" and name in tables.INNER_NAMES):
                _examine_attribute(name, field, report)


def _examine_match(node: ast.Match, names: Names, report: Report) -> None:
    subjects = names.resolve(node.subject)
    for pattern in (case.pattern for case in node.cases if subjects):
        if isinstance(pattern, ast.MatchClass):
            for attribute in pattern.kwd_attrs:
                report.uses((f"{base}.{attribute}" for base in subjects), pattern)
                if attribute in tables.MODULE_NAMES:
                    for base in subjects:
                        report.takes_module(base, attribute, pattern)


# Positional patterns -------------------------------------------------------------------------------


def plain_match_args(nodes: Nodes, names: Names) -> set[int]:
    """Where ``__match_args__`` is bound to names that are written out, by the target's identity.

    Anything else names attributes that are only known when the cell runs.
    """
    if _MATCH_ARGS not in names.bound:
        return set()
    return {id(target) for target, value in _assigned(nodes) if _plain_names(value)}


def _assigned(nodes: Nodes) -> Iterator[tuple[ast.Name, ast.expr | None]]:
    for node in nodes.of(ast.Assign, ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
            if isinstance(target, ast.Name) and target.id == _MATCH_ARGS:
                yield target, node.value


def _plain_names(value: ast.expr | None) -> list[str]:
    """The names in a tuple of nothing but these."""
    if not isinstance(value, ast.Tuple):
        return []
    texts = [element.value for element in value.elts if isinstance(element, ast.Constant)]
    names = [text for text in texts if isinstance(text, str)]
    return names if len(names) == len(value.elts) else []
