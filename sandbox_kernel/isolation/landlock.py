"""Landlock: what a process may open, taken away by itself for good. In Linux since 5.13.

Here is only what the wrapper must know beforehand; ``inner/confine.py`` puts it on.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

# Versions of its interface, and since when they hold what they are named after.
TRUNCATION: Final = 3  # Linux 6.2
SIGNALS: Final = 6  # Linux 6.12, with abstract unix sockets
_CREATE_RULESET, _ASK_VERSION = 444, 1


def ask_version() -> int:
    """The version of its interface; raises ``OSError`` where there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(found)


def version() -> int:
    """The same; 0 where there is none."""
    try:
        return ask_version()
    except OSError:
        return 0
