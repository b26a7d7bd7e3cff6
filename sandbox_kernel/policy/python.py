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
from functools import cache
from typing import Any, Final

from sandbox_kernel.policy import python_tables as tables
from sandbox_kernel.policy.fold import UNKNOWN
from sandbox_kernel.policy.python_asking import asked_about
from sandbox_kernel.policy.python_binding import bind_names, standings_of, texts_of
from sandbox_kernel.policy.python_calls import examine_call
from sandbox_kernel.policy.python_display import examine_display
from sandbox_kernel.policy.python_facts import facts
from sandbox_kernel.policy.python_imports import examine_imports, examine_module
from sandbox_kernel.policy.python_memory import Memory
from sandbox_kernel.policy.python_names import IMPORTERS, Names, is_of_self
from sandbox_kernel.policy.python_namespaces import examine_namespaces
from sandbox_kernel.policy.python_nodes import Nodes
from sandbox_kernel.policy.python_patterns import examine_patterns, plain_match_args
from sandbox_kernel.policy.python_report import NOTHING_LISTED, Item, Listed, Report
from sandbox_kernel.policy.python_rules import RULES
from sandbox_kernel.policy.python_shell import examine_shell, examine_shell_attribute
from sandbox_kernel.policy.python_text import examine_text
from sandbox_kernel.policy.source import Unreadable

__all__ = ["RULES", "Memory", "examine"]

_FEW: Final = 16  # processes that a loop may fork
_NO_MODULES: Final = frozenset(
    {"get_ipython", "__class__", "kernel"}
)  # known whatever they are taken of
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
        names = bind_names(nodes, memory, listed.paths)
        report = Report(code, listed)
        report.asked_about = cache(lambda: asked_about(nodes, names))
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
            examine_namespaces(nodes, names, report)
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
            and not (names.stars and _is_listed(name, names, report))
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


def _is_listed(name: str, names: Names, report: Report) -> bool:
    """Whether it is a module that the policy has a word on, and that no import but one of all names."""
    return not names.known(name) and not report.listed.names.isdisjoint(names.name(name))


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
    mild = facts(nodes, names)
    for node in nodes.of(ast.Attribute):
        if node.attr == "modules" and id(node) in asked:
            continue
        name = node.attr
        if mild and (milder := mild.get(id(node))) is not None:
            if milder:
                report.hit(milder, name, node)
            continue
        if (rule := tables.ATTRIBUTES.get(name)) is not None:
            _examine_attribute(rule, node, names, report)
        if (
            name == "replace"
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "__code__"
        ):
            report.hit("python.code_objects", "__code__.replace", node)
        if standings := names.resolve(node):
            report.uses(standings, node)
            bases = names.resolve(node.value)
            if name in tables.MODULE_NAMES or not (
                bases or name in _NO_MODULES or is_of_self(node)
            ):
                examine_module(node, bases, report)
            if id(node) not in called:
                _examine_handed_on(standings, node, report)
            if not tables.SHELL_ITSELF.isdisjoint(standings):
                report.shells.append(node)
            if tables.SHELL in bases:
                examine_shell_attribute(node, report, is_called=id(node) in called)
            if "builtins" in bases and type(node.ctx) is not ast.Load:
                report.hit("python.builtins_access", f"builtins.{name}", node)


def _examine_attribute(rule: str, node: ast.Attribute, names: Names, report: Report) -> None:
    """An attribute that is grave by its name, whatever has it."""
    name = node.attr
    # Of a module that is followed, it is reported under its whole name.
    if any(rule in tables.rules_on(standing) for standing in names.resolve(node)):
        return
    if name in tables.CODE_TYPES:
        report.takes_type(name, node)
        return
    report.hit(rule, name, node)
    if name in tables.CODE_PARTS and type(node.ctx) is not ast.Load:
        report.hit("python.code_objects", name, node)


def _examine_items(nodes: Nodes, names: Names, report: Report) -> None:
    """``os.__dict__['system']``, ``sys.modules['os']``."""
    for node in nodes.of(ast.Subscript):
        standings = names.resolve(node)
        report.uses(standings, node)
        if not tables.SHELL_ITSELF.isdisjoint(standings):
            report.shells.append(node)
        if not standings and _is_namespace(node.value, names):
            key = names.fold(node.slice)
            if isinstance(key, str) and (rule := tables.ATTRIBUTES_BY_NAME.get(key)) is not None:
                report.hit(rule, key, node)
            elif isinstance(key, str) and tables.inner_module(None, key) is not None:
                report.hit("python.transitive_module", f"….{key}", node)


def _is_namespace(node: ast.expr, names: Names) -> bool:
    """``vars(x)`` or ``x.__dict__``, whose items are the attributes of something that is not followed."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__dict__"
    return isinstance(node, ast.Call) and "builtins.vars" in names.resolve(node.func)


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
    return all(_is_few(end, names) for end in over.args)


def _is_few(node: ast.expr, names: Names, depth: int = 0) -> bool:
    """Whether it is a small number, or one that only the run knows: that is no sign of an endless loop."""
    value = names.fold(node)
    if value is not UNKNOWN:
        return isinstance(value, int) and abs(value) <= _FEW
    if isinstance(node, ast.Name) and depth < _FEW:
        bound_to = names.value(node.id)
        return bound_to is None or _is_few(bound_to, names, depth + 1)
    return isinstance(node, ast.Call | ast.Attribute | ast.Subscript)


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
