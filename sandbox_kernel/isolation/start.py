"""Start one sandbox with an inner kernel in it: run directory, key, boot files, lifeline."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

from sandbox_kernel.isolation import view
from sandbox_kernel.isolation.base import Sandbox
from sandbox_kernel.isolation.lifeline import Lifeline
from sandbox_kernel.isolation.rundir import RunDirectory, remove_tree

SOCKET_PREFIX = "inner"
# As in a connection file of transport ipc: the path is <ip>-<port>.
PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "replies": 5}
_INNER = Path(__file__).parent.parent / "inner"


class StartedSandbox(NamedTuple):
    """A sandbox on its way up. ``directory`` is where the wrapper binds its sockets.

    Inside, that is ``place``.
    """

    sandbox: Sandbox
    directory: Path
    place: str
    lifeline: Lifeline
    key: bytes

    def close(self) -> None:
        self.sandbox.kill()
        self.lifeline.close()
        remove_tree(self.directory)


def start_sandbox(
    sandbox: Sandbox, run_directory: RunDirectory, session: str, argv: Sequence[str]
) -> StartedSandbox:
    """Start ``sandbox``; raises ``SandboxUnavailable`` with nothing left behind."""
    path = run_directory.new_generation()
    directory = run_directory.short(path)
    key = os.urandom(32).hex()
    with ExitStack() as undo:
        undo.callback(remove_tree, directory)
        _copy_inner(directory)
        undo.callback(sandbox.kill)
        place = sandbox.place(path)
        _write_connection_file(directory, sandbox, place, key, session, argv)
        lifeline = Lifeline(directory, sandbox.give)
        undo.callback(lifeline.close)
        sandbox.start(path)
        undo.pop_all()
    return StartedSandbox(sandbox, directory, place, lifeline, key.encode())


def _copy_inner(directory: Path) -> None:
    """What runs inside travels with the wrapper: no image or environment can hold another version.

    With its bytecode, which the same Python inside takes, and another passes over.
    """
    inner = directory / view.INNER
    cache = inner / "__pycache__"
    cache.mkdir(parents=True)
    for source in _INNER.glob("*.py"):
        copied = inner / source.name
        copied.write_bytes(source.read_bytes())
        # Bytecode is of a file of this size and time.
        changed = source.stat().st_mtime_ns
        os.utime(copied, ns=(changed, changed))
        SourceFileLoader(source.stem, str(source)).get_code(source.stem)  # writes it if need be
        compiled = Path(cache_from_source(str(source)))
        if compiled.exists():
            (cache / compiled.name).write_bytes(compiled.read_bytes())


def _write_connection_file(
    directory: Path, sandbox: Sandbox, place: str, key: str, session: str, argv: Sequence[str]
) -> None:
    connection = {
        "transport": "ipc",
        "ip": f"{place}/{SOCKET_PREFIX}",
        **{f"{channel}_port": port for channel, port in PORTS.items()},
        # The wrapper echoes heartbeats itself: what ipykernel has for them is free.
        "hb_port": PORTS["replies"],
        "key": key,
        "signature_scheme": "hmac-sha256",
        "sandbox": {
            "session": session,
            "argv": list(argv),
            "working_directory": sandbox.facts.working_directory,
            "folder_shown": sandbox.facts.folder_shown,
            "lifeline": f"{place}/{Lifeline.NAME}",
            **sandbox.settings(),
        },
    }
    path = directory / "connection.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "w") as file:
        json.dump(connection, file)
    sandbox.give(path)
