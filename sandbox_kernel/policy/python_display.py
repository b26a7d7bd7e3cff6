"""Scripts and markup that Python code shows in the page: ``Javascript('…')``, ``HTML('<script>…')``."""

from __future__ import annotations

import ast
from typing import Any, Final, Protocol

from sandbox_kernel.policy.python_names import Names
from sandbox_kernel.policy.python_report import Report

_MODULES: Final = ("IPython.display.", "IPython.core.display.", "IPython.lib.display.")
_TYPES: Final = {
    "application/javascript": "javascript",
    "text/javascript": "javascript",
    "text/html": "markup",
    "image/svg+xml": "markup",
}
_CLASSES: Final = {"Javascript": "javascript", "HTML": "markup", "SVG": "markup"}
_FUNCTIONS: Final = {
    "display_javascript": "javascript",
    "display_html": "markup",
    "display_svg": "markup",
}


class Nodes(Protocol):
    def of(self, *kinds: type[ast.AST]) -> list[Any]: ...


def examine_display(nodes: Nodes, names: Names, report: Report) -> None:
    """Hand on what is shown as a script or as markup, as far as it is constant."""
    for node in nodes.of(ast.Call):
        for name in names.resolve(node.func):
            if name.startswith(_MODULES):
                _examine_call(node, name.rpartition(".")[2], names, report)
    for node in nodes.of(ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if type(key) is ast.Constant and type(key.value) is str and key.value in _TYPES:
                _examine_shown(_TYPES[key.value], value, names, report)
    for node in nodes.of(ast.FunctionDef):
        if node.name == "_repr_javascript_":
            report.hit("javascript.any", node.name, node)


def _examine_call(node: ast.Call, name: str, names: Names, report: Report) -> None:
    kind = _CLASSES.get(name) or _FUNCTIONS.get(name)
    if kind is None:
        return
    named = {key.arg: key.value for key in node.keywords}
    shown = node.args if name in _FUNCTIONS else node.args[:1]
    for value in (*shown, *(named[key] for key in ("data", "javascript") if key in named)):
        _examine_shown(kind, value, names, report)
    if kind == "javascript" and {"url", "lib", None} & named.keys():
        report.hit("javascript.remote_module", name, node)


def _examine_shown(kind: str, value: ast.expr, names: Names, report: Report) -> None:
    text = names.fold(value)
    if kind == "markup":
        if isinstance(text, str) and "<" in text:
            from sandbox_kernel.policy.magics import examine_markup

            report.within(value, examine_markup(text))
    elif isinstance(text, str):
        report.embedded("javascript", text, value)
    elif not isinstance(value, ast.Call):  # of a function whose own argument is looked at
        report.hit("javascript.any", "a script that is only known when it runs", value)
