"""One connection to the inner kernel: it holds one peer at a time, and never more than it may.

To the event loop a channel is one descriptor, readable when ``receive`` has something to do: an epoll of
the listener, the connection, and an eventfd for messages that have arrived but wait to be taken.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from sandbox_kernel.isolation.unix_sockets import without_descriptors
from sandbox_kernel.log import log
from sandbox_kernel.relay import zmtp
from sandbox_kernel.relay.allowance import Allowance

_CHUNK_BYTES: Final = 1 << 16
# Others wait in the kernel's queue, or are refused there.
_BACKLOG: Final = 1


class InnerChannel:
    """Binds ``path`` and talks to who connects there. Nothing here blocks.

    A peer that hangs up before ``take_nobody_else`` makes room for the next one. After that
    ``lost`` is told, with what the peer did wrong if the wrapper hung up on it.
    """

    def __init__(
        self,
        path: Path,
        socket_type: bytes,
        allowance: Allowance,
        tired: Callable[[], None],
        lost: Callable[[str | None], None],
    ) -> None:
        self.identity = b""
        self.closed = False
        # Whether the handshake is done.
        self.connected = False
        self._path = path
        self._socket_type = socket_type
        self._allowance = allowance
        self._tired = tired
        self._lost = lost
        self._connection: socket.socket | None = None
        self._handshake = b""
        self._decoder = zmtp.Decoder(allowance.hold)
        self._unsent: deque[memoryview] = deque()
        # Whether the last read took all there was.
        self._drained = False
        self._marked = False
        self._resting = False
        self._listener: socket.socket | None = without_descriptors()
        self._mark = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        try:
            self._listener.setblocking(False)
            self._listener.bind(str(path))
            path.chmod(0o600)
            self._listener.listen(_BACKLOG)
            self._epoll.register(self._listener, select.EPOLLIN)
            self._epoll.register(self._mark, select.EPOLLIN)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        return self._epoll.fileno()

    def poll(self) -> bool:
        """Whether ``receive`` has something to do."""
        return not self.closed and bool(self._epoll.poll(0))

    # -- it connects ---------------------------------------------------------------------------------

    def greet(self) -> None:
        """Accept a peer and shake hands with it, as far as that goes now."""
        if self._resting:
            return
        if self._allowance.is_used_up:
            self._tired()
            return
        if self._connection is None and self._listener is not None:
            self._accept(self._listener)
        if self._connection is not None and not self.connected:
            self._shake_hands(self._connection)

    def disconnect(self) -> None:
        """Nothing more is read from here, or accepted."""
        self.take_nobody_else()
        self._hang_up(None)

    def take_nobody_else(self) -> None:
        """The inner kernel is here: cells must find no socket to connect to."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._path.unlink(missing_ok=True)

    def _accept(self, listener: socket.socket) -> None:
        self._allowance.charge()
        try:
            self._connection, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # No descriptor is left, for example. It is tried again when this channel has rested.
            log(f"the inner kernel cannot connect yet: {error.strerror}")
            self._tired()
            return
        self._connection.setblocking(False)
        self._drained = False
        # One peer at a time: the others are not looked at while this one is here.
        self._epoll.unregister(listener)
        self._epoll.register(self._connection, select.EPOLLIN)
        greeting = zmtp.GREETING + zmtp.ready(self._socket_type, self.identity)
        with contextlib.suppress(OSError):  # it hung up, which is read next
            self._connection.send(greeting)

    def _shake_hands(self, connection: socket.socket) -> None:
        received = self._receive_some(connection)
        if not received:
            return
        self._handshake += received
        try:
            rest = zmtp.after_handshake(self._handshake)
        except zmtp.ProtocolError as error:
            self._hang_up(str(error))
            return
        if rest is not None:
            self.connected, self._handshake = True, b""
            if rest:
                self._decoder.feed(rest)
                self._set_mark(wanted=True)

    def _receive_some(self, connection: socket.socket) -> bytes:
        """What is there now; nothing if it has hung up, too."""
        try:
            received = connection.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            received = b""
        self._drained = len(received) < _CHUNK_BYTES
        self._allowance.charge(len(received))
        if not received:
            self._hang_up(None)
        return received

    # -- it talks ------------------------------------------------------------------------------------

    def receive(self) -> list[bytes] | None:
        """The frames of the next message, or ``None`` if none is there."""
        if not self.connected:
            self.greet()
            if not self.connected:
                return None
        if self._unsent:
            self._flush()
        if self._allowance.is_used_up:
            self._tired()
            return None
        try:
            while (frames := self._decoder.next()) is None:
                if not self._fill():
                    self._set_mark(wanted=False)
                    return None
        except zmtp.ProtocolError as error:
            self._hang_up(str(error))
            return None
        self._allowance.charge(frames=len(frames))
        # There may be more, and what has been read already makes no descriptor readable.
        self._set_mark(wanted=True)
        return frames

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message, or what cannot be sent now later; whether there is anybody to send it to."""
        if not self.connected or self._connection is None:
            return False
        self._allowance.asked()
        is_first = not self._unsent
        self._unsent += map(memoryview, zmtp.encode(frames))
        if is_first:
            self._flush()
            if self._unsent and not self._resting:
                self._epoll.modify(self._connection, select.EPOLLIN | select.EPOLLOUT)
        return True

    def _fill(self) -> bool:
        """Read some more; whether there was anything."""
        connection = self._connection
        if connection is None or self._drained:
            self._drained = False
            return False
        room = self._decoder.room
        if room is None:
            if received := self._receive_some(connection):
                self._decoder.feed(received)
            return bool(received)
        try:
            count = connection.recv_into(room)
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        self._allowance.charge(count)
        if not count:
            self._hang_up(None)
        self._decoder.filled(count)
        return count > 0

    def _flush(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            while self._unsent:
                sent = connection.send(self._unsent[0], socket.MSG_NOSIGNAL)
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()  # it has hung up, which is read next
        if not self._resting:
            self._epoll.modify(connection, select.EPOLLIN)

    def _set_mark(self, *, wanted: bool) -> None:
        if wanted != self._marked:
            self._marked = wanted
            if wanted:
                os.eventfd_write(self._mark, 1)
            else:
                os.eventfd_read(self._mark)

    # -- it rests, and it ends -----------------------------------------------------------------------

    def rest(self) -> None:
        """Read nothing for a while."""
        if not self._resting and not self.closed:
            self._resting = True
            for each in self._sources():
                self._epoll.unregister(each)

    def go_on(self) -> None:
        if self._resting and not self.closed:
            self._resting = False
            for each in self._sources():
                self._epoll.register(each, select.EPOLLIN)
            if self._unsent and self._connection is not None:
                self._epoll.modify(self._connection, select.EPOLLIN | select.EPOLLOUT)

    def _sources(self) -> list[socket.socket | int]:
        """What makes this channel readable; the listener only while there is no peer."""
        peer = self._connection or self._listener
        return [self._mark] if peer is None else [self._mark, peer]

    def _hang_up(self, why: str | None) -> None:
        if self._connection is None:
            return
        self._connection.close()  # which takes it out of the epoll
        self._connection = None
        self.connected = False
        self._handshake = b""
        self._unsent.clear()
        self._decoder.close()
        self._set_mark(wanted=False)
        if self._listener is None:
            self._lost(why)
        elif not self._resting:
            self._epoll.register(self._listener, select.EPOLLIN)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.connected = False
        self.take_nobody_else()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._unsent.clear()
        self._decoder.close()
        self._epoll.close()
        os.close(self._mark)
