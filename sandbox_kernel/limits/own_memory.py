"""The wrapper's own memory, which a cell can fill: libzmq keeps a message until its last part has come."""

from __future__ import annotations

import os
from typing import Final

from sandbox_kernel.limits.files import read

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# More than all honest output of a moment takes in the wrapper.
OWN_GROWTH_BYTES: Final = 128 << 20


class OwnMemory:
    """How much the wrapper has grown since nothing ran."""

    def __init__(self) -> None:
        self._before_bytes = own_memory_bytes()

    def begin(self) -> None:
        """Something begins to run: what the wrapper has now is not its doing."""
        self._before_bytes = own_memory_bytes()

    @property
    def growth_bytes(self) -> int:
        return own_memory_bytes() - self._before_bytes

    @property
    def swamped(self) -> bool:
        return self.growth_bytes > OWN_GROWTH_BYTES


def own_memory_bytes() -> int:
    """The wrapper's own resident memory."""
    return int(read("/proc/self/statm").split()[1]) * PAGE_BYTES
