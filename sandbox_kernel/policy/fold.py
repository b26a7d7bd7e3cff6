"""What a computation on constants gives, without running any of the cell.

Code that hides a name spells it out in pieces: ``'sys' + 'tem'``, ``chr(111)``, ``'metsys'[::-1]``,
``b64decode('b3M=')``. Only these few operations are known here, each on plain values of bounded size;
anything else is ``UNKNOWN``.
"""

from __future__ import annotations

import ast
import base64
import binascii
import codecs
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

MAX_LENGTH: Final = 1 << 16
_MAX_INTEGER: Final = 1 << 64


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
_PLAIN: Final = (str, bytes, int, float, bool, type(None))

_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
    ast.BitXor: operator.xor,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.RShift: operator.rshift,
}
# What these raise on values that do not fit: the cell would raise it too.
_ERRORS: Final = (ValueError, TypeError, LookupError, ArithmeticError, MemoryError, AttributeError)

METHODS: Final = frozenset(
    {"decode", "encode", "format", "hex", "join", "lower", "lstrip", "removeprefix", "removesuffix"}
    | {"replace", "rstrip", "split", "strip", "swapcase", "title", "upper", "capitalize"}
    | {"casefold", "partition", "rpartition", "rsplit", "splitlines"}
)
# A width makes text of any length; attributes and items are no matter of placing text.
_BEYOND_PLACING: Final = re.compile(r"\{[^{}]*[.\[:!]")
# Codecs that only spell text differently. Others could unpack a kilobyte to gigabytes.
_CODECS: Final = frozenset(
    {
        "ascii",
        "utf8",
        "utf7",
        "utf16",
        "utf16le",
        "utf16be",
        "utf32",
        "latin1",
        "iso88591",
        "cp1252",
    }
    | {"rot13", "hex", "hexcodec", "base64", "base64codec", "unicodeescape", "rawunicodeescape"}
)


def bounded(value: Any) -> Any:
    """The value, unless it is of another kind or so large that working on it takes long."""
    if isinstance(value, str | bytes):
        return value if len(value) <= MAX_LENGTH else UNKNOWN
    if isinstance(value, int):
        return value if -_MAX_INTEGER < value < _MAX_INTEGER else UNKNOWN
    if isinstance(value, list | tuple):
        fine = len(value) <= MAX_LENGTH and all(isinstance(item, _PLAIN) for item in value)
        return value if fine else UNKNOWN
    return value if isinstance(value, _PLAIN) else UNKNOWN


def binary(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """``left <operator> right``."""
    try:
        if kind is ast.Mult:
            return bounded(left * right) if _fits(left, right) else UNKNOWN
        if kind is ast.Div and isinstance(left, str) and isinstance(right, str):
            return bounded(f"{left}/{right}")  # of a path; two texts cannot be divided
        if kind is ast.Mod:
            return _percent(left, right)
        if kind in _OPERATORS:
            return bounded(_OPERATORS[kind](left, right))
    except _ERRORS:
        pass
    return UNKNOWN


def _fits(left: Any, right: Any) -> bool:
    sizes = [len(v) if isinstance(v, str | bytes | list | tuple) else abs(v) for v in (left, right)]
    return bool(sizes[0] * sizes[1] <= MAX_LENGTH)


def _percent(left: Any, right: Any) -> Any:
    if isinstance(left, str | bytes):
        # A width makes text of any length: only conversions without one.
        if "%" in (text := str(left)) and any(c in text for c in "*0123456789"):
            return UNKNOWN
        return bounded(left % (tuple(right) if isinstance(right, list | tuple) else right))
    return bounded(left % right)


def method(
    value: Any, name: str, arguments: Sequence[Any], named: Mapping[str, Any] | None = None
) -> Any:
    """``value.name(*arguments, **named)``."""
    if name not in METHODS or not isinstance(value, str | bytes):
        return UNKNOWN
    if name in ("decode", "encode"):
        return _recoded(value, name, arguments)
    if name == "format":
        if not isinstance(value, str) or _BEYOND_PLACING.search(value):
            return UNKNOWN
        placed = (*arguments, *(named or {}).values())
        if value.count("{") * max((len(str(each)) for each in placed), default=0) > MAX_LENGTH:
            return UNKNOWN
    if name == "replace" and len(arguments) >= 2:
        grown = (
            value.count(arguments[0]) * len(arguments[1])
            if _texts((value, *arguments[:2]))
            else MAX_LENGTH
        )
        if grown >= MAX_LENGTH:
            return UNKNOWN
    try:
        if name == "join" and len(arguments[0]) * (len(value) + 1) > MAX_LENGTH:
            return UNKNOWN
        return bounded(getattr(value, name)(*arguments, **(named or {})))
    except _ERRORS:
        return UNKNOWN


def _texts(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _recoded(value: str | bytes, name: str, arguments: Sequence[Any]) -> Any:
    codec = arguments[0] if arguments else "utf-8"
    if not isinstance(codec, str):
        return UNKNOWN
    if codec.lower().translate({ord(c): None for c in "-_ "}) not in _CODECS:
        return UNKNOWN
    try:
        change: Callable[[Any, str], Any] = codecs.decode if name == "decode" else codecs.encode
        return bounded(change(value, codec))
    except _ERRORS:
        return UNKNOWN


def _change_codec(name: str) -> Callable[..., Any]:
    return lambda value, codec="utf-8", *_: _recoded(value, name, [codec])


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "builtins.chr": chr,
    "builtins.ord": ord,
    "builtins.str": lambda value="", encoding=None: (
        _recoded(value, "decode", [encoding]) if encoding else str(value)
    ),
    "builtins.int": int,
    "builtins.bytes": lambda value=b"", encoding=None: (
        _recoded(value, "encode", [encoding])
        if encoding
        else (bytes(value) if not isinstance(value, int) else UNKNOWN)
    ),
    "builtins.list": list,
    "builtins.tuple": tuple,
    "builtins.reversed": lambda value: list(value)[::-1],
    "builtins.bytes.fromhex": bytes.fromhex,
    "builtins.bytearray.fromhex": bytes.fromhex,
    "binascii.unhexlify": binascii.unhexlify,
    "binascii.a2b_hex": binascii.unhexlify,
    "binascii.a2b_base64": binascii.a2b_base64,
    "base64.b64decode": base64.b64decode,
    "base64.standard_b64decode": base64.b64decode,
    "base64.urlsafe_b64decode": base64.urlsafe_b64decode,
    "base64.decodebytes": lambda value: base64.decodebytes(value),
    "base64.b32decode": base64.b32decode,
    "base64.b16decode": base64.b16decode,
    "base64.b85decode": base64.b85decode,
    "base64.a85decode": base64.a85decode,
    "operator.add": operator.add,
    "operator.concat": operator.concat,
    "codecs.decode": _change_codec("decode"),
    "codecs.encode": _change_codec("encode"),
    "os.path.join": lambda *parts: "/".join(parts),
    "os.path.expanduser": str,
    "pathlib.Path": lambda *parts: "/".join(parts),
}
FUNCTIONS: Final = frozenset(_FUNCTIONS)


def call(name: str, arguments: Sequence[Any]) -> Any:
    """``name(*arguments)`` of a function of the standard library, by its qualified name."""
    try:
        return bounded(_FUNCTIONS[name](*arguments))
    except _ERRORS:
        return UNKNOWN


def item(value: Any, index: Any) -> Any:
    """``value[index]``; ``index`` may be a slice."""
    try:
        return bounded(value[index])
    except _ERRORS:
        return UNKNOWN
