"""What looks like a secret never reaches the store: it is replaced by ``[redacted:NAME]`` before.

It is a net, not a proof: a secret that a cell builds from pieces is not seen. Values of variables of the
wrapper's environment are found wherever they stand; other secrets by their form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

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


class Shape(NamedTuple):
    """A form that secrets have; where it has a group ``value``, that alone is the secret."""

    name: str
    # One of these is in every text that holds the secret, in small letters: a fast look first.
    hints: tuple[str, ...]
    pattern: re.Pattern[str]


_WORDS: Final = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "apikey",
    "access_key",
)
# A tokenizer is given texts, not secrets.
_NAMES: Final = rf"(?:{'|'.join(_WORDS)})(?!i[sz]e)\w{{0,40}}"
_ENDINGS: Final = ("_key", "_pwd", "_pass", "_auth")
_CONSTANTS: Final = r"(?<![A-Za-z0-9_])[A-Z][A-Z0-9_]{0,60}_(?:KEY|PWD|PASS|AUTH)"
# To the quote that ends it and no further: what stands behind a value that is empty is code.
_ONE_LINE: Final = r"(?P<quote>[\"'])(?P<value>(?:\\.|(?!(?P=quote))[^\\\n]){4,4000})(?P=quote)"
_SEVERAL_LINES: Final = (
    r"(?P<quote>\"\"\"|''')(?P<value>(?:\\.|(?!(?P=quote))[^\\]){4,4000})(?P=quote)"
)


def _assigned(name: str, value: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """A text that is assigned to a name, passed by it, or stands behind it in a dictionary."""
    annotation = r"(?::[\w \t|\[\].,]{1,60}?)?"
    between = rf"[\"'\]]{{0,2}}\s{{0,8}}{annotation}[:=,(]\s{{0,8}}[rbuf]{{0,2}}"
    return re.compile(f"{name}{between}{value}", flags | re.DOTALL)


# What a private key may have around its base64: headers, quotes, escapes. No call can be written with it.
_IN_KEY: Final = r"[\w+/=\s\\\"',:#]"
SHAPES: Final = (
    Shape("aws", ("akia", "asia"), re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    Shape(
        "github",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255})"),
    ),
    Shape("google", ("aiza",), re.compile(r"\bAIza[\w-]{35}")),
    Shape("slack", ("xox",), re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,250}")),
    Shape("key", ("sk-",), re.compile(r"\bsk-[\w-]{20,250}")),
    Shape("jwt", ("eyj",), re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}")),
    Shape(
        "private-key",
        ("private key-----",),
        # Without an end, lines of base64: what begins like a key must not hide the code below it.
        re.compile(
            rf"-----BEGIN [A-Z ]{{0,40}}PRIVATE KEY-----(?:"
            rf"{_IN_KEY}*(?:-(?!----){_IN_KEY}*)*-----END [A-Z ]{{0,40}}PRIVATE KEY-----|"
            r"(?:(?:\s|\\[nr])+(?:Proc-Type: 4,ENCRYPTED|DEK-Info: [A-Z0-9-]+,[0-9A-F]+|"
            r"[A-Za-z0-9+/=]+)(?=\s*[\r\n\\\"']|\s*\Z))*)"
        ),
    ),
    Shape("url", ("://",), re.compile(r"://[^\s/:@'\"]{0,200}:(?P<value>[^\s/@'\"]{1,200})@")),
    Shape("password", _WORDS, _assigned(_NAMES, _ONE_LINE, re.IGNORECASE)),
    Shape("password", _WORDS, _assigned(_NAMES, _SEVERAL_LINES, re.IGNORECASE)),
    Shape("password", _ENDINGS, _assigned(_CONSTANTS, _ONE_LINE)),
    # As a shell has it, without quotes: `export`, `!`, `%env` and `%%bash`.
    Shape(
        "variable",
        ("token", "secret", "passw", "passphrase", "credential", "apikey", *_ENDINGS),
        re.compile(
            r"^[^\S\n]*(?:!?[^\S\n]*(?:export[^\S\n]+)?|(?P<magic>%(?:set_)?env[^\S\n]+))"
            r"(?=\w{0,60}(?:TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|_KEY|_PWD|_PASS|_AUTH))"
            r"[A-Z]\w{0,60}(?:=|(?(magic)[^\S\n]+|=))(?P<value>[^\s'\"`$;|&<>()]{4,4000})",
            re.MULTILINE,
        ),
    ),
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
        small = text.lower()
        for shape in SHAPES:
            if any(hint in small for hint in shape.hints):
                text = shape.pattern.sub(_replacing(shape.name), text)
        for pattern in self._patterns:
            text = _in_pieces(pattern, text)
        return text


def _replacing(name: str) -> Callable[[re.Match[str]], str]:
    def replaced(found: re.Match[str]) -> str:
        whole, start = found[0], found.start()
        if "value" not in found.re.groupindex:
            return f"[redacted:{name}]"
        if found["value"].startswith("[redacted:"):
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
