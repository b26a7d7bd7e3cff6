"""Is the log as it was written? Finds what was changed, and says which record it is.

Without an anchor a log is compared with itself: what was edited, deleted, inserted, put in another order or
joined from two logs does not fit. A log that was cut at its end, or replaced by another one as a whole, fits:
that is found by anchors, signed heads of it that are kept elsewhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sandbox_kernel.audit.anchor import Anchor
from sandbox_kernel.audit.chain import Keyed, read_key
from sandbox_kernel.audit.neighbours import is_genuine, look_at_end
from sandbox_kernel.audit.records import EMPTY, Head, Record
from sandbox_kernel.audit.table import (
    LOG_NAME,
    SCHEMA,
    SELECT_ALL,
    SELECT_NEXT,
    connect_to_read,
    is_out_of_reach,
    schema_of,
    unreadable,
)
from sandbox_kernel.errors import AuditUnavailable
from sandbox_kernel.relay.wire import WireError, decode_object

# Progress is told after so many records.
_STEP: Final = 4096
_MAX_PROBLEMS: Final = 1000
_LEAST: Final = -(1 << 63)  # of all numbers in a file
_KIND: Final = Record._fields.index("kind")
_BODY: Final = Record._fields.index("body")
_PREVIOUS: Final = Record._fields.index("previous")
_MAC: Final = Record._fields.index("mac")

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
    # Whether all of it could be read. Behind a damaged place nothing was looked at.
    complete: bool = True
    problems: list[Problem] = field(default_factory=list)
    # What the anchors leave open: nobody is accused by it, and nothing is vouched for.
    doubts: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems and not self.doubts

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
    """Read the whole log and compare; raises ``AuditUnavailable`` if it or its key cannot be looked at.

    A log that grows is called ``log.db``: every anchor is about it. Another file ends somewhere, and what
    lies beside it may say where.
    """
    report = Report()
    connection = connect_to_read(path)
    try:
        keyed = Keyed(key or read_key(path.parent, to_write=False))
    except OSError as error:
        connection.close()
        what = f"The key of the audit log {path} cannot be read: {error.strerror}."
        raise AuditUnavailable(what, hint="It lies beside the log; put it back there.") from error
    # As it is stored: whatever a text was changed to, it can be read, and told from a blob.
    connection.text_factory = bytearray
    heads: dict[int, bytes] = {}
    try:
        connection.execute("BEGIN")  # all of it at one moment, while kernels write on
        # A file without tables is the log of a kernel that was killed as it made it: nothing is in it.
        if found := schema_of(connection):
            _compare_schema(found, report)
            heads = dict.fromkeys((each.seq for each in anchors), b"")
            _walk(connection, keyed, report, heads, progress)
            _compare_indexes(connection, report)
    except sqlite3.Error as error:
        if is_out_of_reach(error):
            raise unreadable(path, error) from error
        report.complete = False
        report.accuse(report.head.seq + 1, f"the file is damaged here: {error}")
    finally:
        connection.close()
    if path.name == LOG_NAME or not report.complete:
        _compare_anchors(anchors, heads, report)
    else:
        is_known = _compare_end(path, keyed, report)
        _compare_anchors_of_part(anchors, heads, report, is_known=is_known)
    report.problems.sort(key=lambda problem: problem.seq)
    return report


def _walk(
    connection: sqlite3.Connection,
    keyed: Keyed,
    report: Report,
    heads: dict[int, bytes],
    progress: Progress,
) -> None:
    """Look at every record, one by one: what was read before a damaged place counts.

    The MACs of those that are in ``heads`` are put there.
    """
    total = _about_how_many(connection)
    expected = EMPTY  # what the next record must come after
    genuine = True
    for row in _rows(connection):
        seq = row[0]
        if report.records == 0:
            expected = _begin(row, report)
        if seq != expected.seq + 1 and report.records:
            report.accuse(*_gap(seq, expected.seq))
        follows_genuine, genuine = genuine, is_genuine(keyed, row)
        if not genuine:
            report.accuse(seq, "it is not what was written: one of its fields was changed")
        elif row[_PREVIOUS] != expected.mac and seq == expected.seq + 1 and follows_genuine:
            report.accuse(seq, "it was written after another record than the one before it here")
        mac = row[_MAC] if isinstance(row[_MAC], bytes) else b""
        if row[_KIND] == b"pruned" and report.records == 0:
            mac = _pruned(row, genuine, report)
        expected = report.head = Head(seq, mac)
        report.records += 1
        if seq in heads:
            heads[seq] = mac
        if report.records % _STEP == 0:
            progress(report.records, max(total, report.records + 1))
    progress(report.records, report.records)


def _rows(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    """One by one, up to the last one before a damaged place; raises ``sqlite3.Error`` there."""
    last = _LEAST
    try:
        for row in connection.execute(SELECT_ALL):
            last = row[0]
            yield row
    except sqlite3.Error:
        # Python looks for the next row before it gives one away: one was read and not seen.
        yield from connection.execute(SELECT_NEXT, (last,))
        raise


def _about_how_many(connection: sqlite3.Connection) -> int:
    """For progress: the first and the last are looked at, not all that may be damaged between them."""
    try:
        (total,) = connection.execute(
            "SELECT (SELECT max(seq) FROM record) - (SELECT min(seq) FROM record) + 1"
        ).fetchone()
    except sqlite3.Error as error:
        if is_out_of_reach(error):
            raise
        return 0
    return int(total or 0)


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
    try:
        ((found,),) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.Error as error:
        if is_out_of_reach(error):
            raise
        found = str(error).encode()
    if found != b"ok":
        report.accuse(0, f"the file is damaged: {bytes(found).decode('utf-8', 'replace')}")


def _compare_end(path: Path, keyed: Keyed, report: Report) -> bool:
    """Whether it is known where this part of a log ends; it is accused if it ends elsewhere."""
    found = look_at_end(path, keyed, report.first, report.head)
    if found.wrong is not None:
        report.accuse(*found.wrong)
    return found.is_known


def _compare_anchors_of_part(
    anchors: Sequence[Anchor], heads: dict[int, bytes], report: Report, *, is_known: bool
) -> None:
    """Of an archive, later anchors say nothing, if it ended where it ends now."""
    head = report.head
    about = [each for each in anchors if max(report.first, 1) <= each.seq <= head.seq]
    _compare_anchors(about, heads, report)
    later = max((each.seq for each in anchors if each.seq > head.seq), default=0)
    if anchors and not about:
        report.doubts.append(
            f"no anchor is about what is here, records {report.first} to {head.seq}"
        )
    elif later and not is_known:
        report.doubts.append(
            f"whether it ended with record {head.seq} is not known: there is an anchor of record "
            f"{later}, and no log beside it says where it ended"
        )


def _compare_anchors(anchors: Sequence[Anchor], heads: dict[int, bytes], report: Report) -> None:
    checked = [each for each in anchors if each.seq >= max(report.first, 1)]
    if not report.complete:
        checked = [each for each in checked if each.seq <= report.head.seq]
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
    if anchors and not checked and report.complete:
        newest = max(each.seq for each in anchors)
        what = (
            f"no anchor is about what is here: the newest is of record {newest}, the log begins with "
            f"record {report.first}. It was pruned since, or replaced"
        )
        report.accuse(report.first, what)
