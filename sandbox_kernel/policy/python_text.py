"""What constants say: paths, addresses, format strings, and names that are spelt as text."""

from __future__ import annotations

import ast
import re
from typing import Final

from sandbox_kernel.policy import fold
from sandbox_kernel.policy import python_tables as tables
from sandbox_kernel.policy.python_files import named_files
from sandbox_kernel.policy.python_names import Names
from sandbox_kernel.policy.python_nodes import Nodes
from sandbox_kernel.policy.python_report import Report

_LONGEST_PATH: Final = 300
_LONGEST_FORMAT: Final = 4096
_COMPUTING: Final = fold.METHODS | {"joinpath"}
_TEXTS: Final = (ast.Constant, ast.BinOp, ast.JoinedStr, ast.Call)
_SETTINGS: Final = re.compile(r"(?:^|/)\.env(?:\.\w+)?$")
_SETTINGS_LOADERS: Final = frozenset({"dotenv", "load_dotenv", "dotenv_values", "find_dotenv"})
_PLAIN_NAMES: Final = frozenset(
    {"localhost", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "authorized_keys"}
)
_DETOUR: Final = re.compile(r"/(?:\.?/)+")


def examine_text(nodes: Nodes, names: Names, report: Report) -> None:
    """Look at all text that stands in the code, and at what is put together of constants."""
    look = _Look(nodes, report)
    asked: set[int] | None = None
    for node in nodes.of(ast.Constant):
        value = node.value
        if type(value) is str:
            if value == "get_ipython":  # `'get_ipython' in globals()` takes nothing
                asked = asked or {id(compare.left) for compare in nodes.of(ast.Compare)}
                if id(node) in asked:
                    continue
            look(value, node)
        elif type(value) is bytes and len(value) <= _LONGEST_PATH:
            look(value.decode("latin-1"), node)
    for node in nodes.of(ast.BinOp, ast.JoinedStr):
        if type(value := names.fold(node)) is str:
            look(value, node)
    for node in nodes.of(ast.Call):
        if _computes(node, names) and type(value := names.fold(node)) is str:
            look(value, node)
    for node in nodes.of(ast.Subscript):
        if _is_part(node, names) and type(value := names.fold(node)) is str:
            look(value, node)
    for path, node in named_files(nodes, names):
        look(path, node, is_file=True)


def _computes(node: ast.Call, names: Names) -> bool:
    """Whether it may be a text that is computed: ``'SYSTEM'.lower()``, ``str(b'system', 'ascii')``."""
    function = node.func
    if (
        type(function) is ast.Attribute
        and function.attr in _COMPUTING
        and type(function.value) is not ast.Attribute  # as in `df.name.str.lower()`
    ):
        return True
    return not fold.FUNCTIONS.isdisjoint(names.resolve(function))


def _is_part(node: ast.Subscript, names: Names) -> bool:
    """Whether it may be a part of a text: ``'metsys'[::-1]``, ``'a system'.split()[1]``."""
    of = node.value
    if type(node.slice) is not ast.Slice:
        return type(of) is ast.Call and _computes(of, names)
    # A list, which may be long, has no parts that are not looked at as they are.
    return type(names.value(of.id) if isinstance(of, ast.Name) else of) in _TEXTS


def _loads_settings(nodes: Nodes) -> bool:
    """Whether the cell calls ``load_dotenv`` or the like: files such as ``.env`` are there for that."""
    for node in nodes.of(ast.Call):
        function = node.func
        name = getattr(function, "attr", None) or getattr(function, "id", None)
        if name == "run_line_magic" and node.args:
            name = getattr(node.args[0], "value", None)  # %dotenv
        if name in _SETTINGS_LOADERS:
            return True
    return False


class _Look:
    """Looks at one text after the other."""

    def __init__(self, nodes: Nodes, report: Report) -> None:
        self._nodes, self._report = nodes, report
        self._loads_settings: bool | None = None

    def __call__(self, text: str, node: ast.AST, *, is_file: bool = False) -> None:
        """``is_file``: the text is known to name one, not only by its looks."""
        report = self._report
        is_format = "{" in text and "_" in text and len(text) <= _LONGEST_FORMAT
        if is_format and tables.FORMAT_WALK.search(text):
            report.hit("python.format_walk", text[:80], node)
        if len(text) > _LONGEST_PATH or "\n" in text:
            return
        if (rule := tables.ATTRIBUTES_IN_TEXT.get(text)) is not None:
            report.hit(rule, text, node)
        is_path = "/" in text or "." in text or ":" in text or text in _PLAIN_NAMES
        if is_path and " " not in text:
            self._path(text, node, is_file)
            _examine_address(text, node, report)

    def _path(self, text: str, node: ast.AST, is_file: bool) -> None:
        path = _DETOUR.sub("/", text.removeprefix("file://")) if "/" in text else text
        if tables.SENSITIVE_PATH.search(path):
            # `.profile` alone may be a class of a page, or a column.
            is_bare = path[0] == "." and "/" not in path and not is_file
            if not is_bare and not self._is_loaded(path):
                self._report.hit("python.sensitive_path", text, node)
        elif tables.SYSTEM_PATH.search(path) and not tables.EVERYDAY_PATH.search(path):
            self._report.hit("python.system_path", text, node)
        if tables.PATH_TRAVERSAL.search(path):
            self._report.hit("python.path_traversal", text, node)

    def _is_loaded(self, path: str) -> bool:
        if _SETTINGS.search(path) is None:
            return False
        if self._loads_settings is None:
            self._loads_settings = _loads_settings(self._nodes)
        return self._loads_settings


def _examine_address(text: str, node: ast.AST, report: Report) -> None:
    if tables.METADATA_ADDRESS.search(text):
        report.hit("python.metadata_address", text, node)
    if tables.LOCAL_ADDRESS.search(text):
        report.hit("python.local_address", text, node)
