"""What Python code does that a policy may want to know: facts, each with its place.

The code is parsed, never run. Every node is looked at, whatever it stands in: a default argument, an
annotation, a decorator or a pattern runs code as well as a call does. Names count, not only calls:
``@eval`` over a class calls it without a call in sight. A kind of node that is not known here, from a
newer Python, is itself reported.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Container, Iterable
from typing import Any, Final

from sandbox_kernel.policy import python_tables as tables
from sandbox_kernel.policy.python_binding import bind_names, standings_of, texts_of
from sandbox_kernel.policy.python_calls import examine_call
from sandbox_kernel.policy.python_display import examine_display
from sandbox_kernel.policy.python_imports import examine_imports, examine_module
from sandbox_kernel.policy.python_memory import Memory
from sandbox_kernel.policy.python_names import IMPORTERS, Names
from sandbox_kernel.policy.python_nodes import Nodes
from sandbox_kernel.policy.python_patterns import examine_patterns, plain_match_args
from sandbox_kernel.policy.python_report import NOTHING_LISTED, Item, Listed, Report
from sandbox_kernel.policy.python_rules import RULES
from sandbox_kernel.policy.python_shell import examine_shell, examine_shell_attribute
from sandbox_kernel.policy.python_text import examine_text
from sandbox_kernel.policy.source import Unreadable

__all__ = ["RULES", "Memory", "examine"]

_FEW: Final = 16  # processes that a loop may fork
_NO_MODULES: Final = frozenset({"get_ipython", "__class__"})  # known whatever they are taken of
_TOO_DEEP: Final = "is nested too deeply"
_FLAGS: Final = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def examine(
    code: str,
    memory: Memory | None = None,
    deadline: float | None = None,
    trees: list[Nodes] | None = None,
    listed: Listed = NOTHING_LISTED,
) -> list[Item]:
    """Everything that a rule is about, and text of other languages, in the order of the code.

    What the cell's names stand for is proposed to ``memory``. The tree is added to ``trees``: to free
    its thousands of nodes takes a tenth of the time, and can wait. ``listed`` are the modules within
    modules that the policy tells from the rest. Raises ``Unreadable`` if the code
    does not parse, or is not read when ``deadline`` (on ``time.thread_time``) has passed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the code's own, such as invalid escapes: not for our user
        nodes = Nodes(_parse(code), deadline)
        if trees is not None:
            trees.append(nodes)
        names = bind_names(nodes, memory)
        report = Report(code, listed)
        try:
            examine_imports(nodes, report)
            called = {id(call.func) for call in nodes.of(ast.Call)}
            _examine_names(nodes, names, report, called)
            _examine_attributes(nodes, names, report, called)
            _examine_items(nodes, names, report)
            for call in nodes.of(ast.Call):
                examine_call(call, names, report)
            examine_text(nodes, names, report)
            examine_display(nodes, names, report)
            examine_patterns(nodes, names, report)
            _examine_shapes(nodes, names, report)
            if report.shells:
                examine_shell(nodes, names, report)
        except RecursionError as error:
            raise Unreadable(_TOO_DEEP) from error
    if memory is not None:
        memory.propose(standings_of(nodes, names), texts_of(names))
    return report.items()


def _parse(code: str) -> ast.Module:
    try:
        tree: ast.Module = compile(code, "<cell>", "exec", _FLAGS, dont_inherit=True)
    except SyntaxError as error:
        raise Unreadable(str(error.msg or error), is_syntax_error=True) from error
    except (ValueError, MemoryError, RecursionError, OverflowError, SystemError) as error:
        # Null bytes, lone surrogates, nesting beyond the parser's stack.
        reason = _TOO_DEEP if isinstance(error, MemoryError | RecursionError) else ""
        raise Unreadable(reason or str(error) or type(error).__name__) from error
    return tree


# What is reported ----------------------------------------------------------------------------------


def _examine_names(nodes: Nodes, names: Names, report: Report, called: Container[int]) -> None:
    harmless: set[str] = set()  # most names are, and come again and again
    plain = plain_match_args(nodes, names)
    for node in nodes.of(ast.Name):
        name = node.id
        if name in harmless:
            continue
        standings = names.name(name)
        attribute = tables.ATTRIBUTES.get(name) if name[:2] == "__" else None
        notable = name in tables.HIDING
        is_shell = not tables.SHELL_ITSELF.isdisjoint(standings)
        if (
            attribute is None
            and not (notable or is_shell)
            and not any(map(tables.rules_on, standings))
        ):
            harmless.add(name)
            continue
        # `__spec__ = None` takes nothing.
        takes = type(node.ctx) is ast.Load or name != "__spec__"
        if attribute is not None and takes and id(node) not in plain:
            report.hit(attribute, name, node)
        if type(node.ctx) is ast.Load:
            if is_shell:
                report.shells.append(node)
            report.uses(standings, node)
            if notable and names.is_hidden(name):
                report.hit("python.shadowed_builtin", name, node)
            if notable and id(node) not in called:
                _examine_handed_on(standings, node, report)


def _examine_handed_on(standings: Iterable[str], node: ast.AST, report: Report) -> None:
    """``map(__import__, names)``, ``reduce(getattr, names, module)``: what it gets is not said there."""
    for name in standings:
        if name in IMPORTERS:
            report.hit("python.dynamic_import", name.removeprefix("builtins."), node)
        elif name == "builtins.getattr":
            report.hit("python.dynamic_attribute", "getattr", node)


def _examine_attributes(nodes: Nodes, names: Names, report: Report, called: Container[int]) -> None:
    # `'google.colab' in sys.modules` takes nothing out of it.
    asked = {id(side) for node in nodes.of(ast.Compare) for side in node.comparators}
    facts = _facts_about_code(nodes)
    for node in nodes.of(ast.Attribute):
        if node.attr == "modules" and id(node) in asked:
            continue
        name = node.attr
        if id(node) in facts:
            report.hit("python.inspect_frames", name, node)
            continue
        if (rule := tables.ATTRIBUTES.get(name)) is not None:
            report.hit(rule, name, node)
            if rule == "python.code_access" and type(node.ctx) is not ast.Load:
                report.hit("python.code_objects", name, node)
        if (
            name == "replace"
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "__code__"
        ):
            report.hit("python.code_objects", "__code__.replace", node)
        if standings := names.resolve(node):
            report.uses(standings, node)
            bases = names.resolve(node.value)
            if name in tables.MODULE_NAMES or not (bases or name in _NO_MODULES):
                examine_module(node, bases, report)
            if id(node) not in called:
                _examine_handed_on(standings, node, report)
            if not tables.SHELL_ITSELF.isdisjoint(standings):
                report.shells.append(node)
            if tables.SHELL in bases:
                examine_shell_attribute(node, report, is_called=id(node) in called)
            if "builtins" in bases and type(node.ctx) is not ast.Load:
                report.hit("python.builtins_access", f"builtins.{name}", node)


def _facts_about_code(nodes: Nodes) -> set[int]:
    """The parts of ``sys._getframe(1).f_code.co_name``, the way of logs to say where they are."""
    found: set[int] = set()
    for node in nodes.of(ast.Attribute):
        if node.attr not in tables.CODE_FACTS:
            continue
        step = node.value
        if isinstance(step, ast.Attribute) and step.attr == "f_code":
            found.add(id(step))
            step = step.value
            while isinstance(step, ast.Attribute) and step.attr in tables.TO_FRAMES:
                found.add(id(step))
                step = step.value
            if isinstance(step, ast.Call) and getattr(step.func, "attr", "") == "_getframe":
                found.add(id(step.func))
    return found


def _examine_items(nodes: Nodes, names: Names, report: Report) -> None:
    """``os.__dict__['system']``, ``sys.modules['os']``."""
    for node in nodes.of(ast.Subscript):
        standings = names.resolve(node)
        report.uses(standings, node)
        if not tables.SHELL_ITSELF.isdisjoint(standings):
            report.shells.append(node)


def _examine_shapes(nodes: Nodes, names: Names, report: Report) -> None:
    for node in nodes.unknown:
        report.hit("python.unknown_syntax", type(node).__name__, node)
    for node in nodes.of(ast.arg, ast.AnnAssign):
        _examine_annotation(node.annotation, report)
    for node in nodes.of(ast.FunctionDef, ast.AsyncFunctionDef):
        _examine_annotation(node.returns, report)
    if report.has("python.fork"):
        for node in nodes.of(ast.While, ast.For, ast.ListComp, ast.GeneratorExp, ast.SetComp):
            _examine_loop(node, names, report)
    if (
        any(node.attr == "environ" for node in nodes.of(ast.Attribute))
        or "environ" in names.standing
    ):
        _examine_environment(nodes, names, report)


def _examine_annotation(node: ast.expr | None, report: Report) -> None:
    """One that is text is run by whoever asks for type hints, ``functools.singledispatch`` too."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "(" in node.value:
        report.embedded("python", node.value, node)


def _examine_loop(node: Any, names: Names, report: Report) -> None:
    if _is_short(node, names):
        return
    for inner in ast.walk(node):
        found = names.resolve(inner) if isinstance(inner, ast.Name | ast.Attribute) else ()
        if any("python.fork" in tables.EXACT.get(name, ()) for name in found):
            report.hit("python.fork_bomb", "os.fork", inner)


def _is_short(node: Any, names: Names) -> bool:
    """Whether the loop is known to end soon."""
    if isinstance(node, ast.While):
        return names.fold(node.test) in (False, 0, None)
    over = node.iter if isinstance(node, ast.For) else node.generators[0].iter
    if not isinstance(over, ast.Call) or "builtins.range" not in names.resolve(over.func):
        return isinstance(over, ast.List | ast.Tuple)
    ends = [names.fold(end) for end in over.args]
    return all(isinstance(end, int) and abs(end) <= _FEW for end in ends)


_ONE_VARIABLE: Final = frozenset(
    {"get", "setdefault", "pop", "update", "__getitem__", "__setitem__"}
)


def _examine_environment(nodes: Nodes, names: Names, report: Report) -> None:
    """All variables at once, as against ``os.environ['HOME']``."""
    fine = {id(node.value) for node in nodes.of(ast.Subscript)}
    fine.update(id(node.value) for node in nodes.of(ast.Attribute) if node.attr in _ONE_VARIABLE)
    for node in nodes.of(ast.Compare):
        fine.update(map(id, node.comparators))
    for node in nodes.of(ast.Attribute, ast.Name):
        name = node.attr if isinstance(node, ast.Attribute) else node.id
        if not name.endswith("environ") or type(node.ctx) is not ast.Load or id(node) in fine:
            continue
        if "os.environ" in names.resolve(node):
            report.hit("python.environment", "os.environ", node)
