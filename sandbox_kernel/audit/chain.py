"""The chain: each record's MAC is over all that is stored of it, the MAC of its predecessor included.

MAC = HMAC-SHA256(key, label ‖ six numbers ‖ eight lengths ‖ six texts ‖ body ‖ previous MAC). All numbers have
a fixed width and every length is stated, so no two different records give the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sandbox_kernel.audit.records import Entry, Head, Record, stored
from sandbox_kernel.errors import AuditUnavailable

KEY_BYTES: Final = 32
KEY_NAME: Final = "key"
_BLOCK_BYTES: Final = 64  # of SHA-256
_LABEL: Final = b"sandbox-kernel audit 1\0"
_CODE_LABEL: Final = b"sandbox-kernel code 1\0"
_HEADER: Final = struct.Struct(">6q8I")
_NUMBERS: Final = Record._fields.index("kind")  # how many fields before the texts
_BODY: Final = Record._fields.index("body")
_MAC: Final = Record._fields.index("mac")


class Keyed:
    """HMAC-SHA256 with one key, whose own part of the work is done once: half the time of ``hmac.digest``."""

    def __init__(self, key: bytes) -> None:
        padded = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))

    def chained(self, entry: Entry, head: Head) -> Record:
        """The entry behind ``head``, with its MAC."""
        record = stored(entry, head)
        return record._replace(mac=self.mac_of(in_bytes(record)))

    def mac_of(self, fields: Sequence[Any]) -> bytes:
        """The MAC of a record, from its fields in order; one at the end, if there, is not looked at.

        Texts are the bytes they are stored as. Raises ``TypeError`` or ``struct.error`` if a field is of
        another type than a writer stores.
        """
        texts = fields[_NUMBERS:_MAC]
        header = _HEADER.pack(*fields[:_NUMBERS], *map(len, texts))
        return self._digest(b"".join((_LABEL, header, *texts)))

    def hash_of(self, code: str) -> str:
        """What proves a code to who has it, and tells nothing of it to who has not the key."""
        return self._digest(_CODE_LABEL + code.encode("utf-8", "surrogatepass")).hex()

    def _digest(self, message: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()


def in_bytes(record: Record) -> tuple[Any, ...]:
    """The fields of a record, texts as they are stored."""
    fields: tuple[Any, ...] = record
    texts = [text.encode("utf-8", "surrogatepass") for text in fields[_NUMBERS:_BODY]]
    return (*fields[:_NUMBERS], *texts, *fields[_BODY:])


def read_key(directory: Path, *, to_write: bool = True) -> bytes:
    """The log's key; raises ``OSError``, or ``AuditUnavailable`` if others know it.

    Who writes must own it. Who only verifies may be an auditor who can read what is another user's.
    """
    path = directory / KEY_NAME
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        key = os.read(descriptor, KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if status.st_mode & 0o077:
        what = f"The key of the audit log, {path}, can be read by others."
        raise AuditUnavailable(
            what, hint=f"Who could read it, could forge records: `chmod 600 {path}`."
        )
    if to_write and status.st_uid != os.geteuid():
        what = f"The key of the audit log, {path}, belongs to another user."
        hint = "Who made it, could forge records: let SANDBOX_KERNEL_HOME name your own directory."
        raise AuditUnavailable(what, hint=hint)
    if len(key) != KEY_BYTES:
        what = f"The key of the audit log, {path}, is not {KEY_BYTES} bytes long."
        raise AuditUnavailable(what, hint="Put it back from a backup, or move the log and it away.")
    return key


def make_key(directory: Path) -> bytes:
    """The log's key, made if there is none. Whoever comes first makes it, and it is never seen half made."""
    draft = directory / f"{KEY_NAME}.{os.getpid()}.{os.urandom(4).hex()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, os.urandom(KEY_BYTES))
        os.fsync(descriptor)
        (directory / KEY_NAME).hardlink_to(draft)
    except FileExistsError:
        pass  # another wrapper's, which counts
    finally:
        os.close(descriptor)
        draft.unlink()
    # A power cut must not take the key of records that are on the disk.
    sync_directory(directory)
    return read_key(directory)


def sync_directory(directory: Path) -> None:
    """Wait until the names in it are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
