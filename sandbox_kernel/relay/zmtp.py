"""The part of ZMTP 3.0 that the inner connections need: one handshake, and frames with bounds.

The wrapper does not read what the sandbox sends through libzmq. libzmq keeps all parts of a message until
the last one arrives, however many there are, and aborts the process when it runs out of descriptors. This
decoder refuses what is too large before it holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

MAX_FRAME_BYTES: Final = 16 << 20
# More than a message of Jupyter's may have: one with a few too many is dropped, not its sender.
MAX_FRAMES: Final = 1 << 14
# A larger frame is received into memory of its own, and not copied again.
LARGE_BYTES: Final = 1 << 16

_MORE: Final = 1
_LONG: Final = 2
_COMMAND: Final = 4
_SIGNATURE_AND_VERSION: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00"
_NULL_MECHANISM: Final = b"NULL".ljust(20, b"\0")
GREETING: Final = _SIGNATURE_AND_VERSION + _NULL_MECHANISM + bytes(32)
_READY: Final = b"\x05READY"
# libzmq's takes some fifty bytes.
_MAX_READY_BYTES: Final = 255


class ProtocolError(Exception):
    """The peer broke the protocol or a bound of it; the text says how, after "its kernel"."""


def ready(socket_type: bytes, identity: bytes = b"") -> bytes:
    """The command that ends our half of the handshake."""
    body = _READY
    for name, value in ((b"Socket-Type", socket_type), (b"Identity", identity)):
        body += bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
    return bytes((_COMMAND, len(body))) + body


def after_handshake(received: bytes) -> bytes | None:
    """What follows the peer's handshake in ``received``; ``None`` while that is not complete."""
    if len(received) > len(GREETING) + 2 + _MAX_READY_BYTES + LARGE_BYTES:
        msg = "sent no handshake"
        raise ProtocolError(msg)
    if len(received) < len(GREETING) + 2:
        return None
    version = received[10]
    if received[:1] != b"\xff" or received[9:10] != b"\x7f" or version < 3:
        msg = "speaks no ZMTP 3"
        raise ProtocolError(msg)
    if received[12:32] != _NULL_MECHANISM:
        msg = "wants a security mechanism that nobody offers"
        raise ProtocolError(msg)
    flags, size = received[len(GREETING) : len(GREETING) + 2]
    if flags != _COMMAND:
        msg = "did not finish its handshake"
        raise ProtocolError(msg)
    start = len(GREETING) + 2
    if len(received) < start + size:
        return None
    if not received.startswith(_READY, start):
        msg = "did not finish its handshake"
        raise ProtocolError(msg)
    return received[start + size :]


def encode(frames: Sequence[bytes]) -> list[bytes]:
    """One message as buffers to be sent one after another; large frames are not copied."""
    buffers: list[bytes] = []
    small: list[bytes] = []
    last = len(frames) - 1
    for number, frame in enumerate(frames):
        flags = 0 if number == last else _MORE
        size = len(frame)
        if size < 256:
            small.append(bytes((flags, size)))
        else:
            small.append(bytes((flags | _LONG,)) + size.to_bytes(8, "big"))
        if size < LARGE_BYTES:
            small.append(frame)
        else:
            buffers += [b"".join(small), frame]
            small = []
    if small:
        buffers.append(b"".join(small))
    return buffers


class Decoder:
    """Cuts what one connection sends into messages.

    ``hold`` is told by how many bytes the unfinished message grows or shrinks, and may refuse more.
    """

    def __init__(self, hold: Callable[[int], None]) -> None:
        self._hold = hold
        self._held = 0
        self._data = b""
        self._at = 0
        self._frames: list[bytes] = []
        self._frame_bytes = 0
        # A large frame that has not arrived completely, whether more follow, and how much is there.
        self._large: bytearray | None = None
        self._large_more = False
        self._large_filled = 0

    @property
    def room(self) -> memoryview | None:
        """Where the rest of a large frame is to be received; otherwise ``feed`` takes what comes."""
        return None if self._large is None else memoryview(self._large)[self._large_filled :]

    def filled(self, count: int) -> None:
        self._large_filled += count

    def feed(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def close(self) -> None:
        """Let go of everything."""
        self._frames, self._data, self._large = [], b"", None
        self._hold(-self._held)
        self._held = 0

    def next(self) -> list[bytes] | None:
        """The next whole message; ``ProtocolError`` if what arrives cannot become one."""
        if self._large is not None:
            if self._large_filled < len(self._large):
                return None
            # As it is: everything that reads frames takes any buffer, and a copy is 16 MiB more.
            frame, self._large = cast("bytes", self._large), None
            if not self._append(frame, self._large_more):
                return self._take()
        data, at, end = self._data, self._at, len(self._data)
        while end - at >= 2:
            flags = data[at]
            if flags >= _COMMAND:
                msg = "sent a ZMTP command or a frame of no known kind"
                raise ProtocolError(msg)
            if flags & _LONG:
                if end - at < 9:
                    break
                size, body = int.from_bytes(data[at + 1 : at + 9], "big"), at + 9
            else:
                size, body = data[at + 1], at + 2
            if size > MAX_FRAME_BYTES:
                msg = f"sent a frame of more than {MAX_FRAME_BYTES >> 20} MiB"
                raise ProtocolError(msg)
            if body + size > end:
                if size >= LARGE_BYTES:
                    self._begin_large(data[body:], size, more=bool(flags & _MORE))
                    at = end
                break
            at = body + size
            if not self._append(data[body:at], bool(flags & _MORE)):
                self._at = at
                return self._take()
        self._at = at
        self._hold_now(self._frame_bytes + (len(self._large) if self._large is not None else 0))
        return None

    def _append(self, frame: bytes, more: bool) -> bool:
        self._frames.append(frame)
        self._frame_bytes += len(frame)
        if len(self._frames) > MAX_FRAMES:
            msg = f"sent a message of more than {MAX_FRAMES} frames"
            raise ProtocolError(msg)
        return more

    def _begin_large(self, beginning: bytes, size: int, *, more: bool) -> None:
        # Counted before it exists: this is what a peer can make the wrapper hold.
        self._hold_now(self._frame_bytes + size)
        self._large = bytearray(size)
        self._large[: len(beginning)] = beginning
        self._large_filled, self._large_more = len(beginning), more

    def _take(self) -> list[bytes]:
        frames, self._frames, self._frame_bytes = self._frames, [], 0
        self._hold_now(0)
        return frames

    def _hold_now(self, size: int) -> None:
        if size != self._held:
            self._hold(size - self._held)
            self._held = size
