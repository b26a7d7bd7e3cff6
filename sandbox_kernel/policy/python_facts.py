"""Looks at running code, classes and modules that lead no further: ``sys._getframe().f_lineno``.

Logs and lessons are full of them. They are reported by milder rules than the steps of a walk are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sandbox_kernel.policy import python_tables as tables
from sandbox_kernel.policy.python_names import Names
from sandbox_kernel.policy.python_nodes import Nodes

_NOTHING: Final = ""  # no rule
_LOOK: Final = "python.inspect_frames"
_NAMES_OF_CLASSES: Final = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})
_SPEC_FACTS: Final = frozenset(
    {"origin", "name", "parent", "cached", "has_location", "submodule_search_locations"}
)
_SHOWING: Final = frozenset({"builtins.print", "builtins.repr", "builtins.str", "builtins.type"})
_LINES: Final = frozenset({"linecache.getline", "linecache.getlines", "linecache.checkcache"})


def facts(nodes: Nodes, names: Names) -> dict[int, str]:
    """The attributes that only ask for facts, by identity, with the rule on each; none: an empty one."""
    attributes = nodes.of(ast.Attribute)
    if tables.LEADING.isdisjoint({node.attr for node in attributes}):
        return {}
    found = dict(_of_code(attributes))
    found.update(_of_frames_by_name(nodes, names, found))
    found.update(_of_classes_and_modules(nodes, names))
    for node in nodes.of(ast.Compare):
        if isinstance(node.ops[0], ast.Is | ast.IsNot) and _is_none(node.comparators[0]):
            found[id(node.left)] = _NOTHING  # `g.gi_frame is None` takes nothing
    return found


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _of_code(attributes: Sequence[ast.Attribute]) -> Iterator[tuple[int, str]]:
    """The parts of ``sys._getframe(1).f_code.co_name``, the way of logs to say where they are."""
    for node in attributes:
        step = node.value
        if node.attr in tables.CODE_FACTS:
            if not (isinstance(step, ast.Attribute) and step.attr == "f_code"):
                continue
            yield id(step), _LOOK
            step = step.value
        elif node.attr not in tables.FRAME_FACTS:
            continue
        while isinstance(step, ast.Attribute) and step.attr in tables.TO_FRAMES:
            yield id(step), _LOOK
            step = step.value
        if isinstance(step, ast.Call) and getattr(step.func, "attr", "") == "_getframe":
            yield id(step.func), _LOOK


def _of_frames_by_name(
    nodes: Nodes, names: Names, found: Mapping[int, str]
) -> Iterator[tuple[int, str]]:
    """``f = tb.tb_frame``, where all that is asked of ``f`` is which line of which file it is."""
    kept = {
        node.targets[0].id: node.value
        for node in nodes.of(ast.Assign)
        if isinstance(node.value, ast.Attribute)
        and node.value.attr in tables.TO_FRAMES
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
    }
    if not kept:
        return
    # The text of a line is looked up by the names around it, which go nowhere else.
    lines = {
        id(argument): argument
        for call in nodes.of(ast.Call)
        if not _LINES.isdisjoint(names.resolve(call.func))
        for argument in call.args
        if isinstance(argument, ast.Attribute) and argument.attr == "f_globals"
    }
    harmless = {
        id(node.value)
        for node in nodes.of(ast.Attribute)
        if node.attr in tables.FRAME_FACTS
        or (node.attr == "f_code" and id(node) in found)
        or id(node) in lines
    }
    loads = [node for node in nodes.of(ast.Name) if type(node.ctx) is ast.Load]
    for name, frame in kept.items():
        uses = [id(node) in harmless for node in loads if node.id == name]
        if uses and all(uses):
            yield id(frame), _LOOK
            for key, argument in lines.items():
                if isinstance(argument.value, ast.Name) and argument.value.id == name:
                    yield key, _LOOK


def _of_classes_and_modules(nodes: Nodes, names: Names) -> Iterator[tuple[int, str]]:
    """``bool.__base__`` and ``numpy.__spec__``, as far as nothing is taken out of them."""
    followed = {id(node.value): node for node in nodes.of(ast.Attribute, ast.Subscript)}
    shown = set(_shown(nodes, names))
    for node in nodes.of(ast.Attribute):
        after = followed.get(id(node))
        last = getattr(after, "attr", None)
        if node.attr == "__base__" and not _is_walk(node.value):
            if after is None or last in _NAMES_OF_CLASSES:
                yield id(node), "python.class_walk"
        elif node.attr == "__spec__" and (last in _SPEC_FACTS or id(node) in shown):
            yield id(node), "python.load_file"


def _is_walk(node: ast.expr) -> bool:
    """``().__class__.__base__``, the beginning of an escape."""
    return not isinstance(node, ast.Name | ast.Attribute) or getattr(node, "attr", "")[:2] == "__"


def _shown(nodes: Nodes, names: Names) -> Iterator[int]:
    """What a cell shows, or binds to a name that is followed."""
    for node in nodes.of(ast.Expr, ast.FormattedValue):
        yield id(node.value)
    for node in nodes.of(ast.Call):
        if not _SHOWING.isdisjoint(names.resolve(node.func)):
            yield from map(id, node.args)
    for node in nodes.of(ast.Assign):
        if isinstance(node.targets[0], ast.Name) and names.resolve(node.value):
            yield id(node.value)
