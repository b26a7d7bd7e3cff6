"""The wrapper's event loop: one thread, one poll, nothing in it may block.

A loop of its own rather than asyncio: the relay sits on the path of every message, and one
``zmq_poll`` over all sockets and descriptors costs a fraction of asyncio's edge-triggered detour.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from typing import Any

import zmq

Source = zmq.Socket[bytes] | int
Handler = Callable[[], None]


class Timer:
    """A scheduled call; ``cancel`` makes it never happen."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Handler) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Calls one handler per readable source and timers when due. Not thread-safe, by design."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._handlers: dict[Any, Handler] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._running = False

    def watch(self, source: Source, handler: Handler, events: int = zmq.POLLIN) -> None:
        self._poller.register(source, events)
        self._handlers[source] = handler

    def forget(self, source: Source) -> None:
        if self._handlers.pop(source, None) is not None:
            self._poller.unregister(source)

    def call_later(self, seconds: float, callback: Handler) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        self._running = True
        while self._running:
            self.step(self._milliseconds_to_next_timer())

    def step(self, timeout_milliseconds: int | None) -> None:
        """One round: wait for something, then call what is due."""
        for source, _ in self._poller.poll(timeout_milliseconds):
            # A handler earlier in this round may have dropped this source.
            handler = self._handlers.get(source)
            if handler is not None:
                handler()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.callback()

    def _milliseconds_to_next_timer(self) -> int | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        # Rounded up: a poll that returns a fraction early would spin.
        return max(0, int((self._timers[0][0] - time.monotonic()) * 1000) + 1)
