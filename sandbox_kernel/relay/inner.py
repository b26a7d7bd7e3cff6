"""The inner side: five channels that the wrapper binds in the run directory; the sandbox connects.

The other end is assumed hostile. Each channel holds one connection, all of them share one allowance, and
nothing read here is believed before ``router`` has matched it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from sandbox_kernel.isolation.start import PORTS, SOCKET_PREFIX
from sandbox_kernel.relay.allowance import PATIENCE_SECONDS, REST_SECONDS, Allowance
from sandbox_kernel.relay.channel import InnerChannel
from sandbox_kernel.relay.loop import Loop

# The inner kernel's shell is a ROUTER (its debugger talks to it as well), so the wrapper needs a
# name there; on control and stdin it has the only other end.
WRAPPER_IDENTITY: Final = b"wrapper"
CATCH_UP_SECONDS: Final = 0.002

TOO_MUCH: Final = (
    f"sent more messages that nobody gets than the wrapper reads, for {PATIENCE_SECONDS:.0f} s"
)


class InnerSockets:
    """Channels of one kernel process; a successor gets new ones, so nothing stale can arrive.

    ``lost`` is told when one of them is gone: why, if the wrapper ended it.
    """

    def __init__(
        self,
        loop: Loop,
        directory: Path,
        give: Callable[[Path], None],
        prefix: str = SOCKET_PREFIX,
        allowance: Allowance | None = None,
    ) -> None:
        self.lost: Callable[[str | None], None] | None = None
        self._loop = loop
        self._allowance = allowance or Allowance()
        self._allowance.forgive()
        self._resting = False
        self._gave_up = False
        self.all: list[InnerChannel] = []
        try:
            for channel, port in PORTS.items():
                # PULL, not SUB: nothing is lost before a subscription, nothing dropped when the queue
                # is full; what piles up then piles up inside the sandbox, on its own bill.
                kind = b"PULL" if channel in ("iopub", "replies") else b"DEALER"
                path = directory / f"{prefix}-{port}"
                bound = InnerChannel(path, kind, self._allowance, self._rest, self._on_lost)
                self.all.append(bound)
                give(path)
        except OSError:
            self.close()
            raise
        # Replies of cells in the main thread, which sends them itself: through ipykernel's thread for
        # the shell channel they would come after all else.
        self.shell, self.iopub, self.stdin, self.control, self.replies = self.all
        self.shell.identity = WRAPPER_IDENTITY

    def take_nobody_else(self) -> None:
        """The inner kernel is connected: cells must find no socket to connect to.

        A second peer would get a share of the requests.
        """
        for channel in self.all:
            channel.take_nobody_else()

    def disconnect(self) -> None:
        """Nothing more is to be read: not even last words."""
        self.lost = None
        for channel in self.all:
            channel.disconnect()

    def close(self) -> None:
        for channel in self.all:
            channel.close()

    def _on_lost(self, why: str | None) -> None:
        if self.lost is not None:
            self.lost(why)

    def _rest(self) -> None:
        """The allowance is used up: read nothing until there is some again."""
        is_held_up = self._allowance.is_held_up()
        if self._allowance.is_abused and not is_held_up and not self._gave_up:
            self._gave_up = True
            self._on_lost(TOO_MUCH)
        if not self._resting:
            self._resting = True
            for channel in self.all:
                channel.rest()
            # A frontend that is behind catches up in no time, and output must not wait longer than it.
            wait = CATCH_UP_SECONDS if is_held_up else REST_SECONDS
            self._loop.call_later(wait, self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        for channel in self.all:
            channel.go_on()
