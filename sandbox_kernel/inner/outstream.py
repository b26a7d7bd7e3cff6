"""What cells print, on its way to the wrapper."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from typing import Any, ClassVar, NamedTuple

from ipykernel.iostream import IOPubThread, OutStream

STREAM_CHARACTERS = 1 << 20


class Place(NamedTuple):
    """A buffer of a stream, and whose output goes there."""

    parent: Mapping[str, Any]
    buffers: Mapping[Any, StringIO]
    write: Callable[[str], int]


class BridgeOutStream(OutStream):
    """Prints of any size, in messages of bounded size; and no waiting for nothing to be sent."""

    # What the running cell may still print, and one character more, so that the wrapper sees that
    # it goes on. The wrapper stops it; this keeps the rest from filling the sandbox's memory.
    # In a list: to change a class's own attribute makes all uses of the class slow for a while.
    _allowance: ClassVar[list[int]] = [sys.maxsize]
    # A fork that a cell has made sends its output in another way.
    _in_kernel: ClassVar[bool] = True
    # Whether the IOPub thread is about to send what was in the buffers.
    _flushing = False
    # Where the last text went: that of one cell goes to one buffer until it is sent.
    _place: Place | None = None

    @classmethod
    def allow(cls, characters: int | None) -> None:
        """Let the next cell print so much; ``None``: without a limit, as between cells, where the
        wrapper counts anew from time to time and says what it drops."""
        cls._allowance[0] = sys.maxsize if characters is None else characters + 1

    @classmethod
    def forked(cls) -> None:
        cls._in_kernel = False

    def write(self, string: str) -> int | None:
        if not isinstance(string, str):
            return super().write(string)
        size = len(string)
        left = self._allowance[0]
        self._allowance[0] = left - size
        if left < size:
            if left > 0:
                super().write(string[:left])
            return size
        # ipykernel looks for the buffer at each write, which takes longer than all the rest.
        with self._buffer_lock:
            place = self._place
            if (
                place is not None
                and place.buffers is self._buffers
                and place.parent is self._parent_header.get(None)
                and self._flush_pending
                and self._in_kernel
                and self.pub_thread is not None
                and self.echo is None
            ):
                return place.write(string)
        super().write(string)
        if parent := self._parent_header.get(None):
            with self._buffer_lock:
                buffer = self._buffers[frozenset(parent.items())]
                self._place = Place(parent, self._buffers, buffer.write)
        return size

    def flush(self) -> None:
        # ipykernel flushes six times a cell, and each waits for a round through the IOPub thread. It
        # need not: what comes next goes the same way. A user who flushes may be about to end.
        by_kernel = sys._getframe(1).f_globals.get("__name__", "").startswith("ipykernel.")
        if self._buffers or self._flushing or (self.pub_thread._events and not by_kernel):
            super().flush()

    def _flush(self) -> None:
        # What it sends stands in the queue bit by bit: an idle that came in between would overtake it.
        self._flushing = True
        try:
            super()._flush()
        finally:
            self._flushing = False

    def _flush_buffers(self) -> Iterator[tuple[dict[str, Any], str]]:
        for parent, text in super()._flush_buffers():
            for start in range(0, len(text), STREAM_CHARACTERS):
                yield parent, text[start : start + STREAM_CHARACTERS]

    def come_alive(self, pub_thread: IOPubThread) -> None:
        """In a fork that takes over: publish through this thread, watch the descriptor again."""
        self.pub_thread = pub_thread
        self._io_loop = pub_thread.io_loop
        self._master_pid = os.getpid()
        # A thread that is not here may have held the one, and was to send the other.
        self._buffer_lock = threading.RLock()
        self._buffers: defaultdict[Any, StringIO] = defaultdict(StringIO)
        self._flush_pending = self._subprocess_flush_pending = self._flushing = False
        self._place = None
        BridgeOutStream._in_kernel = True
        if self._should_watch:
            # The pipe is the same, as cells may have made copies of its end. What the process
            # before this one has written last is not this one's.
            left = select.poll()
            left.register(self._fid, select.POLLIN)
            while left.poll(0):
                if not os.read(self._fid, STREAM_CHARACTERS):
                    break
            self.watch_fd_thread = threading.Thread(target=self._watch_pipe_fd, daemon=True)
            self.watch_fd_thread.start()


os.register_at_fork(after_in_child=BridgeOutStream.forked)
