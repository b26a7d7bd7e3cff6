"""Frames of the Jupyter wire protocol: split, checked, signed — and bounded, as one side is hostile.

A message on the wire is ``[*idents, DELIMITER, signature, header, parent_header, metadata, content,
*buffers]``. The relay forwards the JSON frames byte for byte (breakpoints hash the code, tracebacks
cite its lines) and replaces only the signature and what it must change.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

DELIMITER: Final = b"<IDS|MSG>"
PROTOCOL_VERSION: Final = "5.4"

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_IDENTS: Final = 8
MAX_BUFFERS: Final = 4096
MAX_JSON_DEPTH: Final = 64
REPLAY_WINDOW: Final = 1 << 14
_JOIN_BELOW_BYTES: Final = 1 << 16


class WireError(Exception):
    """A message that is not well formed; its text is the reason under which the drop is counted."""


def _refuse_constant(name: str) -> NoReturn:
    msg = f"JSON holds {name}, which browsers cannot parse"
    raise WireError(msg)


_decode_json = json.JSONDecoder(parse_constant=_refuse_constant).decode


def decode_object(frame: bytes) -> dict[str, Any]:
    """The JSON object in ``frame``, at most ``MAX_JSON_DEPTH`` deep; ``WireError`` otherwise."""
    try:
        value = _decode_json(frame.decode("utf-8"))
    except RecursionError:
        msg = "JSON is nested too deeply"
        raise WireError(msg) from None
    except ValueError:
        msg = "JSON or UTF-8 is malformed"
        raise WireError(msg) from None
    if type(value) is not dict:
        msg = "JSON frame is not an object"
        raise WireError(msg)
    # Counting brackets bounds the depth from above; only few messages need the exact answer.
    if frame.count(b"{") + frame.count(b"[") > MAX_JSON_DEPTH and _is_deep(value):
        msg = "JSON is nested too deeply"
        raise WireError(msg)
    return value


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)  # type: ignore[attr-defined]
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def encode_object(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


@dataclass(frozen=True, slots=True)
class Message:
    """One message whose frames are well formed. Nothing is said about who made it."""

    idents: tuple[bytes, ...]
    header: Mapping[str, Any]
    parent_header: Mapping[str, Any]
    content: Mapping[str, Any]
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

    @property
    def metadata(self) -> dict[str, Any]:
        return decode_object(self.frames[2])

    def with_content(self, content: Mapping[str, Any]) -> Message:
        header, parent, metadata, _ = self.frames
        frames = (header, parent, metadata, encode_object(content))
        return replace(self, content=content, frames=frames)


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
        header = decode_object(body[0])
        if not isinstance(header.get("msg_id"), str) or not isinstance(header.get("msg_type"), str):
            msg = "header lacks msg_id or msg_type"
            raise WireError(msg)
        decode_object(body[2])
        return Message(
            idents=tuple(frames[:delimiter]),
            header=header,
            parent_header=decode_object(body[1]),
            content=decode_object(body[3]),
            frames=body,
            buffers=buffers,
        )

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
            content=content,
            frames=(
                encode_object(header),
                parent_frame,
                encode_object(metadata or {}),
                encode_object(content),
            ),
        )


def timestamp() -> str:
    """Now, as Jupyter writes dates."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
