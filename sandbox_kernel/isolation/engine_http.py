"""Plain HTTP to a container engine's socket: the few requests on the way of every start.

Docker's own client takes longer to load than a container to start. It stays where time is no matter:
for images and for the doctor. HTTP/1.0, so that an answer ends with its connection.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.engine import TIMEOUT_SECONDS, knock, unreachable

# A question of a few bytes is answered within milliseconds.
SILENCE_SECONDS: Final = 0.5
_MOST_BYTES: Final = 16 << 20
_END_OF_HEAD: Final = b"\r\n\r\n"
_REFUSALS: Final = 400


class EngineRefusal(Exception):
    """The engine's answer is no."""

    def __init__(self, status: int, explanation: str) -> None:
        super().__init__(explanation)
        self.status = status
        self.explanation = explanation


Answer = Mapping[str, Any] | EngineRefusal


class Engine:
    """One engine. What it does not answer in time raises ``SandboxUnavailable``."""

    def __init__(
        self,
        address: str,
        timeout: float = TIMEOUT_SECONDS,
        on_silence: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self._timeout = timeout
        # Called when a question is left without an answer for longer than is normal.
        self._on_silence = on_silence

    def ask(self, *paths: str) -> list[Answer]:
        """What ``GET`` gives for each path. All are asked before the first answer is waited for."""
        connections: list[socket.socket] = []
        try:
            for path in paths:
                connections.append(self.begin(path))
            return [self.finish(connection) for connection in connections]
        finally:
            for connection in connections:
                connection.close()

    def begin(self, path: str) -> socket.socket:
        """Ask: the connection can be read when the answer comes. It is the caller's to close."""
        return self._send("GET", path)

    def get(self, path: str) -> Any:
        """Raises ``EngineRefusal`` too."""
        return self._do("GET", path)

    def post(self, path: str, body: Any = None) -> Any:
        """Raises ``EngineRefusal`` too."""
        return self._do("POST", path, body)

    def delete(self, path: str) -> None:
        """Raises ``EngineRefusal`` too."""
        self._do("DELETE", path)

    def attach(self, container: str) -> tuple[socket.socket, bytes]:
        """What a container prints, from now on: a connection, and what has come over it already."""
        path = f"/containers/{container}/attach?stdout=1&stderr=1&stream=1"
        connection = self._send("POST", path)
        try:
            status, rest = self._head(connection)
            if status >= _REFUSALS:
                raise _refusal(status, self._body(connection, rest))
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        return connection, rest

    def _do(self, method: str, path: str, body: Any = None) -> Any:
        with self._send(method, path, body) as connection:
            status, rest = self._head(connection)
            data = self._body(connection, rest)
        if status >= _REFUSALS:
            raise _refusal(status, data)
        return self._parsed(data)

    def finish(self, connection: socket.socket) -> Answer:
        """The answer to what was asked with ``begin``."""
        if self._on_silence is not None and not _is_readable(connection, SILENCE_SECONDS):
            self._on_silence()
            self._on_silence = None
        status, rest = self._head(connection)
        data = self._body(connection, rest)
        if status >= _REFUSALS:
            return _refusal(status, data)
        parsed = self._parsed(data)
        if not isinstance(parsed, Mapping):
            raise self._improper(data)
        return parsed

    def _send(self, method: str, path: str, body: Any = None) -> socket.socket:
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.0\r\nHost: engine\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}"
        )
        connection = knock(self.address, self._timeout)
        try:
            connection.sendall(head.encode() + _END_OF_HEAD + data)
        except OSError as error:
            connection.close()
            raise unreachable(self.address, error) from error
        return connection

    def _head(self, connection: socket.socket) -> tuple[int, bytes]:
        """The status, and what has come behind the head."""
        data = b""
        while _END_OF_HEAD not in data:
            if not (part := self._receive(connection)) or len(data) > _MOST_BYTES:
                raise self._improper(data)
            data += part
        head, _, rest = data.partition(_END_OF_HEAD)
        words = head.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise self._improper(data)
        return int(words[1]), rest

    def _body(self, connection: socket.socket, data: bytes) -> bytes:
        while part := self._receive(connection):
            data += part
            if len(data) > _MOST_BYTES:
                raise self._improper(data)
        return data

    def _receive(self, connection: socket.socket) -> bytes:
        try:
            return connection.recv(65536)
        except OSError as error:
            raise unreachable(self.address, error) from error

    def _parsed(self, data: bytes) -> Any:
        if not data.strip():
            return None
        try:
            return json.loads(data)
        except ValueError as error:
            raise self._improper(data) from error

    def _improper(self, data: bytes) -> SandboxUnavailable:
        what = f"The container engine at {self.address} gives no proper answer: {data[:200]!r}."
        return SandboxUnavailable(what, hint="See its log, or start it again.")


def _is_readable(connection: socket.socket, seconds: float) -> bool:
    return bool(select.select([connection], [], [], seconds)[0])


def _refusal(status: int, data: bytes) -> EngineRefusal:
    """With the engine's own words, if it has any."""
    try:
        said = json.loads(data)["message"]
    except (ValueError, KeyError, TypeError):
        said = data[:600].decode("utf-8", "replace")
    # Some repeat what they were sent.
    return EngineRefusal(status, " ".join(str(said).split())[:400] or f"status {status}")
