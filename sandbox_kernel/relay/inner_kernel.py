"""What the wrapper knows of the inner kernel of the moment, and of what a rollback cost it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from sandbox_kernel.isolation.start import StartedSandbox
from sandbox_kernel.limits.ladder import Restored
from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.limits.proc import TICKS_PER_SECOND, ticks_now
from sandbox_kernel.relay.inner import InnerSockets
from sandbox_kernel.relay.link import Link
from sandbox_kernel.relay.loop import Timer
from sandbox_kernel.relay.wire import Codec, Signer
from sandbox_kernel.words import count

SAME_CLOCK_SECONDS: Final = 10

RolledBack = Callable[[Restored | None], None]


class InnerKernel:
    """One sandbox as the wrapper sees it, and the kernel process in it, which may be replaced."""

    def __init__(self, started: StartedSandbox, sockets: InnerSockets) -> None:
        self.started = started
        self.link = Link(sockets, Codec(Signer(started.key)))
        # Nothing to measure before its first process has connected.
        self.meter = Meter()
        self.console = b""
        self.generation = 1
        self.probe_id: str | None = None
        # Whether the kernel process has answered the probe, and has sent something that cannot be read.
        self.answered = False
        self.malformed = False
        self.deadline: Timer | None = None
        self.serving = False
        self.measured = False
        self.kernel_info: Mapping[str, Any] | None = None
        self.restored: Restored | None = None
        self.rolled_back: RolledBack | None = None
        # Whether the first one that woke has ended at once, and an older one is on its way.
        self.tried_older = False
        # The same if it was the user's wish: no cell is watched that would be told of its loss.
        self.undone: RolledBack | None = None
        # Who waits for a sweep, in the order in which they come.
        self.sweeps: deque[Callable[[int], None]] = deque()
        self.counted: Callable[[int], None] | None = None
        # By how many ticks the host's clock is ahead of the one inside.
        self.clock_ahead = 0

    def set_clock(self, inner_ticks: int) -> None:
        """A second kernel has a clock of its own (gVisor's); a shared one is just heard of late."""
        ahead = ticks_now() - inner_ticks
        self.clock_ahead = ahead if ahead > SAME_CLOCK_SECONDS * TICKS_PER_SECOND else 0


# What a fork cannot keep, as `inner.checkpoint` counts it.
_LOST: Final[Mapping[str, str]] = {
    "threads": "thread",
    "children": "child process",
    "sockets": "network connection",
    "gpu": "GPU context",
    "openmp": "OpenMP thread pool",
    "shared": "shared memory block",
    "files": "changed file",
}


def in_words(lost: Mapping[str, int]) -> tuple[str, ...]:
    """What was not restored; from inside, so only known names count."""
    return tuple(count(lost[name], noun) for name, noun in _LOST.items() if lost.get(name))
