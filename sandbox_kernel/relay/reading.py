"""Messages off sockets, in turns. What does not fit is dropped and counted, never raised."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import zmq

from sandbox_kernel.log import log
from sandbox_kernel.relay.sockets import receive
from sandbox_kernel.relay.wire import Codec, Message, WireError

# One source may not starve the others: control stays responsive in a flood of output.
TURN_SECONDS: Final = 0.02


class Reader:
    """Reads what both sides send. ``drops`` counts what was not taken, by its reason."""

    def __init__(self, session: str) -> None:
        self.drops: Counter[str] = Counter()
        self._session = session

    def drop(self, reason: str) -> None:
        self.drops[reason] += 1
        if self.drops[reason] == 1:
            log(f"dropped a message: {reason}; further ones are only counted")

    def frames(self, socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
        """The frames of each message that is there, for one turn."""
        # One at a time: a batch of large frames would stand in memory all at once.
        end_of_turn = time.monotonic() + TURN_SECONDS
        # What was read may have had the inner kernel killed, and its sockets closed.
        while not socket.closed and time.monotonic() < end_of_turn:
            frames = receive(socket)
            if frames is None:
                return
            yield frames

    def messages(self, socket: zmq.Socket[bytes], codec: Codec) -> Iterator[Message]:
        """The well-formed messages of one turn."""
        for frames in self.frames(socket):
            try:
                message = codec.read(frames)
            except WireError as error:
                self.drop(str(error))
            else:
                yield message

    def hostile(self, socket: zmq.Socket[bytes], codec: Codec) -> Iterator[Message]:
        """The same from the inner kernel: everything must carry our session id."""
        for message in self.messages(socket, codec):
            if message.header.get("session") == self._session:
                yield message
            else:
                self.drop("foreign session")
