"""Where an archive must end, by what its log or the next archive says that lies beside it.

A file's name proves nothing: who cuts an archive can name it after its new last record. But what was moved out
of a log has left a record in its place, under the key, with the number and the MAC of the last one that went.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from sandbox_kernel.audit.chain import Keyed
from sandbox_kernel.audit.records import Head, Record
from sandbox_kernel.audit.table import COLUMNS, SELECT_ALL, archive_end, connect_to_read
from sandbox_kernel.errors import AuditUnavailable
from sandbox_kernel.relay.wire import WireError, decode_object

_KIND: Final = Record._fields.index("kind")
_BODY: Final = Record._fields.index("body")
_MAC: Final = Record._fields.index("mac")
# Of the fields from the kind on: six texts and three blobs.
_TYPES: Final = (bytearray,) * (_BODY - _KIND) + (bytes,) * (_MAC - _BODY + 1)
_SELECT_ROTATIONS: Final = (
    f"SELECT {COLUMNS} FROM record WHERE seq > ? AND kind = 'event' AND word = 'rotated' "
    "ORDER BY seq"
)


class Before(NamedTuple):
    """What a log says of the records that stood before its own."""

    said_by: str
    end: Head
    archive: str  # where they were moved to, or ""
    first: int | None  # what that began with, where it is known


class End(NamedTuple):
    """Whether it is known where an archive ends, and if it ends elsewhere, at which record and how."""

    is_known: bool
    wrong: tuple[int, str] | None = None


def look_at_end(path: Path, keyed: Keyed, first: int, head: Head) -> End:
    """Compare where a part of a log ends, which begins with ``first``, with where it ended."""
    beside = _said_beside(path, keyed)
    at_end = [each for each in beside if each.end.seq == head.seq]
    if any(each.end.mac == head.mac for each in at_end):
        return End(is_known=True)
    if at_end:
        what = f"it is not the record that {at_end[0].said_by} says the archive ended with"
        return End(True, (head.seq, what))
    for each in beside:
        if each.archive != path.name and (path.parent / each.archive).exists():
            continue  # that is another one, whose place nothing has taken
        # Of what was pruned before, one record is left in an archive.
        if each.first is not None and each.first - 1 <= first and head.seq < each.end.seq:
            what = (
                f"the archive was cut: it ends with record {head.seq}, but {each.said_by} says that it "
                f"ended with record {each.end.seq}"
            )
            return End(True, (head.seq + 1, what))
    named = archive_end(path)
    if named is not None and named != head.seq:
        what = f"the archive was cut or renamed: it ends with record {head.seq}"
        return End(True, (min(named, head.seq) + 1, what))
    return End(is_known=False)


def is_genuine(keyed: Keyed, row: Sequence[Any]) -> bool:
    """Whether its MAC fits, and each field has the type that writers store: lists go by that, too.

    Texts are ``bytearray``: so they are told from blobs, whatever somebody has put there.
    """
    try:
        return bool(tuple(map(type, row[_KIND:])) == _TYPES and keyed.mac_of(row) == row[_MAC])
    except (TypeError, struct.error):
        return False


def _said_beside(path: Path, keyed: Keyed) -> list[Before]:
    """What the other logs in its directory say of what stood before them; none that cannot be read."""
    found: list[Before] = []
    for other in sorted(path.parent.glob("log*.db")):
        if other.name == path.name:
            continue
        try:
            with closing(connect_to_read(other)) as connection:
                connection.text_factory = bytearray
                found += _before(connection, other.name, keyed)
        except (sqlite3.Error, AuditUnavailable):
            continue  # it is not at hand; whether it is damaged, its own verification says
    return found


def _before(connection: sqlite3.Connection, name: str, keyed: Keyed) -> Iterator[Before]:
    row = connection.execute(f"{SELECT_ALL} LIMIT 1").fetchone()
    if row is None or row[_KIND] != b"pruned" or not is_genuine(keyed, row):
        return
    try:
        said = decode_object(row[_BODY])
        end = Head(int(said["through"]), bytes.fromhex(said["mac"]))
    except (WireError, KeyError, TypeError, ValueError):
        return
    archive = str(said.get("archive") or "")
    first = _first_of_archive(connection, end.seq, keyed) if archive else None
    yield Before(name, end, archive, first)


def _first_of_archive(connection: sqlite3.Connection, last: int, keyed: Keyed) -> int | None:
    """Which record the archive began with that ends with ``last``: the event of its making says so."""
    for row in connection.execute(_SELECT_ROTATIONS, (last,)):
        if not is_genuine(keyed, row):
            continue
        said = decode_object(row[_BODY])
        if said.get("through") == last and isinstance(records := said.get("records"), int):
            return last - records + 1
    return None
