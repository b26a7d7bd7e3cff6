"""What one sandbox may cost the wrapper: memory for unfinished messages, and work for what nobody gets.

Everything that is read from inside is charged: each read, its bytes, its frames. What the wrapper passes on
to a frontend is paid by the cell it belongs to, with that cell's limits, and comes off the charge again;
so does a reasonable answer to each request. What is left is work that the sandbox makes for nothing:
malformed, unasked for, or beyond a limit. No cell renews the allowance; only time does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sandbox_kernel.relay.wire import Message
from sandbox_kernel.relay.zmtp import ProtocolError

# One unit is some 50 µs of the wrapper's time: one read, or this much of its content.
UNIT_BYTES: Final = 8 << 10
UNIT_FRAMES: Final = 32
# About a second of work at once, and a tenth of a processor for ever.
BURST_UNITS: Final = 20_000.0
UNITS_PER_SECOND: Final = 2_000.0
# A sandbox that leaves so much unused has stopped.
RECOVERED_UNITS: Final = BURST_UNITS / 4
# How long reading rests once nothing is left: what piles up then piles up inside the sandbox.
REST_SECONDS: Final = 0.1
# A sandbox that uses up all it gets for this long is replaced.
PATIENCE_SECONDS: Final = 5.0
# What the inner kernel may say about a request besides what is passed on: statuses, replies, echoes.
ANSWER_UNITS: Final = 16.0
# A read may bring less than a unit of bytes: what is passed on pays for the reads that brought it.
READS_PER_MESSAGE: Final = 4.0
READS_PER_UNIT: Final = 2.0

# The memory that unfinished messages may take follows the policy's limit on output, between these.
MIN_HELD_BYTES: Final = 32 << 20
MAX_HELD_BYTES: Final = 128 << 20


class Allowance:
    """The account of one kernel's sandboxes, one after another."""

    def __init__(self, output_bytes: int | None = None) -> None:
        wanted = MAX_HELD_BYTES if output_bytes is None else output_bytes
        self.held_limit: Final = min(max(wanted, MIN_HELD_BYTES), MAX_HELD_BYTES)
        # Whether reading must wait for somebody else, which is not the sandbox's fault.
        self.is_held_up: Callable[[], bool] = lambda: False
        self._held = 0
        self._units = BURST_UNITS
        self._counted_at = time.monotonic()
        self._short_since: float | None = None

    def hold(self, growth: int) -> None:
        """Unfinished messages grow by so many bytes, on all channels taken together."""
        if growth > 0 and self._held + growth > self.held_limit:
            msg = f"sent a message of more than {self.held_limit >> 20} MiB, or never finished one"
            raise ProtocolError(msg)
        self._held += growth

    def charge(self, size: int = 0, frames: int = 0) -> None:
        """Something was read."""
        self._units -= 1.0 + size / UNIT_BYTES + frames / UNIT_FRAMES

    def passed_on(self, message: Message) -> None:
        """A message has reached the frontend: the cell's limits count it."""
        self._credit(
            READS_PER_MESSAGE
            + READS_PER_UNIT * message.weight / UNIT_BYTES
            + len(message.buffers) / UNIT_FRAMES
        )

    def asked(self) -> None:
        """A request was sent in: it may be answered."""
        self._credit(ANSWER_UNITS)

    @property
    def is_used_up(self) -> bool:
        if self.is_held_up():
            self._short_since = None  # that it is not read now is not its fault
            return True
        if self._units > 0:
            return False
        self._refill()
        if self._units > 0:
            if self._units > RECOVERED_UNITS:
                self._short_since = None
            return False
        if self._short_since is None:
            self._short_since = self._counted_at
        return True

    @property
    def is_abused(self) -> bool:
        """Whether it has been used up again and again, for too long, without a pause between."""
        return (
            self._short_since is not None
            and time.monotonic() - self._short_since > PATIENCE_SECONDS
        )

    def forgive(self) -> None:
        """The sandbox's process is replaced: the next one has not been warned yet."""
        self._short_since = None

    def _credit(self, units: float) -> None:
        self._units = min(BURST_UNITS, self._units + units)

    def _refill(self) -> None:
        now = time.monotonic()
        self._credit((now - self._counted_at) * UNITS_PER_SECOND)
        self._counted_at = now
