"""The wrapper's event loop: one thread, one poll, nothing in it may block.

A loop of its own rather than asyncio: the relay sits on the path of every message, and one
``zmq_poll`` over all sockets and descriptors costs a fraction of asyncio's edge-triggered detour.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol

import zmq


class Pollable(Protocol):
    """What has a descriptor of its own to be polled."""

    def fileno(self) -> int: ...


Source = zmq.Socket[bytes] | int | Pollable
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
        # By what the poller knows a source by: who is watched there, and its handler.
        self._watched: dict[Any, tuple[Source, Handler]] = {}
        # What the poller knows each source by. A source that is closed by now has no descriptor to ask for.
        self._polled: dict[Source, Any] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._running = False
        # Told of an exception that a handler lets out, and of its source: `None` if it was a timer's.
        # Without it, the exception ends the loop.
        self.failed: Callable[[Source | None, Exception], None] | None = None

    def watch(self, source: Source, handler: Handler, events: int = zmq.POLLIN) -> None:
        polled = self._polled[source] = _polled(source)
        self._poller.register(polled, events)
        self._watched[polled] = (source, handler)

    def forget(self, source: Source) -> None:
        """Watch it no longer; nothing happens if it is not watched, or closed already."""
        polled = self._polled.pop(source, None)
        watched = self._watched.get(polled)
        # The number of one that was closed may be another's by now.
        if watched is not None and watched[0] == source:
            del self._watched[polled]
            self._poller.unregister(polled)

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
        ready = [
            (polled, self._watched[polled]) for polled, _ in self._poller.poll(timeout_milliseconds)
        ]
        for polled, watched in ready:
            # A handler earlier in this round may have dropped this one, and a descriptor of another
            # sandbox may have its number.
            if self._watched.get(polled) is watched:
                source, handler = watched
                self._call(handler, source)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                self._call(timer.callback, None)

    def _call(self, handler: Handler, source: Source | None) -> None:
        try:
            handler()
        except Exception as error:
            # The one place where any exception is taken: no message may end the kernel.
            if self.failed is None:
                raise
            self.failed(source, error)

    def _milliseconds_to_next_timer(self) -> int | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        # Rounded up: a poll that returns a fraction early would spin.
        return max(0, int((self._timers[0][0] - time.monotonic()) * 1000) + 1)


def _polled(source: Source) -> zmq.Socket[bytes] | int:
    """What the poller knows the source by."""
    return source if isinstance(source, int | zmq.Socket) else source.fileno()
