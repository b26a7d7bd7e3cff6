"""What looks like a secret never reaches the store: it is replaced by ``[redacted:NAME]`` before.

It is a net, not a proof: a secret that a cell builds from pieces is not seen. Values of variables of the
wrapper's environment are found wherever they stand; other secrets by their form or by their name.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from sandbox_kernel.audit.bindings import LOGINS, Span, secrets_in_code
from sandbox_kernel.audit.commands import COMMANDS, OPTION, PIPES, SUBCOMMANDS
from sandbox_kernel.audit.secret_names import REDACTED, STEM, promise
from sandbox_kernel.audit.settings_text import secrets_in_settings
from sandbox_kernel.audit.shapes import (
    RARE_RUN,
    RARE_TOKENS,
    RUN,
    SHAPES,
    TOKENS,
    URLS,
    Shape,
)

_SECRET_NAME: Final = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|PRIVATE|(^|_)(KEY|AUTH|PWD|PASS)(_|$)|_KEYS?$",
    re.IGNORECASE,
)
_PUBLIC_NAME: Final = re.compile(r"_(SOCK|PATH|FILE|DIR|NAME|ID)$|^PWD$", re.IGNORECASE)
# Shorter ones would be found in ordinary words.
_SHORTEST_VALUE: Final = 8
# Of a policy's own patterns: they see a text in pieces of at most this many characters.
PIECE_CHARACTERS: Final = 16 * 1024
# The next piece begins so many characters before the end of one: no secret of that length is cut.
OVERLAP_CHARACTERS: Final = 4 * 1024

_IN_RUNS: Final = tuple((hint, shape) for shape in TOKENS for hint in shape.hints)
_IN_URLS: Final = tuple((hint, shape) for shape in URLS for hint in shape.hints)
_ANYWHERE: Final = tuple((hint, shape) for shape in (*SHAPES, *PIPES) for hint in shape.hints)
# What stands beside a secret may be found once that is gone. Most texts take one round.
_MOST_ROUNDS: Final = 5
_LONG_TEXT: Final = 64 * 1024  # so many characters get one round: it may be all secrets
_PROGRAM: Final = re.compile(r"[\w-]{2,30}")
# The rest of a name where something may be bound to it.
_BINDS: Final = re.compile(
    r"(?P<rest>[\w.-]{0,100}+)(?:\\?[\"'`]?[\])]?\s{0,8}(?:[=:,(]|!=|<-|in\b)|(?P<space>\s))"
)
_IN_NAMES: Final = f"{string.ascii_letters}{string.digits}_.-"
_LONGEST_NAME: Final = 100
# Cells of these magics are Python; those of all others are text: shells, files, markup.
_TEXT_CELL: Final = re.compile(r"\s*%%(?!(?:time|timeit|capture|prun|python3?|pypy)\b)")
_ENV_MAGIC: Final = re.compile(
    r"%(?:set_)?env[^\S\n]{1,8}(?P<name>\w{1,100})(?:[^\S\n]{0,8}=[^\S\n]{0,8}|[^\S\n]{1,8})"
    r"(?!(?:\{[^\s{}]{1,100}\}|\$\w{1,100})[^\S\n]{0,8}$)(?P<value>\S[^\n]*)",
    re.MULTILINE,
)
# As a shell has it, in a text that does not say that it is one.
_SHELL_LINE: Final = re.compile(
    r"^[^\S\n]*+(?=[A-Z][A-Z0-9_]{1,60}=[^\s='\"(])[^\n]*|\bexport[^\S\n][^\n]*|(?:&&|\|\|)[^\n]*",
    re.MULTILINE,
)


class Redactor:
    """Made once for a kernel: from its environment and its policy's patterns."""

    def __init__(self, environment: Mapping[str, str], patterns: Iterable[str] = ()) -> None:
        named = (
            (value, name)
            for name, value in environment.items()
            if _SECRET_NAME.search(name)
            and not _PUBLIC_NAME.search(name)
            and len(value) >= _SHORTEST_VALUE
        )
        # The longest first: one value may hold another.
        self._values = sorted(named, key=lambda pair: -len(pair[0]))
        self._patterns = [re.compile(pattern) for pattern in patterns]

    def redact(self, text: str) -> str:
        """The text without what looks like a secret."""
        for value, name in self._values:
            if value in text:
                text = text.replace(value, f"[redacted:{name}]")
        for _ in range(_MOST_ROUNDS if len(text) <= _LONG_TEXT else 1):
            redacted = _without_known(text)
            if redacted == text:
                break
            text = redacted
        for pattern in self._patterns:
            text = _in_pieces(pattern, text)
        return text


def _without_known(text: str) -> str:
    small = text.lower()
    for shape in dict.fromkeys(_shapes(text, small)):
        text = _without(shape, text)
    return _without_named(text) if _has_names(text) else text


def _shapes(text: str, small: str) -> Iterator[Shape]:
    """What may be in the text, by a fast look: most cells have nothing of it."""
    if runs := RUN.findall(small):
        joined = " ".join(runs)
        for hint, shape in _IN_RUNS:
            if hint in joined:
                yield shape
        if RARE_RUN.search(joined):
            yield from RARE_TOKENS
    if "://" in small:
        for hint, shape in _IN_URLS:
            if hint in small:
                yield shape
    for hint, shape in _ANYWHERE:
        if hint in small:
            yield shape
    if OPTION.search(text) or any(map(small.__contains__, SUBCOMMANDS)):
        for word in COMMANDS.keys() & _PROGRAM.findall(text):
            yield from COMMANDS[word]


def _has_names(text: str) -> bool:
    """Whether any name that promises a secret stands where something may be bound to it."""
    small = text.lower()
    if len(small) != len(text):
        return True
    has_other = "env " in text or "value:" in text
    for stem in STEM.finditer(small):
        start, end = stem.span()
        if binds := _BINDS.match(text, end):
            before = text[max(0, start - _LONGEST_NAME) : start]
            name = before[len(before.rstrip(_IN_NAMES)) :] + text[start:end] + binds["rest"]
            # Behind a space there is a value only of an option, of a magic, or in YAML.
            is_bound = not binds["space"] or name.startswith("-") or has_other
            if name.rpartition(".")[2] in LOGINS or (is_bound and promise(name)):
                return True
    return False


def _without_named(text: str) -> str:
    kept, done = [], 0
    for start, end in sorted(_named(text)):
        if start >= done:
            kept += [text[done:start], "[redacted:password]"]
        done = max(done, end)
    return "".join([*kept, text[done:]])


def _named(text: str) -> Iterator[Span]:
    """Where values of names that promise a secret stand."""
    yield from secrets_in_code(text, secrets_in_settings)
    if _TEXT_CELL.match(text):
        yield from secrets_in_settings(text)
    if "env" in text:
        for found in _ENV_MAGIC.finditer(text):
            if promise(found["name"]) and not REDACTED.fullmatch(found["value"]):
                yield found.span("value")
    for line in _SHELL_LINE.finditer(text):
        start = line.start()
        yield from ((start + a, start + b) for a, b in secrets_in_settings(line[0]))


def _without(shape: Shape, text: str) -> str:
    replaced = _replacing(shape.name)
    if shape.within is None:
        return shape.pattern.sub(replaced, text)
    return shape.within.sub(lambda part: shape.pattern.sub(replaced, part[0]), text)


def _replacing(name: str) -> Callable[[re.Match[str]], str]:
    def replaced(found: re.Match[str]) -> str:
        whole, start = found[0], found.start()
        if "value" not in found.re.groupindex:
            return f"[redacted:{name}]"
        before, after = found.start("value") - start, found.end("value") - start
        for earlier in REDACTED.finditer(whole):
            if earlier.start() < after and before < earlier.end():
                before, after = min(before, earlier.start()), max(after, earlier.end())
        if REDACTED.fullmatch(whole, before, after):
            return whole  # by a rule that knows it better
        return f"{whole[:before]}[redacted:{name}]{whole[after:]}"

    return replaced


def _in_pieces(pattern: re.Pattern[str], text: str) -> str:
    """Bounded: an operator's pattern may take time that grows fast with the text."""
    kept, done, start = [], 0, 0
    while start < len(text):
        end = start + PIECE_CHARACTERS
        # What begins in the overlap is looked for in the next piece, which has all of it.
        following = end - OVERLAP_CHARACTERS if end < len(text) else end
        for found in pattern.finditer(text, start, end):
            if found.start() >= following:
                break
            kept += [text[done : found.start()], "[redacted:policy]"]
            done = found.end()
        start = max(following, done)
    return "".join([*kept, text[done:]])
