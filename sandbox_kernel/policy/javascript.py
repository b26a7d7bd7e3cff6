"""What a JavaScript text could do to the page that shows it, as far as the text tells.

Output of a cell runs in the notebook's own origin: with the server's cookies, and beside the kernels
and terminals of the host. Names count, not calls: ``const f = fetch`` is as good as ``fetch(…)``.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Final

from sandbox_kernel.policy.syntax import Effort, Parsed, parse_javascript, upwards
from sandbox_kernel.policy.verdict import Embedded, Hit, Rule

if TYPE_CHECKING:
    from tree_sitter import Node

RULES: Final[tuple[Rule, ...]] = (
    Rule("javascript.any", "low", "it runs a script in the page of the notebook", "Do it in Python: plots, tables and widgets need no script", None),
    Rule("javascript.unparseable", "high", "it is no JavaScript that can be read, so nobody knows what it does", "Check brackets and quotes", None),
    Rule("javascript.server_api", "critical", "it calls the notebook server, which can open a terminal on the host", "Do it in Python: plots, tables and widgets need no script", None),
    Rule("javascript.network", "high", "it sends or fetches data with the user's cookies", "Put the data into the notebook's folder beforehand", None),
    Rule("javascript.kernel", "critical", "it runs code in a kernel from the page, past the check", "Run the code in a cell", None),
    Rule("javascript.notebook", "medium", "it runs or changes cells of the notebook from the page", "Run the cell by hand", None),
    Rule("javascript.commands", "critical", "it runs commands of JupyterLab, a terminal among them", "Use the menu", None),
    Rule("javascript.eval", "high", "it runs text as a script", "Write the script out", None),
    Rule("javascript.credentials", "high", "it reads cookies or stored data of the page", "Do without: a notebook needs none", None),
    Rule("javascript.inject", "high", "it puts markup or scripts into the page", "Use text, or display(HTML(…)) without scripts", None),
    Rule("javascript.navigation", "medium", "it opens or leaves pages, or talks to other windows", "Show a link", None),
    Rule("javascript.remote_module", "high", "it loads a script from another host", "Use a library that is installed", None),
    Rule("javascript.dynamic_member", "high", "it uses a part of the page whose name is only known when it runs", "Write the name out", None),
    Rule("javascript.constructor", "critical", "it makes a function from text by way of a constructor", "Write the function out", None),
)  # fmt: skip

_GLOBALS: Final = frozenset(
    ("window", "globalThis", "self", "top", "parent", "frames", "document", "opener")
)
# Wherever they stand: nothing else bears such names.
_NAMES: Final[dict[str, str]] = {
    name: rule
    for rule, names in {
        "javascript.network": "XMLHttpRequest WebSocket EventSource sendBeacon importScripts "
        "RTCPeerConnection SharedWorker serviceWorker WebTransport getScript getJSON ajax",
        "javascript.kernel": "requestExecute connectToKernel KernelConnection KernelManager "
        "startNewKernel requestComplete IPythonKernel",
        "javascript.notebook": "execute_cell execute_all_cells execute_cell_and_select_below "
        "execute_cells insert_cell_below insert_cell_above insert_cell_at_bottom set_text runAll",
        "javascript.commands": "jupyterapp jupyterlab commandlinker CommandLinker _commandLinker",
        "javascript.eval": "execScript",
        "javascript.credentials": "cookie cookieStore localStorage sessionStorage indexedDB "
        "getCookie credentials",
        "javascript.inject": "innerHTML outerHTML insertAdjacentHTML createContextualFragment srcdoc "
        "setHTMLUnsafe parseHTMLUnsafe",
        "javascript.navigation": "postMessage contentWindow contentDocument",
    }.items()
    for name in names.split()
}
# Of the page itself: alone, or as a part of `window` and its like.
_PAGE_NAMES: Final[dict[str, str]] = {
    **dict.fromkeys(("fetch", "Worker", "Image"), "javascript.network"),
    **dict.fromkeys(("eval", "Function"), "javascript.eval"),
    **dict.fromkeys(("open", "location", "opener"), "javascript.navigation"),
    **dict.fromkeys(("write", "writeln", "execCommand"), "javascript.inject"),
}
_ONLY_PARTS: Final = frozenset({"open", "opener", "write", "writeln", "execCommand"})
_API: Final = re.compile(
    r"api/(terminals|kernels|contents|sessions|kernelspecs|shutdown|settings)\b"
)
_REMOTE: Final = re.compile(r"\s*(https?:)?//", re.IGNORECASE)
_MARKUP: Final = re.compile(
    r"<\s*(script|iframe|object|embed)\b|\bon[a-z]+\s*=|javascript:", re.IGNORECASE
)
_LINKER: Final = re.compile(r"data-commandlinker", re.IGNORECASE)
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|(.))", re.DOTALL
)
_LETTERS: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "0": "\0",
    "\n": "",
}
_DEEPEST: Final = 30
_FUNCTIONS: Final = frozenset(("function_expression", "function_declaration", "method_definition"))


def examine(text: str, deadline: float | None = None) -> list[Hit | Embedded]:
    """Hits and embedded Python. Raises ``Unreadable`` for what takes too long to read, or goes on
    past the deadline on ``time.thread_time``.
    """
    if not text.strip():
        return []
    parsed = parse_javascript(text, deadline)
    reader = _Reader(parsed, Effort(deadline))
    reader.items.append(Hit("javascript.any", "script", 1, 0))
    if parsed.root.has_error:
        reader.items.append(Hit("javascript.unparseable", _short(text.strip()), 1, 0))
    reader.read()
    return list(dict.fromkeys(reader.items))


class _Reader:
    """Reads each node once, behind all that is below it, so that whatever it is made of is known."""

    def __init__(self, parsed: Parsed, effort: Effort) -> None:
        self.items: list[Hit | Embedded] = []
        self._parsed = parsed
        self._effort = effort
        self._nodes = upwards(parsed.root)
        self._parents = {child.id: node for node in self._nodes for child in node.children}
        self._values: dict[int, str] = {}  # of the expressions that come to a text, by their ids
        self._constants: dict[str, str] = {}
        self._searched: set[int] = set()  # arguments whose texts have been looked through
        self._has_kernel = b"kernel" in parsed.data.lower()

    def read(self) -> None:
        for node in self._nodes:
            self._effort.look()
            if (value := self._worked_out(node)) is not None:
                self._values[node.id] = value
            self._visit(node)

    def _visit(self, node: Node) -> None:
        kind = node.type
        if kind in (
            "identifier",
            "shorthand_property_identifier",
            "shorthand_property_identifier_pattern",
        ):
            self._identifier(node)
        elif kind in ("property_identifier", "private_property_identifier"):
            self._property(node, _unescaped(self._parsed.text(node)))
        elif kind == "subscript_expression":
            self._subscript(node)
        elif kind == "string":
            self._text(node, self._constant(node) or "")
        elif kind in ("call_expression", "new_expression"):
            self._call(node)
        elif kind == "variable_declarator":
            self._declared(node)
        elif kind == "import_statement":
            source = node.child_by_field_name("source")
            value = self._constant(source) if source is not None else None
            if value is not None and _REMOTE.match(value):
                self._hit("javascript.remote_module", value, node)

    def _hit(self, rule: str, about: str, node: Node) -> None:
        self.items.append(Hit(rule, _short(about), *self._parsed.place(node)))

    # Names -------------------------------------------------------------------------------------

    def _identifier(self, node: Node) -> None:
        name = _unescaped(self._parsed.text(node))
        rule = _NAMES.get(name)
        if rule is None and name not in _ONLY_PARTS:
            rule = _PAGE_NAMES.get(name)
        owner = self._parents.get(node.id)
        if name in ("top", "parent", "opener") and owner is not None:
            first = owner.child_by_field_name("object")
            if first is not None and first.id == node.id:
                rule = "javascript.navigation"
        if rule:
            self._hit(rule, name, node)

    def _property(self, node: Node, name: str) -> None:
        rule = _NAMES.get(name)
        owner = self._parents.get(node.id)
        if rule is None and name in _PAGE_NAMES and owner is not None:
            target = owner.child_by_field_name("object")
            if owner.type == "pair_pattern" or (target is not None and self._is_page(target)):
                rule = _PAGE_NAMES[name]
        if name == "constructor" and owner is not None:
            self._constructor(owner)
        if name == "getScript" and owner is not None and self._is_called(owner):
            return  # what it loads tells more
        if rule:
            self._hit(rule, name, node)

    def _is_called(self, member: Node) -> bool:
        above = self._parents.get(member.id)
        function = above.child_by_field_name("function") if above is not None else None
        return function is not None and function.id == member.id

    def _constructor(self, member: Node) -> None:
        """``x.constructor.constructor`` and ``x.constructor("…")`` make functions of text."""
        above = self._parents.get(member.id)
        inner = member.child_by_field_name("object")
        doubled = inner is not None and self._last(inner) == "constructor"
        called = above is not None and above.type in ("call_expression", "new_expression") and (
            (function := above.child_by_field_name("function") or above.child_by_field_name("constructor"))
            is not None and function.id == member.id
        )  # fmt: skip
        if doubled or called:
            self._hit("javascript.constructor", self._parsed.text(member), member)

    def _subscript(self, node: Node) -> None:
        target = node.child_by_field_name("object")
        index = node.child_by_field_name("index")
        if target is None or index is None:
            return
        name = self._constant(index)
        if name is not None:
            rule = _NAMES.get(name) or (_PAGE_NAMES.get(name) if self._is_page(target) else None)
            if rule:
                self._hit(rule, name, node)
            if name == "constructor":
                self._constructor(node)
        elif self._is_page(target) and index.type != "number":
            self._hit("javascript.dynamic_member", self._parsed.text(node), node)

    def _is_page(self, node: Node) -> bool:
        for _ in range(_DEEPEST):
            if node.type == "identifier":
                return _unescaped(self._parsed.text(node)) in _GLOBALS
            if node.type == "this":
                return self._is_outside_functions(node)
            if node.type in ("member_expression", "subscript_expression"):
                return self._last(node) in _GLOBALS | {"defaultView"}
            if node.type == "parenthesized_expression" and node.named_children:
                node = node.named_children[-1]
            else:
                return False
        return False

    def _is_outside_functions(self, node: Node) -> bool:
        """Whether ``this`` is the page here: within a function it is some object."""
        above: Node | None = node
        for _ in range(_DEEPEST * 4):
            above = self._parents.get(above.id) if above is not None else None
            if above is None:
                return True
            if above.type in _FUNCTIONS:
                return False
        return True

    def _last(self, node: Node) -> str | None:
        """The last name of ``a.b.c`` or ``a.b["c"]``."""
        if node.type == "member_expression":
            name = node.child_by_field_name("property")
            return _unescaped(self._parsed.text(name)) if name is not None else None
        if node.type == "subscript_expression":
            index = node.child_by_field_name("index")
            return self._constant(index) if index is not None else None
        return _unescaped(self._parsed.text(node)) if node.type == "identifier" else None

    # Calls and texts ---------------------------------------------------------------------------

    def _call(self, node: Node) -> None:
        function = node.child_by_field_name("function") or node.child_by_field_name("constructor")
        arguments = node.child_by_field_name("arguments")
        if function is None or arguments is None:
            return
        name = self._last(function) or ""
        values = arguments.named_children
        first = self._constant(values[0]) if values else None
        if function.type == "import":
            remote = first is None or bool(_REMOTE.match(first))
            self._hit(
                "javascript.remote_module" if remote else "javascript.network", "import()", node
            )
        elif name in ("setTimeout", "setInterval", "setImmediate") and values:
            if first is not None or values[0].type in ("template_string", "binary_expression"):
                self._hit("javascript.eval", f"{name} of a text", node)
        elif name in ("execute", "requestExecute") and self._has_kernel:
            self._hit("javascript.kernel", self._parsed.text(function), node)
            self._embed(values[:1])
        elif name == "execute" and "commands" in self._parsed.text(function):
            self._hit("javascript.commands", self._parsed.text(function), node)
        elif name in ("createElement", "createElementNS") and values:
            tag = self._constant(values[-1])
            if tag is None or tag.lower() in ("script", "iframe", "object", "embed"):
                self._hit("javascript.inject", f"{name}({tag or '…'})", node)
        elif name in ("require", "requirejs", "define", "config") and values:
            self._remote_texts(arguments)
        elif name == "getScript":
            remote = first is not None and bool(_REMOTE.match(first))
            rule = "javascript.remote_module" if remote else "javascript.network"
            self._hit(rule, first or name, node)
        elif name in ("get", "post", "load") and self._is_jquery(function, name):
            self._hit("javascript.network", self._parsed.text(function), node)
        elif (
            name in ("get", "apply", "getOwnPropertyDescriptor")
            and values
            and self._is_page(values[0])
        ):
            self._hit("javascript.dynamic_member", self._parsed.text(node), node)

    def _is_jquery(self, function: Node, name: str) -> bool:
        """``$.get``; ``$('div').get(0)`` is an element, and ``$('div').load(…)`` a request again."""
        if name == "load":
            return self._parsed.text(function).startswith(("$", "jQuery"))
        owner = function.child_by_field_name("object")
        return owner is not None and self._parsed.text(owner) in ("$", "jQuery")

    def _remote_texts(self, arguments: Node) -> None:
        """Calls may stand within calls: what was looked through for an inner one is not again."""
        stack = [arguments]
        while stack:
            node = stack.pop()
            if node.id in self._searched:
                continue
            if node.type == "arguments":
                self._searched.add(node.id)
            elif node.type == "string":
                value = self._constant(node)
                if value is not None and _REMOTE.match(value):
                    self._hit("javascript.remote_module", value, node)
            stack.extend(node.children)

    def _embed(self, values: list[Node]) -> None:
        code = self._constant(values[0]) if values else None
        if code is None and values and values[0].type == "object":
            for pair in values[0].named_children:
                key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
                if (
                    key is not None
                    and value is not None
                    and self._parsed.text(key).strip("\"'") == "code"
                ):
                    code = self._constant(value)
        if code is not None:
            self.items.append(Embedded("python", code, *self._parsed.place(values[0])))

    def _declared(self, node: Node) -> None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is not None and value is not None and name.type == "identifier":
            constant = self._constant(value)
            if constant is not None:
                self._constants[_unescaped(self._parsed.text(name))] = constant

    def _text(self, node: Node, value: str) -> None:
        if _API.search(value):
            self._hit("javascript.server_api", value, node)
        if _LINKER.search(value):
            self._hit("javascript.commands", value, node)
        elif _MARKUP.search(value):
            self._hit("javascript.inject", value, node)

    # Expressions that come to a text --------------------------------------------------------------

    def _constant(self, node: Node) -> str | None:
        """The text that an expression comes to, if it is one whatever happens."""
        return self._values.get(node.id)

    def _worked_out(self, node: Node) -> str | None:
        """The same, from the values of what is below."""
        kind = node.type
        if kind == "string":
            return _unescaped(self._parsed.text(node)[1:-1])
        if kind == "template_string":
            return self._template(node)
        if kind == "identifier":
            return self._constants.get(_unescaped(self._parsed.text(node)))
        if kind == "parenthesized_expression" and node.named_children:
            return self._constant(node.named_children[-1])
        if kind == "binary_expression" and _is_sum(node):
            above = self._parents.get(node.id)
            return None if _is_left_of_sum(node, above) else self._sum(node)
        if kind == "call_expression":
            function, arguments = (
                node.child_by_field_name("function"),
                node.child_by_field_name("arguments"),
            )
            if function is not None and arguments is not None and arguments.named_children:
                return self._called(function, arguments.named_children)
        return None

    def _sum(self, node: Node) -> str | None:
        """``"a" + "b" + …``, whose left side may nest as deep as the text is long.

        Where parts of it are not known, others still tell: ``base + "/api/" + "kernels"``.
        """
        parts: list[Node] = []
        each: Node | None = node
        while each is not None and _is_sum(each):
            if (right := each.child_by_field_name("right")) is not None:
                parts.append(right)
            each = each.child_by_field_name("left")
        if each is not None:
            parts.append(each)
        return self._whole(node, [self._constant(part) for part in reversed(parts)])

    def _template(self, node: Node) -> str | None:
        """```/api/${id}```: its values are read by themselves, whatever stands in them."""
        parts: list[str | None] = []
        at = node.start_byte + 1
        for child in node.children:
            if child.type == "template_substitution":
                parts.append(_unescaped(self._parsed.slice(at, child.start_byte)))
                values = child.named_children
                parts.append(self._constant(values[0]) if len(values) == 1 else None)
                at = child.end_byte
        parts.append(_unescaped(self._parsed.slice(at, node.end_byte - 1)))
        return self._whole(node, parts)

    def _whole(self, node: Node, parts: list[str | None]) -> str | None:
        """The text of all parts, if all are known. Those that adjoin are looked at in any case."""
        known: list[str] = []
        for part in parts:
            if part is not None:
                known.append(part)
            elif known:
                self._text(node, self._joined("", known))
                known.clear()
        whole = self._joined("", known)
        self._text(node, whole)
        return None if None in parts else whole

    def _joined(self, glue: str, parts: list[str]) -> str:
        self._effort.spend(sum(map(len, parts)) + len(glue) * len(parts))
        return glue.join(parts)

    def _called(self, function: Node, values: list[Node]) -> str | None:
        name = self._last(function)
        if name == "atob" and (value := self._constant(values[0])) is not None:
            self._effort.spend(len(value))
            try:
                return base64.b64decode(value).decode("latin-1")
            except ValueError:  # not base64: the browser would raise
                return None
        if name in ("fromCharCode", "fromCodePoint") and all(v.type == "number" for v in values):
            numbers = [self._parsed.text(value) for value in values[:1000]]
            if all(number.isdecimal() and len(number) < 7 for number in numbers):
                return "".join(chr(min(int(number), 0x10FFFF)) for number in numbers)
        if name == "join" and function.type == "member_expression":
            array = function.child_by_field_name("object")
            glue = self._constant(values[0])
            if array is not None and array.type == "array" and glue is not None:
                parts = [self._constant(item) for item in array.named_children[:1000]]
                if all(part is not None for part in parts):
                    return self._joined(glue, [part for part in parts if part is not None])
        return None


def _is_sum(node: Node) -> bool:
    if node.type != "binary_expression":
        return False
    operator = node.child_by_field_name("operator")
    return operator is not None and operator.type == "+"


def _is_left_of_sum(node: Node, above: Node | None) -> bool:
    if above is None or not _is_sum(above):
        return False
    left = above.child_by_field_name("left")
    return left is not None and left.id == node.id


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text

    def letter(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code:
            return chr(min(int(code, 16), 0x10FFFF))
        return _LETTERS.get(match[4], match[4])

    return _ESCAPE.sub(letter, text)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
