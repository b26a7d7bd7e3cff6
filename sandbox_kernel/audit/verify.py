"""Is the log as it was written? Finds what was changed, and says which record it is.

Without an anchor a log is compared with itself: what was edited, deleted, inserted, put in another order or
joined from two logs does not fit. A log that was cut at its end, or replaced by another one as a whole, fits:
that is found by anchors, signed heads of it that are kept elsewhere.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sandbox_kernel.audit.anchor import Anchor
from sandbox_kernel.audit.chain import Keyed, read_key
from sandbox_kernel.audit.records import EMPTY, Head, Record
from sandbox_kernel.audit.table import (
    SCHEMA,
    SELECT_ALL,
    archive_end,
    connect_to_read,
    schema_of,
)
from sandbox_kernel.errors import AuditUnavailable
from sandbox_kernel.relay.wire import WireError, decode_object

_ROWS: Final = 4096
_MAX_PROBLEMS: Final = 1000
_KIND: Final = Record._fields.index("kind")
_BODY: Final = Record._fields.index("body")
_PREVIOUS: Final = Record._fields.index("previous")
_MAC: Final = Record._fields.index("mac")
# Of the fields from the kind on: six texts and three blobs.
_TYPES: Final = (bytearray,) * (_BODY - _KIND) + (bytes,) * (_MAC - _BODY + 1)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written. ``seq`` is the first record concerned, 0 for the file."""

    seq: int
    what: str

    def to_json(self) -> dict[str, Any]:
        return {"record": self.seq, "what": self.what}


@dataclass(slots=True)
class Report:
    """What was found."""

    records: int = 0
    first: int = 0
    head: Head = EMPTY
    pruned_through: int = 0
    anchors_checked: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems

    def accuse(self, seq: int, what: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(Problem(seq, what))


def verify(
    path: Path,
    anchors: Sequence[Anchor] = (),
    *,
    progress: Progress = lambda done, total: None,
    key: bytes | None = None,
) -> Report:
    """Read the whole log and compare; raises ``AuditUnavailable`` if there is none or no key.

    Of an archive, which has its last number in its name, later anchors say nothing.
    """
    report = Report()
    last = archive_end(path)
    if last is not None:
        anchors = [each for each in anchors if each.seq <= last]
    connection = connect_to_read(path)
    try:
        key = key or read_key(path.parent)
    except OSError as error:
        connection.close()
        what = f"The key of the audit log {path} cannot be read: {error.strerror}."
        raise AuditUnavailable(what, hint="It lies beside the log; put it back there.") from error
    # As it is stored: whatever a text was changed to, it can be read, and told from a blob.
    connection.text_factory = bytearray
    try:
        connection.execute("BEGIN")  # all of it at one moment, while kernels write on
        heads: dict[int, bytes] = {}
        # A file without tables is the log of a kernel that was killed as it made it: nothing is in it.
        if found := schema_of(connection):
            _compare_schema(found, report)
            heads = _walk(connection, Keyed(key), report, {each.seq for each in anchors}, progress)
            _compare_indexes(connection, report)
    except sqlite3.Error as error:
        report.accuse(report.head.seq + 1, f"the file is damaged here: {error}")
        return report
    finally:
        connection.close()
    if last is not None and report.head.seq != last:
        report.accuse(
            report.head.seq + 1,
            f"the archive was cut or renamed: it ends with record {report.head.seq}",
        )
    _compare_anchors(anchors, heads, report)
    report.problems.sort(key=lambda problem: problem.seq)
    return report


def _walk(
    connection: sqlite3.Connection,
    keyed: Keyed,
    report: Report,
    wanted: set[int],
    progress: Progress,
) -> dict[int, bytes]:
    """Look at every record; the MACs of those that are ``wanted``."""
    (total,) = connection.execute("SELECT count(*) FROM record").fetchone()
    heads: dict[int, bytes] = {}
    expected = EMPTY  # what the next record must come after
    genuine = True
    for row in _rows(connection):
        seq = row[0]
        if report.records == 0:
            expected = _begin(row, report)
        if seq != expected.seq + 1 and report.records:
            report.accuse(*_gap(seq, expected.seq))
        follows_genuine, genuine = genuine, _is_genuine(keyed, row)
        if not genuine:
            report.accuse(seq, "it is not what was written: one of its fields was changed")
        elif row[_PREVIOUS] != expected.mac and seq == expected.seq + 1 and follows_genuine:
            report.accuse(seq, "it was written after another record than the one before it here")
        mac = row[_MAC] if isinstance(row[_MAC], bytes) else b""
        if row[_KIND] == b"pruned" and report.records == 0:
            mac = _pruned(row, genuine, report)
        expected = report.head = Head(seq, mac)
        report.records += 1
        if seq in wanted:
            heads[seq] = mac
        if report.records % _ROWS == 0:
            progress(report.records, total)
    progress(report.records, total)
    return heads


def _rows(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    cursor = connection.execute(SELECT_ALL)
    while rows := cursor.fetchmany(_ROWS):
        yield from rows


def _is_genuine(keyed: Keyed, row: Sequence[Any]) -> bool:
    """Whether its MAC fits, and each field has the type that writers store: lists go by that, too."""
    try:
        return bool(tuple(map(type, row[_KIND:])) == _TYPES and keyed.mac_of(row) == row[_MAC])
    except (TypeError, struct.error):
        return False


def _begin(row: Sequence[Any], report: Report) -> Head:
    """What the first record must come after, if its place is right."""
    report.first = row[0]
    if row[_KIND] == b"pruned":
        return Head(row[0] - 1, row[_PREVIOUS])
    if row[0] != 1:
        report.accuse(
            1, f"records 1 to {row[0] - 1} are missing, and no record says that they were pruned"
        )
        return Head(row[0] - 1, row[_PREVIOUS])
    return EMPTY


def _pruned(row: Sequence[Any], genuine: bool, report: Report) -> bytes:
    """The MAC of the last record that was pruned: the first one that is left comes after that."""
    try:
        mac = bytes.fromhex(decode_object(row[_BODY])["mac"])
    except (WireError, KeyError, TypeError, ValueError):
        if genuine:
            report.accuse(row[0], "it does not say what was pruned")
        return b""
    report.pruned_through = row[0]
    return mac


def _gap(seq: int, last: int) -> tuple[int, str]:
    if seq <= last:
        return seq, "its number is there twice"
    missing = f"record {last + 1} is" if seq == last + 2 else f"records {last + 1} to {seq - 1} are"
    return last + 1, f"{missing} missing"


def _compare_schema(found: set[str], report: Report) -> None:
    if found != set(SCHEMA):
        extra = ", ".join(sorted(found - set(SCHEMA)))[:200]
        report.accuse(
            0, f"the file's tables are not those of a log: {extra or 'something is missing'}"
        )


def _compare_indexes(connection: sqlite3.Connection, report: Report) -> None:
    """What lists go by must say the same as the table, which alone has been looked at."""
    ((found,),) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if found != b"ok":
        report.accuse(0, f"the file is damaged: {bytes(found).decode('utf-8', 'replace')}")


def _compare_anchors(anchors: Sequence[Anchor], heads: dict[int, bytes], report: Report) -> None:
    checked = [each for each in anchors if each.seq >= max(report.first, 1)]
    for anchor in checked:
        if anchor.seq > report.head.seq:
            what = (
                f"the log was cut: it ends with record {report.head.seq}, but an anchor of "
                f"{anchor.when} is of record {anchor.seq}"
            )
            report.accuse(report.head.seq + 1, what)
        elif heads.get(anchor.seq, b"") != anchor.mac:
            what = f"it is not the record that was anchored at {anchor.when}: the log was replaced"
            report.accuse(anchor.seq, what)
    report.anchors_checked = len(checked)
    if anchors and not checked:
        newest = max(each.seq for each in anchors)
        what = (
            f"no anchor is about what is here: the newest is of record {newest}, the log begins with "
            f"record {report.first}. It was pruned since, or replaced"
        )
        report.accuse(report.first, what)
