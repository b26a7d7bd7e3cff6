"""The lifeline: a stream socket to the sandbox's supervisor. When it closes, the sandbox ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sandbox_kernel.isolation.supervisor_line import Line, parse
from sandbox_kernel.isolation.unix_sockets import without_descriptors
from sandbox_kernel.log import log

MAX_LINE_BYTES = 1024


class Peer(NamedTuple):
    """A process by the word of the host's kernel; its pid is 0 if it has none in our namespace."""

    pid: int
    uid: int

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """Who is at its other end."""
        size = struct.calcsize("3i")
        pid, uid, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        )
        return cls(pid, uid)


class Lifeline:
    """Listens for the supervisor, which connects before any cell runs; then takes nobody else.

    ``inner.supervisor`` says which lines go over it. Those from inside are hints: a cell can make the
    supervisor say things about checkpoints, though not about processes that ended.
    """

    NAME = "lifeline"

    def __init__(self, directory: Path, give: Callable[[Path], None]) -> None:
        self._path = directory / self.NAME
        self._listener: socket.socket | None = without_descriptors()
        self._listener.bind(str(self._path))
        self._path.chmod(0o600)
        give(self._path)
        self._listener.listen(1)
        self._connection: socket.socket | None = None
        self._pending = b""
        self.odd_lines = 0

    @property
    def open(self) -> bool:
        return self._listener is not None or self._connection is not None

    @property
    def accepted(self) -> bool:
        """Whether the supervisor has connected."""
        return self._connection is not None

    @property
    def peer(self) -> Peer:
        """Who has connected."""
        assert self._connection is not None
        return Peer.of(self._connection)

    @property
    def descriptor(self) -> int:
        """Readable when the supervisor connects, and then when it says something."""
        each = self._listener or self._connection
        assert each is not None
        return each.fileno()

    def accept(self) -> None:
        assert self._listener is not None
        self._connection, _ = self._listener.accept()
        self._connection.setblocking(False)
        self._close_listener()

    def send(self, *words: object) -> None:
        if self._connection is not None:
            # A full or broken lifeline: there is nobody to hear it, and timers see to the rest.
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                self._connection.send(" ".join(map(str, words)).encode() + b"\n")

    def read(self) -> list[Line] | None:
        """What the supervisor has said; ``None`` once it has hung up."""
        if self._connection is None:
            return None
        try:
            received = self._connection.recv(65536)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        if not received:
            return None
        *lines, pending = (self._pending + received).split(b"\n")
        self._pending = pending[:MAX_LINE_BYTES]
        said = []
        for line in lines:
            if (value := parse(line[:MAX_LINE_BYTES])) is not None:
                said.append(value)
            else:
                self.odd_lines += 1
                if self.odd_lines == 1:
                    log("the supervisor said something odd; further lines like it are only counted")
        return said

    def close(self) -> None:
        self._close_listener()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._path.unlink(missing_ok=True)


def describe_wait_status(status: int) -> str:
    """``waitpid``'s status in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # Real-time signals have numbers only.
        names = {member.value: member.name for member in signal.Signals}
        return f"its kernel process was killed by {names.get(number, f'signal {number}')}"
    return f"its kernel process exited with status {os.WEXITSTATUS(status)}"
