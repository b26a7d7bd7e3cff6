"""How long the log is kept: old records are pruned, or moved to an archive first.

Nothing is taken away unseen. In place of what was pruned stands a record of its number, kind ``pruned``, with
the MAC of the last record that is gone: what is left is verified from there. A record at the end says who did
it, and comes first. Both are under the log's key, so nothing is pruned but from a log that verifies: what
somebody has changed would be vouched for. One process at a time does this to a log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from sandbox_kernel.audit.bodies import user_name
from sandbox_kernel.audit.chain import Keyed, read_key, sync_directory
from sandbox_kernel.audit.records import Entry, Head, Kind, body_of, now_us
from sandbox_kernel.audit.store import Store, unavailable
from sandbox_kernel.audit.table import COLUMNS, INSERT, archive_name, connect, connect_to_read
from sandbox_kernel.audit.verify import verify
from sandbox_kernel.errors import AuditUnavailable

# Records that are deleted at a time: between two such steps waiting cells are recorded.
_STEP: Final = 2000
_BUSY_SECONDS: Final = 30.0
# What is pruned is overwritten while nobody reads or writes. Waiting for that holds up cells: a moment, and
# again a little later.
_OVERWRITE_MILLISECONDS: Final = 20
_OVERWRITE_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.1

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Kept:
    """What was done."""

    pruned: int
    through: int  # the number of the last record that is gone
    archive: Path | None = None
    # Whether it is gone from the files too: not yet, if somebody reads the log all the time.
    overwritten: bool = True


def _unseen(_done: int, _total: int) -> None:
    """Of progress that nobody looks at."""


def prune(
    directory: Path, before_us: int, progress: Progress = _unseen, *, verifying: Progress = _unseen
) -> Kept:
    """Delete all records up to the last one before that time, if no later one is before them."""
    with _opened(directory, verifying) as log:
        # In one statement: what is recorded meanwhile is new, whichever it finds.
        (last,) = log.connection.execute(
            "SELECT coalesce((SELECT min(seq) - 1 FROM record WHERE time_us >= ? AND kind <> 'pruned'), "
            "(SELECT max(seq) FROM record), 0)",
            (before_us,),
        ).fetchone()
        return log.prune_through(int(last), None, progress)


def rotate(directory: Path, progress: Progress = _unseen, *, verifying: Progress = _unseen) -> Kept:
    """Copy all records there are now to a file of their own, which verifies by itself, and prune them."""
    with _opened(directory, verifying) as log:
        last = log.last
        archive = directory / archive_name(last)
        log.copy_through(last, archive)
        return log.prune_through(last, archive, progress)


class _opened(contextlib.AbstractContextManager["_opened"]):
    """A log that is being made shorter."""

    def __init__(self, directory: Path, verifying: Progress) -> None:
        self._directory = directory
        self._store = Store(directory, "full", _BUSY_SECONDS)
        if not self._store.path.exists():
            what = f"There is no audit log at {self._store.path}."
            raise AuditUnavailable(what, hint="SANDBOX_KERNEL_HOME says where it is looked for.")
        self._lock = _lock(directory)
        try:
            self._key = Keyed(read_key(directory))
            self._verify(verifying)
            self.connection = connect(self._store.path, timeout_seconds=_BUSY_SECONDS)
            self.connection.execute("PRAGMA synchronous = FULL")
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, sqlite3.Error | OSError):
                raise unavailable(self._store.path, error) from error
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.connection.close()
        self._store.close()
        os.close(self._lock)
        if isinstance(error, sqlite3.Error):
            raise unavailable(self._store.path, error) from error

    def _verify(self, verifying: Progress) -> None:
        problems = verify(self._store.path, progress=verifying).problems
        if problems:
            where = f"record {problems[0].seq}" if problems[0].seq else "the file"
            what = f"The audit log {self._store.path} is not as it was written ({where}: {problems[0].what})."
            hint = (
                "Nothing was pruned. See `sandbox-kernel audit verify`; to begin anew, keep the "
                "directory for evidence by another name."
            )
            raise AuditUnavailable(what, hint=hint)

    @property
    def last(self) -> int:
        (last,) = self.connection.execute("SELECT coalesce(max(seq), 0) FROM record").fetchone()
        return int(last)

    def copy_through(self, last: int, archive: Path) -> None:
        """Into a new file; what is there by that name already is an archive that must stay."""
        if archive.exists() and verify(archive).good and self._has(archive, last):
            return  # by a process that was killed before it could prune
        if archive.exists():
            what = f"There is an archive {archive} already."
            raise AuditUnavailable(what, hint="Nothing was recorded since; or move it away.")
        # Of a process that was killed: the journal of one would be taken for that of the next.
        for left in self._directory.glob("log-*.draft*"):
            left.unlink()
        draft = archive.with_suffix(".draft")
        try:
            with contextlib.closing(connect(draft, timeout_seconds=_BUSY_SECONDS)) as copy:
                # One file when it is done, which is complete or not there.
                copy.execute("PRAGMA journal_mode = DELETE")
                rows = self.connection.execute(
                    f"SELECT {COLUMNS} FROM record WHERE seq <= ? ORDER BY seq", (last,)
                )
                copy.execute("BEGIN IMMEDIATE")
                copy.executemany(INSERT, rows)
                copy.execute("COMMIT")
            draft.rename(archive)
            # What is pruned next must not be gone before this is there, even if the power is cut.
            sync_directory(self._directory)
        except (sqlite3.Error, OSError) as error:
            raise unavailable(draft, error) from error

    def _has(self, archive: Path, last: int) -> bool:
        """Whether the archive, which verifies, has all that the log has up to that record."""
        with contextlib.closing(connect_to_read(archive)) as copy:
            copied, own = (
                connection.execute(
                    "SELECT min(seq), max(seq), (SELECT mac FROM record WHERE seq = :last) "
                    "FROM record WHERE seq <= :last",
                    {"last": last},
                ).fetchone()
                for connection in (copy, self.connection)
            )
        return bool(copied == own)

    def prune_through(self, last: int, archive: Path | None, progress: Progress) -> Kept:
        first, total = self._bounds(last)
        if total <= 0:
            return Kept(0, max(0, last), archive)
        said = {"through": last, "records": total, "archive": archive.name if archive else None}
        word = "pruned" if archive is None else "rotated"
        # First, so that there is always a record behind those that go: the next one follows it.
        self._store.append([self._entry("event", word, said)])
        for end in [*range(first + _STEP - 1, last, _STEP), last]:
            self._prune_step(end, archive)
            self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            progress(min(end - first + 1, total), total)
        return Kept(total, last, archive, self._overwrite())

    def _bounds(self, last: int) -> tuple[int, int]:
        """The first record that is there to be pruned, and how many are."""
        first, count = self.connection.execute(
            "SELECT coalesce(min(seq), 0), count(*) FROM record WHERE seq <= ? AND kind <> 'pruned'",
            (last,),
        ).fetchone()
        return int(first), int(count)

    def _prune_step(self, end: int, archive: Path | None) -> None:
        """Everything up to ``end`` gives way to one record that says so, at once or not at all."""
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            row = connection.execute(
                "SELECT mac, kind FROM record WHERE seq = ?", (end,)
            ).fetchone()
            if row is None or row[1] == "pruned":
                # Its MAC is that of the record that stands there now, which nothing follows.
                what = f"Record {end} of the audit log was pruned by somebody else meanwhile."
                raise AuditUnavailable(what, hint="Look with `sandbox-kernel audit verify`.")
            mac = row[0]
            connection.execute("DELETE FROM record WHERE seq <= ?", (end,))
            said = {"through": end, "mac": mac.hex(), "archive": archive.name if archive else None}
            entry = self._entry("pruned", "pruned", said)
            connection.execute(INSERT, self._key.chained(entry, Head(end - 1, bytes(32))))
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise

    def _overwrite(self) -> bool:
        """Copy all that was done into the main file and empty the other; whether that could be."""
        self.connection.execute(f"PRAGMA busy_timeout = {_OVERWRITE_MILLISECONDS}")
        for number in range(_OVERWRITE_TRIES):
            if number:
                time.sleep(_PAUSE_SECONDS)  # for those who want to write
            busy, _, _ = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                return True
        return False

    def _entry(self, kind: Kind, word: str, said: Mapping[str, object]) -> Entry:
        return Entry(kind, now_us(), "", "", user_name(os.environ), "", word, body_of(said))


def _lock(directory: Path) -> int:
    """A descriptor that keeps others from pruning and rotating as long as it is open; kernels write on."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        what = f"Another process prunes or rotates the audit log in {directory} just now."
        raise AuditUnavailable(what, hint="Try again when it has come to its end.") from None
    return descriptor
