"""Readings that a sandbox can hold up are made in a thread of their own, and waited for a while only.

Some files of ``/proc`` need the lock on the memory of the process they are about. A cell can keep that lock:
it changes the protection of a huge mapping in a thread that its own processes leave no time. Whoever reads
such a file sleeps until the cell lets go, and no signal but the last one wakes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

T = TypeVar("T")


# How long the wrapper may wait for such calls: so much at once, and this share of its time for ever.
BURST_SECONDS: Final = 0.5
SHARE: Final = 0.25


class Aside:
    """Makes one call at a time; while one is held up, others are not tried."""

    def __init__(self) -> None:
        self._spare_seconds = BURST_SECONDS
        self._counted_at = time.monotonic()
        self._calls: SimpleQueue[tuple[Callable[[], object], SimpleQueue[object]]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # Where the answer comes to a call that was not waited for to its end.
        self._held_up: SimpleQueue[object] | None = None

    def ask(self, call: Callable[[], T], within: float) -> T | None:
        """What ``call`` returns, if it does ``within`` so many seconds. It must not raise."""
        if self._held_up is not None:
            if self._held_up.empty():
                return None
            self._held_up = None
        within = min(within, self._refilled())
        if within <= 0:
            return None
        if self._thread is None:
            # It must not keep the wrapper from ending.
            self._thread = threading.Thread(target=self._work, name="aside", daemon=True)
            self._thread.start()
        answer: SimpleQueue[T] = SimpleQueue()
        self._calls.put((call, answer))  # type: ignore[arg-type]
        began = time.monotonic()
        try:
            return answer.get(timeout=within)
        except Empty:
            self._held_up = answer  # type: ignore[assignment]
            return None
        finally:
            self._spare_seconds -= time.monotonic() - began

    def _refilled(self) -> float:
        """How long may be waited now."""
        now = time.monotonic()
        gained = (now - self._counted_at) * SHARE
        self._counted_at = now
        self._spare_seconds = min(BURST_SECONDS, self._spare_seconds + gained)
        return self._spare_seconds

    def _work(self) -> None:
        while True:
            call, answer = self._calls.get()
            answer.put(call())


ASIDE: Final = Aside()
