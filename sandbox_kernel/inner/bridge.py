"""ipykernel, with the one difference that it connects to sockets the wrapper has bound.

Shell is a ROUTER because ipykernel's debugger is a second client of it; control and stdin are
DEALERs and iopub is a PUSH, as each has the wrapper as its only other end. So idents reach user code
as the frontend sent them, and no output is dropped.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import json
import math
import os
import random
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from contextvars import Context, copy_context
from functools import cached_property, partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import zmq
from ipykernel.control import ControlThread
from ipykernel.iostream import IOPubThread, OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.shellchannel import ShellChannelThread
from ipykernel.subshell import SubshellThread
from ipykernel.utils import _async_in_context
from jupyter_client.session import Session
from tornado.ioloop import IOLoop
from traitlets.config import Config
from zmq.eventloop.zmqstream import ZMQStream

if TYPE_CHECKING:
    from sandbox_kernel.inner.checkpoint import (
        Awakening,
        Checkpoints,
        Descriptor,
        HotPages,
        connections_to,
        is_for_zmq,
        open_descriptors,
        renew_event_loop,
        wake_for_signals,
    )
else:  # as `boot` has loaded it: nothing of the package is installed inside
    from _sandbox_checkpoint import (
        Awakening,
        Checkpoints,
        Descriptor,
        HotPages,
        connections_to,
        is_for_zmq,
        open_descriptors,
        renew_event_loop,
        wake_for_signals,
    )

WRAPPER_IDENTITY = b"wrapper"
# The wrapper hangs up on frames above 16 MiB, so an honest kernel does not send them.
MAX_FRAME_BYTES = 16 << 20
STREAM_CHARACTERS = 1 << 20
ERROR_CHARACTERS = 1 << 17
DEBUG_SHELL = "inproc://debug-shell"
# What a cell shows is to be on its way before a fork stops all threads for some milliseconds.
CELL_REST_SECONDS = 0.01
# A slider that is dragged calls back many times a second: one checkpoint after the last.
COMM_REST_SECONDS = 0.1
# The soft ceiling counts address space, which libraries take more of than they use.
ADDRESS_SLACK_BYTES = 32 << 20
# Threads of the kernel itself, the supervisor and the checkpoints.
OWN_TASK_COUNT = 24
SOFT_LIMITS = (resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)
# How the coroutines are called in which ipykernel handles a message.
TASKS_PER_MESSAGE = 2
TURNS_TO_PARK = 100
OWN_TASKS = ("_async_in_context.", "Kernel.", "BridgeKernel.")
CONNECTIONS = 4
CONNECT_SECONDS = 2.0
# The last messages of a kernel that ends need some time to leave; ipykernel gives them half of it.
EXIT_SECONDS = 0.2


class BridgeSession(Session):
    """Refuses what the wrapper would refuse, where the user's code can see it."""

    def send(
        self, stream: Any, msg_or_type: Any, content: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        for buffer in kwargs.get("buffers") or ():
            _check_size(memoryview(buffer).nbytes)
        if msg_or_type in ("error", "execute_reply") and "traceback" in (content or {}):
            content = {
                **content,
                "evalue": shortened(content["evalue"]),
                "traceback": [shortened(line) for line in content["traceback"]],
            }
        return super().send(stream, msg_or_type, content, *args, **kwargs)

    def serialize(self, *args: Any, **kwargs: Any) -> list[bytes]:
        frames: list[bytes] = super().serialize(*args, **kwargs)
        _check_size(max(map(len, frames)))
        return frames


def shortened(text: str) -> str:
    """Without its middle if it is very long: an error must be seen, whatever it says."""
    if len(text) <= ERROR_CHARACTERS:
        return text
    half = ERROR_CHARACTERS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]} … ({left_out:,} characters left out) … {text[-half:]}"


def _check_size(size: int) -> None:
    if size > MAX_FRAME_BYTES:
        msg = (
            f"an output of {size >> 20} MiB is over the {MAX_FRAME_BYTES >> 20} MiB that one "
            "message of a sandboxed kernel may have: show less of it, or write it to a file"
        )
        raise ValueError(msg)


class BridgeOutStream(OutStream):
    """Prints of any size, in messages of bounded size; and no waiting for nothing to be sent."""

    # What the running cell may still print, and one character more, so that the wrapper sees that
    # it goes on. The wrapper stops it; this keeps the rest from filling the sandbox's memory.
    _allowance: ClassVar[int] = 0
    # Whether the IOPub thread is about to send what was in the buffers.
    _flushing = False

    @classmethod
    def allow(cls, characters: int | None) -> None:
        """Let the next cell print so much; ``None``: without a limit, and without counting."""
        cls._allowance = 0 if characters is None else characters + 1
        cls.write = OutStream.write if characters is None else cls._write

    def _write(self, string: str) -> int | None:
        if not isinstance(string, str):
            return super().write(string)
        left = BridgeOutStream._allowance
        BridgeOutStream._allowance = max(left - len(string), 0)
        if left:
            super().write(string[:left])
        return len(string)

    def flush(self) -> None:
        # ipykernel flushes six times a cell, and each waits for a round through the IOPub thread. It
        # need not: what comes next goes the same way. A user who flushes may be about to end.
        by_kernel = sys._getframe(1).f_globals.get("__name__", "").startswith("ipykernel.")
        if self._buffers or self._flushing or (self.pub_thread._events and not by_kernel):
            super().flush()

    def _flush(self) -> None:
        # What it sends stands in the queue bit by bit: an idle that came in between would overtake it.
        self._flushing = True
        try:
            super()._flush()
        finally:
            self._flushing = False

    def _flush_buffers(self) -> Iterator[tuple[dict[str, Any], str]]:
        for parent, text in super()._flush_buffers():
            for start in range(0, len(text), STREAM_CHARACTERS):
                yield parent, text[start : start + STREAM_CHARACTERS]

    def come_alive(self, pub_thread: IOPubThread) -> None:
        """In a fork that takes over: publish through this thread, watch the descriptor again."""
        self.pub_thread = pub_thread
        self._io_loop = pub_thread.io_loop
        self._master_pid = os.getpid()
        # A thread that is not here may have held the one, and was to send the other.
        self._buffer_lock = threading.RLock()
        self._buffers: defaultdict[Any, StringIO] = defaultdict(StringIO)
        self._flush_pending = self._subprocess_flush_pending = self._flushing = False
        if self._should_watch:
            # The pipe is the same, as cells may have made copies of its end. What the process
            # before this one has written last is not this one's.
            while select.select([self._fid], [], [], 0)[0]:
                if not os.read(self._fid, STREAM_CHARACTERS):
                    break
            self.watch_fd_thread = threading.Thread(target=self._watch_pipe_fd, daemon=True)
            self.watch_fd_thread.start()


class BridgeKernel(IPythonKernel):
    # ipykernel sleeps 0.5 ms before each reply so that outputs overtake it; the wrapper keeps order.
    _execute_sleep = 0.0

    # Set by the app.
    state: State

    # In which all cells run: what `decimal` and numpy keep there is the user's.
    _cells_context: Context | None = None
    # Those that have come while a cell was on its way.
    _interrupts: ClassVar[list[int]] = []
    # Cells and the execution counts that the wrapper has announced for them.
    _announced: ClassVar[dict[str, int | None]] = {}

    @cached_property
    def banner(self) -> str:
        # Made once, before any cell: IPython draws a tip for it, from the user's random numbers.
        return str(super().banner)

    def start(self) -> None:
        super().start()
        if self._cells_context is None:
            self._cells_context = copy_context()
        receive = _async_in_context(partial(self.shell_main, None), self._cells_context)
        self.shell_channel_thread.manager._shell_channel_to_main.on_recv(self.io_loop, receive)

    async def shell_main(self, subshell_id: str | None, msg: Any) -> None:
        try:
            await super().shell_main(subshell_id, msg)
        except asyncio.CancelledError:
            if not self.state.is_abandoned(asyncio.current_task()):
                raise

    async def dispatch_shell(self, msg: Any, /, *args: Any, **kwargs: Any) -> None:
        try:
            await super().dispatch_shell(msg, *args, **kwargs)
        except KeyboardInterrupt:
            self._publish_status("idle", "shell")
        # Cells and the callbacks of widgets change the state; questions about it do not.
        msg_type = self.get_parent("shell")["header"]["msg_type"]
        if msg_type == "execute_request":
            self.state.cell_ended()
        elif msg_type.startswith("comm_"):
            self.state.changed(COMM_REST_SECONDS)

    async def should_handle(self, stream: Any, msg: Any, idents: Any) -> bool:
        # Whatever comes next may hang and be killed: the cell before it is not to go with it.
        if msg["header"]["msg_type"] != "execute_request" and self.state.owes_checkpoint:
            with self._interrupts_noted():
                await self.state.kept()
        return bool(super().should_handle(stream, msg, idents))

    async def execute_request(self, stream: Any, ident: Any, parent: Any) -> None:
        terms = parent["metadata"].pop("sandbox", {})
        self.state.enabled = terms.get("checkpoint") == "cell"
        self._announced[parent["header"]["msg_id"]] = terms.get("count")
        with self._interrupts_noted():
            if self.state.interrupted_at > terms.get("sent", math.inf):
                self._interrupts.append(signal.SIGINT)
            await self.state.kept()
            set_soft_limits(terms)
            BridgeOutStream.allow(terms.get("text_bytes"))
            with self.state.running(parent["header"]["msg_id"]):
                await super().execute_request(stream, ident, parent)
            self.state.label = terms.get("serial", self.state.label)

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        # Each message wakes three threads and the wrapper: what that has said itself is left out.
        metadata = (parent or self.get_parent(channel)).get("metadata", {})
        if status != "busy" or not metadata.get("sandbox", {}).get("busy"):
            super()._publish_status(status, channel, parent)

    def _publish_execute_input(self, code: str, parent: Any, execution_count: int) -> None:
        if self._announced.pop(parent["header"]["msg_id"], None) != execution_count:
            super()._publish_execute_input(code, parent, execution_count)

    async def do_execute(self, *args: Any, **kwargs: Any) -> Any:
        kernel_pid = os.getpid()
        try:
            return await self._do_execute(*args, **kwargs)
        finally:
            if os.getpid() != kernel_pid:
                end_fork()

    async def _do_execute(self, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return await super().do_execute(*args, **kwargs)
        if not self._interrupts:
            noting = signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                return await super().do_execute(*args, **kwargs)
            except KeyboardInterrupt:
                pass  # it came just before the cell's code, or just after
            finally:
                signal.signal(signal.SIGINT, noting)
        kwargs |= {"code": "raise KeyboardInterrupt", "store_history": False}
        return await super().do_execute(*args, **kwargs)

    @contextlib.contextmanager
    def _interrupts_noted(self) -> Iterator[None]:
        """No exceptions: they would be raised in the event loop, or between a cell and its reply."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._interrupts.clear()
        handler = signal.signal(signal.SIGINT, lambda number, _: self._interrupts.append(number))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)

    async def kernel_info_request(self, stream: Any, ident: Any, parent: Any) -> None:
        # It is the wrapper that asks, to know when a checkpoint of the last cell has been made.
        with self._interrupts_noted():
            await self.state.kept()
        await super().kernel_info_request(stream, ident, parent)

    def stream_descriptors(self) -> set[int]:
        """Those of standard streams, and of what stands behind them."""
        streams = [each for each in (self._stdout, self._stderr) if each._should_watch]
        copies = {each._original_stdstream_copy for each in streams}
        return {0, 1, 2} | copies | {each._fid for each in streams}

    def own_threads(self) -> set[threading.Thread]:
        """Those of the kernel itself; all others belong to cells."""
        streams = (self._stdout, self._stderr)
        return {
            threading.main_thread(),
            self.iopub_thread.thread,
            self.control_thread,
            self.shell_channel_thread,
            *self.shell_channel_thread.manager._cache.values(),
            *(stream.watch_fd_thread for stream in streams if stream._should_watch),
        }

    def renew_debugger(self) -> None:
        if hasattr(self, "debugger"):
            self.debugger = self.debugger_class(
                self.log,
                self.debugpy_stream,
                self._publish_debug_event,
                self.debug_shell_socket,
                self.session,
                self._kernel_modules,
                self.debug_just_my_code,
                self.filter_internal_frames,
            )

    def recreate_subshell(self, subshell_id: str) -> None:
        """As the subshell manager creates one, but with an id that the frontend knows."""
        manager = self.shell_channel_thread.manager
        created = threading.Event()

        def create() -> None:
            subshell = SubshellThread(subshell_id, manager._context)
            with manager._lock_cache:
                manager._cache[subshell_id] = subshell
            subshell.shell_channel_to_subshell.on_recv(
                subshell.io_loop,
                _async_in_context(partial(manager._on_recv_callback, subshell_id)),
            )
            subshell.subshell_to_shell_channel.on_recv(
                self.shell_channel_thread.io_loop, manager._send_on_shell_channel
            )
            subshell.start()
            created.set()

        self.shell_channel_thread.io_loop.add_callback(create)
        created.wait()

    def set_parent(self, ident: Any, parent: Any, channel: str = "shell") -> None:
        if ident and ident[0] == WRAPPER_IDENTITY:
            ident = ident[1:]
        super().set_parent(ident, parent, channel)

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """Nothing is queued here: the wrapper owns the queue and its aborts."""


def end_fork() -> None:
    """End a process that a cell has forked and that came to the end of the cell.

    It would go on as if it were the kernel, with the kernel's event loop and checkpoints, but without
    the threads that make one.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the cell's own by now, perhaps
            stream.flush()
    os._exit(0)


def set_soft_limits(terms: Mapping[str, Any]) -> None:
    """Limits that Python can raise as exceptions. The wrapper enforces the same from outside."""
    memory = terms.get("memory_bytes")
    if memory is not None:
        _, resident, *_, data, _ = map(int, Path("/proc/self/statm").read_text().split())
        pages = data or resident  # gVisor does not count data
        memory += pages * resource.getpagesize() + memory // 8 + ADDRESS_SLACK_BYTES
    processes = terms.get("processes")
    if processes is not None:
        processes += OWN_TASK_COUNT
    values = (memory, processes, terms.get("file_bytes"))
    for kind, value in zip(SOFT_LIMITS, values, strict=True):
        _, hard = resource.getrlimit(kind)
        soft = hard if value is None else value
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(kind, (soft, hard))


@contextlib.contextmanager
def soft_limits_lifted() -> Iterator[None]:
    """The kernel's own forks and threads are not the cell's."""
    limits = {kind: resource.getrlimit(kind) for kind in SOFT_LIMITS}
    set_soft_limits({})
    try:
        yield
    finally:
        for kind, limit in limits.items():
            resource.setrlimit(kind, limit)


class State:
    """Whether a checkpoint holds the kernel's state as it is now. Asked and told in any thread."""

    def __init__(self, checkpoints: Checkpoints, io_loop: Any) -> None:
        # The last cell whose effects are in the state, by the wrapper's count.
        self.label = 0
        # Until the first cell says what the policy is, there is no state to keep.
        self.enabled = False
        self._checkpoints = checkpoints
        self._io_loop = io_loop
        self._loop = io_loop.asyncio_loop
        self._stale = True
        # Whether the last cell is in no checkpoint yet.
        self.owes_checkpoint = False
        # When an interrupt came that no cell was there for, by the monotonic clock.
        self.interrupted_at = 0.0
        # Done when a checkpoint is to be made: the app's loop waits for it.
        self.due: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._hot_pages = HotPages()
        self._running: set[str] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._abandoned: set[asyncio.Task[Any]] = set()

    def changed(self, rest_seconds: float) -> None:
        """The state has changed; make a checkpoint when nothing has for ``rest_seconds``."""
        self._stale = True
        if self.enabled:
            self._loop.call_soon_threadsafe(self._schedule, rest_seconds)

    def cell_ended(self) -> None:
        self.owes_checkpoint = True
        self.changed(CELL_REST_SECONDS)

    async def kept(self) -> None:
        """Return once there is a checkpoint of the state as it is."""
        self._hot_pages.stop()
        if not self.enabled or asyncio.get_running_loop() is not self._loop:
            return  # in a subshell the main thread may be running a cell and cannot fork
        if self._stale:
            kept: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(kept)
            self._make_due()
            await kept

    @contextlib.contextmanager
    def running(self, cell: str) -> Iterator[None]:
        """While a cell runs there is no state to keep: half of it would be the cell's."""
        self._running.add(cell)
        try:
            yield
        finally:
            self._running.discard(cell)

    def made(self) -> None:
        """A checkpoint of the state has been made."""
        self._stale = self._goes_on()
        self.owes_checkpoint = False
        if self._timer is not None:
            self._timer.cancel()
        self.due = self._loop.create_future()
        for kept in self._waiting:
            kept.set_result(None)
        self._waiting.clear()
        self._hot_pages.begin()
        self._loop.call_soon(self._copy_ahead)

    def _copy_ahead(self) -> None:
        if self._hot_pages.copy_some():
            self._loop.call_soon(self._copy_ahead)

    def restored(self) -> None:
        """This process was a checkpoint: what was about to run when it was made is not to run."""
        self._stale = True
        self.owes_checkpoint = False
        self.due = self._loop.create_future()
        self._waiting.clear()
        self._running.clear()
        self._abandoned.clear()
        for task in asyncio.all_tasks(self._loop):
            if name_of(task).endswith(".shell_main"):
                self._abandoned.add(task)
                task.cancel()

    def is_abandoned(self, task: asyncio.Task[Any] | None) -> bool:
        return task in self._abandoned

    def park(self) -> None:
        """Let messages that have just come go as far as they can: a cell waits in ``kept``.

        In a fork they would be half-way; one that waits is never resumed there.
        """
        self._hot_pages.learn()
        for _ in range(TURNS_TO_PARK):
            own_tasks = sum(map(is_own, asyncio.all_tasks(self._loop)))
            if own_tasks <= len(self._waiting) * TASKS_PER_MESSAGE:
                return
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def _goes_on(self) -> bool:
        """Whether something of the user's runs on, which may change the state at any time."""
        # The loop's own pipe is one; handlers by way of tornado are the kernel's.
        readers = len(self._loop._selector.get_map()) - 1 - len(self._io_loop.handlers)
        return (
            readers > 0
            or self._checkpoints.foreign_threads() > 0
            or not all(map(is_own, asyncio.all_tasks(self._loop)))
            or any(map(self._is_foreign, self._loop._scheduled))
        )

    def _is_foreign(self, handle: asyncio.TimerHandle) -> bool:
        return not (handle.cancelled() or handle is self._timer or is_for_zmq(handle))

    def _schedule(self, rest_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if rest_seconds:
            self._timer = self._loop.call_later(rest_seconds, self._make_due_between_cells)
        else:
            self._make_due_between_cells()

    def _make_due_between_cells(self) -> None:
        if not self._running:
            self._make_due()

    def _make_due(self) -> None:
        if not self.due.done():
            self.due.set_result(None)


def name_of(task: asyncio.Task[Any]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", ""))


def is_own(task: asyncio.Task[Any]) -> bool:
    return name_of(task).startswith(OWN_TASKS)


class BridgeApp(IPKernelApp):
    kernel_class = BridgeKernel
    outstream_class = f"{__name__}.BridgeOutStream"

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
        # After a takeover it would end before what the user has registered, which may print.
        atexit.unregister(self.iopub_thread.stop)
        self._plumbing = open_descriptors() - before

    def init_io(self) -> None:
        self.iopub_socket = self.iopub_thread.background_socket
        self.configure_tornado_logger()
        super().init_io()

    def _connect(self, kind: int, port: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self.context.socket(kind)
        socket.linger = 1000
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
                state.interrupted_at = time.monotonic()
                continue  # too late for its cell, or too early
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
            *(self.debugpy_socket, self.debug_shell_socket),
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
    app.initialize(settings["argv"])
    # traitlets makes a record of every debug message, for a handler that shows none.
    app.log.setLevel(app.log_level)
    gc.enable()  # `boot` turned it off for the imports
    app.start()
    # As Python ends, but that objects of earlier lives are not finalised.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
