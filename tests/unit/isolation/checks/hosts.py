"""Hosts that are made up: files of the kernel, programs and engines, all in a test's own folder."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

from sandbox_kernel.isolation.checks.base import Host

EVERYTHING = "000001ffffffffff"


def made_up(directory: Path, settings: Mapping[str, str] | None = None, **changes: Any) -> Host:
    """A host with these kernel settings and nothing else: no engine, no program but ``sh``'s."""
    proc = directory / "proc"
    for name, value in (settings or {}).items():
        write(proc / "sys" / name, f"{value}\n")
    write(proc / "self" / "status", f"Name:\tpython\nCapEff:\t{EVERYTHING}\n")
    write(proc / "self" / "uid_map", "         0          0 4294967295\n")
    (directory / "bin").mkdir(exist_ok=True)
    host = Host(
        uid=os.geteuid(),
        environ={"PATH": str(directory / "bin")},
        home=directory / "home",
        engines=(),
        proc=proc,
    )
    return replace(host, **changes)


def real(**changes: Any) -> Host:
    """This machine, without its engines."""
    environ = {**os.environ}
    return replace(
        Host(os.geteuid(), environ, Path(os.environ["SANDBOX_KERNEL_HOME"]), ()), **changes
    )


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def program(directory: Path, name: str, script: str) -> Path:
    """A program of this host, which must misbehave in some way."""
    path = write(directory / "bin" / name, f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@contextmanager
def listening(path: Path, treat: Callable[[socket.socket], None]) -> Iterator[str]:
    """A real socket at ``path``; each connection is given to ``treat``, and open until the end."""
    connections: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # shut down below
                    return
                connections.append(connection)
                threading.Thread(target=treat, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


@contextmanager
def engine_at(path: Path, documents: Mapping[str, object]) -> Iterator[str]:
    """What answers like an engine: ``documents`` by the end of the path that is asked for."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = next((d for end, d in documents.items() if self.path.endswith(end)), None)
            data = json.dumps({"message": "none"} if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: Any) -> None:
            pass  # not into the tests' output

    with ThreadingUnixStreamServer(str(path), Answer) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            server.shutdown()
            thread.join()
