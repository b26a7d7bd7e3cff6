"""What the wrapper takes from and adds to frames of the inner kernel, which may be hostile.

The reserved key and MIME type are the wrapper's alone: they are removed from whatever comes from
inside, however spelled, before its own are added. Values pass byte for byte and are never built: an
output may be many MiB. Keys are read, so their number and length are bounded; an object that is none,
or absurd, becomes ``{}``. All frames have passed ``wire.Codec.read``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from sandbox_kernel.outputs.receipt import METADATA_KEY, RECEIPT_MIME
from sandbox_kernel.relay.wire import encode_object

MAX_KEYS: Final = 1024
MAX_KEY_CHARS: Final = 1024

MAX_ENAME_BYTES: Final = 256
MAX_EVALUE_BYTES: Final = 4 * 1024
MAX_TRACEBACK_BYTES: Final = 64 * 1024
MAX_TRACEBACK_LINES: Final = 200
CUT: Final = " … [cut]"
LATE: Final[Mapping[str, Any]] = {"late": True}

_RESERVED_DATA: Final = frozenset({RECEIPT_MIME})
_RESERVED_METADATA: Final = frozenset({METADATA_KEY, RECEIPT_MIME})


class _Output(msgspec.Struct):
    """Content of an output. Other keys go: nbformat allows none, and JupyterLab would save them."""

    data: msgspec.Raw = msgspec.Raw(b"{}")
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    transient: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    execution_count: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Error(msgspec.Struct):
    ename: msgspec.Raw = msgspec.Raw(b"null")
    evalue: msgspec.Raw = msgspec.Raw(b"null")
    traceback: msgspec.Raw = msgspec.Raw(b"null")


class _Key(str):
    """A key that has been counted."""

    __slots__ = ()


class _Members:
    """Reads the members of objects. For one thread: the count of keys is kept between calls."""

    def __init__(self) -> None:
        decoder = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=self._count)
        self._decode = decoder.decode
        self._keys_left = 0

    def read(self, frame: bytes | msgspec.Raw, reserved: frozenset[str]) -> dict[str, Any]:
        """Each member once, the last of a name as parsers have it, without the reserved ones."""
        self._keys_left = MAX_KEYS
        try:
            members = self._decode(frame)
        except (ValueError, RecursionError):
            return {}
        return {key: value for key, value in members.items() if key.lower() not in reserved}

    def _count(self, _: type, key: str) -> _Key:
        self._keys_left -= 1
        if self._keys_left < 0 or len(key) > MAX_KEY_CHARS:
            msg = "absurd keys"
            raise ValueError(msg)
        return _Key(key)


_read_output = msgspec.json.Decoder(_Output).decode
_read_error = msgspec.json.Decoder(_Error).decode
_members = _Members().read
_encode = msgspec.json.Encoder().encode


def annotate_output(content_frame: bytes, audit_id: str | None, *, is_late: bool = False) -> bytes:
    """Content of an output that says which cell it is of, or that its cell had ended.

    Without an id it says neither.

    ``ValueError`` if the content is no JSON object; never for one that ``wire.Codec.read`` passed.
    """
    try:
        output = _read_output(content_frame)
    except RecursionError:
        # How deep is too deep depends on the caller's own stack: not all of it is refused before.
        output = _Output()
    metadata = _members(output.metadata, _RESERVED_METADATA)
    if audit_id is not None:
        metadata[METADATA_KEY] = {"audit_id": audit_id}
    elif is_late:
        metadata[METADATA_KEY] = LATE
    content: dict[str, Any] = {"data": _members(output.data, _RESERVED_DATA), "metadata": metadata}
    if output.transient is not msgspec.UNSET:
        content["transient"] = output.transient
    if output.execution_count is not msgspec.UNSET:
        content["execution_count"] = output.execution_count
    return _encode(content)


def strip_metadata(metadata_frame: bytes) -> bytes:
    """Metadata of a message without the wrapper's own key."""
    if metadata_frame == b"{}":
        return metadata_frame
    return _encode(_members(metadata_frame, _RESERVED_METADATA))


def mark_late(metadata_frame: bytes) -> bytes:
    """Metadata of a message that came after the end of the cell it names."""
    return _encode({**_members(metadata_frame, _RESERVED_METADATA), METADATA_KEY: LATE})


def annotate_reply(metadata_frame: bytes, receipt: Mapping[str, Any]) -> bytes:
    """Metadata of a reply with the receipt; what else it says is kept."""
    metadata = _members(metadata_frame, _RESERVED_METADATA)
    metadata[METADATA_KEY] = msgspec.Raw(encode_object(receipt))
    return _encode(metadata)


# -- errors from inside ----------------------------------------------------------------------------

# The longest part of a JSON string that can be read even if the rest of it was cut off.
_STRING: Final = re.compile(r'"((?:[^"\\]++|\\(?:u[0-9a-fA-F]{4}|[^u]))*+)("?)')
_BETWEEN: Final = re.compile(r"[\s,]*")
_JSON: Final = json.JSONDecoder(strict=False)
# A byte of text takes at most six of JSON: \u0041.
_JSON_BYTES_PER_BYTE: Final = 6


def cell_error(content_frame: bytes) -> tuple[str, str, list[str]]:
    """``ename``, ``evalue`` and ``traceback`` of an error, cut to size; empty where there is none."""
    try:
        error = _read_error(content_frame)
    except (ValueError, RecursionError):
        return "", "", []
    ename = _text(error.ename, MAX_ENAME_BYTES)
    return ename, _text(error.evalue, MAX_EVALUE_BYTES), _traceback(error.traceback)


def _text(raw: msgspec.Raw, max_bytes: int) -> str:
    found = _STRING.match(_start_of(raw, max_bytes))
    if not found:
        return ""
    text, whole = _fitting(found, max_bytes)
    return text if whole else text + CUT


def _traceback(raw: msgspec.Raw) -> list[str]:
    start = _start_of(raw, MAX_TRACEBACK_BYTES)
    if not start.startswith("["):
        return []
    lines: list[str] = []
    left, position = MAX_TRACEBACK_BYTES - len(CUT.encode()), 1
    for _ in range(MAX_TRACEBACK_LINES + 1):
        position = _BETWEEN.match(start, position).end()  # type: ignore[union-attr]
        if start.startswith("]", position):
            return lines
        found = _STRING.match(start, position)
        if found:
            line, whole = _fitting(found, left)
            lines.append(line)
            if not whole:
                break
            left, position = left - len(line.encode()), found.end()
        else:
            try:  # not a string: no line of a traceback
                position = _JSON.raw_decode(start, position)[1]
            except (ValueError, RecursionError):
                break
    return [*lines[: MAX_TRACEBACK_LINES - 1], CUT]


def _start_of(raw: msgspec.Raw, text_bytes: int) -> str:
    json_bytes = _JSON_BYTES_PER_BYTE * text_bytes + len('[""]')
    return bytes(memoryview(raw)[:json_bytes]).decode("utf-8", "ignore")


def _fitting(found: re.Match[str], max_bytes: int) -> tuple[str, bool]:
    """The string found, or as much of it as fits with ``CUT``; whether it is whole."""
    body, end = found.groups()
    encoded = _JSON.decode(f'"{body}"').encode("utf-8", "replace")
    if end and len(encoded) <= max_bytes:
        return encoded.decode(), True
    room = max(0, max_bytes - len(CUT.encode()))
    return encoded[:room].decode("utf-8", "ignore"), False
