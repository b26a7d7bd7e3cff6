"""The wrapper's own memory, which a cell can fill: libzmq keeps a message until its last part has come."""

from __future__ import annotations

import os
from typing import Final

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# More than all honest output of a moment takes in the wrapper.
OWN_GROWTH_BYTES: Final = 128 << 20


class OwnMemory:
    """How much the wrapper has grown since nothing ran."""

    def __init__(self) -> None:
        # Kept open: it is read before and after every cell.
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._before_bytes = self._now_bytes()

    def begin(self) -> None:
        """Something begins to run: what the wrapper has now is not its doing."""
        self._before_bytes = self._now_bytes()

    @property
    def growth_bytes(self) -> int:
        return self._now_bytes() - self._before_bytes

    def _now_bytes(self) -> int:
        """What is resident."""
        return int(os.pread(self._statm, 256, 0).split()[1]) * PAGE_BYTES
