"""Frames of the Jupyter wire protocol: split, checked, signed — and bounded, as one side is hostile.

A message on the wire is ``[*idents, DELIMITER, signature, header, parent_header, metadata, content,
*buffers]``. The relay forwards the JSON frames byte for byte (breakpoints hash the code, tracebacks
cite its lines) and replaces only the signature and what it must change.
"""

from __future__ import annotations

import codecs
import hashlib
import hmac
import itertools
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import msgspec

DELIMITER: Final = b"<IDS|MSG>"
PROTOCOL_VERSION: Final = "5.4"

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_IDENTS: Final = 8
MAX_BUFFERS: Final = 4096
REPLAY_WINDOW: Final = 1 << 14
# How deep JSON may be nested depends on the stack: by how much that may be deeper where a message is used
# than where it is read.
SPARE_FRAMES: Final = 64
_JOIN_BELOW_BYTES: Final = 1 << 16
_DECODE_BYTES: Final = 1 << 18
# Python reads no integer of more than 4,300 digits.
_WITHOUT_LONG_NUMBERS: Final = re.compile(
    rb'(?:[^"0-9]++|"(?:[^"\\]++|\\.)*+"|[0-9]{1,4300}+(?![0-9]))*+', re.DOTALL
)
_EVERY, _AROUND = 4200, 16
_Utf8Decoder: Final = codecs.getincrementaldecoder("utf-8")


class WireError(Exception):
    """A message that is not well formed; its text is the reason under which the drop is counted."""


class BodyError(WireError):
    """A message of which no more than the header can be read: enough to answer it.

    ``message`` has that, and nothing in its body.
    """

    def __init__(self, reason: str, message: Message) -> None:
        super().__init__(reason)
        self.message = message


class _Object(msgspec.Struct):
    """Any JSON object: checked to the end, nothing of it kept."""


class Outline(msgspec.Struct, frozen=True):
    """The few values of a content that the router acts on, as raw JSON.

    A content may be 16 MiB of brackets; reading it this way checks all of it and builds nothing.
    """

    status: msgspec.Raw = msgspec.Raw(b"null")
    execution_state: msgspec.Raw = msgspec.Raw(b"null")
    execution_count: msgspec.Raw = msgspec.Raw(b"null")
    event: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def failed(self) -> bool:
        return bytes(self.status) == b'"error"'

    def is_state(self, state: str) -> bool:
        return bytes(self.execution_state) == f'"{state}"'.encode()

    def is_event(self, event: str) -> bool:
        return bytes(self.event) == f'"{event}"'.encode()

    @property
    def count(self) -> int | None:
        digits = bytes(self.execution_count)
        return int(digits) if digits.isdigit() and len(digits) < 10 else None


_check_object = msgspec.json.Decoder(_Object).decode
_read_outline = msgspec.json.Decoder(Outline).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def _strict(decode: Callable[[bytes], Any], frame: bytes) -> Any:
    try:
        return decode(frame)
    except RecursionError:
        msg = "JSON is nested too deeply"
        raise WireError(msg) from None
    except ValueError:
        msg = "JSON is malformed"
        raise WireError(msg) from None


def _refuse_long_numbers(frame: bytes) -> None:
    """``WireError`` if Python, and so most clients, cannot read a number in it."""
    # A run of so many digits holds one of these places. In a text it is none of our business.
    if any(
        frame[place - _AROUND : place + _AROUND].isdigit()
        for place in range(_EVERY, len(frame), _EVERY)
    ):
        readable = _WITHOUT_LONG_NUMBERS.match(frame)
        if readable is None or readable.end() < len(frame):
            msg = "a number has too many digits"
            raise WireError(msg)


def decode_object(frame: bytes) -> dict[str, Any]:
    """The JSON object in ``frame``; ``WireError`` if it is none."""
    value: dict[str, Any] = _strict(_decode_object, frame)
    return value


def encode_object(value: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        # ASCII: a lone surrogate in a name or a code must not make the frame invalid.
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


@dataclass(frozen=True)
class Message:
    """One message whose frames are well formed. Nothing is said about who made it."""

    idents: tuple[bytes, ...]
    header: Mapping[str, Any]
    parent_header: Mapping[str, Any]
    outline: Outline
    frames: tuple[bytes, bytes, bytes, bytes]
    buffers: tuple[bytes, ...] = ()

    @property
    def msg_type(self) -> str:
        return self.header["msg_type"]  # type: ignore[no-any-return]

    @property
    def msg_id(self) -> str:
        return self.header["msg_id"]  # type: ignore[no-any-return]

    @property
    def parent_id(self) -> str | None:
        parent_id = self.parent_header.get("msg_id")
        return parent_id if isinstance(parent_id, str) else None

    @cached_property
    def content(self) -> dict[str, Any]:
        """The content, decoded: for the frontend's messages, whose size is the user's own affair."""
        return decode_object(self.frames[3])

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The metadata, decoded: the same."""
        return decode_object(self.frames[2])

    def build(self) -> None:
        """Decode all of it now; ``BodyError`` if that cannot be done wherever it will be looked at.

        What is well formed may be no value all the same: a number can be too large for any.
        """
        try:
            _build(self, SPARE_FRAMES)
        except WireError as error:
            bare = _bodiless(self.idents, self.header, self.frames[0])
            raise BodyError(str(error), bare) from None

    @property
    def size(self) -> int:
        """Bytes of what it shows: content and buffers."""
        return len(self.frames[3]) + sum(map(len, self.buffers))

    @property
    def weight(self) -> int:
        """Bytes of all in it."""
        header, parent, metadata, _ = self.frames
        return self.size + len(header) + len(parent) + len(metadata) + sum(map(len, self.idents))

    def bare(self) -> Message:
        """The same message without parent, body and buffers: enough to be named as a parent."""
        return _bodiless(self.idents, self.header, self.frames[0])

    def with_content(self, content: bytes) -> Message:
        header, parent, metadata, _ = self.frames
        return self._with((header, parent, metadata, content))

    def with_metadata(self, metadata: bytes) -> Message:
        header, parent, _, content = self.frames
        return self._with((header, parent, metadata, content))

    def _with(self, frames: tuple[bytes, bytes, bytes, bytes]) -> Message:
        return Message(  # `dataclasses.replace` takes ten times as long
            self.idents, self.header, self.parent_header, self.outline, frames, self.buffers
        )


def _bodiless(idents: tuple[bytes, ...], header: Mapping[str, Any], header_frame: bytes) -> Message:
    return Message(idents, header, {}, Outline(), (header_frame, b"{}", b"{}", b"{}"))


def _build(message: Message, spare_frames: int) -> None:
    if spare_frames:
        _build(message, spare_frames - 1)
    else:
        _ = message.content, message.metadata


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs and checks the JSON frames with one side's key; an empty key turns signing off."""

    key: bytes
    digest: str = "sha256"

    @classmethod
    def from_scheme(cls, key: bytes, scheme: str) -> Signer:
        digest = scheme.removeprefix("hmac-")
        if digest == scheme or digest not in hashlib.algorithms_available:
            msg = f"signature_scheme {scheme!r} is not hmac-<digest> with a digest Python knows"
            raise ValueError(msg)
        return cls(key, digest)

    def sign(self, frames: Sequence[bytes]) -> bytes:
        if not self.key:
            return b""
        if sum(map(len, frames)) < _JOIN_BELOW_BYTES:
            return hmac.digest(self.key, b"".join(frames), self.digest).hex().encode()
        mac = hmac.new(self.key, digestmod=self.digest)
        for frame in frames:
            mac.update(frame)
        return mac.hexdigest().encode()

    def matches(self, signature: bytes, frames: Sequence[bytes]) -> bool:
        return not self.key or hmac.compare_digest(self.sign(frames), signature)


@dataclass(slots=True)
class Codec:
    """Reads and writes the messages of one side; replays within ``REPLAY_WINDOW`` are refused."""

    signer: Signer
    _seen: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def read(self, frames: Sequence[bytes]) -> Message:
        """The checked message in ``frames``; ``WireError`` says why there is none."""
        try:
            delimiter = frames.index(DELIMITER, 0, MAX_IDENTS + 1)
        except ValueError:
            msg = "no delimiter"
            raise WireError(msg) from None
        body = tuple(frames[delimiter + 2 : delimiter + 6])
        buffers = tuple(frames[delimiter + 6 :])
        if len(body) != 4:
            msg = "frames are missing"
            raise WireError(msg)
        if len(buffers) > MAX_BUFFERS:
            msg = "too many buffers"
            raise WireError(msg)
        if len(body[0]) > MAX_HEADER_BYTES or len(body[1]) > MAX_HEADER_BYTES:
            msg = "header is too large"
            raise WireError(msg)
        signature = frames[delimiter + 1]
        if not self.signer.matches(signature, body):
            msg = "wrong signature"
            raise WireError(msg)
        self._refuse_replay(signature)
        header_frame, parent, metadata, content = map(_valid_utf8, body)
        header = decode_object(header_frame)
        for name in ("msg_id", "msg_type", "session", "version"):
            if not isinstance(header.get(name), str):
                msg = f"header lacks {name}"
                raise WireError(msg)
        idents = tuple(frames[:delimiter])
        try:
            _refuse_long_numbers(metadata)
            _refuse_long_numbers(content)
            _strict(_check_object, metadata)
            return Message(
                idents=idents,
                header=header,
                parent_header=decode_object(parent),
                outline=_strict(_read_outline, content),
                frames=(header_frame, parent, metadata, content),
                buffers=buffers,
            )
        except WireError as error:
            raise BodyError(str(error), _bodiless(idents, header, header_frame)) from None

    def _refuse_replay(self, signature: bytes) -> None:
        if not self.signer.key:
            return
        if signature in self._seen:
            msg = "replayed"
            raise WireError(msg)
        self._seen[signature] = None
        if len(self._seen) > REPLAY_WINDOW:
            self._seen.popitem(last=False)

    def write(self, message: Message, idents: Sequence[bytes]) -> list[bytes]:
        """The frames that carry ``message`` to ``idents`` on this side."""
        signature = self.signer.sign(message.frames)
        return [*idents, DELIMITER, signature, *message.frames, *message.buffers]


@dataclass(slots=True)
class Author:
    """Makes the messages that come from the wrapper itself.

    All messages a frontend sees carry one ``header.session``: JupyterLab discards queued messages
    of another session. The inner kernel is told to use the same id.
    """

    session: str
    # As the inner kernel says it, once there is one: a frontend should not see two.
    version: str = PROTOCOL_VERSION
    username: str = field(default_factory=lambda: os.environ.get("USER", "username"))
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def made(self, msg_id: str | None) -> bool:
        """Whether ``msg_id`` is one of this author's."""
        return msg_id is not None and msg_id.startswith(f"{self.session}_wrapper_")

    def message(
        self,
        msg_type: str,
        content: Mapping[str, Any],
        parent: Message | None = None,
        metadata: Mapping[str, Any] | None = None,
        topic: bytes | None = None,
    ) -> Message:
        header = {
            # Inner kernels number theirs <session>_<pid>_<n>; the word keeps the two apart.
            "msg_id": f"{self.session}_wrapper_{next(self._count)}",
            "msg_type": msg_type,
            "username": self.username,
            "session": self.session,
            "date": timestamp(),
            "version": self.version,
        }
        parent_frame = parent.frames[0] if parent is not None else b"{}"
        return Message(
            idents=() if topic is None else (topic,),
            header=header,
            parent_header=parent.header if parent is not None else {},
            outline=Outline(),
            frames=(
                encode_object(header),
                parent_frame,
                encode_object(metadata or {}),
                encode_object(content),
            ),
        )


def _valid_utf8(frame: bytes) -> bytes:
    """The frame itself, or as clients would read it: Jupyter sends the odd bytes of a name raw."""
    try:
        if len(frame) < _DECODE_BYTES:
            frame.decode("utf-8")
        else:
            _decode_in_slices(frame)
    except UnicodeDecodeError:
        return frame.decode("utf-8", "replace").encode("utf-8")
    return frame


def _decode_in_slices(frame: bytes) -> None:
    """Raise what ``decode`` would, without four times the frame in memory for one odd letter."""
    decoder = _Utf8Decoder()
    view = memoryview(frame)
    for start in range(0, len(frame), _DECODE_BYTES):
        decoder.decode(view[start : start + _DECODE_BYTES])
    decoder.decode(b"", final=True)


def timestamp() -> str:
    """Now, as Jupyter writes dates."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
