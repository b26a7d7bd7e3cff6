"""Publishes to frontends, and bounds in bytes what waits for those that are slow to read IOPub.

libzmq queues a thousand messages for each subscriber, whatever their size, and would drop what comes then.
Instead, a message that finds a queue full waits here, and a large one counts until libzmq lets go of it.
While any wait here, or large ones of too many bytes wait there, the wrapper reads nothing from the sandbox:
what piles up piles up inside. When nothing moves for some seconds, each subscriber that took nothing is
disconnected, so that it does not hold up the others. It connects again, and has missed what was waiting.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import zmq

from sandbox_kernel.log import log
from sandbox_kernel.relay.loop import Loop
from sandbox_kernel.relay.sockets import send, send_tracked

# One more message may come on top of it.
MAX_WAITING_BYTES: Final = 16 << 20
# A message of this size is counted while it waits: a thousand smaller ones are 16 MiB.
COUNTED_BYTES: Final = 1 << 14
STALL_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.5
FLUSH_SECONDS: Final = 0.005
# Of `struct tcp_info`: how many bytes the other end has taken.
_BYTES_ACKED: Final = struct.Struct("120xQ")


class Subscribers:
    """All that is published on one socket."""

    def __init__(self, loop: Loop, publisher: zmq.Socket[bytes]) -> None:
        self._loop = loop
        self._publisher = publisher
        publisher.setsockopt(zmq.XPUB_NODROP, 1)
        # Else pyzmq copies frames of up to 64 KiB, and says at once that they have left.
        publisher.copy_threshold = 0
        # Messages that libzmq has no room for, in order.
        self._here: deque[Sequence[bytes]] = deque()
        self._here_bytes = 0
        # Large messages that libzmq has.
        self._there: list[tuple[zmq.MessageTracker, int]] = []
        self._there_bytes = 0
        self._watched = False
        # When something last left, and what each subscriber had taken by then.
        self._moved_at = 0.0
        self._taken: dict[int, int] = {}

    def publish(self, frames: Sequence[bytes]) -> None:
        """Send a message to all subscribers, now or as soon as there is room."""
        if not self._here:
            with suppress(zmq.Again):
                self._send(frames)
                return
            self._loop.call_later(FLUSH_SECONDS, self._flush)
        if self._here_bytes > MAX_WAITING_BYTES:
            # The sandbox is not read any more: these are the wrapper's own, about requests that go on.
            log("a message to frontends is dropped: they have not read for too long")
            return
        self._here.append(frames)
        self._here_bytes += sum(map(len, frames))

    def are_behind(self) -> bool:
        """Whether so much waits that nothing more should be read for them."""
        if not self._here and self._there_bytes <= MAX_WAITING_BYTES:
            return False
        self._recount()
        if not self._here and self._there_bytes <= MAX_WAITING_BYTES:
            return False
        if not self._watched:
            self._watched = True
            self._moved()
            self._loop.call_later(LOOK_SECONDS, self._look)
        return True

    def _send(self, frames: Sequence[bytes]) -> None:
        size = sum(map(len, frames))
        if size < COUNTED_BYTES:
            send(self._publisher, frames)
        else:
            self._there.append((send_tracked(self._publisher, frames), size))
            self._there_bytes += size

    def _flush(self) -> None:
        while self._here:
            try:
                self._send(self._here[0])
            except zmq.Again:
                self._loop.call_later(FLUSH_SECONDS, self._flush)
                return
            self._here_bytes -= sum(map(len, self._here.popleft()))
            self._moved_at = time.monotonic()

    def _recount(self) -> None:
        waiting = [(tracker, size) for tracker, size in self._there if not tracker.done]
        if len(waiting) < len(self._there):
            self._moved_at = time.monotonic()
        self._there = waiting
        self._there_bytes = sum(size for _, size in waiting)

    def _moved(self) -> None:
        self._moved_at = time.monotonic()
        self._taken = self._progress()

    def _look(self) -> None:
        """While frontends are behind: disconnect those that have taken nothing since nothing moved."""
        looked_at = self._moved_at
        if not self.are_behind():
            self._watched = False
            return
        if self._moved_at > looked_at or time.monotonic() - self._moved_at < LOOK_SECONDS:
            self._taken = self._progress()
        elif time.monotonic() - self._moved_at >= STALL_SECONDS:
            now = self._progress()
            for descriptor in [each for each in now if self._taken.get(each) == now[each]]:
                log(f"a frontend that read nothing for {STALL_SECONDS:.0f} s is disconnected")
                with _as_socket(descriptor) as connection, suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._moved()
        self._loop.call_later(LOOK_SECONDS, self._look)

    def _progress(self) -> dict[int, int]:
        """How much each connection with something left to send has got rid of so far."""
        endpoint = self._publisher.getsockopt_string(zmq.LAST_ENDPOINT)
        progress = {}
        for link in Path("/proc/self/fd").iterdir():
            # One that is gone by now is none; neither is a listener, which has no peer.
            with suppress(OSError):
                if not str(link.readlink()).startswith("socket:"):
                    continue
                descriptor = int(link.name)
                with _as_socket(descriptor) as connection:
                    if _is_at(connection, endpoint) and _unsent(connection):
                        progress[descriptor] = _taken(connection)
        return progress


@contextmanager
def _as_socket(descriptor: int) -> Iterator[socket.socket]:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        yield connection


def _is_at(connection: socket.socket, endpoint: str) -> bool:
    """Whether it is an accepted connection of this endpoint."""
    connection.getpeername()  # which a listener has none of
    transport, _, address = endpoint.partition("://")
    if transport == "ipc":
        return connection.family == socket.AF_UNIX and connection.getsockname() == address
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    return bool(connection.getsockname()[1] == int(address.rpartition(":")[2]))


def _unsent(connection: socket.socket) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def _taken(connection: socket.socket) -> int:
    """Grows when the other end reads; of a unix socket nothing but its queue is known."""
    if connection.family == socket.AF_UNIX:
        return _unsent(connection)
    about = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
    (count,) = _BYTES_ACKED.unpack(about)
    return int(count)
