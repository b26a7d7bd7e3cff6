"""The frontend's side: the five sockets the wrapper binds for it."""

from __future__ import annotations

import zmq

from sandbox_kernel.relay.connection import ConnectionFileError, ConnectionInfo


class FrontendSockets:
    """The five bound sockets. Heartbeats are echoed here: a stalled sandbox is not a dead kernel."""

    LINGER_MILLISECONDS = 1_000

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], info: ConnectionInfo) -> None:
        self._info = info
        self.shell = self._bind(context, zmq.ROUTER, "shell")
        self.control = self._bind(context, zmq.ROUTER, "control")
        self.stdin = self._bind(context, zmq.ROUTER, "stdin")
        self.hb = self._bind(context, zmq.ROUTER, "hb")
        self.iopub = self._bind(context, zmq.XPUB, "iopub")

    def _bind(
        self, context: zmq.Context[zmq.Socket[bytes]], kind: int, channel: str
    ) -> zmq.Socket[bytes]:
        socket = context.socket(kind)
        socket.linger = self.LINGER_MILLISECONDS
        if kind == zmq.ROUTER:
            # A client that reconnects under its old identity takes over its replies.
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        else:
            # Every subscription is announced, so that each new client gets its iopub_welcome.
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        if self._info.curve_secretkey is not None:
            socket.curve_secretkey = self._info.curve_secretkey
            socket.curve_publickey = self._info.curve_publickey
            socket.curve_server = True
        endpoint = self._info.endpoint(channel)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            msg = f"cannot bind the {channel} socket at {endpoint}: {error.strerror}"
            raise ConnectionFileError(msg) from None
        return socket

    def close(self) -> None:
        for socket in (self.shell, self.control, self.stdin, self.hb, self.iopub):
            socket.close()
