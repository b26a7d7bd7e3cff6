"""What a name in a cell stands for: ``e`` after ``e = eval``, ``x.system`` after ``import os as x``.

This follows names, attributes, items and a few calls, never values: what it does not know is nothing.
Order and branches are not looked at, so a name may stand for several things, and a name that is bound
anywhere in a cell to something notable stands for it everywhere in the cell.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from sandbox_kernel.policy import python_tables as tables
from sandbox_kernel.policy.fold import UNKNOWN
from sandbox_kernel.policy.python_constants import MAX_DEPTH, Constants
from sandbox_kernel.policy.python_memory import STARS, Memory, Standing

_KEPT_DEPTH: Final = 2  # further in, an answer may be cut short
_MAX_LENGTH: Final = 200
_MAX_STANDINGS: Final = 64
_MOST_STARS: Final = 8

IMPORTERS: Final = frozenset(
    {"builtins.__import__", "importlib.import_module", "importlib.__import__"}
    | {"importlib._bootstrap._gcd_import", "imp.load_module", "pydoc.safeimport"}
)
_LOCATORS: Final = frozenset({"pydoc.locate", "pkgutil.resolve_name"})
_GETTERS: Final = frozenset({"builtins.getattr", "inspect.getattr_static"})
_PASSING: Final = frozenset({"functools.partial", "importlib.reload", "copy.copy", "builtins.dict"})
_TO_SHELL: Final = tables.BACK_TO_SHELL | {"get_ipython", "instance", "_instance"}
_NOT_JUST_MEMBERS: Final = (
    tables.MODULE_NAMES | tables.BUILTINS_ITSELF | _TO_SHELL | {"__self__", "kernel"}
)
_NAMESPACES: Final = frozenset(
    {"builtins.globals()", "builtins.locals()", "builtins.vars()"}
    | {f"{tables.SHELL}.user_ns", f"{tables.SHELL}.user_global_ns"}
)
# What gives an item of a mapping: a method of it, or a function that is given it and the key.
_TAKES_ITEM: Final = (".get", ".__getitem__", ".pop", ".setdefault")
_ITEM_OF: Final = frozenset({f"builtins.dict{method}" for method in _TAKES_ITEM}) | {
    "operator.getitem"
}
OF_LAMBDA: Final = "type(lambda)"  # the type of functions, by another name


class Names(Constants):
    """The names of one cell, resolved on demand within a bounded amount of work."""

    def __init__(
        self,
        memory: Memory | None,
        deadline: float | None = None,
        paths: Container[str] = frozenset(),
    ) -> None:
        super().__init__(deadline)
        self._memory = memory
        self._paths = paths  # of modules that the policy has a word on
        # What a name stands for.
        self.name: Callable[[str], Standing] = self._look_up
        self._settled: dict[int, Standing] | None = None  # by the node's identity
        self.standing: dict[str, Standing] = {}
        self.bound: set[str] = set()  # anywhere in the cell
        self.outer: set[str] = set()  # in the cell itself, outside of functions and classes
        # Of these, names that nothing here binds may come.
        self.stars: Standing = self._before(STARS) or ()

    # Binding ---------------------------------------------------------------------------------------

    def bind_import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            self._add(alias.asname or top, [alias.name if alias.asname else top])

    def bind_import_from(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self.stars = tuple(dict.fromkeys((*self.stars, module)))[-_MOST_STARS:]
                for last in tables.star_names(module):
                    self.outer.add(last)
                    self._add(last, [f"{module}.{last}"])
                continue
            # Whatever it is taken out of, as the shell's own function is.
            self._add(alias.asname or alias.name, [self._member(module, alias.name)])

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        """Follow ``target = value``."""
        if isinstance(target, ast.Name):
            once = target.id not in self._values
            self._values[target.id] = value if once else None
            self._add(target.id, self.resolve(value))
        elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            for one, other in zip(target.elts, value.elts, strict=False):
                self.bind(one, other)

    def rebind(self, target: ast.expr, value: ast.expr) -> None:
        """The same again, for names that are defined further down."""
        if isinstance(target, ast.Name):
            self._add(target.id, self.resolve(value))

    def unsteady(self, name: str) -> None:
        """The name's value changes: it is no constant."""
        self._values[name] = None

    def _add(self, name: str, standing: Iterable[str]) -> None:
        both = dict.fromkeys(chain(self.standing.get(name, ()), standing))
        if both and len(both) <= _MAX_STANDINGS:
            self.standing[name] = tuple(both)

    # Resolving -------------------------------------------------------------------------------------

    def _look_up(self, name: str) -> Standing:
        standing = self.known(name)
        if name in tables.NOTABLE:
            always = tables.NOTABLE[name]
            return standing if always in standing else (*standing, always)
        if standing:
            return standing
        if name in self.outer or self._before(name) is not None:
            return ()
        if name in tables.BUILTINS_ITSELF:
            return ("builtins",)
        if name in tables.BUILTINS:
            return (f"builtins.{name}",)
        if name in self.bound:
            return ()
        starred = tuple(self._starred(name)) if self.stars else ()
        if name in tables.GUESSED:
            return (*starred, name)
        return (*starred, tables.ALIASES[name]) if name in tables.ALIASES else starred

    def _starred(self, name: str) -> Iterator[str]:
        """What it may be of ``from module import *``: a module. All else may come from anywhere."""
        for module in self.stars:
            whole, member = f"{module}.{name}", self._member(module, name)
            if member != whole or whole in tables.MODULES or whole in self._paths:
                yield member

    def known(self, name: str) -> Standing:
        """What cells have bound it to, this one and earlier ones.

        What it stood for before is never forgotten: which of two bindings comes first, or whether one
        is ever reached, is not known here.
        """
        here = self.standing.get(name, ())
        before = self._before(name)
        return tuple(dict.fromkeys((*here, *before)))[:_MAX_STANDINGS] if before else here

    def earlier(self, name: str) -> str | None:
        """The text that an earlier cell bound it to, if this one does not bind it."""
        if self._memory is None or name in self.bound or name in self.outer:
            return None
        return self._memory.text(name)

    def is_hidden(self, name: str) -> bool:
        """Whether a cell defined it anew, as something that is not known here."""
        here = name in self.outer and name not in self.standing
        return here or self._before(name) == ()

    def _before(self, name: str) -> Standing | None:
        return None if self._memory is None else self._memory.get(name)

    def resolve(self, node: ast.expr, depth: int = 0) -> Standing:
        """The qualified names that an expression may stand for."""
        if type(node) is ast.Name:
            return self.name(node.id)
        follow = self._FOLLOW.get(type(node))
        if follow is None or depth > MAX_DEPTH:
            return ()
        if self._settled is None:
            self._step()
            return follow(self, node, depth + 1)
        key = id(node)
        found = self._settled.get(key)
        if found is None:
            self._step()
            found = follow(self, node, depth + 1)
            if depth <= _KEPT_DEPTH:
                self._settled[key] = found
        return found

    def settle(self) -> None:
        """All names are bound: what expressions stand for changes no more."""
        self._settled = {}
        self.name = _Remembered(self._look_up).__getitem__

    def _attribute(self, node: ast.Attribute, depth: int) -> Standing:
        bases = self.resolve(node.value, depth)
        if not bases:
            if node.attr == "_ip" and not is_of_self(node.value):
                return (tables.SHELL,)  # as `exit` and `quit` have it
            if node.attr == "get_ipython":
                return ("get_ipython",)
            if node.attr == "kernel" and getattr(node.value, "attr", None) == "comm":
                return (tables.KERNEL,)
            if node.attr == "__class__" and type(node.value) is ast.Lambda:
                return (OF_LAMBDA,)
            inner = None if is_of_self(node.value) else tables.inner_module(None, node.attr)
            inner = inner or tables.told_by_member(getattr(node.value, "attr", None), node.attr)
            return (inner,) if inner else ()
        if len(bases) == 1:
            return (self._member(bases[0], node.attr),) if len(bases[0]) < _MAX_LENGTH else ()
        self._step(len(bases))
        return tuple(self._member(base, node.attr) for base in bases if len(base) < _MAX_LENGTH)

    def _member(self, base: str, attribute: str) -> str:
        if attribute not in _NOT_JUST_MEMBERS:
            return f"{base}.{attribute}"
        if attribute in tables.BUILTINS_ITSELF:
            return "builtins"
        if attribute == "__self__" and base.startswith("builtins."):
            return "builtins"
        if attribute in _TO_SHELL:
            return _back_to_shell(base, attribute)
        if attribute == "kernel":
            return tables.KERNEL if base.endswith(tables.COMMS) else f"{base}.kernel"
        inner = tables.inner_module(base, attribute) or tables.reexported(base, attribute)
        return inner or f"{base}.{attribute}"

    def _call(self, node: ast.Call, depth: int) -> Standing:
        functions = self.resolve(node.func, depth)
        if len(functions) < 2:
            return self._called(functions[0], node, depth) if functions else ()
        found = chain.from_iterable(self._called(name, node, depth) for name in functions)
        return tuple(dict.fromkeys(found))[:_MAX_STANDINGS]

    def _called(self, name: str, node: ast.Call, depth: int) -> Standing:
        arguments = node.args
        if name in tables.GIVES_SHELL:
            return (tables.SHELL,)
        if name in _GETTERS and len(arguments) >= 2:
            attribute = self.fold(arguments[1], depth)
            if isinstance(attribute, str):
                bases = self.resolve(arguments[0], depth)
                if not bases and (inner := tables.inner_module(None, attribute)) is not None:
                    return (inner,)
                return tuple(self._member(base, attribute) for base in bases)
            return ()
        if name.endswith(".__getattribute__"):
            key = self.fold(arguments[-1], depth) if arguments else UNKNOWN
            bases = (name.rpartition(".")[0],)
            if len(arguments) > 1:  # object.__getattribute__(os, 'system')
                bases = self.resolve(arguments[0], depth)
            return tuple(self._member(base, key) for base in bases) if isinstance(key, str) else ()
        if name in _ITEM_OF and len(arguments) > 1:
            return self._items(self.resolve(arguments[0], depth), arguments[1], depth)
        if name.endswith(_TAKES_ITEM) and arguments:
            base = name.rpartition(".")[0]
            if is_namespace(base):
                return self._items((base,), arguments[0], depth)
        if name in IMPORTERS or name in _LOCATORS or name == "sys.modules.get":
            module = self.fold(arguments[0], depth) if arguments else UNKNOWN
            if not isinstance(module, str) or len(module) > _MAX_LENGTH:
                return ()
            top = name == "builtins.__import__" and len(arguments) < 4
            return (module.partition(".")[0] if top else module.replace(":", "."),)
        if name == "builtins.vars" and arguments:
            return tuple(f"{base}.__dict__" for base in self.resolve(arguments[0], depth))
        if name in _PASSING and arguments:
            return self.resolve(arguments[0], depth)
        if name.endswith(".copy") and is_namespace(name[:-5]):
            return (name[:-5],)
        if name == "builtins.type" and arguments and type(arguments[0]) is ast.Lambda:
            return (OF_LAMBDA,)
        return (f"{name}()",) if len(name) < _MAX_LENGTH else ()

    def _subscript(self, node: ast.Subscript, depth: int) -> Standing:
        bases = self.resolve(node.value, depth)
        return self._items(bases, node.slice, depth) if bases else ()

    def _items(self, bases: Standing, key_node: ast.expr, depth: int) -> Standing:
        key = self.fold(key_node, depth)
        if not isinstance(key, str) or len(key) > _MAX_LENGTH:
            key = None
        return tuple(chain.from_iterable(self._item(base, key) for base in bases))

    def _item(self, base: str, key: str | None) -> Standing:
        if base not in _NAMESPACES and base.startswith(tables.SHELL):
            # A part of the shell, which leads back to it.
            return (f"{base}[]",) if len(base) < _MAX_LENGTH else ()
        if key is None:
            return ()
        if base == "sys.modules":
            return (key,)
        if base in _NAMESPACES or base.endswith(".__globals__"):
            return self.name(key)
        if base == "builtins" or base.endswith(".__dict__"):
            return (self._member(base.removesuffix(".__dict__"), key),)
        return ()

    def _named(self, node: ast.NamedExpr, depth: int) -> Standing:
        return self.resolve(node.value, depth)

    def _either(self, node: ast.IfExp, depth: int) -> Standing:
        return self.resolve(node.body, depth) + self.resolve(node.orelse, depth)

    def _united(self, node: ast.BinOp, depth: int) -> Standing:
        """``globals() | {}``."""
        if type(node.op) is not ast.BitOr:
            return ()
        return self.resolve(node.left, depth) + self.resolve(node.right, depth)

    def _spread(self, node: ast.Dict, depth: int) -> Standing:
        """``{**globals()}``."""
        if None not in node.keys:
            return ()
        pairs = zip(node.keys, node.values, strict=True)
        spread = [value for key, value in pairs if key is None][:4]
        return tuple(chain.from_iterable(self.resolve(value, depth) for value in spread))

    def _any(self, node: ast.BoolOp, depth: int) -> Standing:
        return tuple(chain.from_iterable(self.resolve(value, depth) for value in node.values[:4]))

    def _await(self, node: ast.Await, depth: int) -> Standing:
        return self.resolve(node.value, depth)

    _FOLLOW: Final[Mapping[type[ast.expr], Callable[..., Standing]]] = {
        ast.Attribute: _attribute,
        ast.Call: _call,
        ast.Subscript: _subscript,
        ast.NamedExpr: _named,
        ast.IfExp: _either,
        ast.BoolOp: _any,
        ast.BinOp: _united,
        ast.Dict: _spread,
        ast.Await: _await,
    }


class _Remembered(dict[str, Standing]):
    """Answers to a question, each asked once."""

    def __init__(self, ask: Callable[[str], Standing]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, name: str) -> Standing:
        answer = self[name] = self._ask(name)
        return answer


def is_namespace(name: str) -> bool:
    """Whether its items are what names stand for."""
    return (
        name in _NAMESPACES or name == "sys.modules" or name.endswith((".__dict__", ".__globals__"))
    )


def _back_to_shell(base: str, attribute: str) -> str:
    """IPython's shell, or what gives it, where the attribute of that name is it."""
    if attribute == "get_ipython":
        return attribute  # of whatever module has imported it
    if attribute in tables.BACK_TO_SHELL:
        is_shell = attribute == "_ip" or base.startswith(tables.SHELL)
        return tables.SHELL if is_shell else f"{base}.{attribute}"
    if not base.endswith(tables.SHELL_CLASSES):
        return f"{base}.{attribute}"
    return tables.SHELL if attribute == "_instance" else "IPython.InteractiveShell.instance"


def is_of_self(node: ast.expr) -> bool:
    """Whether it is an attribute of an object of the cell's own, whose names are its own as well."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
