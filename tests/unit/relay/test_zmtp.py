"""Frames of a hostile peer: bounded, whatever they say of themselves."""

from __future__ import annotations

import random

import pytest

from sandbox_kernel.relay import zmtp
from sandbox_kernel.relay.allowance import BURST_UNITS, MIN_HELD_BYTES, Allowance
from sandbox_kernel.relay.zmtp import Decoder, ProtocolError

MIB = 1 << 20
MESSAGES = [[b""], [b"a", b"b" * 255, b"c" * 256], [b"x" * 70_000, b""], [b"y" * (3 * MIB), b"z"]]


def pieces(data: bytes, seed: int) -> list[bytes]:
    pick, at, cut = random.Random(seed), 0, []
    while at < len(data):
        size = pick.choice([1, 2, 9, 1000, 65_536])
        cut.append(data[at : at + size])
        at += size
    return cut


def read(decoder: Decoder, data: bytes) -> list[list[bytes]]:
    """What comes out when this goes in, as a channel does it."""
    found = []
    while True:
        while (message := decoder.next()) is not None:
            found.append([bytes(frame) for frame in message])
        if not data:
            return found
        if (room := decoder.room) is None:
            decoder.feed(data)
            data = b""
        else:
            count = min(len(room), len(data))
            room[:count] = data[:count]
            decoder.filled(count)
            data = data[count:]


@pytest.mark.parametrize("seed", range(5))
def test_messages_come_out_as_they_went_in_however_they_are_cut(seed: int) -> None:
    held: list[int] = []
    decoder = Decoder(held.append)
    wire = b"".join(b"".join(zmtp.encode(frames)) for frames in MESSAGES)
    found = [message for piece in pieces(wire, seed) for message in read(decoder, piece)]
    assert found == MESSAGES
    assert sum(held) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\x02" + (zmtp.MAX_FRAME_BYTES + 1).to_bytes(8, "big"),
        b"\x02" + b"\xff" * 8,
        b"\x04\x05\x04PING",
        b"\xff" * 10,
        b"\x01\x00" * (zmtp.MAX_FRAMES + 1),
    ],
    ids=["too_large", "endless", "a_command", "garbage", "too_many_frames"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    decoder = Decoder(lambda _: None)
    decoder.feed(data)
    with pytest.raises(ProtocolError):
        decoder.next()


def test_unfinished_messages_of_all_channels_share_one_bound() -> None:
    allowance = Allowance(1)
    decoders = [Decoder(allowance.hold) for _ in range(5)]
    announced = b"\x03" + (MIN_HELD_BYTES // 4).to_bytes(8, "big")
    for decoder in decoders[:4]:
        decoder.feed(announced)
        assert decoder.next() is None
    decoders[4].feed(announced)
    with pytest.raises(ProtocolError):
        decoders[4].next()
    decoders[0].close()
    decoders[4] = Decoder(allowance.hold)
    decoders[4].feed(announced)
    assert decoders[4].next() is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 66,
        zmtp.GREETING[:12] + b"PLAIN".ljust(20, b"\0") + bytes(40),
        zmtp.GREETING + b"ab",
    ],
    ids=["no_greeting", "another_mechanism", "no_ready"],
)
def test_who_does_not_shake_hands_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        zmtp.after_handshake(data)


def test_a_handshake_is_found_with_what_follows_it() -> None:
    whole = zmtp.GREETING + zmtp.ready(b"PUSH") + b"rest"
    for end in range(len(whole) - 4):
        assert zmtp.after_handshake(whole[:end]) is None
    assert zmtp.after_handshake(whole) == b"rest"


def test_an_allowance_is_renewed_by_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    allowance = Allowance()
    for _ in range(int(BURST_UNITS) + 1):
        allowance.charge()
    assert allowance.is_used_up
    now += 1
    assert not allowance.is_used_up
    for _ in range(9):
        for _ in range(2000):
            allowance.charge()
        assert allowance.is_used_up
        now += 0.9
    assert allowance.is_abused
    now += 60
    assert not allowance.is_used_up
    assert not allowance.is_abused
