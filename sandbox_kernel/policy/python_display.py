"""Scripts and markup that Python code shows in the page: ``Javascript('…')``, ``HTML('<script>…')``."""

from __future__ import annotations

import ast
from typing import Final

from sandbox_kernel.policy import python_tables as tables
from sandbox_kernel.policy.python_names import Names
from sandbox_kernel.policy.python_nodes import Nodes
from sandbox_kernel.policy.python_report import Report

_TYPES: Final = {
    "application/javascript": "javascript",
    "text/javascript": "javascript",
    "text/html": "markup",
    "image/svg+xml": "markup",
}
_SHOWN_KEYWORDS: Final = ("data", "javascript", "value")
_SCRIPT: Final = "_repr_javascript_"


def examine_display(nodes: Nodes, names: Names, report: Report) -> None:
    """Hand on what is shown by its MIME type, and by methods that IPython calls."""
    for node in nodes.of(ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                continue  # {**x}
            kind = key.value if type(key) is ast.Constant else names.fold(key)
            if type(kind) is str and kind in _TYPES:
                _examine_shown(_TYPES[kind], value, names, report)
    for node in nodes.of(ast.FunctionDef):
        if node.name == _SCRIPT:
            report.hit("javascript.any", _SCRIPT, node)
    if _SCRIPT in names.bound:
        for node in nodes.of(ast.Name):
            if node.id == _SCRIPT and type(node.ctx) is not ast.Load:
                report.hit("javascript.any", _SCRIPT, node)


def examine_shown(node: ast.Call, function: str, names: Names, report: Report) -> None:
    """Hand on what a function of IPython or a widget shows, as far as it is constant."""
    module, _, name = function.rpartition(".")
    kind = tables.SHOWS.get(name)
    is_widget = name in tables.MARKUP_WIDGETS and module in tables.WIDGET_MODULES
    if kind is None and is_widget:
        kind = "markup"
    if kind is None or not (is_widget or module in tables.DISPLAY_MODULES):
        return
    named = {key.arg: key.value for key in node.keywords}
    shown = node.args if name.startswith("display_") else node.args[:1]
    for value in (*shown, *(named[key] for key in _SHOWN_KEYWORDS if key in named)):
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
