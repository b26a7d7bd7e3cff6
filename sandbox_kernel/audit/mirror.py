"""A copy of every record as a line of JSON, for log shippers. It holds up no cell, and may lack lines."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterable
from typing import Any, Final

from sandbox_kernel.audit.records import Record, said_in
from sandbox_kernel.log import log
from sandbox_kernel.relay.wire import encode_object

SYSLOG_SOCKET: Final = "/dev/log"
# Facility `authpriv`, severity `info`; what is longer is cut by most daemons.
_SYSLOG_PREFIX: Final = b"<86>sandbox-kernel: "


def as_json(record: Record) -> dict[str, Any]:
    """A record as mirrors and exports have it."""
    said = record._asdict()
    del said["day"]
    said["body"] = said_in(record.body)
    said["previous"], said["mac"] = record.previous.hex(), record.mac.hex()
    return said


class Mirror:
    """Writes to ``none``, ``syslog`` or ``file:/PATH``. What goes wrong is said once, and not raised."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._descriptor = -1
        self._socket: socket.socket | None = None
        self._failed = False
        # Whether the last line was cut short: the next one must not go on with it.
        self._torn = False

    def write(self, records: Iterable[Record]) -> None:
        if self._place == "none":
            return
        try:
            self._reopen_if_moved()
            for record in records:
                self._send(encode_object(as_json(record)))
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _reopen_if_moved(self) -> None:
        """Who rotates such files moves them away: what comes now belongs into a new one."""
        if self._descriptor < 0:
            return
        try:
            there = os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))  # noqa: PTH116
        except FileNotFoundError:
            there = False
        if not there:
            self.close()
            self._torn = False

    @property
    def _path(self) -> str:
        return self._place.removeprefix("file:")

    def _send(self, line: bytes) -> None:
        if self._place == "syslog":
            if self._socket is None:
                self._socket = syslog_socket()
            self._socket.send(_SYSLOG_PREFIX + line)
            return
        if self._descriptor < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._descriptor = os.open(self._path, flags, 0o600)
        # One write: lines of other wrappers come before or after it, never within.
        text = b"\n" * self._torn + line + b"\n"
        written = os.write(self._descriptor, text)
        self._torn = written < len(text)
        if self._torn:
            raise OSError(errno.ENOSPC, "a line was cut short")

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            log(f"the mirror of the audit log, {self._place}, lacks records: {error}")
        self._failed = True
        with contextlib.suppress(OSError):
            self.close()


def syslog_socket() -> socket.socket:
    """The system's log. A daemon that does not read holds up nobody."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        connection.setblocking(False)
        connection.connect(SYSLOG_SOCKET)
    except OSError:
        connection.close()
        raise
    return connection
