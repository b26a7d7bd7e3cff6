"""A sandbox comes up, goes back to a checkpoint, and is replaced when it is lost."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

import zmq

from sandbox_kernel import __version__
from sandbox_kernel.errors import SandboxError, SandboxUnavailable
from sandbox_kernel.isolation.base import Sandbox, SandboxFacts
from sandbox_kernel.isolation.lifeline import describe_wait_status
from sandbox_kernel.isolation.probe import cpus_not_held, not_measurable
from sandbox_kernel.isolation.start import SOCKET_PREFIX, StartedSandbox
from sandbox_kernel.limits.ladder import Restored
from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.log import log
from sandbox_kernel.policy.model import Limits
from sandbox_kernel.relay.inner import WRAPPER_IDENTITY, InnerSockets
from sandbox_kernel.relay.inner_kernel import InnerKernel, RolledBack, in_words
from sandbox_kernel.relay.link import Link
from sandbox_kernel.relay.loop import Loop
from sandbox_kernel.relay.wire import Author, WireError

START_SECONDS: Final = 60.0
# How long a sandbox that ends may take from its first closed connection to its exit.
HANG_UP_SECONDS: Final = 1.0
# A rollback takes a tenth of a second; under gVisor a supervisor may need many to end a storm of
# processes, and to wait is better than to lose the variables.
ROLLBACK_SECONDS: Final = 15.0
# A kernel process that has ended a cell answers at once.
SWEEP_SECONDS: Final = 1.0
UNDO_SECONDS: Final = 8.0
CONSOLE_BYTES: Final = 16 * 1024
CHECKPOINTS_KEPT: Final = 2
# Among what a checkpoint lacks: that more had been changed since it was made.
UNMADE: Final = "unmade=1"


class Starter(Protocol):
    """Who makes sandboxes. Nothing of it blocks; all of it may raise ``SandboxError``."""

    def start(self) -> StartedSandbox: ...
    def instead(self, failed: Sandbox, reason: SandboxUnavailable) -> StartedSandbox: ...


class Serving(Protocol):
    """Who is served by the sandbox and must know what becomes of it."""

    def attach(self, link: Link) -> None: ...
    def suspend(self) -> None: ...
    def died(self, how: str) -> None: ...
    def lost(self, how: str) -> None: ...
    def refuse(self, error: SandboxError) -> None: ...
    def delay(self, reason: SandboxError) -> None: ...
    def ended(self) -> bool: ...
    def watching(self) -> bool: ...
    def busy(self) -> bool: ...


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
        self._inner: InnerKernel | None = None
        # The last cell whose effects are in the state, by the enforcer's word.
        self.finished = 0

    @property
    def facts(self) -> SandboxFacts | None:
        return None if self._inner is None else self._inner.started.sandbox.facts

    @property
    def ready(self) -> bool:
        """Whether there is a kernel process that serves, and that nobody is taking back."""
        inner = self._inner
        return inner is not None and inner.serving and inner.rolled_back is None

    def meter(self) -> Meter | None:
        return None if self._inner is None else self._inner.meter

    # -- it comes up -------------------------------------------------------------------------------

    def revive(self) -> None:
        self._try(self._starter.start)

    def _try(self, start: Callable[[], StartedSandbox]) -> None:
        try:
            started = start()
        except SandboxError as error:
            self.give_up(error)
        else:
            self.watch(started)

    def watch(self, started: StartedSandbox) -> None:
        """Serve the frontend with this sandbox as soon as it is ready."""
        sockets = self._bind(started, SOCKET_PREFIX)
        if sockets is None:
            return
        inner = self._inner = InnerKernel(started, sockets)
        lifeline, sandbox = started.lifeline, started.sandbox
        self._loop.watch(lifeline.descriptor, lambda: self._accept(inner))
        self._loop.watch(sandbox.console_descriptor, lambda: self._read_console(inner))
        self._loop.watch(sandbox.exit_descriptor, lambda: self._on_exit(inner))
        if sandbox.report_descriptor is not None:
            self._loop.watch(sandbox.report_descriptor, lambda: self._hear(inner))
        self._await_kernel(inner, START_SECONDS, lambda: self._on_late(inner))

    def _hear(self, inner: InnerKernel) -> None:
        """Who starts the sandbox says how that goes."""
        sandbox = inner.started.sandbox
        assert sandbox.report_descriptor is not None
        if not sandbox.hear():
            self._loop.forget(sandbox.report_descriptor)
        if inner.measured:
            pass  # what it uses has been renewed
        elif sandbox.failed:
            self._fail(inner)
        elif sandbox.known:
            self._measure(inner)
        elif (reason := sandbox.waiting) is not None:
            self._serving.delay(reason)

    def _measure(self, inner: InnerKernel) -> None:
        """Its first process has connected, and it is known which one that is."""
        started = inner.started
        if inner.measured or not started.lifeline.accepted or not started.sandbox.known:
            return
        sandbox, peer = started.sandbox, started.lifeline.peer
        if sandbox.contains(peer.pid):
            inner.meter = Meter(sandbox.root_pid, sandbox.cgroup, sandbox.supervisor_pid)
        elif peer.pid:
            why = "who has connected is seen, and is not in its container"
            self._refuse(not_measurable(sandbox.facts.engine, why))
            return
        elif (reason := sandbox.ask_for_statistics(peer.uid)) is not None:
            self._refuse(not_measurable(sandbox.facts.engine, reason))
            return
        elif sandbox.statistics is not None:
            inner.meter = Meter(account=sandbox.statistics)
        else:
            return  # the first word is awaited
        inner.meter.memory_limit = self._limits.sandbox_memory_bytes
        if self._hold(sandbox):
            inner.measured = True
            self._serve_if_ready(inner)

    def _hold(self, sandbox: Sandbox) -> bool:
        """Let the kernel itself hold the sandbox's limits, where there is a cgroup of ours."""
        limits, cgroup, held = self._limits, sandbox.cgroup, None
        if cgroup is not None and cgroup.made:
            held = cgroup.limit(limits.hard_memory_bytes, limits.hard_tasks, limits.cpus)
        if limits.cpus is None or sandbox.holds_cpus or (held is not None and held.cpus):
            return True
        # Nobody else would: all other limits are the enforcer's too.
        self._refuse(cpus_not_held("no cgroup with the cpu controller can be made"))
        return False

    def _refuse(self, error: SandboxUnavailable) -> None:
        """It has come up, but no cell may run in it."""
        self._drop()
        self.give_up(error)

    def _bind(self, started: StartedSandbox, prefix: str) -> InnerSockets | None:
        try:
            return InnerSockets(self._context, started.directory, started.sandbox.give, prefix)
        except (zmq.ZMQError, OSError) as error:
            self._drop()
            started.close()
            what = f"The inner kernel's sockets cannot be made: {error}."
            self.give_up(SandboxUnavailable(what, hint="Free disk space or descriptors."))
            return None

    def _accept(self, inner: InnerKernel) -> None:
        lifeline = inner.started.lifeline
        self._loop.forget(lifeline.descriptor)
        lifeline.accept()
        self._loop.watch(lifeline.descriptor, lambda: self._read_lifeline(inner))
        self._measure(inner)

    def _await_kernel(self, inner: InnerKernel, seconds: float, late: Callable[[], None]) -> None:
        """The kernel process connects and answers a first question, or is ``late``."""
        shell = inner.link.sockets.shell
        self._loop.watch(shell, lambda: self._probe(inner), zmq.POLLOUT)
        inner.deadline = self._loop.call_later(seconds, late)

    def _probe(self, inner: InnerKernel) -> None:
        """It is connected: its first answer says it is ready, and what it is."""
        shell = inner.link.sockets.shell
        self._loop.forget(shell)
        self._loop.watch(shell, lambda: self._read_probe(inner))
        inner.probe_id = self._ask(inner, shell, "kernel_info_request", {})

    def _ask(
        self,
        inner: InnerKernel,
        socket: zmq.Socket[bytes],
        msg_type: str,
        content: Mapping[str, Any],
    ) -> str:
        request = self._author.message(msg_type, content)
        with contextlib.suppress(zmq.Again):  # it hung up; the exit handler comes next
            socket.send_multipart(inner.link.codec.write(request, [WRAPPER_IDENTITY]), zmq.NOBLOCK)
        return request.msg_id

    def _read_probe(self, inner: InnerKernel) -> None:
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
            inner.kernel_info = reply.content
        inner.serving = True
        self._serve_if_ready(inner)

    def _serve_if_ready(self, inner: InnerKernel) -> None:
        if not inner.serving or not inner.measured:
            return
        if inner.rolled_back is not None and inner.restored is None:
            return
        assert inner.deadline is not None
        inner.deadline.cancel()
        if inner.link.kernel_info is None:
            inner.link.kernel_info = self._introduced(inner)
        rolled_back, inner.rolled_back = inner.rolled_back, None
        restored, inner.restored = inner.restored, None
        inner.undone = None
        if rolled_back is not None:
            # The cell that was rolled back is answered before the next one is forwarded.
            rolled_back(restored)
        self._serving.attach(inner.link)

    def _introduced(self, inner: InnerKernel) -> Mapping[str, Any]:
        """What frontends are told of the kernel: its own words, and where it runs."""
        assert inner.kernel_info is not None
        facts = inner.started.sandbox.facts
        lines = [f"Sandboxed by sandbox-kernel {__version__}: {facts.summary()}", *facts.notes]
        lines += [f"NOT protected against: {each}" for each in facts.not_protected]
        banner = "\n".join([*lines, str(inner.kernel_info.get("banner", ""))])
        return {**inner.kernel_info, "banner": banner}

    # -- it is told what to do ---------------------------------------------------------------------

    def interrupt(self) -> None:
        """SIGINT to the kernel process, as Ctrl-C would."""
        if self._inner is not None:
            self._inner.started.lifeline.send("interrupt")

    def forget(self) -> None:
        """End the checkpoint that is kept for undo: its memory is needed."""
        if self._inner is not None:
            self._inner.started.lifeline.send("forget")

    def sweep(self, since_ticks: int, done: Callable[[int], None]) -> None:
        """End what was started since then and is not the kernel process.

        ``done`` hears how many threads of that are left, as far as is known inside.
        """
        inner = self._inner
        assert inner is not None

        def late() -> None:
            if self._inner is not inner or done not in inner.sweeps:
                return
            if self._serving.busy():
                # The question stands behind something else, which has limits of its own.
                self._loop.call_later(SWEEP_SECONDS, late)
            else:
                self._serving.died("it did not answer any more")

        inner.sweeps.append(done)
        self._loop.call_later(SWEEP_SECONDS, late)
        since_ticks -= inner.clock_ahead
        self._when_answering(inner, lambda: inner.started.lifeline.send("sweep", since_ticks))

    def _when_answering(self, inner: InnerKernel, then: Callable[[], None]) -> None:
        """Do something once the kernel process answers, and so has made its checkpoint.

        It makes one when it has told that a cell is over; one that is just being made must not be
        taken for something that the cell left.
        """
        asked = self._ask(inner, inner.link.sockets.shell, "kernel_info_request", {})
        inner.link.asked[asked] = then

    def undo(self, done: RolledBack, impossible: Callable[[], None]) -> None:
        """Go back to before the last cell, if there is a checkpoint of that."""
        inner = self._inner
        if inner is None or not self.ready or inner.counted or self._serving.watching():
            impossible()
            return

        def counted(checkpoints: int) -> None:
            timer.cancel()
            if checkpoints < CHECKPOINTS_KEPT or self._serving.watching() or not self.ready:
                impossible()
            else:
                inner.undone = done
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
        inner.sweeps.clear()  # with the process that was asked
        inner.rolled_back = done
        sockets = self._bind(inner.started, prefix)
        if sockets is None:
            done(None)
            return
        inner.link = Link(sockets, inner.link.codec)
        inner.started.lifeline.send("rollback", to, f"{inner.started.place}/{prefix}")
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

    def _read_lifeline(self, inner: InnerKernel) -> None:
        lines = inner.started.lifeline.read()
        if lines is None:
            self._loop.forget(inner.started.lifeline.descriptor)
            # With the supervisor goes the sandbox. Who started it may not live to say so.
            self._loop.call_later(HANG_UP_SECONDS, lambda: self._on_end(inner))
            return
        for words in lines:
            match words:
                case ["checkpoints", number, label] if number.isdecimal() and inner.counted:
                    counted, inner.counted = inner.counted, None
                    # Those of earlier cells do not count: an undo would take back more than the last.
                    counted(int(number) if label == str(self.finished) else 0)
                case ["clock", ticks] if ticks.isdecimal():
                    inner.set_clock(int(ticks))
                case ["restored", label, *lost] if label.isdecimal() and inner.rolled_back:
                    inner.restored = Restored(int(label), in_words(lost), UNMADE in lost)
                    self._serve_if_ready(inner)
                case ["swept", _, threads] if threads.isdecimal() and inner.sweeps:
                    inner.sweeps.popleft()(int(threads))
                case ["exited", status] if status.isdecimal():
                    self._on_kernel_exit(inner, int(status))
                case ["nothing"]:
                    self._lose(inner, "there was no checkpoint to go back to")
            if self._inner is not inner:
                return

    def _on_kernel_exit(self, inner: InnerKernel, status: int) -> None:
        """The kernel process has ended, but the sandbox has not."""
        if self._serving.ended():
            return
        how = describe_wait_status(status)
        if not inner.serving and inner.rolled_back is None:
            # It never came up: let the sandbox end, and `_on_exit` say why.
            self._loop.forget(inner.started.lifeline.descriptor)
            inner.started.lifeline.close()
        elif inner.rolled_back is not None and inner.restored is None:
            pass  # it ended before it could be killed; who takes its place is on the way
        elif inner.rolled_back is not None or (status == 0 and not self._was_running()):
            self._lose(inner, how)  # `exit()` means it
        else:
            self._serving.died(how)

    def _was_running(self) -> bool:
        """Whether a kernel process that has ended had a cell to answer: `exit()` answers first."""
        self._serving.suspend()  # which reads its last words
        return self._serving.watching()

    def _read_console(self, inner: InnerKernel) -> None:
        descriptor = inner.started.sandbox.console_descriptor
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, 65536)
            if not data:
                self._loop.forget(descriptor)
            # Only the end is kept, for error messages: cells can write here without bound.
            inner.console = (inner.console + data)[-CONSOLE_BYTES:]

    # -- it goes -----------------------------------------------------------------------------------

    def _on_late(self, inner: InnerKernel) -> None:
        self._drop()
        self.give_up(
            SandboxUnavailable(
                f"The inner kernel was not ready after {START_SECONDS:.0f} s.",
                hint="The host may be overloaded: run the cell again to start another one.",
            )
        )

    def _on_hang_up(self, inner: InnerKernel) -> None:
        """A connection is gone. Either the kernel process is ending, or a cell has broken it."""
        sockets = inner.link.sockets
        for monitor in sockets.monitors:
            self._loop.forget(monitor)
        self._loop.call_later(HANG_UP_SECONDS, lambda: self._on_broken(inner, sockets))

    def _on_broken(self, inner: InnerKernel, sockets: InnerSockets) -> None:
        if self._inner is not inner or inner.link.sockets is not sockets or self._serving.ended():
            return
        how = "its kernel closed a connection or sent more than a message may hold"
        if inner.rolled_back is None:
            self._serving.died(how)

    def _on_exit(self, inner: InnerKernel) -> None:
        self._read_console(inner)
        self._on_end(inner)

    def _on_end(self, inner: InnerKernel) -> None:
        if self._inner is not inner or self._serving.ended():
            return
        if inner.kernel_info is None or not inner.measured:
            self._fail(inner)
        else:
            self._lose(inner, "nothing in it could say why")

    def _fail(self, inner: InnerKernel) -> None:
        """It has not come up: another level may, if the policy accepts it."""
        sandbox = inner.started.sandbox
        reason = sandbox.explain(inner.console.decode("utf-8", "replace"))
        self._drop()
        self._try(lambda: self._starter.instead(sandbox, reason))

    def _lose(self, inner: InnerKernel, how: str) -> None:
        if self._inner is not inner:
            return
        self._serving.suspend()
        self._serving.lost(how)
        if inner.undone is not None:
            inner.undone(None)
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
        if started.sandbox.report_descriptor is not None:
            self._loop.forget(started.sandbox.report_descriptor)
        if started.lifeline.open:
            self._loop.forget(started.lifeline.descriptor)
        started.close()
        inner.link.sockets.close()

    def _forget_sockets(self, inner: InnerKernel) -> None:
        sockets = inner.link.sockets
        self._loop.forget(sockets.shell)
        for monitor in sockets.monitors:
            self._loop.forget(monitor)
