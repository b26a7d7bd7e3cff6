"""ipykernel, with the one difference that it connects to sockets the wrapper has bound.

Shell is a ROUTER because ipykernel's debugger is a second client of it; control and stdin are
DEALERs and iopub is a PUSH, as each has the wrapper as its only other end. So idents reach user code
as the frontend sent them, and no output is dropped.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq
from ipykernel.control import ControlThread
from ipykernel.iostream import IOPubThread, OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.shellchannel import ShellChannelThread
from jupyter_client.session import Session
from traitlets.config import Config

WRAPPER_IDENTITY = b"wrapper"
# The wrapper hangs up on frames above 64 MiB, so an honest kernel does not send them.
MAX_FRAME_BYTES = 64 << 20
STREAM_CHARACTERS = 1 << 20
DEBUG_SHELL = "inproc://debug-shell"


class BridgeSession(Session):
    """Refuses what the wrapper would refuse, where the user's code can see it."""

    def send(self, stream: Any, msg_or_type: Any, *args: Any, **kwargs: Any) -> Any:
        for buffer in kwargs.get("buffers") or ():
            _check_size(memoryview(buffer).nbytes)
        return super().send(stream, msg_or_type, *args, **kwargs)

    def serialize(self, *args: Any, **kwargs: Any) -> list[bytes]:
        frames: list[bytes] = super().serialize(*args, **kwargs)
        _check_size(max(map(len, frames)))
        return frames


def _check_size(size: int) -> None:
    if size > MAX_FRAME_BYTES:
        msg = (
            f"an output of {size >> 20} MiB is over the {MAX_FRAME_BYTES >> 20} MiB that one "
            "message of a sandboxed kernel may have: show less of it, or write it to a file"
        )
        raise ValueError(msg)


class BridgeOutStream(OutStream):
    """Prints of any size, in messages of bounded size; and no waiting for nothing to be sent."""

    def flush(self) -> None:
        # ipykernel flushes four times a cell, and each waits for a round through the IOPub thread.
        if self._buffers or self.pub_thread._events:
            super().flush()

    def _flush_buffers(self) -> Iterator[tuple[dict[str, Any], str]]:
        for parent, text in super()._flush_buffers():
            for start in range(0, len(text), STREAM_CHARACTERS):
                yield parent, text[start : start + STREAM_CHARACTERS]


class BridgeKernel(IPythonKernel):
    # ipykernel sleeps 0.5 ms before each reply so that outputs overtake it; the wrapper keeps order.
    _execute_sleep = 0.0

    def set_parent(self, ident: Any, parent: Any, channel: str = "shell") -> None:
        if ident and ident[0] == WRAPPER_IDENTITY:
            ident = ident[1:]
        super().set_parent(ident, parent, channel)

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """Nothing is queued here: the wrapper owns the queue and its aborts."""


class BridgeApp(IPKernelApp):
    kernel_class = BridgeKernel
    outstream_class = f"{__name__}.BridgeOutStream"

    def _session_default(self) -> Session:
        return BridgeSession(parent=self)

    def init_poller(self) -> None:
        """No parent to watch: the supervisor ends the sandbox."""

    def init_heartbeat(self) -> None:
        """The wrapper echoes heartbeats itself."""

    def write_connection_file(self, **kwargs: Any) -> None:
        """The wrapper wrote it."""

    def log_connection_info(self) -> None:
        """Nobody can connect from here."""

    def init_sockets(self) -> None:
        self.context = zmq.Context()
        self.shell_socket = self._connect(zmq.ROUTER, self.shell_port)
        self.shell_socket.bind(DEBUG_SHELL)
        self.stdin_socket = self._connect(zmq.DEALER, self.stdin_port)
        self.control_socket = self._connect(zmq.DEALER, self.control_port)

        self.debugpy_socket = self.context.socket(zmq.STREAM)
        self.debugpy_socket.linger = 1000
        self.debug_shell_socket = self.context.socket(zmq.DEALER)
        self.debug_shell_socket.linger = 1000
        self.debug_shell_socket.connect(DEBUG_SHELL)
        self.control_thread = ControlThread(daemon=True)
        self.shell_channel_thread = ShellChannelThread(self.context, daemon=True)

        iopub = self._connect(zmq.PUSH, self.iopub_port)
        self.iopub_thread = IOPubThread(iopub, pipe=True, session=self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket
        self.configure_tornado_logger()

    def _connect(self, kind: int, port: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self.context.socket(kind)
        socket.linger = 1000
        # Unbounded: output waits in the sandbox's memory, which has a limit, and is not dropped.
        socket.sndhwm = 0
        socket.connect(f"ipc://{self.ip}-{port}")
        return socket


def main(connection_file: str) -> None:
    settings = json.loads(Path(connection_file).read_text())["sandbox"]
    # What a program that parses sys.argv sees under plain ipykernel.
    sys.argv = ["ipykernel_launcher.py", "-f", connection_file]
    config = Config()
    config.Session.session = settings["session"]
    # The wrapper refuses replays; two histories of different length would disagree.
    config.Session.digest_history_size = 0
    config.HistoryManager.hist_file = ":memory:"
    app = BridgeApp.instance(config=config, connection_file=connection_file)
    app.initialize(settings["argv"])
    gc.enable()  # `boot` turned it off for the imports
    app.start()
