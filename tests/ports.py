"""Ports for kernels: below those that the host gives to outgoing connections, each worker its own.

Between Jupyter's choice of a free port and the kernel's bind another process can take it.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_client.connect import write_connection_file

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
EACH = 2_500
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
_FIRST = 12_000 + _WORKER * EACH
# From anywhere in there: other runs of these tests on this machine have workers of the same names.
_START = random.SystemRandom().randrange(EACH)
_CANDIDATES = itertools.cycle(_FIRST + (_START + number) % EACH for number in range(EACH))


def free_port(ip: str = "127.0.0.1") -> int:
    """One that nobody has, and that no other worker is given."""
    for port in _CANDIDATES:
        with socket.socket() as probe, suppress(OSError):
            probe.bind((ip, port))
            return port
    raise AssertionError


def connection_file(path: Path, **options: Any) -> dict[str, Any]:
    """Write one as Jupyter does, with such ports; what it says."""
    ports = {f"{channel}_port": free_port() for channel in CHANNELS}
    _, info = write_connection_file(str(path), **ports, **options)
    return info
