"""The inner side: four sockets the wrapper binds in the run directory; the sandbox connects.

The other end is assumed hostile. Frames are capped by libzmq itself (a larger one costs the peer its
connection), queues are short, and nothing read here is believed before ``router`` has matched it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import zmq

from sandbox_kernel.isolation.start import PORTS, SOCKET_PREFIX

# The inner kernel's shell is a ROUTER (its debugger talks to it as well), so the wrapper needs a
# name there; on control and stdin it has the only other end.
WRAPPER_IDENTITY: Final = b"wrapper"

MAX_FRAME_BYTES: Final = 64 << 20
QUEUED_MESSAGES: Final = 64


class InnerSockets:
    """Bound sockets of one sandbox; a replacement gets new ones, so nothing stale can arrive.

    ``directory`` must stay valid until the context is terminated: libzmq unlinks the socket files
    when it gets round to closing them.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        directory: Path,
        owner: tuple[int, int] | None,
    ) -> None:
        self.shell = context.socket(zmq.DEALER)
        self.control = context.socket(zmq.DEALER)
        self.stdin = context.socket(zmq.DEALER)
        # PULL, not SUB: nothing is lost before a subscription, nothing dropped when the queue is
        # full; what piles up then piles up inside the sandbox, on its own bill.
        self.iopub = context.socket(zmq.PULL)
        self.shell.identity = WRAPPER_IDENTITY
        for channel, port in PORTS.items():
            socket: zmq.Socket[bytes] = getattr(self, channel)
            socket.linger = 0
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
            socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
            # Requests wait here while the inner kernel is busy: they are the frontend's, trusted.
            socket.setsockopt(zmq.SNDHWM, 0)
            path = directory / f"{SOCKET_PREFIX}-{port}"
            socket.bind(f"ipc://{path}")
            path.chmod(0o600)
            if owner is not None:
                os.chown(path, *owner)

    def close(self) -> None:
        for channel in PORTS:
            getattr(self, channel).close()
