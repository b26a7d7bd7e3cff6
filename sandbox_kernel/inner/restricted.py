"""What Python itself refuses to cells of a ``restricted`` sandbox: modules, and changes of builtins.

Defence in depth, no boundary: Python shows its insides to whoever asks the right way, and then none of
this holds. It catches what the static check has not seen, such as a module by a name that was put
together, and says why in a way that a person can act on. Standard library only.
"""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

# They run text as code, which no check has read.
RUN_TEXT = ("eval", "exec", "compile")
LEVEL = "at the level of isolation `restricted`"
# Modules that the interpreter imports in the name of whoever called it, such as `datetime.strptime`.
IN_THE_CALLERS_NAME = frozenset({"_strptime"})
# What IPython puts in its place while a cell runs, or for good.
SWAPPED = frozenset({"__import__", "_", "display", "exit", "get_ipython", "input", "open", "quit"})


class ReadOnly(dict[str, Any]):
    """Builtins as cells have them. A dictionary, as Python takes no other mapping for it."""

    def __missing__(self, name: str) -> Any:
        return vars(builtins)[name]  # what IPython has put there

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        msg = f"builtins cannot be changed {LEVEL}: use a name of your own"
        raise TypeError(msg)

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class Guard:
    """Decides for code of cells what it may import, and keeps its builtins as they are."""

    def __init__(self, namespace: dict[str, Any], imports: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._otherwise: str = imports["otherwise"]
        self._entries: Mapping[str, str] = imports["entries"]
        self._import: Callable[..., Any] = builtins.__import__
        self._plain = {name: it for name, it in vars(builtins).items() if name not in SWAPPED}
        own = {name: refusing(name) for name in RUN_TEXT}
        self._builtins = ReadOnly(self._plain | own | {"__import__": self._import_for_cell})

    def renew(self) -> None:
        """Before each cell: an earlier one may have found a way to put others in their place."""
        self._namespace["__builtins__"] = self._builtins
        self._namespace.pop("__builtin__", None)  # IPython's other name for them
        vars(builtins).update(self._plain, __import__=self._import_for_any)

    def _import_for_any(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        # Called as a function, it is seldom given any.
        if not is_library(sys._getframe(1).f_globals if globals is None else globals):
            self._check(name, fromlist)
        return self._import(name, globals, locals, fromlist, level)

    def _import_for_cell(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The same for who has the cells' builtins, whatever namespace it claims to be in."""
        fromlist = kwargs.get("fromlist", args[2] if len(args) > 2 else ())
        self._check(name, fromlist)
        return self._import(name, *args, **kwargs)

    def _check(self, name: str, fromlist: Any) -> None:
        members = [member for member in fromlist or () if member != "*"]
        for wanted in [f"{name}.{member}" for member in members] or [name]:
            if self._decide(wanted) == "deny" and name not in IN_THE_CALLERS_NAME:
                module = wanted if self._decide(name) != "deny" else name
                msg = (
                    f"cells may not import {module!r} {LEVEL}; `sandbox-kernel policy show strict` lists "
                    "what they may"
                )
                raise ImportError(msg, name=module)

    def _decide(self, name: str) -> str:
        """The word of the most specific entry, as the policy itself has it."""
        while name:
            if (decision := self._entries.get(name)) is not None:
                return decision
            name = name.rpartition(".")[0]
        return self._otherwise


def is_library(namespace: Mapping[str, Any]) -> bool:
    """Whether code with these globals is a module's that was imported: it may import what it needs."""
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) and name != "__main__" else None
    return module is not None and getattr(module, "__dict__", None) is namespace


def refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        msg = f"`{name}` is not there for cells {LEVEL}: it runs text that nobody has read"
        raise PermissionError(msg)

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


def commands_of(shell: Any) -> Callable[[str], None]:
    """``!command`` by way of a pipe: IPython's needs a terminal, and all there are are the host's."""

    def system(command: str) -> None:
        if command.rstrip().endswith("&"):
            msg = "Background processes not supported."  # IPython's words
            raise OSError(msg)
        with subprocess.Popen(
            shell.var_expand(command, depth=1),
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="")
        shell.user_ns["_exit_code"] = process.returncode

    return system
