"""Texts that name a file by where they stand: ``open('.env')``, ``home / '.ssh'``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Final

from sandbox_kernel.policy.python_names import Names
from sandbox_kernel.policy.python_nodes import Nodes

_FUNCTIONS: Final = frozenset({"builtins.open", "io.open", "codecs.open"})
_MODULES: Final = ("os.", "shutil.", "pathlib.", "glob.", "pandas.read_", "numpy.")
_METHODS: Final = frozenset(
    {"open", "joinpath", "with_name", "read_text", "read_bytes", "write_text", "write_bytes"}
    | {"glob", "rglob", "listdir", "read_csv", "loadtxt"}
)
_SEPARATORS: Final = ("/", "\\")


def named_files(nodes: Nodes, names: Names) -> Iterator[tuple[str, ast.AST]]:
    """Short texts that begin with a dot, where a file of that name is meant."""
    for node in nodes.of(ast.Call):
        if _is_of_files(node, names):
            yield from _dotted(node.args, names)
            yield from _dotted([keyword.value for keyword in node.keywords], names)
        elif _joins_a_path(node, names):
            yield from _dotted(getattr(node.args[0], "elts", ()), names)
    for node in nodes.of(ast.BinOp):
        if type(node.op) is ast.Div or (type(node.op) is ast.Add and _ends_folder(node.left)):
            yield from _dotted([node.right], names)


def _is_of_files(node: ast.Call, names: Names) -> bool:
    if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        return True
    if isinstance(node.func, ast.Name) and node.func.id == "Path":
        return True
    return any(name in _FUNCTIONS or name.startswith(_MODULES) for name in names.resolve(node.func))


def _joins_a_path(node: ast.Call, names: Names) -> bool:
    """``'/'.join([home, '.ssh'])``."""
    function = node.func
    if not isinstance(function, ast.Attribute) or function.attr != "join" or not node.args:
        return False
    return names.fold(function.value) in _SEPARATORS


def _dotted(values: Sequence[ast.expr], names: Names) -> Iterator[tuple[str, ast.AST]]:
    for value in values:
        if isinstance(value, ast.Constant | ast.Name):
            text = names.fold(value)
            if isinstance(text, str) and text[:1] == "." and "/" not in text:
                yield text, value


def _ends_folder(node: ast.expr) -> bool:
    """``home + '/'``."""
    last = node.right if isinstance(node, ast.BinOp) else node
    text = last.value if isinstance(last, ast.Constant) else None
    return isinstance(text, str) and text.endswith(_SEPARATORS)
