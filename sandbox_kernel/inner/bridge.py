"""ipykernel, with the one difference that it connects to sockets the wrapper has bound.

Shell is a ROUTER because ipykernel's debugger is a second client of it; control and stdin are
DEALERs and iopub is a PUSH, as each has the wrapper as its only other end. So idents reach user code
as the frontend sent them, and no output is dropped. Replies to cells have a PUSH of the main thread's.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Set
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import zmq
from ipykernel.control import ControlThread
from ipykernel.iostream import IOPubThread
from ipykernel.kernelapp import IPKernelApp
from ipykernel.shellchannel import ShellChannelThread
from jupyter_client.session import Session
from tornado.ioloop import IOLoop
from traitlets.config import Config
from zmq.eventloop.zmqstream import ZMQStream

from . import debugger, read_only
from .checkpoint import Awakening, Checkpoints, NotMade, make_objects_old
from .descriptors import Descriptor, connections_to, open_descriptors
from .kernel import BridgeKernel
from .outstream import BridgeOutStream
from .renewal import renew_event_loop, wake_for_signals
from .session import MAX_FRAME_BYTES, BridgeSession
from .soft_limits import soft_limits_lifted
from .state import State

DEBUG_SHELL = "inproc://debug-shell"
CONNECTIONS = 5
CONNECT_SECONDS = 2.0
RECONNECT_MILLISECONDS = 2
# The last messages of a kernel that ends need some time to leave; ipykernel gives them half of it.
EXIT_SECONDS = 0.2


class BridgeApp(IPKernelApp):
    kernel_class = BridgeKernel
    outstream_class = f"{BridgeOutStream.__module__}.BridgeOutStream"

    # At `restricted` there is none: forks of cells cannot print by way of it.
    has_loopback: ClassVar[bool] = True
    # Sockets and threads of earlier lives. Finalised, they would close other files' descriptors.
    _never_closed: ClassVar[list[Any]] = []

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
        self._main_loop: Any = IOLoop.current()
        before = open_descriptors()
        self.context = zmq.Context()
        self.shell_socket = self._connect(zmq.ROUTER, self.shell_port)
        self.shell_socket.bind(DEBUG_SHELL)
        self.stdin_socket = self._connect(zmq.DEALER, self.stdin_port)
        self.control_socket = self._connect(zmq.DEALER, self.control_port)
        # The wrapper echoes heartbeats itself: their port is free for this.
        self.replies_socket = self._connect(zmq.PUSH, self.hb_port)

        self.debugpy_socket = self.context.socket(zmq.STREAM)
        self.debugpy_socket.linger = 1000
        self.debug_shell_socket = self.context.socket(zmq.DEALER)
        self.debug_shell_socket.linger = 1000
        self.debug_shell_socket.connect(DEBUG_SHELL)
        self.control_thread = ControlThread(daemon=True)
        self.shell_channel_thread = ShellChannelThread(self.context, daemon=True)

        iopub = self._connect(zmq.PUSH, self.iopub_port)
        self.iopub_thread = IOPubThread(iopub, pipe=self.has_loopback, session=self.session)
        self.iopub_thread.start()
        # It opens descriptors for its first message: by then cells may have left none.
        self.iopub_thread.schedule(partial(getattr, self.iopub_thread, "_event_pipe"))
        # After a takeover it would end before what the user has registered, which may print.
        atexit.unregister(self.iopub_thread.stop)
        self._plumbing = open_descriptors() - before

    def init_io(self) -> None:
        self.iopub_socket = self.iopub_thread.background_socket
        self.configure_tornado_logger()
        super().init_io()

    def init_kernel(self) -> None:
        with debugger.put_off():
            super().init_kernel()
        self.kernel.replies_socket = self.replies_socket

    def _connect(self, kind: int, port: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self.context.socket(kind)
        socket.linger = 1000
        # The wrapper may be a moment later: to be asked again after zmq's 100 ms is too late.
        socket.reconnect_ivl = RECONNECT_MILLISECONDS
        # Unbounded: output waits in the sandbox's memory, which has a limit, and is not dropped.
        socket.sndhwm = 0
        socket.connect(f"ipc://{self.ip}-{port}")
        return socket

    def start(self) -> None:
        loop = self._main_loop.asyncio_loop
        checkpoints = Checkpoints(self.kernel.own_threads)
        state = self.kernel.state = State(checkpoints, self._main_loop)
        before = open_descriptors()
        self.kernel.start()
        self._note_plumbing(before)
        wake_for_signals(loop)
        while True:
            try:
                loop.run_until_complete(state.due)
                # Outside the event loop, with nothing of it on the stack: a fork that takes over
                # goes on from here, however often that happens.
                state.park()
            except KeyboardInterrupt:
                continue  # the handler of a question that has just ended, or of a cell's own making
            except RuntimeError:  # stopped from inside: the kernel is to end
                return
            if self.kernel.shell.exit_now:
                # It is to end, and may have been stopped while it parked.
                loop.call_later(EXIT_SECONDS, loop.stop)
                loop.run_forever()
                return
            kernel_pid = os.getpid()
            try:
                with soft_limits_lifted():
                    awakening = checkpoints.take(
                        state.label, self._plumbing, self.kernel.stream_descriptors()
                    )
                    if awakening is not None:
                        self._come_alive(awakening)
            except NotMade as error:
                state.unmade(str(error))
                continue
            except BaseException:
                if os.getpid() == kernel_pid:
                    raise
                # Nobody reads a fork's stderr yet; the supervisor's console is read.
                with os.fdopen(os.dup(self.kernel._stderr.fileno()), "w") as console:
                    traceback.print_exc(file=console)
                os._exit(1)
            if awakening is None:
                state.made()
            else:
                checkpoints.announce(state.label, awakening.lost)
                state.changed(0.0)

    def _note_plumbing(self, before: Set[Descriptor]) -> None:
        """Remember what was opened since; zmq connects in a thread of its own, in its own time."""
        deadline = time.monotonic() + CONNECT_SECONDS
        name = f"{Path(self.ip).name}-"
        while len(connections := connections_to(name)) < CONNECTIONS:
            if time.monotonic() > deadline:
                break  # the wrapper is gone, or will see to it that this process goes
            time.sleep(0.001)
        self._plumbing |= (open_descriptors() - before) | connections

    def _come_alive(self, awakening: Awakening) -> None:
        """Give this process, a fork, what it lacks to be the kernel: sockets and threads."""
        kernel, state = self.kernel, self.kernel.state
        subshells = self._bury()
        main_loop = self._main_loop
        dead_sockets = {
            descriptor
            for descriptor, (socket, _) in main_loop.handlers.items()
            if isinstance(socket, zmq.Socket)
        }
        renew_event_loop(main_loop.asyncio_loop, dead_sockets)
        for descriptor in dead_sockets:
            del main_loop.handlers[descriptor]
        main_loop.readers -= dead_sockets
        main_loop.writers -= dead_sockets

        before = open_descriptors()
        self.session.pid = os.getpid()
        self.ip = awakening.socket_prefix
        self.init_sockets()
        # All that publishes holds this object; it has a new thread behind it.
        self.iopub_socket.io_thread = self.iopub_thread
        self.iopub_thread.background_socket = self.iopub_socket
        for stream in (kernel._stdout, kernel._stderr):
            stream.come_alive(self.iopub_thread)

        shell_stream = ZMQStream(self.shell_socket, self.shell_channel_thread.io_loop)
        self.shell_channel_thread.shell_stream = shell_stream
        kernel.shell_stream = shell_stream
        kernel.control_stream = ZMQStream(self.control_socket, self.control_thread.io_loop)
        kernel.debugpy_stream = ZMQStream(self.debugpy_socket, self.control_thread.io_loop)
        kernel.debug_shell_socket = self.debug_shell_socket
        kernel.control_thread = self.control_thread
        kernel.shell_channel_thread = self.shell_channel_thread
        kernel.iopub_thread = self.iopub_thread
        kernel.stdin_socket = self.stdin_socket
        kernel.replies_socket = self.replies_socket
        kernel._main_asyncio_lock = asyncio.Lock()
        self.control_thread.start()
        self.shell_channel_thread.start()
        kernel.renew_debugger()
        state.restored()
        kernel.start()
        for subshell_id in subshells:
            kernel.recreate_subshell(subshell_id)
        self._note_plumbing(before)
        # Last: zmq draws from it when it looks for a port.
        random.setstate(awakening.random_state)

    def _bury(self) -> list[str]:
        """Close and keep what was of threads that are not here; the ids of subshells among them."""
        kernel = self.kernel
        subshells = kernel.shell_channel_thread.manager._cache
        threads = (self.iopub_thread, kernel.control_thread, kernel.shell_channel_thread)
        dead = [
            *(self.context, self.shell_socket, self.stdin_socket, self.control_socket),
            *(self.debugpy_socket, self.debug_shell_socket, self.replies_socket),
            *(kernel.shell_stream, kernel.control_stream, kernel.debugpy_stream),
            *(getattr(kernel, "debugger", None), *threads),
        ]
        for thread in (*threads, *subshells.values()):
            dead += asyncio.all_tasks(thread.io_loop.asyncio_loop)
        self._never_closed.append(dead)
        # Closed already: what was opened with the context. Not those that came later, for threads.
        numbers = {socket.FD for socket in self.context._sockets if not socket.closed}
        for subshell in subshells.values():
            loop = subshell.io_loop.asyncio_loop
            numbers |= {each.fileno() for each in (loop._selector, loop._ssock, loop._csock)}
        for number in numbers - {descriptor.number for descriptor in self._plumbing}:
            os.close(number)
        return list(subshells)


def main(connection_file: str) -> None:
    settings = json.loads(Path(connection_file).read_text())["sandbox"]
    # What a program that parses sys.argv sees under plain ipykernel.
    sys.argv = ["ipykernel_launcher.py", "-f", connection_file]
    config = Config()
    config.Session.session = settings["session"]
    # The wrapper refuses replays; two histories of different length would disagree.
    config.Session.digest_history_size = 0
    # Without copying, large messages would start three threads of pyzmq's in the middle of a cell,
    # which would look like the cell's own.
    config.Session.copy_threshold = MAX_FRAME_BYTES + 1
    config.HistoryManager.hist_file = ":memory:"
    app = BridgeApp.instance(config=config, connection_file=connection_file)
    BridgeApp.has_loopback = "confinement" not in settings
    BridgeKernel.shares_user = settings.get("shares_user", False)
    app.initialize(settings["argv"])
    if "imports" in settings:
        from . import restricted  # which no other level needs

        shell = app.kernel.shell
        app.kernel.guard = restricted.Guard(shell.user_ns, settings["imports"])
        shell.system = restricted.commands_of(shell)
    read_only.explain_refusals(app.kernel.shell, settings)
    # traitlets makes a record of every debug message, for a handler that shows none.
    app.log.setLevel(app.log_level)
    make_objects_old()
    gc.enable()  # the supervisor turned it off for the imports
    app.start()
    # As Python ends, but that objects of earlier lives are not finalised.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
