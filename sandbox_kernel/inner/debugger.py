"""ipykernel's debugger, loaded when a frontend first asks for it.

It is a third of what ipykernel loads, and most kernels are never debugged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, reload
from importlib.util import find_spec

SERVER = "debugpy.server"
# Else it warns, on what is a cell's stderr by now, that it cannot step into the standard library.
QUIET = "PYDEVD_DISABLE_FILE_VALIDATION"


@contextmanager
def put_off() -> Iterator[None]:
    """ipykernel takes a module that cannot be imported for one that is not installed."""
    sys.modules[SERVER] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[SERVER]


def is_installed() -> bool:
    return find_spec("debugpy") is not None


def load() -> list[str]:
    """Load it after all; the files that came with it. Whether it works, ipykernel knows then."""
    before = set(sys.modules)
    quiet = os.environ.get(QUIET)
    os.environ[QUIET] = "1"
    try:
        reload(import_module("ipykernel.debugger"))
    finally:
        if quiet is None:
            del os.environ[QUIET]
        else:
            os.environ[QUIET] = quiet
    came = [sys.modules[name] for name in set(sys.modules) - before]
    return [file for file in (getattr(module, "__file__", None) for module in came) if file]
