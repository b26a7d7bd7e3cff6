"""One record of the log: what a writer says, and how it is stored."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from sandbox_kernel.relay.wire import WireError, decode_object

Kind = Literal["start", "intent", "approval", "outcome", "event", "end", "pruned"]

MICROSECONDS_PER_DAY: Final = 86_400_000_000


class Entry(NamedTuple):
    """What is to be recorded. What lists and statistics go by stands beside the body, not in it."""

    kind: Kind
    time_us: int
    kernel: str  # the wrapper's session id
    cell: str  # the audit id, or ""
    user: str
    policy: str
    # A verdict of an intent, an answer of an approval, how a cell or a kernel ended, what event it is.
    word: str
    body: bytes  # a JSON object
    wall_us: int = 0  # of outcomes
    cpu_us: int = 0
    memory_bytes: int = 0

    @property
    def day(self) -> int:
        """Days since 1970, by UTC."""
        return self.time_us // MICROSECONDS_PER_DAY


class Record(NamedTuple):
    """An entry at its place in the chain. Its fields are the columns of the table, in order.

    All but ``mac`` are what ``mac`` is made of; texts may be bytes, as SQLite stores them.
    """

    seq: int
    time_us: int
    day: int
    wall_us: int
    cpu_us: int
    memory_bytes: int
    kind: str
    kernel: str
    cell: str
    user: str
    policy: str
    word: str
    body: bytes
    previous: bytes  # the MAC of the record before it
    mac: bytes


class Head(NamedTuple):
    """The last record of a log, or of a part of it; an empty log has ``seq`` 0."""

    seq: int
    mac: bytes


_TEXTS: Final = Record._fields.index("kind")
_BLOBS: Final = Record._fields.index("body")
UNREADABLE: Final = "unreadable"
EMPTY: Final = Head(0, bytes(32))


def now_us() -> int:
    return time.time_ns() // 1000


def storable(text: str) -> str:
    """The text without halves of characters, which names of files and variables may have."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def body_of(facts: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(facts)
    except UnicodeEncodeError:
        text = json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


def said_in(body: bytes) -> dict[str, Any]:
    """What a record says; if somebody has made it unreadable, ``{"unreadable": TEXT}``."""
    try:
        return decode_object(body)
    except WireError:
        return {UNREADABLE: body.decode("utf-8", "replace")}


def as_stored_by_writers(row: Sequence[Any]) -> Record:
    """The record in a row, each field of the type that writers store, whatever somebody has made of it.

    For readers, which show what is there and leave it to ``verify`` to say that it is not what was written.
    """
    numbers = (value if type(value) is int else 0 for value in row[:_TEXTS])
    texts = (
        value if type(value) is str else _in_bytes(value).decode("utf-8", "replace")
        for value in row[_TEXTS:_BLOBS]
    )
    return Record._make((*numbers, *texts, *map(_in_bytes, row[_BLOBS:])))


def _in_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def stored(entry: Entry, head: Head) -> Record:
    """The entry behind ``head``, its MAC not yet made."""
    return Record(
        head.seq + 1,
        entry.time_us,
        entry.day,
        entry.wall_us,
        entry.cpu_us,
        entry.memory_bytes,
        entry.kind,
        entry.kernel,
        entry.cell,
        entry.user,
        entry.policy,
        entry.word,
        entry.body,
        head.mac,
        b"",
    )
