"""The lifeline: a stream socket to the sandbox's supervisor. When it closes, the sandbox ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path


class Lifeline:
    """Listens for the supervisor, which connects before any cell runs; then takes nobody else."""

    NAME = "lifeline"

    def __init__(self, directory: Path, owner: tuple[int, int] | None) -> None:
        self._path = directory / self.NAME
        self._listener: socket.socket | None = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._path.chmod(0o600)
        if owner is not None:
            os.chown(self._path, *owner)
        self._listener.listen(1)
        self._connection: socket.socket | None = None

    @property
    def listening(self) -> bool:
        return self._listener is not None

    @property
    def listener_descriptor(self) -> int:
        assert self._listener is not None
        return self._listener.fileno()

    def accept(self) -> None:
        assert self._listener is not None
        self._connection, _ = self._listener.accept()
        self._connection.setblocking(False)
        self._close_listener()

    def interrupt(self) -> None:
        """Ask for SIGINT to the kernel process, as Ctrl-C would."""
        if self._connection is not None:
            # A full or broken lifeline: there is nobody to interrupt.
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                self._connection.send(b"interrupt\n")

    def last_words(self) -> str:
        """How the supervisor says the kernel process ended: a hint for a message, not evidence."""
        if self._connection is None:
            return ""
        try:
            said = self._connection.recv(256)
        except (BlockingIOError, ConnectionResetError):
            return ""
        word, _, status = said.decode("ascii", "replace").partition(" ")
        status = status.strip()
        if word != "exited" or not status.isdecimal() or len(status) > 6:
            return ""
        return describe_wait_status(int(status))

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
