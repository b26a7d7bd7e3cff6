"""The forms that secrets have in code, in shells and in texts.

Each pattern takes time in proportion to the text, whatever that is: cells are written by anybody.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Shape(NamedTuple):
    """A form that secrets have; where it has a group ``value``, that alone is the secret."""

    name: str
    # One of these is in every text that holds the secret, in small letters: a fast look first.
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    # Where alone it is looked for, if not in all of the text.
    within: re.Pattern[str] | None = None


_WORDS: Final = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "api-key",
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


# -- without quotes: shells, magics, options, headers ------------------------------------------------

_SPACE: Final = r"[^\S\n]"
# A variable whose name says that it is a secret. Tokens that are counted or made are none.
_VARIABLE: Final = (
    r"(?<!\w)(?=\w{0,60}?(?:token(?!s|i[sz])|secret|passw|passphrase|credential|"
    r"(?:api|access|account)_?key|(?-i:_KEY|_PWD|_PASS|_AUTH)))\w{1,100}"
)
# What stands for a value and is none: `$NAME`, `{name}`, `<name>`, `%s`.
_NO_REFERENCE: Final = r"(?!\$|\{|<|`|%[sdr(])"
_BARE: Final = r"(?:\\.|[^\s'\"`;|&<>()\\]){4,4000}+"
# Where a shell's words are: its cells, its lines, and behind what is said in no other language.
_SHELL: Final = re.compile(
    r"\A\s*%%(?:!|(?:ba|z|k|da|fi)?sh\b|(?:script|system|sx|writefile|file)\b)[\s\S]*|"
    rf"^{_SPACE}*+(?:[\w,. \t]{{1,100}}={_SPACE}{{0,8}})?(?:!|%(?:sx|system)\b)"
    r"(?:\\[\s\S]|[^\\\n])*+|"
    rf"\b(?:export|env){_SPACE}{{1,8}}(?:-\w{{1,20}}{_SPACE}{{1,8}}){{0,5}}(?=\w{{1,100}}=[^\s=])[^\n]*|"
    r"(?:&&|\|\|)[^\n]*",
    re.MULTILINE | re.IGNORECASE,
)
# To its end, or to that of the line or the text: each character is looked at once.
_LITERAL: Final = re.compile(
    r"(?P<long>\"{3}|'{3})(?:\\[\s\S]|(?!(?P=long))[^\\])*+(?:(?P=long))?|"
    r"(?P<short>[\"'])(?:\\.|(?!(?P=short))[^\\\n])*+(?P=short)?"
)
_IN_LITERAL: Final = re.compile(
    r"(?<!\w)\w{0,60}?(?P<name>password|passwd|passphrase|pwd|secret|token|"
    rf"(?:api|access|account)_?key|(?-i:_KEY|_PWD|_PASS|_AUTH))={_NO_REFERENCE}"
    # An example of code has names there.
    r"(?!(?:None|True|False|null|(?P=name))\b|[a-z_][\w.]{0,100}[(\[)])"
    r"(?P<value>[^\s'\"`;&<>\\]{4,4000}+)",
    re.IGNORECASE,
)
_MAGIC: Final = re.compile(
    rf"%(?:set_)?env{_SPACE}{{1,8}}{_VARIABLE}(?:{_SPACE}{{0,8}}={_SPACE}{{0,8}}|{_SPACE}{{1,8}})"
    rf"(?!(?:\{{[^\s{{}}]{{1,100}}\}}|\$\w{{1,100}}){_SPACE}{{0,8}}$)(?P<value>\S[^\n]*)",
    re.MULTILINE | re.IGNORECASE,
)
_OPTION: Final = re.compile(
    r"(?<![\w-])--(?:[a-z0-9]{1,20}[-_]){0,4}"
    r"(?:password|passwd|passphrase|secret|token|(?:api|access|secret|account)[-_]?key)"
    rf"(?:=|{_SPACE}{{1,8}})(?P<quote>[\"'])?{_NO_REFERENCE}(?!\s|--?[a-z])"
    rf"(?P<value>(?(quote)(?:\\.|(?!(?P=quote))[^\\\n]){{4,4000}}+(?=(?P=quote))|{_BARE}))",
    re.IGNORECASE,
)
_HEADER_NAME: Final = (
    r"(?<![\w-])(?:[a-z]{1,20}-){0,3}"
    r"(?:api|access|account|auth|private|secret|security|session|subscription)-(?:key|token|secret)"
)
_SCHEME: Final = re.compile(
    r"authorization[\"'\]]{0,2}\s{0,8}[:=,(]\s{0,8}[rbuf]{0,2}[\"']?"
    r"(?:bearer|basic|digest|token|apikey)\s{1,8}(?P<value>[\w.~+/=:-]{4,4000})",
    re.IGNORECASE,
)
_UNSCHEMED: Final = re.compile(
    r"authorization[\"'\]]{0,2}\s{0,8}[:=,(]\s{0,8}[rbuf]{0,2}"
    r"(?P<quote>[\"'])(?P<value>[^\s\"'{}]{8,4000})(?P=quote)",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(
    r"\b(?:(?i:bearer)\s{1,8}(?=[\w.~+/=-]{0,200}[0-9])|Basic\s{1,8}(?=[\w+/]{6,4000}=))"
    r"(?P<value>[\w.~+/=-]{8,4000})"
)

# -- all of them -------------------------------------------------------------------------------------

# What a private key may have around its base64: headers, quotes, escapes. No call can be written with it.
_IN_KEY: Final = r"[\w+/=\s\\\"',:#]"
PLAIN_SHAPES: Final[tuple[Shape, ...]] = (
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
)
# One of these is in every text that any of the following is in: most cells have none.
NAMED_HINTS: Final = (
    *("passw", "passphrase", "secret", "token", "credential", "_key", "-key", "apikey"),
    *("accesskey", "accountkey", "pwd", "_pass", "_auth", "authorization", "bearer", "basic"),
)
_VARIABLE_HINTS: Final = (
    *("token", "secret", "passw", "passphrase", "credential"),
    *("apikey", "accesskey", "accountkey", *_ENDINGS),
)
NAMED_SHAPES: Final[tuple[Shape, ...]] = (
    Shape("password", _WORDS, _assigned(_NAMES, _ONE_LINE, re.IGNORECASE)),
    Shape("password", _WORDS, _assigned(_NAMES, _SEVERAL_LINES, re.IGNORECASE)),
    Shape("password", _ENDINGS, _assigned(_CONSTANTS, _ONE_LINE)),
    Shape("header", ("authorization",), _SCHEME),
    Shape("header", ("authorization",), _UNSCHEMED),
    Shape("header", ("bearer", "basic"), _BEARER),
    Shape(
        "header",
        ("-key", "-token", "-secret"),
        _assigned(_HEADER_NAME, _ONE_LINE, re.IGNORECASE),
    ),
    Shape(
        "header",
        ("-key", "-token", "-secret"),
        re.compile(
            rf"{_HEADER_NAME}:\s{{0,8}}{_NO_REFERENCE}(?P<value>[^\s'\"`;,<>{{}}()]{{4,4000}}+)",
            re.IGNORECASE,
        ),
    ),
    Shape("variable", ("%env", "%set_env"), _MAGIC),
    Shape(
        "variable",
        ("!", "%%", "%s", "export", "env", "&&", "||"),
        re.compile(rf"{_VARIABLE}={_NO_REFERENCE}(?P<value>{_BARE})", re.IGNORECASE),
        _SHELL,
    ),
    # As a shell has it, in a text that does not say that it is one.
    Shape(
        "variable",
        _VARIABLE_HINTS,
        re.compile(
            r"^[^\S\n]*"
            r"(?=\w{0,60}(?:TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|_KEY|_PWD|_PASS|_AUTH))"
            r"[A-Z]\w{0,60}=(?P<value>[^\s'\"`$;|&<>()]{4,4000}+)(?![('\"])",
            re.MULTILINE,
        ),
    ),
    Shape("option", ("--",), _OPTION),
    Shape(
        "password",
        (
            "password=",
            "passwd=",
            "passphrase=",
            "pwd=",
            "secret=",
            "token=",
            "key=",
            "_pass=",
            "_auth=",
        ),
        _IN_LITERAL,
        _LITERAL,
    ),
)
