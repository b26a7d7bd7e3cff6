"""Anchors: heads of the log, signed, that go to a second place, one line of JSON each.

Who can write the log's directory can write a whole new log, since its key is there. What was anchored
elsewhere stays as it was: such a log does not have the anchored record at its place.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import shlex
import socket
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandbox_kernel.audit.mirror import syslog_socket
from sandbox_kernel.audit.records import Head
from sandbox_kernel.errors import AuditUnavailable
from sandbox_kernel.words import count

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

PRIVATE_NAME: Final = "anchor.key"
PUBLIC_NAME: Final = "anchor.pub"
COMMAND_SECONDS: Final = 30.0
_SYSLOG_PREFIX: Final = b"<85>sandbox-kernel-anchor: "
_LABEL: Final = b"sandbox-kernel anchor 1\0"
# Of a line as `to_line` makes it, behind whatever syslog puts before it.
_BEGINNING: Final = re.compile(r'\{"anchor"')


@dataclass(frozen=True, slots=True)
class Anchor:
    """A head of the log at some moment."""

    seq: int
    mac: bytes
    when: str
    host: str

    def signed_bytes(self) -> bytes:
        said = {"seq": self.seq, "mac": self.mac.hex(), "time": self.when, "host": self.host}
        return _LABEL + json.dumps(said, sort_keys=True, separators=(",", ":")).encode()

    def to_line(self, key: Ed25519PrivateKey) -> bytes:
        signature = base64.b64encode(key.sign(self.signed_bytes())).decode()
        said: dict[str, Any] = {
            "anchor": 1,
            "seq": self.seq,
            "mac": self.mac.hex(),
            "time": self.when,
            "host": self.host,
            "key": fingerprint_of(key.public_key()),
            "signature": signature,
        }
        return json.dumps(said).encode()


def new_anchor(head: Head) -> Anchor:
    """Raises ``AuditUnavailable`` for a log without records: there is nothing that could be missed."""
    if head.seq < 1:
        what = "There is nothing in the audit log that could be anchored."
        raise AuditUnavailable(what, hint="The first cell of a kernel is the first record.")
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return Anchor(head.seq, head.mac, when, socket.gethostname())


def signing_key(directory: Path) -> Ed25519PrivateKey:
    """The key of this log's anchors, made with the first one; its public half lies beside it.

    Raises ``AuditUnavailable``.
    """
    try:
        return _signing_key(directory)
    except (OSError, ValueError) as error:
        what = f"The key of the anchors in {directory} cannot be read or made: {error}."
        raise AuditUnavailable(
            what, hint="Nothing was anchored; free disk space, or put the key back from a backup."
        ) from error


def _signing_key(directory: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = directory / PRIVATE_NAME
    if not path.exists():
        fresh = Ed25519PrivateKey.generate()
        draft = directory / f"{PRIVATE_NAME}.{os.getpid()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, fresh.private_bytes_raw())
            os.fsync(descriptor)
            path.hardlink_to(draft)
        except FileExistsError:
            pass  # another process was faster, and its key counts
        finally:
            os.close(descriptor)
            draft.unlink()
    key = Ed25519PrivateKey.from_private_bytes(path.read_bytes())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    # Not one that a full disk has cut.
    if not is_file_with(directory / PUBLIC_NAME, public):
        (directory / PUBLIC_NAME).write_bytes(public)
    return key


def is_file_with(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return False


def send(line: bytes, place: str) -> None:
    """Write an anchor to ``syslog``, ``file:/PATH`` or ``command:/PROGRAM …``, which gets it on stdin.

    Raises ``AuditUnavailable``.
    """
    try:
        if place == "syslog":
            with syslog_socket() as connection:
                connection.setblocking(True)
                connection.send(_SYSLOG_PREFIX + line)
        elif place.startswith("file:"):
            _append(place.removeprefix("file:"), line)
        elif place.startswith("command:"):
            words = shlex.split(place.removeprefix("command:"))
            subprocess.run(words, input=line + b"\n", check=True, timeout=COMMAND_SECONDS)
        else:
            # A path alone is not run: who gives one means a file.
            msg = "it is neither syslog nor file:/PATH nor command:/PROGRAM"
            raise ValueError(msg)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        what = f"The anchor of the audit log could not be written to {place}: {error}."
        raise AuditUnavailable(
            what, hint="Mend that place; the next anchor is tried there too."
        ) from error


def _append(path: str, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        # One write: lines of other logs come before or after it. What a full disk cuts is no anchor, and the
        # next one on its line is found all the same.
        text = line + b"\n"
        if os.write(descriptor, text) != len(text):
            raise OSError(errno.ENOSPC, "it was cut short")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class NoAnchor(AuditUnavailable):
    """None of this log is there: nothing vouches for it."""


@dataclass(frozen=True, slots=True)
class Found:
    """The anchors of one key in a file."""

    anchors: tuple[Anchor, ...]
    others: int  # of other keys, or of nobody
    spoiled: int  # that name this key, and are not what it has signed


def read_anchors(path: Path, public_key: Path) -> Found:
    """The anchors in a file, or in what syslog made of them; raises ``AuditUnavailable``.

    Anybody can write to syslog: what is not signed with the key whose public half is in ``public_key`` is
    passed over and counted. If nothing is left, that is an error: it would prove nothing.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(public_key.read_bytes())
        text = path.read_text(errors="replace")
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        what = f"The anchors cannot be read: {error}."
        raise AuditUnavailable(
            what, hint="Give --anchor a file of anchors, --key its public key."
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        what = f"The key in {public_key} is not of the kind that signs anchors."
        raise AuditUnavailable(what, hint=f"Give --key a copy of the log's {PUBLIC_NAME}.")
    fingerprint = fingerprint_of(key)
    anchors, others, spoiled = [], 0, 0
    for place in _BEGINNING.finditer(text):
        said = _object_at(text, place.start())
        if said.get("key") != fingerprint:
            others += 1
        elif (anchor := _genuine(said, key)) is None:
            spoiled += 1
        else:
            anchors.append(anchor)
    if not anchors:
        what = f"There is no anchor of this log in {path}; {count(others + spoiled, 'line')} of others."
        hint = f"Name the file that has them; they are signed with the key of {public_key}."
        raise NoAnchor(what, hint=hint)
    return Found(tuple(anchors), others, spoiled)


def fingerprint_of(key: Ed25519PublicKey) -> str:
    """What tells anchors of one key from those of others in the same place."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def _object_at(text: str, start: int) -> dict[str, Any]:
    """The JSON object that begins there; an empty one if there is none."""
    try:
        said, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _genuine(said: dict[str, Any], key: Ed25519PublicKey) -> Anchor | None:
    from cryptography.exceptions import InvalidSignature

    try:
        mac = bytes.fromhex(said["mac"])
        anchor = Anchor(int(said["seq"]), mac, str(said["time"]), str(said["host"]))
        key.verify(base64.b64decode(said["signature"]), anchor.signed_bytes())
    except (ValueError, KeyError, TypeError, OverflowError, InvalidSignature):
        return None
    return anchor
