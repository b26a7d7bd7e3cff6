"""What calls say by their arguments: code and commands as text, modes, shells, modules by name."""

from __future__ import annotations

import ast
import io
import shlex
import tokenize
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from sandbox_kernel.policy import python_tables as tables
from sandbox_kernel.policy.expansion import expressions
from sandbox_kernel.policy.fold import UNKNOWN
from sandbox_kernel.policy.python_display import examine_shown
from sandbox_kernel.policy.python_names import OF_LAMBDA, Names
from sandbox_kernel.policy.python_report import Report

_MOST_PARTS: Final = 100
_SETTERS: Final = frozenset({"builtins.setattr", "__setattr__"})
_COMMAND_KEYWORDS: Final = frozenset({"cmd", "command"})


class _Call:
    """One call, with what its function may be and its arguments as far as they are constant."""

    def __init__(self, node: ast.Call, name: str, names: Names, report: Report) -> None:
        self.node, self.name, self.names, self.report = node, name, names, report

    def argument(self, position: int, keyword: str | None = None) -> ast.expr | None:
        arguments = self.node.args
        if position < len(arguments):
            return arguments[position]
        found = (key.value for key in self.node.keywords if key.arg == keyword and keyword)
        return next(found, None)

    def constant(self, position: int, keyword: str | None = None) -> Any:
        node = self.argument(position, keyword)
        if type(node) is ast.Constant:
            return node.value  # of any length: what is computed has bounds, what is written has not
        return UNKNOWN if node is None else self.names.fold(node)

    def hit(self, rule: str, about: str | None = None) -> None:
        shown = self.name.removeprefix("builtins.") if about is None else about
        self.report.hit(rule, shown, self.node)


def examine_call(node: ast.Call, names: Names, report: Report) -> None:
    """Report what a call does beyond what the name of its function says."""
    for name in names.resolve(node.func):
        if (examine := _BY_NAME.get(name)) is not None:
            examine(_Call(node, name, names, report))
        elif name.startswith(tables.SHELL):
            method = name.removeprefix(f"{tables.SHELL}.")
            _shell_method(_Call(node, name, names, report), method)
        elif name.startswith(tables.SHOWING):
            examine_shown(node, name, names, report)
    for name in names.resolve(node):
        if name in tables.SHELL_ITSELF:
            report.shells.append(node)
        if not name.endswith(")"):  # what a call such as getattr(os, 'system') gives
            report.uses((name,), node)
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr in _BY_METHOD:
        _BY_METHOD[function.attr](_Call(node, function.attr, names, report))


# Code ----------------------------------------------------------------------------------------------


def _runs_text(call: _Call) -> None:
    _embed_code(call, call.constant(0, "source"))


def _embed_code(call: _Call, code: Any) -> bool:
    if isinstance(code, bytes):
        code = _decoded(code)
    if not isinstance(code, str):
        return False
    call.report.embedded("python", code.lstrip(" \t"), call.node)
    return True


def _decoded(code: bytes) -> str | None:
    """As Python reads source: by the encoding that its first lines declare."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(code).readline)
        return code.decode(encoding)
    except (SyntaxError, UnicodeError, LookupError):
        return None


def _times_text(call: _Call) -> None:
    for position, keyword in enumerate(("stmt", "setup")):
        node = call.argument(position, keyword)
        if node is None or isinstance(node, ast.Lambda):
            continue
        if not _embed_code(call, call.names.fold(node)) and not isinstance(node, ast.Name):
            call.hit("python.indirect_exec")


def _profiles_text(call: _Call) -> None:
    _embed_code(call, call.constant(0, "statement"))


def _imports(call: _Call) -> None:
    module = call.constant(0, "name")
    if isinstance(module, str):
        call.hit("python.import", module)
    else:
        call.hit("python.dynamic_import")


def _locates(call: _Call) -> None:
    """``pydoc.locate('os.system')``: a module and what is in it, in one name."""
    whole = call.constant(0, "path" if call.name == "pydoc.locate" else "name")
    if not isinstance(whole, str):
        call.hit("python.dynamic_import")
        return
    name = whole.replace(":", ".")
    known = [part for part in tables.prefixes(name) if part in tables.MODULES]
    call.hit("python.import", known[-1] if known else name)


def _gets_attribute(call: _Call) -> None:
    attribute = call.constant(1)
    bases = [] if call.argument(0) is None else call.names.resolve(call.node.args[0])
    if isinstance(attribute, str):
        for base in bases:
            call.report.takes_module(base, attribute, call.node)
        if not bases and tables.inner_module(None, attribute) is not None:
            call.hit("python.transitive_module", f"….{attribute}")
        if attribute == "__code__" and call.name in _SETTERS:
            call.hit("python.code_objects", "__code__")
        if attribute in tables.ATTRIBUTES_BY_NAME:
            call.hit(tables.ATTRIBUTES_BY_NAME[attribute], attribute)
    elif any(base.partition(".")[0] in tables.GUESSED and "(" not in base for base in bases):
        call.hit("python.dynamic_attribute", f"getattr({bases[0]}, …)")


def _makes_getter(call: _Call) -> None:
    """``operator.attrgetter('_os.system')``: attributes of attributes, by a text."""
    for position in range(len(call.node.args)):
        path = call.constant(position)
        if not isinstance(path, str):
            call.hit("python.dynamic_attribute")
            continue
        *through, last = path.split(".")[:_MOST_PARTS]
        for part in through:
            if (module := tables.reexported("", part)) is not None:
                call.hit("python.import", module)
        for part in (*through, last):
            if part in tables.ATTRIBUTES_BY_NAME:
                call.hit(tables.ATTRIBUTES_BY_NAME[part], part)
            elif tables.inner_module("", part) is not None:
                call.hit("python.transitive_module", path[:80])


def _method_gets_attribute(call: _Call) -> None:
    """``object.__getattribute__(x, 'name')``."""
    if len(call.node.args) > 1:
        _gets_attribute(call)


def _wraps(call: _Call) -> None:
    """``functools.update_wrapper(f, g, assigned=('__code__',))`` makes the one the other."""
    is_direct = call.name == "functools.update_wrapper"
    taken = call.constant(2 if is_direct else 1, "assigned")
    if isinstance(taken, list) and "__code__" in taken:
        call.hit("python.code_objects", "__code__")


def _built_function(call: _Call) -> None:
    """``type(f)(compile(…), {})``: a function made of a code object."""
    made_of = call.names.resolve(call.node.args[0]) if call.node.args else ()
    of_code = any(name in ("builtins.compile()", "marshal.loads()") for name in made_of)
    of_code = of_code or any(name.endswith("__code__") for name in made_of)
    if of_code or call.name == OF_LAMBDA:
        call.hit("python.code_objects", "type(…)")


# Data that runs code -------------------------------------------------------------------------------


def _unpickles(call: _Call) -> None:
    if isinstance(call.constant(0), bytes | str):
        call.hit("python.unpickle_literal")


def _loads_yaml(call: _Call) -> None:
    loader = call.argument(1, "Loader")
    names = () if loader is None else call.names.resolve(loader)
    if not any(name.endswith(("SafeLoader", "BaseLoader")) for name in names):
        call.hit("python.yaml_load")


def _loads_array(call: _Call) -> None:
    allow = call.argument(2, "allow_pickle")
    # Which arguments are spread out is not looked at.
    spread = any(key.arg is None for key in call.node.keywords)
    spread = spread or any(isinstance(argument, ast.Starred) for argument in call.node.args)
    if spread or (allow is not None and call.names.fold(allow) is not False):
        call.hit("python.load_model")


def _queries(call: _Call) -> None:
    text = call.constant(0, "expr")
    if isinstance(text, str) and tables.QUERY_ESCAPE.search(tables.QUOTED.sub("''", text)):
        call.hit("python.query_escape", text[:80])
        code = tables.QUERY_NAMES.sub("_", text.replace("@", "")).strip()
        if _is_python(code):  # what it calls is to be judged as if the cell did
            call.report.embedded("python", code, call.node)


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError, SystemError):
        return False
    return True


# Commands ------------------------------------------------------------------------------------------


def _runs_shell_text(call: _Call) -> None:
    keyword = next((key.arg for key in call.node.keywords if key.arg in _COMMAND_KEYWORDS), None)
    _embed_command(call, call.constant(0, keyword))


def _embed_command(call: _Call, command: Any) -> None:
    if isinstance(command, bytes):
        command = command.decode(errors="replace")
    if isinstance(command, str):
        call.report.embedded("shell", command, call.node)
    else:
        call.hit("python.dynamic_shell")


def _runs_subprocess(call: _Call) -> None:
    shell = next((key.value for key in call.node.keywords if key.arg == "shell"), None)
    spread = any(key.arg is None for key in call.node.keywords)
    if shell is None and len(call.node.args) > 8:
        shell = call.node.args[8]
    if shell is not None and (call.names.fold(shell) is UNKNOWN or call.names.fold(shell)):
        call.hit("python.shell_true")
        command = call.constant(0, "args")
        _embed_command(call, command[0] if isinstance(command, list) and command else command)
        return
    if spread:
        call.hit("python.shell_true", f"{call.name}(**…)")
    # This one is run, whatever the list begins with.
    executable = next((key.value for key in call.node.keywords if key.arg == "executable"), None)
    if executable is None and len(call.node.args) > 2:
        executable = call.node.args[2]
    _report_program(call, call.argument(0, "args"), executable)


def _runs_program(call: _Call) -> None:
    position, is_list = tables.PROGRAMS[call.name]
    program = call.argument(position - 1 if position else 0)
    if is_list or not position:
        arguments = call.argument(position)
        if position == 0 and not is_list:
            arguments = ast.List(elts=list(call.node.args))
        _report_program(call, arguments, program)
    else:
        _report_program(call, ast.List(elts=list(call.node.args[position:])), program)


def _report_program(call: _Call, argv: ast.expr | None, program: ast.expr | None = None) -> None:
    """``argv`` is a program alone, or a list of one and its arguments."""
    whole = UNKNOWN if argv is None else call.names.fold(argv)
    first: Any = whole
    if isinstance(whole, list):
        first = whole[0] if whole else UNKNOWN
    elif isinstance(argv, ast.List | ast.Tuple) and argv.elts:
        first = call.names.fold(argv.elts[0])
    elif isinstance(argv, ast.BinOp) and isinstance(argv.left, ast.List) and argv.left.elts:
        first = call.names.fold(argv.left.elts[0])
    named = UNKNOWN if program is None else call.names.fold(program)
    if isinstance(named, str | bytes):
        first = named
    if isinstance(first, bytes):
        first = first.decode(errors="replace")
    if not isinstance(first, str) or not first:
        call.hit("python.dynamic_shell")
        return
    name = PurePosixPath(first).name or first
    call.hit("shell.command", name)
    folder, slash, _ = first.rpartition("/")
    if slash:
        from sandbox_kernel.policy import shell_paths  # for no cell that does not need it

        if not shell_paths.is_system_folder(folder):
            call.hit("shell.command", first)  # another program of that name
    texts = whole if isinstance(whole, list) else []
    runs_another = len(texts) > 1 and name.rstrip("0123456789.") in tables.RUNS_ANOTHER
    if runs_another and all(isinstance(text, str) for text in texts):
        call.report.embedded("shell", shlex.join([name, *texts[1:]]), call.node)


def _kills(call: _Call) -> None:
    if call.constant(0) in (-1, 0, 1):
        call.hit("python.kill_all")


# IPython -------------------------------------------------------------------------------------------


def _shell_method(call: _Call, method: str) -> None:
    if method in tables.SHELL_RUNS_COMMAND:
        command = call.constant(0, "cmd")
        # `!ls` and `x = !ls` are these methods by now; %system and %sx do the same.
        call.hit("magic", "sx" if method.startswith("getoutput") else "system")
        call.hit("magic.shell", f"!{command}"[:80] if isinstance(command, str) else "!…")
        if isinstance(command, str):
            call.report.embedded("shell", command, call.node)
            for found in expressions(command):
                call.report.embedded("python", found.text, call.node)
        else:
            call.hit("python.ipython_exec")
    elif method in tables.SHELL_RUNS_CODE:
        code = call.constant(0, "raw_cell")
        if not _embed_code(call, code):
            call.hit("python.ipython_exec")
    elif method in tables.SHELL_RUNS_MAGIC:
        _runs_magic(call, method)


def _runs_magic(call: _Call, method: str) -> None:
    name = call.constant(0, "arg_s" if method == "magic" else "magic_name")
    if method == "magic" and isinstance(name, str):
        name, _, arguments = name.lstrip("%").partition(" ")
        call.report.magic(name, arguments, None, call.node)
        return
    arguments = call.constant(1, "line")
    body = call.constant(2, "cell") if method == "run_cell_magic" else None
    if isinstance(name, str) and isinstance(arguments, str) and isinstance(body, str | None):
        call.report.magic(name, arguments, body, call.node)
    else:
        if isinstance(name, str):
            call.hit("magic", name)
        call.hit("python.ipython_exec")


# Files ---------------------------------------------------------------------------------------------


def _opens(call: _Call) -> None:
    mode = call.constant(1, "mode")
    if isinstance(mode, str) and set(mode) & set("wax+"):
        call.hit("python.write_file")


def _opens_method(call: _Call) -> None:
    """``Path.open('w')``, told from ``gzip.open(path, 'w')`` and the like by what looks like a mode."""
    modes = (call.constant(0, "mode"), call.constant(1))
    if any(
        isinstance(mode, str) and set(mode) <= set("rwaxbt+") and set(mode) & set("wax+")
        for mode in modes
    ):
        call.hit("python.write_file", "open")


def _writes(call: _Call) -> None:
    call.hit("python.write_file")


def _unlinks(call: _Call) -> None:
    if not call.node.args:  # of a path; the functions of os take one
        call.hit("python.delete")


_BY_NAME: Final[Mapping[str, Callable[[_Call], None]]] = {
    **dict.fromkeys(("builtins.eval", "builtins.exec", "builtins.compile"), _runs_text),
    **dict.fromkeys(("timeit.timeit", "timeit.repeat", "timeit.Timer"), _times_text),
    **dict.fromkeys(("cProfile.run", "profile.run", "pdb.run", "pdb.runeval"), _profiles_text),
    **dict.fromkeys(("cProfile.runctx", "profile.runctx"), _profiles_text),
    **dict.fromkeys(
        (
            "builtins.__import__",
            "importlib.import_module",
            "importlib.__import__",
            "runpy.run_module",
            "importlib.util.find_spec",
            "pydoc.safeimport",
            "pkgutil.get_loader",
            "pkgutil.find_loader",
        ),
        _imports,
    ),
    **dict.fromkeys(("pydoc.locate", "pydoc.resolve", "pkgutil.resolve_name"), _locates),
    **dict.fromkeys(
        ("builtins.getattr", "builtins.setattr", "inspect.getattr_static"), _gets_attribute
    ),
    "operator.attrgetter": _makes_getter,
    **dict.fromkeys(("functools.update_wrapper", "functools.wraps"), _wraps),
    **dict.fromkeys(("builtins.type()", OF_LAMBDA), _built_function),
    **dict.fromkeys(("pickle.loads", "_pickle.loads", "dill.loads", "marshal.loads"), _unpickles),
    **dict.fromkeys(("cloudpickle.loads", "jsonpickle.decode"), _unpickles),
    **dict.fromkeys(("yaml.load", "yaml.load_all"), _loads_yaml),
    "numpy.load": _loads_array,
    "pandas.eval": _queries,
    **dict.fromkeys(tables.SHELL_TEXT, _runs_shell_text),
    **dict.fromkeys(tables.SUBPROCESS, _runs_subprocess),
    **dict.fromkeys(tables.PROGRAMS, _runs_program),
    **dict.fromkeys(("os.kill", "os.killpg", "posix.kill"), _kills),
    **dict.fromkeys(("builtins.open", "io.open", "codecs.open"), _opens),
}
_BY_METHOD: Final[Mapping[str, Callable[[_Call], None]]] = {
    "__getattribute__": _method_gets_attribute,
    "__setattr__": _method_gets_attribute,
    "query": _queries,
    "eval": _queries,
    "write_text": _writes,
    "write_bytes": _writes,
    "open": _opens_method,
    "unlink": _unlinks,
    "rmdir": _unlinks,
}
