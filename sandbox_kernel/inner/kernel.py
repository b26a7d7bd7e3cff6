"""ipykernel's kernel, with a checkpoint before each cell and its interrupts in their place."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys
import threading
import time
from contextvars import Context, copy_context
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from ipykernel.ipkernel import IPythonKernel
from ipykernel.subshell import SubshellThread
from ipykernel.utils import _async_in_context

from . import debugger
from .outstream import BridgeOutStream
from .session import check_size, refused
from .soft_limits import set_soft_limits
from .state import State

if TYPE_CHECKING:
    from .restricted import Guard

WRAPPER_IDENTITY = b"wrapper"
# A slider that is dragged calls back many times a second: one checkpoint after the last.
COMM_REST_SECONDS = 0.1
UNMADE = (
    "No checkpoint could be made before this cell ({}): if it is killed, what was changed since the "
    "last one goes with it, and it cannot be undone.\n"
)
STARTS_DEBUGGER = ("initialize", "attach")


class BridgeKernel(IPythonKernel):
    # ipykernel sleeps 0.5 ms before each reply so that outputs overtake it; the wrapper keeps order.
    _execute_sleep = 0.0

    # Set by the app.
    state: State
    replies_socket: Any
    # At `restricted`: what Python refuses to cells; and whether others are the same user as they.
    guard: Guard | None = None
    shares_user: ClassVar[bool] = False

    # In which all cells run: what `decimal` and numpy keep there is the user's.
    _cells_context: Context | None = None
    # Those that have come while a cell was on its way.
    _interrupts: ClassVar[list[int]] = []
    # When one was asked for of which no signal has come yet.
    _interrupt_asked_at: float | None = None
    # Cells and the execution counts that the wrapper has announced for them.
    _announced: ClassVar[dict[str, int | None]] = {}

    # Whoever waits for it to have been loaded.
    _debugger_loaded: asyncio.Event | None = None
    _debugger_asked_for = False

    @property
    def kernel_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super().kernel_info
        if not self._debugger_asked_for and debugger.is_installed():
            info["supported_features"].append("debugger")
        return info

    @cached_property
    def banner(self) -> str:
        # Made once, before any cell: IPython draws a tip for it, from the user's random numbers.
        return str(super().banner)

    def start(self) -> None:
        super().start()
        if self._cells_context is None:
            self._cells_context = copy_context()
        # ipykernel ignores interrupts between messages: one may be for a cell that is on its way.
        signal.signal(signal.SIGINT, self._note_interrupt)
        receive = _async_in_context(partial(self.shell_main, None), self._cells_context)
        self.shell_channel_thread.manager._shell_channel_to_main.on_recv(self.io_loop, receive)

    async def shell_main(self, subshell_id: str | None, msg: Any) -> None:
        try:
            # Whatever comes next may hang and be killed: the cell before it is not to go with it. Not
            # when it has its turn: ipykernel lets messages to widgets overtake who has that and waits.
            if subshell_id is None and self.state.owes_checkpoint and not self.state.is_running:
                await self.state.kept()
            await super().shell_main(subshell_id, msg)
        except asyncio.CancelledError:
            if not self.state.is_abandoned(asyncio.current_task()):
                raise

    async def dispatch_shell(self, msg: Any, /, *args: Any, **kwargs: Any) -> None:
        if not self.state.is_running:
            # Beside a question, not beside a cell, of which ipykernel says neither busy nor idle: the
            # wrapper waits for these.
            kwargs.pop("concurrent", None)
        try:
            await super().dispatch_shell(msg, *args, **kwargs)
        except KeyboardInterrupt:
            self._publish_status("idle", "shell")
        # Cells and the callbacks of widgets change the state; questions about it do not.
        msg_type = self.get_parent("shell")["header"]["msg_type"]
        if msg_type == "execute_request":
            if not self.state.is_running:
                BridgeOutStream.allow(None)
            self.state.cell_ended()
        elif msg_type.startswith("comm_"):
            self.state.changed(COMM_REST_SECONDS)

    async def should_handle(self, stream: Any, msg: Any, idents: Any) -> bool:
        if msg["header"]["msg_type"] == "kernel_info_request":
            # It is the wrapper that asks, to know when a checkpoint has been made.
            await self.state.kept()
        return bool(super().should_handle(stream, msg, idents))

    async def execute_request(self, stream: Any, ident: Any, parent: Any) -> None:
        terms = parent["metadata"].pop("sandbox", {})
        if self.shares_user:
            terms.pop("processes", None)  # the system would count all that the user has
        if self.guard is not None:
            self.guard.renew()
        self.state.enabled = terms.get("checkpoint") == "cell"
        self._announced[parent["header"]["msg_id"]] = terms.get("count")
        if threading.current_thread() is threading.main_thread():
            if ident[0] == WRAPPER_IDENTITY:
                stream = self.replies_socket
            early = self.state.interrupted_at > terms.get("sent", math.inf)
            self._interrupts[:] = [signal.SIGINT] if early else []
        await self.state.kept()
        if self.state.unmade_because and not parent["content"].get("silent"):
            self._tell_unmade(terms.get("text_bytes"))
        set_soft_limits(terms)
        BridgeOutStream.allow(terms.get("text_bytes"))
        try:
            with self.state.running(parent["header"]["msg_id"]):
                await super().execute_request(stream, ident, parent)
        finally:
            # Whatever became of its reply. A cell of a subshell may have overtaken this one.
            self.state.label = max(self.state.label, terms.get("serial", 0))

    def finish_metadata(self, parent: Any, metadata: Any, reply_content: Any) -> Any:
        # Only these can make a reply large: values asked for behind the cell, text for the next one.
        if reply_content.get("user_expressions") or reply_content.get("payload"):
            try:
                check_size(len(self.session.pack(reply_content)))
            except ValueError as error:
                failed = refused(error)
                # As any error of the cell is shown.
                self.shell._showtraceback(ValueError, error, failed["traceback"])
                reply_content |= {**failed, "user_expressions": {}, "payload": []}
        return super().finish_metadata(parent, metadata, reply_content)

    def _tell_unmade(self, text_bytes: int | None) -> None:
        """A cell runs without a checkpoint: say so, unless it may not print as much."""
        told = UNMADE.format(self.state.unmade_because)
        if text_bytes is None or len(told) < text_bytes:
            self._stderr.write(told)

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
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                try:
                    return await super().do_execute(*args, **kwargs)
                finally:
                    signal.signal(signal.SIGINT, self._note_interrupt)
            except KeyboardInterrupt:
                # It came just before the cell's code, or just after.
                signal.signal(signal.SIGINT, self._note_interrupt)
        kwargs |= {"code": "raise KeyboardInterrupt", "store_history": False}
        return await super().do_execute(*args, **kwargs)

    def _note_interrupt(self, number: int, _: object) -> None:
        """No exception: it would be raised in the event loop, or between a cell and its reply."""
        # This thread may have been busy since: a cell that was sent meanwhile is not the one meant.
        asked_at, self._interrupt_asked_at = self._interrupt_asked_at, None
        self.state.interrupted_at = asked_at or time.monotonic()
        self._interrupts.append(number)

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        self._interrupt_asked_at = time.monotonic()
        await super().interrupt_request(stream, ident, parent)

    def pre_handler_hook(self) -> None:
        # Interrupts are for what is about to run; of a cell, for its own code alone.
        if self.get_parent("shell")["header"]["msg_type"] != "execute_request":
            super().pre_handler_hook()

    def post_handler_hook(self) -> None:
        signal.signal(signal.SIGINT, self._note_interrupt)
        self._interrupt_asked_at = None  # it was raised

    async def poll_stopped_queue(self) -> None:
        if not hasattr(self, "debugger"):
            self._debugger_loaded = asyncio.Event()
            await self._debugger_loaded.wait()
        await super().poll_stopped_queue()

    async def do_debug_request(self, msg: Any) -> Any:
        if self.guard is None or msg["command"] not in STARTS_DEBUGGER:
            if not self._debugger_asked_for:
                self._load_debugger()
            return await super().do_debug_request(msg)
        why = "the level of isolation `restricted` has no loopback, which a debugger needs"
        about = {"request_seq": msg["seq"], "command": msg["command"]}
        return {"type": "response", **about, "success": False, "message": why}

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

    def _load_debugger(self) -> None:
        """For good: in the control thread, whose loop it belongs to."""
        self._debugger_asked_for = True
        self._kernel_modules += debugger.load()
        if sys.modules["ipykernel.debugger"]._is_debugpy_available:
            self._make_debugger()
            if self._debugger_loaded is not None:
                self._debugger_loaded.set()

    def _make_debugger(self) -> None:
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

    def renew_debugger(self) -> None:
        if hasattr(self, "debugger"):
            self._make_debugger()

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
