"""Questions to the log, for the command line and the server extension: with ``wanted``, the place that knows its SQL.

Each answer is made of what is stored, which ``verify`` alone can vouch for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple

from sandbox_kernel.audit.mirror import as_json
from sandbox_kernel.audit.records import (
    EMPTY,
    MICROSECONDS_PER_DAY,
    UNREADABLE,
    Head,
    Record,
    as_stored_by_writers,
    said_in,
)
from sandbox_kernel.audit.table import (
    COLUMNS,
    SELECT_ALL,
    SELECT_HEAD,
    connect_to_read,
    schema_of,
    unreadable,
)
from sandbox_kernel.audit.wanted import Wanted, conditions_of, verdict_of
from sandbox_kernel.errors import AuditUnavailable

# How far before a kernel's first cell its start is looked for. No index has it, and it may be pruned.
_START_RECORDS: Final = 100_000
Group = Literal["day", "policy", "user"]


@dataclass(frozen=True, slots=True)
class CellEntry:
    """One cell, in short."""

    id: str
    seq: int  # of its intent
    time_us: int
    kernel: str
    user: str
    policy: str
    # As its receipt has it; ``ask``: it was asked about, and nobody has answered.
    verdict: str
    outcome: str | None  # ``None``: it runs still, or its kernel was killed
    wall_seconds: float
    memory_bytes: int
    code: str | None  # ``None``: the policy keeps a hash only, or it is not readable
    readable: bool = True  # whether its intent says anything: if not, it was tampered with

    def to_json(self) -> dict[str, Any]:
        said = {name: getattr(self, name) for name in self.__slots__}
        del said["time_us"]
        return said | {"time": self.time_us / 1e6}


@dataclass(frozen=True, slots=True)
class CellDetail:
    """All that is recorded of a cell, in order, and the cells beside it in its kernel."""

    entry: CellEntry
    records: Sequence[Record]
    receipt: dict[str, Any]
    findings: Sequence[dict[str, Any]]
    before: CellEntry | None = None
    after: CellEntry | None = None
    start: Record | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.entry.to_json(),
            "receipt": self.receipt,
            "findings": list(self.findings),
            "records": [as_json(record) for record in self.records],
            "before": None if self.before is None else self.before.id,
            "after": None if self.after is None else self.after.id,
        }


class Total(NamedTuple):
    """What some cells came to. ``group`` is a day (of 1970 as 0), a policy or a user."""

    group: str | int
    cells: int
    denied: int
    failed: int
    wall_seconds: float
    cpu_seconds: float
    memory_peak_bytes: int


class AuditReader:
    """A log, open for reading; a context manager. Raises ``AuditUnavailable`` for one that is not there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect_to_read(path)
        # Text that somebody has spoiled is shown as such.
        self._connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        try:
            empty = not schema_of(self._connection)
        except sqlite3.Error as error:
            self._connection.close()
            raise unreadable(path, error) from error
        if empty:
            self._connection.close()
            what = f"Nothing was recorded yet in the audit log {path}."
            raise AuditUnavailable(what, hint="The first cell of a kernel is the first record.")

    def __enter__(self) -> AuditReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()
        if isinstance(error, sqlite3.Error):
            raise unreadable(self._path, error) from error

    def head(self) -> Head:
        row = self._connection.execute(SELECT_HEAD).fetchone()
        if row is None:
            return EMPTY
        if not isinstance(row[1], bytes):
            what = f"The last record of the audit log {self._path} is not what was written."
            raise AuditUnavailable(what, hint="Look with `sandbox-kernel audit verify`.")
        return Head(*row)

    def records(self) -> Iterator[Record]:
        """Everything, in order, as it is read: nothing is held in memory."""
        yield from map(as_stored_by_writers, self._connection.execute(SELECT_ALL))

    # -- cells -------------------------------------------------------------------------------------

    def cells(self, wanted: Wanted) -> list[CellEntry]:
        """The newest cells that are wanted, the newest last."""
        conditions, values = conditions_of(wanted)
        found = self._connection.execute(
            "SELECT cell FROM record AS intent INDEXED BY cells "
            f"WHERE {' AND '.join(conditions)} ORDER BY cell DESC LIMIT ?",
            (*values, -1 if wanted.limit is None else wanted.limit),
        )
        entries = (self._entry(cell) for (cell,) in found.fetchall())
        return [entry for entry in entries if entry is not None][::-1]

    def show(self, id: str) -> CellDetail:
        """The cell whose audit id begins with ``id``; raises ``AuditUnavailable`` if it is none or several."""
        rows = self._connection.execute(
            "SELECT DISTINCT cell FROM record INDEXED BY cells "
            "WHERE cell <> '' AND cell >= ? AND cell < ? AND kind = 'intent' LIMIT 2",
            (id, f"{id}g"),
        ).fetchall()
        if len(rows) != 1:
            what = f"{'No cell' if not rows else 'More than one cell'} has an audit id {id!r}."
            hint = "`sandbox-kernel audit list` shows ids; receipts have them too."
            raise AuditUnavailable(what, hint=hint)
        return self._detail(rows[0][0])

    def _detail(self, cell: str) -> CellDetail:
        entry = self._entry(cell)
        assert entry is not None
        records = self._records_of(cell)
        start = self._start_of(entry)
        said = {record.kind: said_in(record.body) for record in records}
        same = {} if start is None else said_in(start.body)
        shared = {key: same[key] for key in ("isolation", "policy", "limits") if key in same}
        own = said.get("outcome", {}).get("receipt")
        receipt = {"audit_id": entry.id, **shared, **(own if isinstance(own, dict) else {})}
        findings = said["intent"].get("findings")
        return CellDetail(
            entry,
            records,
            receipt if "outcome" in said else {},
            [each for each in findings if isinstance(each, dict)]
            if isinstance(findings, list)
            else [],
            self._neighbour(entry, "<", "DESC"),
            self._neighbour(entry, ">", "ASC"),
            start,
        )

    def _records_of(self, cell: str) -> list[Record]:
        rows = self._connection.execute(
            f"SELECT {COLUMNS} FROM record INDEXED BY cells WHERE cell <> '' AND cell = ? ORDER BY seq",
            (cell,),
        )
        return [as_stored_by_writers(row) for row in rows]

    def _entry(self, cell: Any) -> CellEntry | None:
        records = {record.kind: record for record in self._records_of(cell)}
        intent, outcome = records.get("intent"), records.get("outcome")
        if intent is None:
            return None
        said = said_in(intent.body)
        code = said.get("code")
        return CellEntry(
            id=intent.cell,
            seq=intent.seq,
            time_us=intent.time_us,
            kernel=intent.kernel,
            user=intent.user,
            policy=intent.policy,
            verdict=verdict_of(intent, records.get("approval")),
            outcome=None if outcome is None else outcome.word,
            wall_seconds=0.0 if outcome is None else outcome.wall_us / 1e6,
            memory_bytes=0 if outcome is None else outcome.memory_bytes,
            code=code if isinstance(code, str) else None,
            readable=UNREADABLE not in said,
        )

    def _neighbour(self, entry: CellEntry, than: str, order: str) -> CellEntry | None:
        row = self._connection.execute(
            "SELECT cell FROM record INDEXED BY cells WHERE cell <> '' AND kind = 'intent' "
            f"AND kernel = ? AND cell {than} ? ORDER BY cell {order} LIMIT 1",
            (entry.kernel, entry.id),
        ).fetchone()
        return None if row is None else self._entry(row[0])

    def _start_of(self, entry: CellEntry) -> Record | None:
        """Where the cell's kernel began: shortly before its first cell, or it is not found."""
        (first,) = self._connection.execute(
            "SELECT min(cell) FROM record INDEXED BY cells "
            "WHERE cell <> '' AND kind = 'intent' AND kernel = ?",
            (entry.kernel,),
        ).fetchone()
        intent = next((each for each in self._records_of(first) if each.kind == "intent"), None)
        if intent is None:
            return None  # not in the table, though in the index: it was tampered with
        row = self._connection.execute(
            f"SELECT {COLUMNS} FROM record WHERE seq < ? AND seq >= ? AND kind = 'start' "
            "AND kernel = ? ORDER BY seq DESC LIMIT 1",
            (intent.seq, intent.seq - _START_RECORDS, entry.kernel),
        ).fetchone()
        return None if row is None else as_stored_by_writers(row)

    # -- numbers -----------------------------------------------------------------------------------

    def totals(self, by: Group, since_us: int | None = None) -> list[Total]:
        """What all cells that have ended came to, by day, policy or user."""
        if since_us is None:
            rows = self._sums("day >= ?", 0)
        else:
            # The index has whole days: of the first one, the table says what came late enough.
            day = since_us // MICROSECONDS_PER_DAY
            rows = [
                *self._sums("day = ? AND time_us >= ?", day, since_us),
                *self._sums("day > ?", day),
            ]
        place = ("day", "policy", "user").index(by)
        totals: dict[str | int, Total] = {}
        for row in rows:
            group = row[place] if type(row[place]) is int else _text(row[place])
            (cells, denied, failed, wall, cpu, memory) = row[3:]
            old = totals.get(group) or Total(group, 0, 0, 0, 0.0, 0.0, 0)
            totals[group] = Total(
                group,
                old.cells + cells,
                old.denied + denied,
                old.failed + failed,
                old.wall_seconds + wall / 1e6,
                old.cpu_seconds + cpu / 1e6,
                max(old.memory_peak_bytes, memory if isinstance(memory, int) else 0),
            )
        # A day that somebody has made a text of stands behind the others.
        return [
            totals[group] for group in sorted(totals, key=lambda each: (type(each) is str, each))
        ]

    def _sums(self, condition: str, *values: int) -> list[tuple[Any, ...]]:
        return self._connection.execute(
            "SELECT day, policy, user, count(*), sum(word = 'denied'), "
            "sum(word NOT IN ('ok', 'denied', 'aborted')), sum(wall_us), sum(cpu_us), "
            "max(memory_bytes) FROM record INDEXED BY daily "
            f"WHERE kind = 'outcome' AND {condition} GROUP BY day, policy, user",
            values,
        ).fetchall()


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)
