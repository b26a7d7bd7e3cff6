"""A sandbox comes up, goes back to a checkpoint, and is replaced when it is lost."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

import zmq

from sandbox_kernel import __version__
from sandbox_kernel.errors import SandboxError, SandboxUnavailable
from sandbox_kernel.isolation import view
from sandbox_kernel.isolation.base import SandboxFacts
from sandbox_kernel.isolation.lifeline import describe_wait_status
from sandbox_kernel.isolation.start import SOCKET_PREFIX, StartedSandbox
from sandbox_kernel.limits.ladder import Restored
from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.limits.proc import TICKS_PER_SECOND, ticks_now
from sandbox_kernel.log import log
from sandbox_kernel.policy.model import Limits
from sandbox_kernel.relay.inner import WRAPPER_IDENTITY, InnerSockets
from sandbox_kernel.relay.link import Link
from sandbox_kernel.relay.loop import Loop, Timer
from sandbox_kernel.relay.wire import Author, Codec, Signer, WireError
from sandbox_kernel.words import count

START_SECONDS: Final = 60.0
# How long a sandbox that ends may take from its first closed connection to its exit.
HANG_UP_SECONDS: Final = 1.0
# A rollback takes a tenth of a second; a supervisor may need some to end a storm of processes.
ROLLBACK_SECONDS: Final = 8.0
# A kernel process that has ended a cell answers at once.
SWEEP_SECONDS: Final = 1.0
UNDO_SECONDS: Final = 8.0
# Threads of the inner kernel, its checkpoints, the supervisor and bwrap.
OWN_TASKS: Final = 64
SAME_CLOCK_SECONDS: Final = 10
CONSOLE_BYTES: Final = 16 * 1024
CHECKPOINTS_KEPT: Final = 2

Starter = Callable[[], StartedSandbox]
RolledBack = Callable[[Restored | None], None]


class Inner:
    """One sandbox as the wrapper sees it, and the kernel process in it, which may be replaced."""

    def __init__(self, started: StartedSandbox, sockets: InnerSockets) -> None:
        self.started = started
        self.link = Link(sockets, Codec(Signer(started.key)))
        # Nothing to measure before its first process has connected.
        self.meter = Meter()
        self.console = b""
        self.generation = 1
        self.probe_id: str | None = None
        self.deadline: Timer | None = None
        self.serving = False
        self.kernel_info: Mapping[str, Any] | None = None
        self.restored: Restored | None = None
        self.rolled_back: RolledBack | None = None
        self.swept: Callable[[], None] | None = None
        self.counted: Callable[[int], None] | None = None
        # By how many ticks the host's clock is ahead of the one inside.
        self.clock_ahead = 0

    def set_clock(self, inner_ticks: int) -> None:
        """A second kernel has a clock of its own (gVisor's); a shared one is just heard of late."""
        ahead = ticks_now() - inner_ticks
        self.clock_ahead = ahead if ahead > SAME_CLOCK_SECONDS * TICKS_PER_SECOND else 0


class Serving(Protocol):
    """Who is served by the sandbox and must know what becomes of it."""

    def attach(self, link: Link) -> None: ...
    def suspend(self) -> None: ...
    def died(self, how: str) -> None: ...
    def lost(self, how: str) -> None: ...
    def refuse(self, error: SandboxError) -> None: ...
    def ended(self) -> bool: ...
    def watching(self) -> bool: ...


class Lifecycle:
    """Owns the sandbox. Runs in the loop's thread only."""

    def __init__(
        self,
        loop: Loop,
        context: zmq.Context[zmq.Socket[bytes]],
        author: Author,
        starter: Starter,
        limits: Limits,
        serving: Serving,
    ) -> None:
        self._loop = loop
        self._context = context
        self._author = author
        self._starter = starter
        self._limits = limits
        self._serving = serving
        self._inner: Inner | None = None

    @property
    def facts(self) -> SandboxFacts | None:
        return None if self._inner is None else self._inner.started.sandbox.facts

    def meter(self) -> Meter | None:
        return None if self._inner is None else self._inner.meter

    # -- it comes up -------------------------------------------------------------------------------

    def revive(self) -> None:
        try:
            started = self._starter()
        except SandboxError as error:
            self.give_up(error)
        else:
            self.watch(started)

    def watch(self, started: StartedSandbox) -> None:
        """Serve the frontend with this sandbox as soon as it is ready."""
        sockets = self._bind(started, SOCKET_PREFIX)
        if sockets is None:
            return
        inner = self._inner = Inner(started, sockets)
        lifeline = started.lifeline
        self._loop.watch(lifeline.descriptor, lambda: self._accept(inner))
        self._loop.watch(started.sandbox.console_descriptor, lambda: self._read_console(inner))
        self._loop.watch(started.sandbox.exit_descriptor, lambda: self._on_exit(inner))
        self._await_kernel(inner, START_SECONDS, lambda: self._on_late(inner))

    def _hold(self, started: StartedSandbox) -> None:
        """Let the kernel itself hold the sandbox's limits, where there is a cgroup.

        They are a little wider than those of the enforcer, which can tell the user what happened.
        """
        cgroup, limits = started.sandbox.cgroup, self._limits
        if cgroup is not None:
            memory, processes = limits.sandbox_memory_bytes, limits.processes
            cgroup.limit(
                None if memory is None else memory + memory // 8,
                None if processes is None else processes + OWN_TASKS,
            )

    def _bind(self, started: StartedSandbox, prefix: str) -> InnerSockets | None:
        try:
            return InnerSockets(self._context, started.directory, started.sandbox.give, prefix)
        except (zmq.ZMQError, OSError) as error:
            self._drop()
            started.close()
            what = f"The inner kernel's sockets cannot be made: {error}."
            self.give_up(SandboxUnavailable(what, hint="Free disk space or descriptors."))
            return None

    def _accept(self, inner: Inner) -> None:
        lifeline = inner.started.lifeline
        self._loop.forget(lifeline.descriptor)
        lifeline.accept()
        sandbox = inner.started.sandbox
        inner.meter = Meter(sandbox.root_pid, sandbox.cgroup)
        inner.meter.memory_limit = self._limits.sandbox_memory_bytes
        self._hold(inner.started)
        self._loop.watch(lifeline.descriptor, lambda: self._read_lifeline(inner))

    def _await_kernel(self, inner: Inner, seconds: float, late: Callable[[], None]) -> None:
        """The kernel process connects and answers a first question, or is ``late``."""
        shell = inner.link.sockets.shell
        self._loop.watch(shell, lambda: self._probe(inner), zmq.POLLOUT)
        inner.deadline = self._loop.call_later(seconds, late)

    def _probe(self, inner: Inner) -> None:
        """It is connected: its first answer says it is ready, and what it is."""
        shell = inner.link.sockets.shell
        self._loop.forget(shell)
        self._loop.watch(shell, lambda: self._read_probe(inner))
        inner.probe_id = self._ask(inner, shell, "kernel_info_request", {})

    def _ask(
        self, inner: Inner, socket: zmq.Socket[bytes], msg_type: str, content: Mapping[str, Any]
    ) -> str:
        request = self._author.message(msg_type, content)
        with contextlib.suppress(zmq.Again):  # it hung up; the exit handler comes next
            socket.send_multipart(inner.link.codec.write(request, [WRAPPER_IDENTITY]), zmq.NOBLOCK)
        return request.msg_id

    def _read_probe(self, inner: Inner) -> None:
        frames = inner.link.sockets.shell.recv_multipart(zmq.NOBLOCK)
        try:
            reply = inner.link.codec.read(frames)
        except WireError as error:
            log(f"the inner kernel's first message is malformed: {error}")
            return
        if reply.parent_id != inner.probe_id or reply.msg_type != "kernel_info_reply":
            return
        self._loop.forget(inner.link.sockets.shell)
        inner.link.sockets.take_nobody_else()
        for monitor in inner.link.sockets.monitors:
            self._loop.watch(monitor, lambda: self._on_hang_up(inner))
        if inner.kernel_info is None:
            # Only what it said before any cell ran; a cell may have taught it to lie since.
            self._author.version = str(reply.header.get("version", self._author.version))
            facts = inner.started.sandbox.facts
            lines = [f"Sandboxed by sandbox-kernel {__version__}: {facts.summary()}", *facts.notes]
            banner = "\n".join([*lines, str(reply.content.get("banner", ""))])
            inner.kernel_info = {**reply.content, "banner": banner}
        inner.link.kernel_info = inner.kernel_info
        inner.serving = True
        self._serve_if_ready(inner)

    def _serve_if_ready(self, inner: Inner) -> None:
        if not inner.serving or (inner.rolled_back is not None and inner.restored is None):
            return
        assert inner.deadline is not None
        inner.deadline.cancel()
        rolled_back, inner.rolled_back = inner.rolled_back, None
        restored, inner.restored = inner.restored, None
        if rolled_back is not None:
            # The cell that was rolled back is answered before the next one is forwarded.
            rolled_back(restored)
        self._serving.attach(inner.link)

    # -- it is told what to do ---------------------------------------------------------------------

    def interrupt(self) -> None:
        """SIGINT to the kernel process, as Ctrl-C would."""
        if self._inner is not None:
            self._inner.started.lifeline.send("interrupt")

    def forget(self) -> None:
        """End the checkpoint that is kept for undo: its memory is needed."""
        if self._inner is not None:
            self._inner.started.lifeline.send("forget")

    def sweep(self, since_ticks: int, done: Callable[[], None]) -> None:
        """End what was started since then and is not the kernel process."""
        inner = self._inner
        assert inner is not None

        def late() -> None:
            inner.swept = None
            if self._inner is inner and inner.rolled_back is None:
                self._serving.died("it did not answer any more")

        def swept() -> None:
            timer.cancel()
            done()

        inner.swept = swept
        timer = self._loop.call_later(SWEEP_SECONDS, late)
        since_ticks -= inner.clock_ahead
        self._when_answering(inner, lambda: inner.started.lifeline.send("sweep", since_ticks))

    def _when_answering(self, inner: Inner, then: Callable[[], None]) -> None:
        """Do something once the kernel process answers, and so has made its checkpoint.

        It makes one when it has told that a cell is over; one that is just being made must not be
        taken for something that the cell left.
        """
        asked = self._ask(inner, inner.link.sockets.shell, "kernel_info_request", {})
        inner.link.asked[asked] = then

    def undo(self, done: RolledBack, impossible: Callable[[], None]) -> None:
        """Go back to before the last cell, if there is a checkpoint of that."""
        inner = self._inner
        if inner is None or not inner.serving or self._serving.watching():
            impossible()
            return

        def counted(checkpoints: int) -> None:
            timer.cancel()
            if checkpoints < CHECKPOINTS_KEPT or self._serving.watching():
                impossible()
            else:
                self.roll_back("previous", done)

        def late() -> None:
            inner.counted = None
            impossible()

        inner.counted = counted
        timer = self._loop.call_later(UNDO_SECONDS, late)
        self._when_answering(inner, lambda: inner.started.lifeline.send("count"))

    def roll_back(self, to: int | Literal["previous"], done: RolledBack) -> None:
        """Let a checkpoint take the kernel process's place; ``done(None)`` if that cannot be.

        It is the one of the last state but one, or of the state after cell ``to``.
        """
        inner = self._inner
        assert inner is not None
        self._serving.suspend()
        self._forget_sockets(inner)
        inner.link.sockets.close()
        inner.generation += 1
        prefix = f"{SOCKET_PREFIX}{inner.generation}"
        inner.serving = False
        inner.rolled_back = done
        sockets = self._bind(inner.started, prefix)
        if sockets is None:
            done(None)
            return
        inner.link = Link(sockets, inner.link.codec)
        inner.started.lifeline.send("rollback", to, f"{view.RUN}/{prefix}")
        self._await_kernel(
            inner, ROLLBACK_SECONDS, lambda: self._lose(inner, "no checkpoint took over in time")
        )

    def shut_down(self, content: Mapping[str, Any]) -> bool:
        """Ask the kernel to end, so that the user's ``atexit`` runs; whether there is one to ask."""
        inner = self._inner
        if inner is None or not inner.serving:
            return False
        self._ask(inner, inner.link.sockets.control, "shutdown_request", content)
        return True

    # -- it says something -------------------------------------------------------------------------

    def _read_lifeline(self, inner: Inner) -> None:
        lines = inner.started.lifeline.read()
        if lines is None:
            self._loop.forget(inner.started.lifeline.descriptor)
            return
        for words in lines:
            match words:
                case ["checkpoints", number] if number.isdecimal() and inner.counted is not None:
                    counted, inner.counted = inner.counted, None
                    counted(int(number))
                case ["clock", ticks] if ticks.isdecimal():
                    inner.set_clock(int(ticks))
                case ["restored", label, *lost] if label.isdecimal():
                    inner.restored = Restored(int(label), in_words(lost))
                    self._serve_if_ready(inner)
                case ["swept", _]:
                    swept, inner.swept = inner.swept, None
                    if swept is not None:
                        swept()
                case ["exited", status] if status.isdecimal():
                    self._on_kernel_exit(inner, int(status))
                case ["nothing"]:
                    self._lose(inner, "there was no checkpoint to go back to")
            if self._inner is not inner:
                return

    def _on_kernel_exit(self, inner: Inner, status: int) -> None:
        """The kernel process has ended, but the sandbox has not."""
        if self._serving.ended():
            return
        how = describe_wait_status(status)
        if not inner.serving and inner.rolled_back is None:
            # It never came up: let the sandbox end, and `_on_exit` say why.
            self._loop.forget(inner.started.lifeline.descriptor)
            inner.started.lifeline.close()
        elif status == 0 or inner.rolled_back is not None:
            self._lose(inner, how)  # `exit()` means it
        else:
            self._serving.died(how)

    def _read_console(self, inner: Inner) -> None:
        descriptor = inner.started.sandbox.console_descriptor
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, 65536)
            if not data:
                self._loop.forget(descriptor)
            # Only the end is kept, for error messages: cells can write here without bound.
            inner.console = (inner.console + data)[-CONSOLE_BYTES:]

    # -- it goes -----------------------------------------------------------------------------------

    def _on_late(self, inner: Inner) -> None:
        self._drop()
        self.give_up(
            SandboxUnavailable(
                f"The inner kernel was not ready after {START_SECONDS:.0f} s.",
                hint="The host may be overloaded: run the cell again to start another one.",
            )
        )

    def _on_hang_up(self, inner: Inner) -> None:
        """A connection is gone. Either the kernel process is ending, or a cell has broken it."""
        sockets = inner.link.sockets
        for monitor in sockets.monitors:
            self._loop.forget(monitor)
        self._loop.call_later(HANG_UP_SECONDS, lambda: self._on_broken(inner, sockets))

    def _on_broken(self, inner: Inner, sockets: InnerSockets) -> None:
        if self._inner is not inner or inner.link.sockets is not sockets or self._serving.ended():
            return
        how = "its kernel closed a connection or sent more than a message may hold"
        if inner.rolled_back is None:
            self._serving.died(how)

    def _on_exit(self, inner: Inner) -> None:
        self._read_console(inner)
        if self._serving.ended():
            return
        if inner.kernel_info is None:
            reason = inner.started.sandbox.explain(inner.console.decode("utf-8", "replace"))
            self._drop()
            self.give_up(reason)
            return
        self._lose(inner, "nothing in it could say why")

    def _lose(self, inner: Inner, how: str) -> None:
        if self._inner is not inner:
            return
        self._serving.suspend()
        self._serving.lost(how)
        self._drop()
        self.revive()

    def give_up(self, error: SandboxError) -> None:
        log(f"{error.ename}: {error}")
        self._serving.refuse(error)

    def close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        inner, self._inner = self._inner, None
        if inner is None:
            return
        started = inner.started
        if inner.deadline is not None:
            inner.deadline.cancel()
        self._forget_sockets(inner)
        self._loop.forget(started.sandbox.console_descriptor)
        self._loop.forget(started.sandbox.exit_descriptor)
        if started.lifeline.open:
            self._loop.forget(started.lifeline.descriptor)
        started.close()
        inner.link.sockets.close()

    def _forget_sockets(self, inner: Inner) -> None:
        sockets = inner.link.sockets
        self._loop.forget(sockets.shell)
        for monitor in sockets.monitors:
            self._loop.forget(monitor)


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


def in_words(lost: list[str]) -> tuple[str, ...]:
    """What was not restored; from inside, so only known words and sane numbers count."""
    words = []
    for item in lost:
        name, _, number = item.partition("=")
        if name in _LOST and number.isdecimal() and 0 < len(number) < 7 and int(number):
            words.append(count(int(number), _LOST[name]))
    return tuple(words)
