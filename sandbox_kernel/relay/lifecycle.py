"""A sandbox comes up, goes back to a checkpoint, and is replaced when it is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, Protocol

from sandbox_kernel import __version__
from sandbox_kernel.errors import SandboxError, SandboxUnavailable
from sandbox_kernel.isolation.base import Sandbox, SandboxFacts
from sandbox_kernel.isolation.lifeline import describe_wait_status
from sandbox_kernel.isolation.probe import cpus_not_held, not_measurable
from sandbox_kernel.isolation.start import SOCKET_PREFIX, StartedSandbox
from sandbox_kernel.isolation.supervisor_line import (
    Checkpoints,
    Clock,
    Exited,
    NothingToWake,
    Swept,
    TookOver,
)
from sandbox_kernel.limits.ladder import Restored
from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.log import log
from sandbox_kernel.policy.model import Limits
from sandbox_kernel.relay.allowance import Allowance
from sandbox_kernel.relay.channel import InnerChannel
from sandbox_kernel.relay.inner import WRAPPER_IDENTITY, InnerSockets
from sandbox_kernel.relay.inner_kernel import InnerKernel, RolledBack, in_words
from sandbox_kernel.relay.link import Link
from sandbox_kernel.relay.loop import Loop, Source
from sandbox_kernel.relay.wire import Author, WireError

START_SECONDS: Final = 60.0
# How long a sandbox that ends may take from its first closed connection to its exit.
HANG_UP_SECONDS: Final = 1.0
# A rollback takes a tenth of a second. A supervisor may need many to end a storm of processes under gVisor,
# and to wait is better than to lose the variables. But nothing is enforced meanwhile, except memory.
ROLLBACK_SECONDS: Final = 6.0
ROLLBACK_SECONDS_UNDER_GVISOR: Final = 15.0
# When it takes longer than usual, and how often its memory is looked at then.
ROLLBACK_USUALLY_SECONDS: Final = 1.0
GUARD_SECONDS: Final = 0.1
# A kernel process that has ended a cell answers at once.
SWEEP_SECONDS: Final = 1.0
UNDO_SECONDS: Final = 8.0
CONSOLE_BYTES: Final = 16 * 1024
CONSOLE_REST_SECONDS: Final = 0.02
CHECKPOINTS_KEPT: Final = 2
# Among what a checkpoint lacks: that more had been changed since it was made.
UNMADE: Final = "unmade"


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
        allowance: Allowance,
        author: Author,
        starter: Starter,
        limits: Limits,
        serving: Serving,
    ) -> None:
        self._loop = loop
        self._allowance = allowance
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
        self._watch_console(inner)
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
            return InnerSockets(
                self._loop, started.directory, started.sandbox.give, prefix, self._allowance
            )
        except OSError as error:
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
        for channel in inner.link.sockets.all:
            self._loop.watch(channel, partial(self._greet, inner, channel))
        inner.deadline = self._loop.call_later(seconds, late)

    def _greet(self, inner: InnerKernel, channel: InnerChannel) -> None:
        channel.greet()
        if channel.connected:
            # What it says waits until somebody listens.
            self._loop.forget(channel)
            if channel is inner.link.sockets.shell:
                self._probe(inner)
            else:
                self._on_connected(inner)

    def _probe(self, inner: InnerKernel) -> None:
        """It is connected: its first answer says it is ready, and what it is."""
        shell = inner.link.sockets.shell
        self._loop.watch(shell, lambda: self._read_probe(inner))
        inner.probe_id = self._ask(inner, shell, "kernel_info_request", {})

    def _ask(
        self,
        inner: InnerKernel,
        channel: InnerChannel,
        msg_type: str,
        content: Mapping[str, Any],
    ) -> str:
        request = self._author.message(msg_type, content)
        # If it hung up, the exit handler comes next.
        channel.send(inner.link.codec.write(request, [WRAPPER_IDENTITY]))
        return request.msg_id

    def _read_probe(self, inner: InnerKernel) -> None:
        sockets = inner.link.sockets
        if (frames := sockets.shell.receive()) is None:
            if not sockets.shell.connected:
                # It hung up before it said anything: another one may connect.
                self._loop.watch(sockets.shell, partial(self._greet, inner, sockets.shell))
            return
        try:
            reply = inner.link.codec.read(frames)
        except WireError as error:
            if not inner.malformed:
                log(f"the inner kernel's first message is malformed: {error}")
            inner.malformed = True
            return
        if reply.parent_id != inner.probe_id or reply.msg_type != "kernel_info_reply":
            return
        self._loop.forget(sockets.shell)
        if inner.kernel_info is None:
            # Only what it said before any cell ran; a cell may have taught it to lie since.
            self._author.version = str(reply.header.get("version", self._author.version))
            inner.kernel_info = reply.content
        inner.answered = True
        self._on_connected(inner)

    def _on_connected(self, inner: InnerKernel) -> None:
        """One more thing is there that a kernel process serves with: all its channels and an answer."""
        sockets = inner.link.sockets
        if inner.answered and all(channel.connected for channel in sockets.all):
            sockets.lost = lambda why: self._on_hang_up(inner, sockets, why)
            sockets.take_nobody_else()
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
        inner.undone, inner.tried_older = None, False
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

    # -- it is no longer trusted to be read ---------------------------------------------------------

    def reads(self, source: Source) -> bool:
        """Whether this is where the sandbox is heard."""
        inner = self._inner
        if inner is None:
            return False
        sandbox, lifeline = inner.started.sandbox, inner.started.lifeline
        heard: list[Source | None] = [*inner.link.sockets.all]
        heard += [sandbox.console_descriptor, sandbox.exit_descriptor, sandbox.report_descriptor]
        heard += [lifeline.descriptor] if lifeline.open else []
        return source in heard

    def replace(self, how: str, *, again: bool = True) -> None:
        """Give the sandbox up, variables and unread output too, and start another one if ``again``."""
        inner = self._inner
        if inner is None:
            return
        inner.link.sockets.disconnect()
        self._lose(inner, how, again=again)

    # -- it is told what to do ---------------------------------------------------------------------

    def interrupt(self) -> None:
        """SIGINT to the kernel process, as Ctrl-C would."""
        if self._inner is not None:
            self._inner.started.lifeline.send("interrupt")

    def forget(self) -> None:
        """End the checkpoint that is kept for undo: its memory is needed."""
        if self._inner is not None:
            self._inner.started.lifeline.send("forget")

    def sweep(
        self, since_ticks: int, done: Callable[[int], None], before_ticks: int | None = None
    ) -> None:
        """End what was started since then, and before another time, and is not the kernel process.

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
        period = [since_ticks] if before_ticks is None else [since_ticks, before_ticks]
        ticks = [each - inner.clock_ahead for each in period]
        self._when_answering(inner, lambda: inner.started.lifeline.send("sweep", *ticks))

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
        inner.serving = inner.answered = False
        inner.sweeps.clear()  # with the process that was asked
        inner.rolled_back = done
        sockets = self._bind(inner.started, prefix)
        if sockets is None:
            done(None)
            return
        inner.link = Link(sockets, inner.link.codec)
        inner.started.lifeline.send("rollback", to, f"{inner.started.place}/{prefix}")
        is_gvisor = inner.started.sandbox.facts.level == "gvisor"
        self._await_kernel(
            inner,
            ROLLBACK_SECONDS_UNDER_GVISOR if is_gvisor else ROLLBACK_SECONDS,
            lambda: self._lose(inner, "no checkpoint took over in time"),
        )
        generation = inner.generation
        self._loop.call_later(ROLLBACK_USUALLY_SECONDS, lambda: self._guard(inner, generation))

    def _guard(self, inner: InnerKernel, generation: int, before: int | None = None) -> None:
        """End a sandbox that goes on growing though its supervisor was told to stop what runs in it.

        The variables are worth some waiting, but not the host's memory. ``before``: what it had.
        """
        is_over = inner.restored is not None or inner.generation != generation
        allowed = self._limits.hard_memory_bytes
        if self._inner is not inner or is_over or allowed is None:
            return
        used = inner.meter.memory_bytes(allowed)
        if used > allowed and before is not None and used > before:
            self._lose(inner, "it went on taking memory while its cell was being stopped")
        else:
            self._loop.call_later(GUARD_SECONDS, lambda: self._guard(inner, generation, used))

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
        for line in lines:
            match line:
                case Checkpoints(number, label) if inner.counted:
                    counted, inner.counted = inner.counted, None
                    # Those of earlier cells do not count: an undo would take back more than the last.
                    counted(number if label == self.finished else 0)
                case Clock(ticks):
                    inner.set_clock(ticks)
                case TookOver(label, lost) if inner.rolled_back:
                    inner.restored = Restored(label, in_words(lost), bool(lost.get(UNMADE)))
                    self._serve_if_ready(inner)
                case Swept(_, threads) if inner.sweeps:
                    inner.sweeps.popleft()(threads)
                case Exited(status):
                    self._on_kernel_exit(inner, status)
                case NothingToWake():
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
        elif inner.rolled_back is not None and inner.restored is not None and not inner.tried_older:
            # It ended as soon as it woke: what ends it is in that state, and not in one before it.
            inner.tried_older = True
            older, inner.restored = inner.restored.label - 1, None
            if inner.deadline is not None:
                inner.deadline.cancel()
            self.roll_back(older, inner.rolled_back)
        elif inner.rolled_back is not None or (status == 0 and not self._was_running()):
            self._lose(inner, how)  # `exit()` means it
        else:
            self._serving.died(how)

    def _was_running(self) -> bool:
        """Whether a kernel process that has ended had a cell to answer: `exit()` answers first."""
        self._serving.suspend()  # which reads its last words
        return self._serving.watching()

    def _watch_console(self, inner: InnerKernel) -> None:
        if self._inner is inner:
            descriptor = inner.started.sandbox.console_descriptor
            self._loop.watch(descriptor, lambda: self._on_console(inner))

    def _on_console(self, inner: InnerKernel) -> None:
        # Cells can write here without end: they wait meanwhile, not the wrapper.
        self._loop.forget(inner.started.sandbox.console_descriptor)
        if self._read_console(inner):
            self._loop.call_later(CONSOLE_REST_SECONDS, lambda: self._watch_console(inner))

    def _read_console(self, inner: InnerKernel) -> bool:
        """Read what is there; whether more may come."""
        try:
            data = os.read(inner.started.sandbox.console_descriptor, 65536)
        except BlockingIOError:
            return True
        # Only the end is kept, for error messages.
        inner.console = (inner.console + data)[-CONSOLE_BYTES:]
        return bool(data)

    # -- it goes -----------------------------------------------------------------------------------

    def _on_late(self, inner: InnerKernel) -> None:
        self._drop()
        self.give_up(
            SandboxUnavailable(
                f"The inner kernel was not ready after {START_SECONDS:.0f} s.",
                hint="The host may be overloaded: run the cell again to start another one.",
            )
        )

    def _on_hang_up(self, inner: InnerKernel, sockets: InnerSockets, why: str | None) -> None:
        """A connection is gone. Either the kernel process is ending, or a cell has broken it.

        ``why`` says what was wrong with it if the wrapper hung up itself.
        """
        # Never at once: whoever has found out is in the middle of reading.
        wait = HANG_UP_SECONDS if why is None else 0.0
        how = "its kernel closed a connection" if why is None else f"its kernel {why}"
        self._loop.call_later(wait, lambda: self._on_broken(inner, sockets, how))

    def _on_broken(self, inner: InnerKernel, sockets: InnerSockets, how: str) -> None:
        if self._inner is not inner or inner.link.sockets is not sockets or self._serving.ended():
            return
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

    def _lose(self, inner: InnerKernel, how: str, *, again: bool = True) -> None:
        if self._inner is not inner:
            return
        self._serving.suspend()
        self._serving.lost(how)
        if inner.undone is not None:
            inner.undone(None)
        self._drop()
        if again:
            self.revive()
        else:
            what = f"The sandbox was replaced too often in a short time; the last time {how}."
            self.give_up(
                SandboxUnavailable(what, hint="Run the cell again to start another sandbox.")
            )

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
        for channel in inner.link.sockets.all:
            self._loop.forget(channel)
