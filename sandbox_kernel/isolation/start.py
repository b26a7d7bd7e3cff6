"""Start one sandbox with an inner kernel in it: run directory, key, boot files, lifeline."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sandbox_kernel.isolation import view
from sandbox_kernel.isolation.base import Sandbox
from sandbox_kernel.isolation.lifeline import Lifeline
from sandbox_kernel.isolation.rundir import RunDirectory, remove_tree

SOCKET_PREFIX = "inner"
# As in a connection file of transport ipc: the path is <ip>-<port>.
PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4}
_INNER = Path(__file__).parent.parent / "inner"


class StartedSandbox(NamedTuple):
    """A sandbox on its way up. ``directory`` is where the wrapper binds its sockets."""

    sandbox: Sandbox
    directory: Path
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
    # The boot files travel with the wrapper, so that no image or environment can hold another
    # version of them.
    for name in ("boot.py", "bridge.py", "checkpoint.py"):
        (directory / name).write_bytes((_INNER / name).read_bytes())
    _write_connection_file(directory, sandbox, key, session, argv)
    lifeline = Lifeline(directory, sandbox.give)
    try:
        sandbox.start(path)
    except BaseException:
        lifeline.close()
        raise
    return StartedSandbox(sandbox, directory, lifeline, key.encode())


def _write_connection_file(
    directory: Path, sandbox: Sandbox, key: str, session: str, argv: Sequence[str]
) -> None:
    connection = {
        "transport": "ipc",
        "ip": f"{view.RUN}/{SOCKET_PREFIX}",
        **{f"{channel}_port": port for channel, port in PORTS.items()},
        "hb_port": 5,
        "key": key,
        "signature_scheme": "hmac-sha256",
        "sandbox": {
            "session": session,
            "argv": list(argv),
            "working_directory": sandbox.facts.working_directory,
            "lifeline": f"{view.RUN}/{Lifeline.NAME}",
        },
    }
    path = directory / "connection.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "w") as file:
        json.dump(connection, file)
    sandbox.give(path)
