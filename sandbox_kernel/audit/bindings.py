"""Finds the string literals that code binds to the name of a secret.

This is a scan of tokens, not a parser: a cell is often not Python (magics, JSON, half a cell). Whatever the
cell is, the scan never raises and takes time in proportion to its length. It keeps one frame per open
bracket, which knows what the next literal would be bound to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from sandbox_kernel.audit.secret_names import Promise, is_secret, promise, words

# From where to where a secret stands in a text.
Span = tuple[int, int]
Look = Callable[[str], Iterator[Span]]

_LITERAL: Final = (
    r"\"{3}(?:\\[\s\S]|(?!\"{3})[^\\])*+(?:\"{3})?|'{3}(?:\\[\s\S]|(?!'{3})[^\\])*+(?:'{3})?|"
    r"\"(?:\\[\s\S]|[^\"\\\n])*+\"?|'(?:\\[\s\S]|[^'\\\n])*+'?"
)
_TOKEN: Final = re.compile(
    # A magic or a shell line has rules of its own; its brackets and quotes end with it.
    r"(?P<line>^[^\S\n]*+(?:[\w,. \t]{1,100}+=[^\S\n]{0,8})?(?:!(?!=)|%(?=[A-Za-z%]))"
    r"(?:\\[\s\S]|[^\\\n])*+)|"
    rf"(?P<literal>(?:(?<!\w)[rbuRBUfF]{{1,2}})?(?:{_LITERAL}))|"
    r"(?P<comment>#[^\n]*)|"
    r"(?P<name>[^\W\d]\w*)|"
    r"(?P<mark>:=|[=!<>]=|=>|<-|[-+|]=|\\\n|[=,:;.()\[\]{}\n])",
    re.MULTILINE,
)
_OPENING: Final = re.compile(r"[rbuRBUfF]{0,2}(?:\"{3}|'{3}|\"|')")
_FIELD: Final = re.compile(r"(?<!\{)\{[^{}\n]{1,200}\}")
_SCHEME: Final = re.compile(r"\s*(?:bearer|basic|digest|token|apikey|negotiate)\s+", re.IGNORECASE)
_CLOSES: Final = re.compile(r"\s{0,20},?\s{0,20}\)")
_CLAUSES: Final = words("if elif else for while with try except finally def class case match async")
_KEYWORDS: Final = _CLAUSES | words("return yield in and or not is await lambda print")
# These calls return the secret that they are given in another form.
_WRAPPERS: Final = words(
    "secretstr secret secretbytes str bytes bytearray b64decode b64encode urlsafe_b64decode unhexlify "
    "fromhex encode decode quote quote_plus dedent fernet cast sha256 md5 sha1 textvalue join"
)
# These calls are given the name of a secret, then the secret.
_SETTERS: Final = words(
    "setdefault putenv setenv getenv get pop set setattr add_header addheader put putheader "
    "__setitem__ set_option set_secret set_key set_variable setproperty option config add_field "
    "fill set_config add_secret create_secret put_secret"
)
# The arguments of these calls, in their order.
_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("httpbasicauth", "httpdigestauth", "httpproxyauth", "basicauth", "login"),
        ("user", "password"),
    ),
    "usernamepasswordcredential": ("client", "user", "password"),
    "clientsecretcredential": ("tenant", "client", "password"),
}
# Of these, the names that promise nothing.
LOGINS: Final = frozenset({"login"})
_READS: Final = re.compile(
    r"(?:get|read|load|fetch|ask|find|check|is|has|make|create|gen|new|print|show|list|delete)",
    re.IGNORECASE,
)
_PAIRED: Final = frozenset({"auth", "basic_auth", "http_auth", "proxy_auth"})
# `{"name": "DB_PASSWORD", "value": "…"}`, `add_argument("--password", default="…")`.
_NAMING: Final = frozenset({"name", "key", "variable"})
_NAMED: Final = frozenset({"value", "default", "fallback", "default_value"})
_DEEPEST: Final = 200
_MOST_TARGETS: Final = 32


class _Frame:
    """What is known inside one pair of brackets, or in one statement outside of any."""

    __slots__ = (
        *("opener", "callee", "inherited", "targets", "names", "item", "name", "is_literal"),
        *("previous", "bound", "bound_name", "compared", "subject", "annotated", "clause"),
    )

    def __init__(
        self,
        opener: str = "",
        callee: str = "",
        inherited: Promise = Promise.NONE,
        targets: tuple[str, ...] = (),
    ) -> None:
        self.opener, self.callee, self.inherited, self.targets = opener, callee, inherited, targets
        self._begin()

    def _begin(self) -> None:
        """Nothing of it has been read yet."""
        self.names: list[str] = []  # of the items before this one
        self.item = 0
        self.name = ""  # the last name, or literal that may name something, in this item
        self.is_literal = False
        self.previous = ""  # the literal that the item before this one is
        self.bound_name = ""
        self.compared = self.subject = Promise.NONE
        self.annotated = self.clause = ""
        self.bound = self._expected()

    def _expected(self) -> Promise:
        if not self.targets:
            return self.inherited
        return promise(self.targets[self.item]) if self.item < len(self.targets) else Promise.NONE

    def bind(self, name: str) -> None:
        self.bound_name = name
        promised = self.subject if name in _NAMED else promise(name)
        self.bound = max(promised, self.inherited)

    def assign(self) -> None:
        """At ``=``: what stands before it is what is bound."""
        if self.opener or self.annotated:
            self.bind(self.annotated or self.name)
            return
        chained = Promise.NONE if self.targets else self.bound
        targets = [*self.names, self.name] if self.item else [*self.names]
        self.item, self.names = 0, []
        if len(targets) > 1:
            self.targets, self.bound = tuple(targets), Promise.NONE
            self.bound = self._expected()
        else:
            self.bind(self.name)
            self.bound = max(self.bound, chained)

    def next_item(self) -> None:
        """At ``,``."""
        if len(self.names) < _MOST_TARGETS and (self.name or self.item):
            self.names.append(self.name)
        self.item += 1
        self.previous = self.name if self.is_literal else ""
        self.name, self.is_literal, self.annotated = "", False, ""
        self.compared = Promise.NONE
        if self.opener or self.targets:
            self.bound_name, self.bound = "", self._expected()

    def colon(self) -> None:
        if self.clause and not self.opener:
            # A statement follows on the same line, outside of any bracket.
            self.callee, self.inherited, self.targets = "", Promise.NONE, ()
            self._begin()
        elif self.opener == "{" or not self.opener:
            self.bind(self.name)
        if self.opener != "{":
            self.annotated = self.name

    def close(self, inner: _Frame) -> None:
        """At the bracket that ends ``inner``, which stands in this frame."""
        if inner.callee == "[":  # `environ["NAME"]` is called by its index
            self.name, self.is_literal = inner.name or self.name, False
        elif not inner.callee and inner.item and not self.item:  # `(user, password) = …`
            self.names = [*inner.names, inner.name]

    def promised(self, text: str, end: int, content: str) -> Promise:
        """What is promised of the literal that ends at ``end``."""
        if self.opener == "{" and text[end : end + 20].lstrip()[:1] == ":":
            return Promise.NONE  # a key
        if self.compared:
            return self.compared
        bound = self.bound
        if len(self.targets) > 1 and text[end : end + 1] == ".":  # `"a:b".split(":")`
            bound = max(map(promise, self.targets))
        if not bound and self.previous and not self.name:
            is_pair = self.item == 1 and (
                self.callee in _SETTERS
                or (self.opener == "(" and not self.callee and _CLOSES.match(text, end))
            )
            if is_pair or (self.previous.startswith("-") and not content.startswith("-")):
                bound = promise(self.previous)
        return bound

    def note(self, content: str) -> None:
        """A literal that is no secret: it may be the name of one."""
        content = content if len(content) <= 100 else ""
        if self.bound_name in _NAMING or (not self.item and content.startswith("-")):
            self.subject = promise(content)
        self.name, self.is_literal = content, True


def secrets_in_code(text: str, look: Look) -> Iterator[Span]:
    """Where literals that are bound to names of secrets stand; ``look`` looks into all other literals."""
    return _scan(text, 0, len(text), look, is_nested=False)


def _scan(text: str, begin: int, stop: int, look: Look, *, is_nested: bool) -> Iterator[Span]:
    frame, too_deep = _Frame(), 0
    outer: list[_Frame] = []
    last = ""  # the token before
    for token in _TOKEN.finditer(text, begin, stop):
        kind, start, end = token.lastgroup, token.start(), token.end()
        word = token[0] if end - start < 100 else ""
        if kind == "name":
            if word in _CLAUSES and not frame.name and not frame.item:
                frame.clause = word
            elif word == "in":
                if not frame.is_literal:
                    frame.bind(frame.name)
            elif not frame.annotated:
                frame.name, frame.is_literal = word, False
        elif kind == "mark":
            if word == "\\\n":
                continue
            if word in "([{":
                if len(outer) < _DEEPEST:
                    outer.append(frame)
                    frame = _opened(frame, word, last)
                else:
                    too_deep += 1
            elif word in ")]}":
                if too_deep:
                    too_deep -= 1
                elif outer:
                    outer[-1].close(frame)
                    frame = outer.pop()
            elif word == "\n":
                if not frame.opener:
                    frame = _Frame()
                frame.annotated = ""
            elif word == ";":
                frame = _Frame(frame.opener, frame.callee)
            elif word == ",":
                frame.next_item()
            elif word in ("=", "+=", "|=", "<-"):
                frame.assign()
            elif word == ":=":
                frame.bind(frame.name)
            elif word in ("==", "!="):
                frame.compared = promise(frame.name)
            elif word == ":":
                frame.colon()
            elif word == "=>":
                frame.bind(frame.name)
        elif kind == "literal":
            yield from _in_literal(text, start, end, frame, look)
            word = '"'
        elif not is_nested:  # a comment, or a line of its own
            yield from _scan(text, start + 1, end, look, is_nested=True)
            yield from ((start + a, start + b) for a, b in look(text[start:end]))
        last = word


def _opened(frame: _Frame, bracket: str, last: str) -> _Frame:
    callee = last if last.isidentifier() and last not in _KEYWORDS else ""
    if bracket == "[" and (callee or last in (")", "]", '"')):
        return _Frame(bracket, "[")
    if bracket == "(" and callee:
        name = callee.lower()
        if name in _ARGUMENTS:
            return _Frame(bracket, name, targets=_ARGUMENTS[name])
        if frame.bound and name in _WRAPPERS:
            return _Frame(bracket, name, frame.bound)
        if promise(callee) is Promise.SURE and not _READS.match(callee) and frame.clause != "def":
            return _Frame(bracket, name, Promise.SURE)
        call = _Frame(bracket, name)
        call.subject = frame.bound  # `password = get("db", default="…")`
        return call
    targets = frame.targets
    if frame.bound_name in _PAIRED and bracket != "{":
        targets = ("user", "password")
    return _Frame(bracket, "", frame.bound, targets if bracket != "{" else ())


def _in_literal(text: str, start: int, end: int, frame: _Frame, look: Look) -> Iterator[Span]:
    opening = _OPENING.match(text, start)
    if opening is None:
        return
    first, quote = opening.end(), opening[0].lstrip("rbuRBUfF")
    last = (
        end - len(quote) if end - first >= len(quote) and text.endswith(quote, first, end) else end
    )
    content = text[first:last]
    promised = frame.promised(text, end, content)
    parts: list[Span] = [(0, len(content))]
    if promised and "f" in opening[0].lower():
        fields = [found.span() for found in _FIELD.finditer(content)]
        edges = [0, *(edge for span in fields for edge in span), len(content)]
        parts = list(zip(edges[::2], edges[1::2], strict=True))
    is_bound = False
    for a, b in parts if promised else ():
        if scheme := _SCHEME.match(content, a, b):
            a = scheme.end()
        if is_secret(content[a:b], promised):
            is_bound = True
            yield first + a, first + b
    if not is_bound:
        yield from ((first + a, first + b) for a, b in look(content))
        frame.note(content)
