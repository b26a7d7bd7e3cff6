"""A cell's time on the clock: it stands still while the cell waits for the user."""

from __future__ import annotations

import time
from typing import Final

# What a cell that waits may use of a processor: `input()` looks for its answer a hundred times a second,
# and what the cell has begun before may come to its end.
WAITING_CPU_SECONDS: Final = 1.0
WAITING_CPU_SHARE: Final = 0.2


class Clock:
    """Seconds since it was made, but for pauses.

    That it waits is what a cell says itself: if it works on meanwhile, beyond an allowance, that counts.
    """

    def __init__(self) -> None:
        self._elapsed = 0.0
        self._since: float | None = time.monotonic()
        # While it waits: since when, and the processor time it had used by then.
        self._waiting: tuple[float, float] | None = None
        # The processor time it has used until now, as the last look at it says.
        self.cpu_seconds = 0.0

    def pause(self) -> None:
        self._elapsed, self._since, self._waiting = self.seconds, None, None

    def wait(self) -> None:
        """The cell asks the user something; to ask more changes nothing."""
        if self._since is not None:
            self.pause()
            self._waiting = (time.monotonic(), self.cpu_seconds)

    def resume(self) -> None:
        if self._since is None:
            self.pause()
            self._since = time.monotonic()

    @property
    def running(self) -> bool:
        return self._since is not None

    @property
    def seconds(self) -> float:
        if self._since is not None:
            return self._elapsed + time.monotonic() - self._since
        return self._elapsed + self._worked_seconds()

    def _worked_seconds(self) -> float:
        """Of the time it has waited, as it says, what counts all the same."""
        if self._waiting is None:
            return 0.0
        since, cpu_seconds = self._waiting
        waited = time.monotonic() - since
        allowed = WAITING_CPU_SECONDS + WAITING_CPU_SHARE * waited
        return min(waited, max(0.0, self.cpu_seconds - cpu_seconds - allowed))
