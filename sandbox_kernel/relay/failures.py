"""Exceptions that nothing in the wrapper expected: each is logged, and too many end the patience."""

from __future__ import annotations

import time
import traceback
from collections import deque
from typing import Final

from sandbox_kernel.log import log

# Later ones are only counted: a cell may cause them without end.
TRACEBACKS_LOGGED: Final = 20
# So many within this time: another sandbox would do the same again.
TOO_MANY: Final = 5
WITHIN_SECONDS: Final = 60.0


class Failures:
    """What went wrong in here."""

    def __init__(self) -> None:
        self.count = 0
        self._latest: deque[float] = deque(maxlen=TOO_MANY)

    def note(self, error: Exception) -> None:
        self.count += 1
        self._latest.append(time.monotonic())
        if self.count <= TRACEBACKS_LOGGED:
            log("an exception that nobody expected:\n" + "".join(traceback.format_exception(error)))

    @property
    def too_many(self) -> bool:
        return len(self._latest) == TOO_MANY and time.monotonic() - self._latest[0] < WITHIN_SECONDS
