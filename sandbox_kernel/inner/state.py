"""When the state of a kernel process is to be kept, and when it has been."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from .checkpoint import Checkpoints
from .hot_pages import HotPages
from .renewal import is_for_zmq

# What a cell shows is to be on its way before a fork stops all threads for some milliseconds.
CELL_REST_SECONDS = 0.01
# How the coroutines are called in which ipykernel handles a message.
TASKS_PER_MESSAGE = 2
TURNS_TO_PARK = 100
OWN_TASKS = ("_async_in_context.", "Kernel.", "BridgeKernel.")


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
        # Why there is no checkpoint of the state as it is, if one could not be made.
        self.unmade_because = ""
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
        """Return once there is a checkpoint of the state as it is, or none can be made."""
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

    @property
    def is_running(self) -> bool:
        return bool(self._running)

    def made(self) -> None:
        """A checkpoint of the state has been made."""
        self._stale = self._goes_on()
        self.unmade_because = ""
        self._let_go_on()
        self._hot_pages.begin()
        self._loop.call_soon(self._copy_ahead)

    def unmade(self, reason: str) -> None:
        """None could be made. Who waits goes on without; it is tried again before the next cell."""
        self._stale = True
        self.unmade_because = reason
        self._let_go_on()

    def _let_go_on(self) -> None:
        self.owes_checkpoint = False
        if self._timer is not None:
            self._timer.cancel()
        self.due = self._loop.create_future()
        for kept in self._waiting:
            if not kept.done():  # who waited for it may have been cancelled
                kept.set_result(None)
        self._waiting.clear()

    def _copy_ahead(self) -> None:
        if self._hot_pages.copy_some():
            self._loop.call_soon(self._copy_ahead)

    def restored(self) -> None:
        """This process was a checkpoint: what was about to run when it was made is not to run."""
        self._stale = True
        self.unmade_because = ""
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
