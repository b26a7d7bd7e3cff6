"""The table of records in SQLite: its form, its files, and a connection to it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import stat
from pathlib import Path
from typing import Final

from sandbox_kernel.audit.records import Record
from sandbox_kernel.errors import AuditUnavailable, SandboxUnavailable
from sandbox_kernel.state_folder import open_state_folder

LOG_NAME: Final = "log.db"
_ARCHIVE: Final = re.compile(r"log-(\d{12,})\.db")
DIRECTORY_NAME: Final = "audit"
# A page for each part of the table and of its indexes that a commit changes is written and summed up:
# small pages make small commits.
_PAGE_BYTES: Final = 2048
_CACHE_KIB: Final = 256
_READ_CACHE_KIB: Final = 16 * 1024
READ_SECONDS: Final = 5.0
# What SQLite says of a file that it could not get at, or not at that moment.
_OUT_OF_REACH: Final = frozenset(
    {
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM),
        *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL),
    }
)

# Each index holds all that its question needs. No column is derived: all are under the MAC.
SCHEMA: Final = (
    """CREATE TABLE record (
 seq INTEGER PRIMARY KEY,
 time_us INTEGER NOT NULL,
 day INTEGER NOT NULL,
 wall_us INTEGER NOT NULL,
 cpu_us INTEGER NOT NULL,
 memory_bytes INTEGER NOT NULL,
 kind TEXT NOT NULL,
 kernel TEXT NOT NULL,
 cell TEXT NOT NULL,
 user TEXT NOT NULL,
 policy TEXT NOT NULL,
 word TEXT NOT NULL,
 body BLOB NOT NULL,
 previous BLOB NOT NULL,
 mac BLOB NOT NULL
)""",
    "CREATE INDEX cells ON record (cell, kind, word, kernel, user) WHERE cell <> ''",
    "CREATE INDEX daily ON record (day, policy, user, word, wall_us, cpu_us, memory_bytes) "
    "WHERE kind = 'outcome'",
)
COLUMNS: Final = ", ".join(Record._fields)
SELECT_ALL: Final = f"SELECT {COLUMNS} FROM record ORDER BY seq"
SELECT_NEXT: Final = f"SELECT {COLUMNS} FROM record WHERE seq > ? ORDER BY seq LIMIT 1"
SELECT_HEAD: Final = "SELECT seq, mac FROM record ORDER BY seq DESC LIMIT 1"
INSERT: Final = f"INSERT INTO record VALUES ({', '.join('?' * len(Record._fields))})"


def audit_directory(home: Path) -> Path:
    return home / DIRECTORY_NAME


def archive_name(last: int) -> str:
    """What an archive is called whose last record has that number."""
    return f"log-{last:012}.db"


def archive_end(path: Path) -> int | None:
    """The number of an archive's last record, by its name; ``None`` if it is the log itself."""
    found = _ARCHIVE.fullmatch(path.name)
    return None if found is None else int(found[1])


def make_directory(directory: Path) -> None:
    """The log's directory, for its owner alone; raises ``OSError`` or ``AuditUnavailable``."""
    try:
        home = open_state_folder(directory.parent)
    except SandboxUnavailable as error:
        raise AuditUnavailable(error.what, hint=error.hint) from error
    try:
        with contextlib.suppress(FileExistsError):  # checked below, whoever made the folder
            os.mkdir(directory.name, 0o700, dir_fd=home)
        _close_to_others(directory, home)
    finally:
        os.close(home)


def _close_to_others(directory: Path, home: int) -> None:
    hint = "Let SANDBOX_KERNEL_HOME name a directory of your own."
    what = f"{directory} is not a directory of the user who runs this kernel."
    if not stat.S_ISDIR(os.stat(directory.name, dir_fd=home, follow_symlinks=False).st_mode):
        raise AuditUnavailable(what, hint=hint)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(directory.name, flags, dir_fd=home)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise AuditUnavailable(what, hint=hint)
        if status.st_mode & 0o077:
            names = os.listdir(descriptor)  # noqa: PTH208 - a descriptor
            if names and LOG_NAME not in names:
                what = f"{directory} holds other files than an audit log, and others can read it."
                raise AuditUnavailable(what, hint=hint)
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def connect(path: Path, *, timeout_seconds: float) -> sqlite3.Connection:
    """A connection to the log at ``path``, which is made if there is none."""
    _make_file(path)
    connection = sqlite3.connect(path, timeout=timeout_seconds, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("PRAGMA trusted_schema = OFF")
        # What is pruned is gone from the file too.
        connection.execute("PRAGMA secure_delete = ON")
        # Done where no cell waits for it: see `Store.tidy`.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        # The write-ahead log begins anew after that, as a small file: its size says what there is to do.
        connection.execute("PRAGMA journal_size_limit = 0")
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            _create(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_file(path: Path) -> None:
    """An empty file for its owner alone, whose mode SQLite gives its other files too, if there is none.

    One that is there is not opened: to close it would drop all locks that this process has on it, those
    of an open connection among them, and the next kernel that ends would take the log from under that.
    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        os.close(os.open(path, flags, 0o600))
    except FileExistsError:
        if path.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
        if not os.access(path, os.W_OK):
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            why = errno.EROFS if read_only else errno.EACCES
            raise OSError(why, os.strerror(why), str(path)) from None


class NoLog(AuditUnavailable):
    """There is none where it should be."""


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing; raises ``AuditUnavailable`` if there is no log that can be read."""
    if not path.is_file():
        what = f"There is no audit log at {path}."
        hint = "It is made with the first cell of a kernel; SANDBOX_KERNEL_HOME says where."
        raise NoLog(what, hint=hint)
    try:
        return _open_to_read(path, "mode=rw")
    except sqlite3.Error as error:
        if not (is_out_of_reach(error) and _is_at_rest(path)):
            raise unreadable(path, error) from error
    try:
        return _open_to_read(path, "mode=ro&immutable=1")
    except sqlite3.Error as error:
        raise unreadable(path, error) from error


def _open_to_read(path: Path, options: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{options}"
    connection = sqlite3.connect(uri, timeout=READ_SECONDS, isolation_level=None, uri=True)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute(f"PRAGMA cache_size = -{_READ_CACHE_KIB}")
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        # Of one that is damaged, who reads on learns where.
        if is_out_of_reach(error):
            connection.close()
            raise
    return connection


def _is_at_rest(path: Path) -> bool:
    """Whether all of the log is in its main file, in a place where nothing can be put beside it.

    SQLite needs a file beside a log in WAL mode, which a disk that is mounted for reading does not take.
    """
    wal = Path(f"{path}-wal")
    return not os.access(path.parent, os.W_OK) and not (wal.exists() and wal.stat().st_size)


def is_out_of_reach(error: sqlite3.Error) -> bool:
    """Whether the file could not be looked at: that says nothing about what is in it."""
    return primary_code(error) in _OUT_OF_REACH


def primary_code(error: sqlite3.Error) -> int | None:
    """SQLite's code for what went wrong, without its details; ``None`` if SQLite did not say it."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def sync_to_disk(path: Path) -> None:
    """Wait until what was written to the log is on the disk: with ``durability: normal`` it may not be.

    Only for a process without a connection to it: closing the files drops the locks of one.
    """
    # The write-ahead log first: what is moved out of it meanwhile is in the main file then.
    for each in (Path(f"{path}-wal"), path, path.parent):
        try:
            descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # SQLite has synced what it removes
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def unreadable(path: Path, error: sqlite3.Error) -> AuditUnavailable:
    what = f"The audit log {path} cannot be read: {error}."
    if is_out_of_reach(error):
        hint = "Look again, as root, or at a copy of its whole directory in a place of your own."
    else:
        hint = "`sandbox-kernel audit verify` says where it is damaged."
    return AuditUnavailable(what, hint=hint)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another wrapper may have been faster.
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            for statement in SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def schema_of(connection: sqlite3.Connection) -> set[str]:
    """What the file itself says that it holds."""
    rows = connection.execute("SELECT coalesce(sql, name) FROM sqlite_master").fetchall()
    return {
        text if isinstance(text, str) else bytes(text).decode("utf-8", "replace")
        for (text,) in rows
    }
