"""Messages off sockets, in turns. What does not fit is dropped and counted, never raised."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import zmq

from sandbox_kernel.log import log
from sandbox_kernel.relay.channel import InnerChannel
from sandbox_kernel.relay.sockets import receive
from sandbox_kernel.relay.wire import BodyError, Codec, Message, WireError

# One source may not starve the others: control stays responsive in a flood of output.
TURN_SECONDS: Final = 0.02
# What comes for widgets is passed on unread, however large it is.
LOOKED_INTO: Final = ("_request", "_reply")


class Reader:
    """Reads what both sides send. ``drops`` counts what was not taken, by its reason."""

    def __init__(self, session: str) -> None:
        self.drops: Counter[str] = Counter()
        self._session = session

    def drop(self, reason: str) -> None:
        self.drops[reason] += 1
        if self.drops[reason] == 1:
            log(f"dropped a message: {reason}; further ones are only counted")

    def frames(self, socket: zmq.Socket[bytes] | InnerChannel) -> Iterator[list[bytes]]:
        """The frames of each message that is there, for one turn."""
        # One at a time: a batch of large frames would stand in memory all at once.
        end_of_turn = time.monotonic() + TURN_SECONDS
        # What was read may have had the inner kernel killed, and its sockets closed.
        while not socket.closed and time.monotonic() < end_of_turn:
            frames = socket.receive() if isinstance(socket, InnerChannel) else receive(socket)
            if frames is None:
                return
            yield frames

    def messages(self, socket: InnerChannel, codec: Codec) -> Iterator[Message]:
        """The well-formed messages of one turn."""
        for frames in self.frames(socket):
            try:
                message = codec.read(frames)
            except WireError as error:
                self.drop(str(error))
            else:
                yield message

    def built(
        self, socket: zmq.Socket[bytes], codec: Codec, refuse: Callable[[Message], None]
    ) -> Iterator[Message]:
        """The same from the frontend, built where they will be looked into: nothing fails then.

        ``refuse`` is told of those that cannot be, to answer them; they have nothing but a header.
        """
        for frames in self.frames(socket):
            try:
                message = codec.read(frames)
                if message.msg_type.endswith(LOOKED_INTO):
                    message.build()
            except WireError as error:
                self.drop(str(error))
                if isinstance(error, BodyError):
                    refuse(error.message)
            else:
                yield message

    def hostile(self, socket: InnerChannel, codec: Codec) -> Iterator[Message]:
        """The same from the inner kernel: everything must carry our session id."""
        for message in self.messages(socket, codec):
            if message.header.get("session") == self._session:
                yield message
            else:
                self.drop("foreign session")
