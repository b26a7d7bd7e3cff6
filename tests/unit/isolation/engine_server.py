"""An engine's socket with somebody behind it who answers as told, however badly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Answering = Callable[[str, socket.socket], None]


@contextmanager
def serving(directory: Path, answer: Answering) -> Iterator[str]:
    """The address of a server that calls ``answer`` with each request's first line."""
    path = directory / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # closed: the test is over
                    return
                threading.Thread(target=handle, args=[connection], daemon=True).start()

        def handle(connection: socket.socket) -> None:
            # Suppressed: whoever asked may have hung up, having heard enough elsewhere.
            with suppress(ConnectionError), connection, connection.makefile("rb") as stream:
                first = stream.readline().decode().strip()
                length = 0
                while (line := stream.readline().strip()) != b"":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                stream.read(length)
                answer(first, connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"unix://{path}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def says(status: int, body: bytes) -> bytes:
    return b"HTTP/1.0 %d Words\r\nContent-Type: application/json\r\n\r\n%s" % (status, body)


def always(data: bytes) -> Answering:
    return lambda _, connection: connection.sendall(data)
