"""The log as a wrapper writes to it: one transaction for what belongs together, many writers at once."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from sandbox_kernel.audit.chain import KEY_NAME, Keyed, make_key, read_key
from sandbox_kernel.audit.records import EMPTY, Entry, Head, Record
from sandbox_kernel.audit.table import (
    INSERT,
    LOG_NAME,
    SELECT_HEAD,
    connect,
    make_directory,
    primary_code,
)
from sandbox_kernel.errors import AuditUnavailable

# How long a cell waits for other writers. One record takes a tenth of a millisecond.
BUSY_SECONDS: Final = 1.0
_SYNCHRONOUS: Final = {"normal": "NORMAL", "full": "FULL"}
# The write-ahead log is copied into the main file whenever it has grown by this much.
TIDY_BYTES: Final = 2 << 20
_TIMES_DIFFER_NS: Final = 1_000_000_000
_LAST_SEQ: Final = (1 << 63) - 1  # behind it no number is left

# Why it cannot be written, and what to do about it.
_LOCKED: Final = ("another process has locked it", "End that process, or run the cell again.")
_FULL: Final = ("the disk is full", "Free disk space and run the cell again.")
_LOOK: Final = "Look with `sandbox-kernel audit verify`; move it away."
_REASONS_OF_SQLITE: Final = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: (
        "it is read-only",
        "Make the file and its directory writable for you.",
    ),
    sqlite3.SQLITE_CORRUPT: ("the file is damaged", _LOOK),
    sqlite3.SQLITE_NOTADB: ("it is no log", _LOOK),
}
_REASONS_OF_SYSTEM: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: ("it is on a read-only file system", "Let SANDBOX_KERNEL_HOME name another."),
}

Durability = Literal["normal", "full"]


class Store:
    """An open log. Nothing is half written: SQLite commits all of a transaction or nothing.

    Every method raises ``AuditUnavailable`` if it cannot do its work, and can be called again.
    """

    def __init__(
        self,
        directory: Path,
        durability: Durability = "normal",
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        self.path: Final = directory / LOG_NAME
        self._directory = directory
        self._durability = durability
        self._busy_seconds = busy_seconds
        self._connection: sqlite3.Connection | None = None
        self._key: Keyed | None = None
        # Where SQLite has what, and which files these were when the log was opened.
        self._paths = tuple(f"{self.path}{suffix}" for suffix in ("", "-wal", "-shm"))
        self._files: list[tuple[int, int] | None] = []
        # The directory as it was when they were last seen in it.
        self._seen_in: tuple[int, int, int] | None = None
        # The size of the write-ahead log when it was last copied. It is the same after that, and may grow
        # on if somebody reads what is in it.
        self._tidied_bytes = 0
        # The last record of ours: one that is gone later was taken away.
        self._own = EMPTY

    @property
    def head(self) -> Head:
        """The last record that this store has written."""
        return self._own

    def open(self) -> None:
        try:
            self._key = self._find_key()
            self._connection = self._connect()
            self._files = [_identity(path) for path in self._paths]
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise unavailable(self.path, error) from error

    def hash_of(self, code: str) -> str:
        """A hash of code with the log's key: who has not that cannot guess the code from it."""
        if self._key is None:
            try:
                self._key = self._find_key()
            except OSError as error:
                raise unavailable(self.path, error) from error
        return self._key.hash_of(code)

    def wait_for(self, seconds: float) -> None:
        """How long to wait for other writers from now on."""
        if seconds != self._busy_seconds:
            self._busy_seconds = seconds
            if self._connection is not None:
                self._connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")

    def append(self, entries: Sequence[Entry]) -> list[Record]:
        """Record all of these, one behind the other, or none. They are durable when this returns."""
        self._see_that_it_is_there()
        connection, key = self._connection, self._key
        assert connection is not None
        assert key is not None
        written = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            head = self._read_head(connection)
            for entry in entries:
                record = key.chained(entry, head)
                connection.execute(INSERT, record)
                head = Head(record.seq, record.mac)
                written.append(record)
            connection.execute("COMMIT")
        except BaseException as error:
            # If that fails too, the next transaction says so.
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            if isinstance(error, sqlite3.Error):
                raise unavailable(self.path, error) from error
            raise
        self._own = head
        return written

    def tidy(self) -> None:
        """Copy what was written into the main file, if it is much. It may wait for the disk."""
        with contextlib.suppress(OSError, sqlite3.Error):  # there is always a next time
            size = os.stat(self._paths[1]).st_size  # noqa: PTH116 - after every cell
            if size < self._tidied_bytes:
                self._tidied_bytes = 0  # it has begun anew
            if size >= self._tidied_bytes + TIDY_BYTES and self._connection is not None:
                self._tidied_bytes = size
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):  # all that counts is committed
                connection.close()

    def _find_key(self) -> Keyed:
        make_directory(self._directory)
        try:
            return Keyed(read_key(self._directory))
        except FileNotFoundError:
            if self.path.exists() and self.path.stat().st_size:
                what = f"There is an audit log, {self.path}, but its key, {KEY_NAME}, is gone."
                hint = "Put the key back, or move the log away: a new one is made with a new key."
                raise AuditUnavailable(what, hint=hint) from None
        return Keyed(make_key(self._directory))

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self.path, timeout_seconds=self._busy_seconds)
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._durability]}")
        return connection

    def _see_that_it_is_there(self) -> None:
        """What is written to a file that was removed or replaced would be lost."""
        if self._connection is None:
            self.open()
            return
        directory = self._look_at_directory()
        if directory is not None and directory == self._seen_in:
            return  # no name in it was given or taken away since
        files = [_identity(path) for path in self._paths]
        if files == self._files:
            self._seen_in = directory
            return
        if files[0] == self._files[0]:
            # They are there as long as anybody has the log open. What is in the one that is gone comes back
            # when the last kernel closes it; until then nothing may be written beside it.
            what = f"A part of the audit log {self.path} was removed while this kernel ran."
            hint = "Restart all kernels that use it, then see `sandbox-kernel audit verify`."
            raise AuditUnavailable(what, hint=hint)
        self.close()
        self.open()

    def _look_at_directory(self) -> tuple[int, int, int] | None:
        """Which it is and when it was changed; ``None`` if that says nothing."""
        try:
            status = os.stat(self._directory)  # noqa: PTH116 - on the way of every cell
        except OSError:
            return None
        # Such times are as coarse as the kernel's ticks: two changes just now may bear the same one.
        if time.time_ns() - status.st_ctime_ns < _TIMES_DIFFER_NS:
            return None
        return status.st_dev, status.st_ino, status.st_ctime_ns

    def _read_head(self, connection: sqlite3.Connection) -> Head:
        row = connection.execute(SELECT_HEAD).fetchone()
        head = EMPTY if row is None else Head(*row)
        if not (0 <= head.seq < _LAST_SEQ and isinstance(head.mac, bytes)):
            what = f"The last record of the audit log {self.path} is not what was written."
            hint = "Look with `sandbox-kernel audit verify`; move the log away."
            raise AuditUnavailable(what, hint=hint)
        if head.seq < self._own.seq or (head.seq == self._own.seq and head.mac != self._own.mac):
            what = (
                f"The audit log {self.path} was cut or replaced while this kernel ran: its last record "
                f"is number {head.seq}, this kernel has written number {self._own.seq}."
            )
            hint = "See `sandbox-kernel audit verify`; put the log back or restart the kernel."
            raise AuditUnavailable(what, hint=hint)
        return head


def _identity(path: str) -> tuple[int, int] | None:
    """Which file this is; ``None`` if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - on the way of every cell
    except OSError:
        return None
    return status.st_dev, status.st_ino


def unavailable(path: Path, error: sqlite3.Error | OSError) -> AuditUnavailable:
    """Why the log cannot be written, for the user whose cell did not run."""
    if isinstance(error, OSError):
        found = _REASONS_OF_SYSTEM.get(error.errno or 0)
    else:
        found = _REASONS_OF_SQLITE.get(primary_code(error) or 0)
    why, hint = found or (
        str(error),
        "Let SANDBOX_KERNEL_HOME name a directory that you can write.",
    )
    return AuditUnavailable(f"The audit log {path} cannot be written: {why}.", hint=hint)
