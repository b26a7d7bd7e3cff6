"""The inner side: five sockets the wrapper binds in the run directory; the sandbox connects.

The other end is assumed hostile. Frames are capped by libzmq itself (a larger one costs the peer its
connection), queues are short, and nothing read here is believed before ``router`` has matched it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import zmq

from sandbox_kernel.isolation.start import PORTS, SOCKET_PREFIX

# The inner kernel's shell is a ROUTER (its debugger talks to it as well), so the wrapper needs a
# name there; on control and stdin it has the only other end.
WRAPPER_IDENTITY: Final = b"wrapper"

MAX_FRAME_BYTES: Final = 16 << 20
# Of large messages each may be a frame of that size, and the queue is the wrapper's memory.
QUEUED_MESSAGES: Final = 4


class InnerSockets:
    """Bound sockets of one kernel process; a successor gets new ones, so nothing stale can arrive."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        directory: Path,
        give: Callable[[Path], None],
        prefix: str = SOCKET_PREFIX,
    ) -> None:
        self.shell = context.socket(zmq.DEALER)
        self.control = context.socket(zmq.DEALER)
        self.stdin = context.socket(zmq.DEALER)
        # PULL, not SUB: nothing is lost before a subscription, nothing dropped when the queue is
        # full; what piles up then piles up inside the sandbox, on its own bill.
        self.iopub = context.socket(zmq.PULL)
        # Those of cells in the main thread, which sends them itself: through ipykernel's thread for the
        # shell channel they would come after all else.
        self.replies = context.socket(zmq.PULL)
        self.shell.identity = WRAPPER_IDENTITY
        self.monitors: list[zmq.Socket[bytes]] = []
        self._paths = [directory / f"{prefix}-{port}" for port in PORTS.values()]
        try:
            for channel, path in zip(PORTS, self._paths, strict=True):
                self._bind(getattr(self, channel), path, give)
        except (zmq.ZMQError, OSError):
            self.close()
            raise
        # Each tells when its one peer hangs up.
        self.monitors = [
            getattr(self, channel).get_monitor_socket(zmq.EVENT_DISCONNECTED) for channel in PORTS
        ]

    @staticmethod
    def _bind(socket: zmq.Socket[bytes], path: Path, give: Callable[[Path], None]) -> None:
        socket.linger = 0
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
        # Requests wait here while the inner kernel is busy: they are the frontend's, trusted.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.bind(f"ipc://{path}")
        path.chmod(0o600)
        give(path)

    def take_nobody_else(self) -> None:
        """The inner kernel is connected: cells must find no socket to connect to.

        A second peer would get a share of the requests, and enough of them use up descriptors, at
        which libzmq aborts the process.
        """
        for path in self._paths:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        for channel in PORTS:
            socket: zmq.Socket[bytes] = getattr(self, channel)
            socket.disable_monitor()
            socket.close()
        for monitor in self.monitors:
            monitor.close(linger=0)
