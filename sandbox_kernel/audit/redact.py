"""What looks like a secret never reaches the store: it is replaced by ``[redacted:NAME]`` before.

It is a net, not a proof: a secret that a cell builds from pieces is not seen. Values of variables of the
wrapper's environment are found wherever they stand; other secrets by their form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from sandbox_kernel.audit.shapes import NAMED_HINTS, NAMED_SHAPES, PLAIN_SHAPES, Shape

_SECRET_NAME: Final = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|PRIVATE|(^|_)(KEY|AUTH|PWD|PASS)(_|$)|_KEYS?$",
    re.IGNORECASE,
)
_PUBLIC_NAME: Final = re.compile(r"_(SOCK|PATH|FILE|DIR|NAME|ID)$|^PWD$", re.IGNORECASE)
# Shorter ones would be found in ordinary words.
_SHORTEST_VALUE: Final = 8
# Of a policy's own patterns: they see a text in pieces of at most this many characters.
PIECE_CHARACTERS: Final = 16 * 1024
_REDACTED: Final = re.compile(r"\[redacted:[^\s\]]*\]")
# The next piece begins so many characters before the end of one: no secret of that length is cut.
OVERLAP_CHARACTERS: Final = 4 * 1024


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
        small = text.lower()
        shapes = PLAIN_SHAPES
        if any(hint in small for hint in NAMED_HINTS):
            shapes += NAMED_SHAPES
        for shape in shapes:
            if any(hint in small for hint in shape.hints):
                text = _without(shape, text)
        for pattern in self._patterns:
            text = _in_pieces(pattern, text)
        return text


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
        if _REDACTED.fullmatch(found["value"]):
            return whole  # by a rule that knows it better
        before, after = found.start("value") - start, found.end("value") - start
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
