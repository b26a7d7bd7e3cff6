"""The wrapper kernel: one loop, the router in it, and a sandbox that is replaced when it is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, Final

import zmq

from sandbox_kernel import __version__
from sandbox_kernel.errors import SandboxLost, SandboxUnavailable
from sandbox_kernel.isolation.start import StartedSandbox
from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.log import log
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.cells import Request
from sandbox_kernel.relay.connection import ConnectionInfo
from sandbox_kernel.relay.frontend import FrontendSockets
from sandbox_kernel.relay.inner import WRAPPER_IDENTITY, InnerSockets
from sandbox_kernel.relay.loop import Loop, Timer
from sandbox_kernel.relay.router import Link, Router
from sandbox_kernel.relay.wire import Author, Codec, Signer, WireError

START_SECONDS: Final = 60.0
# The inner kernel's time for its own atexit; jupyter_client sends SIGTERM after 2.5 s.
SHUTDOWN_SECONDS: Final = 1.0
# How long a sandbox that ends may take from its first closed connection to its exit.
HANG_UP_SECONDS: Final = 1.0
CONSOLE_BYTES: Final = 16 * 1024

Starter = Callable[[], StartedSandbox]


class Inner:
    """One sandbox as the wrapper sees it: on its way up, serving, or gone."""

    def __init__(self, started: StartedSandbox, sockets: InnerSockets) -> None:
        self.started = started
        self.link = Link(sockets, Codec(Signer(started.key)))
        self.console = b""
        self.deadline: Timer | None = None
        self.probe_id: str | None = None

    @property
    def serving(self) -> bool:
        return self.link.kernel_info is not None


class Wrapper:
    """Owns the sandbox; implements the router's ``Host``. Everything runs in one thread."""

    def __init__(self, info: ConnectionInfo, author: Author, starter: Starter) -> None:
        self._loop = Loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._frontend = FrontendSockets(self._context, info)
        self._author = author
        self._starter = starter
        self._meter = Meter()
        self._inner: Inner | None = None
        self._stopping = False
        codec = Codec(info.signer)
        self._answers = Answers(self._frontend, codec, author)
        self._router = Router(
            self._loop, self._frontend, codec, author, self._answers, info.ports, host=self
        )

    def run(self, first: StartedSandbox | SandboxUnavailable) -> None:
        """Serve until told to stop. ``first`` was started before zmq was imported."""
        self._watch_signals()
        self._watch_parent()
        try:
            if isinstance(first, SandboxUnavailable):
                self._give_up(first)
            else:
                self._watch_inner(first)
            self._loop.run()
        finally:
            self._drop_inner()
            self._frontend.close()
            self._context.term()
            for reason, count in self._router.drops.items():
                log(f"dropped in all: {reason} × {count}")

    # -- the router's Host -----------------------------------------------------------------------

    def shutdown(self, request: Request) -> None:
        content = {"status": "ok", "restart": bool(request.message.content.get("restart", False))}
        self._answers.status("busy", request.message)
        self._answers.reply(request, content)
        self._answers.publish("shutdown_reply", content, request.message)
        self._answers.status("idle", request.message)
        self._stopping = True
        inner = self._inner
        if inner is None or not inner.serving:
            self._loop.stop()
            return
        # Let the user's atexit run; the end of the sandbox, or the time, stops the loop.
        self._ask(inner, inner.link.sockets.control, "shutdown_request", content)
        self._loop.call_later(SHUTDOWN_SECONDS, self._loop.stop)

    def revive(self) -> None:
        try:
            started = self._starter()
        except SandboxUnavailable as error:
            self._give_up(error)
        else:
            self._watch_inner(started)

    def usage(self) -> Mapping[str, Any]:
        inner = self._inner
        return self._meter.usage_reply(None if inner is None else inner.started.sandbox.root_pid)

    # -- a sandbox comes up ----------------------------------------------------------------------

    def _watch_inner(self, started: StartedSandbox) -> None:
        try:
            sockets = InnerSockets(self._context, started.directory, started.sandbox.owner)
        except (zmq.ZMQError, OSError) as error:
            started.close()
            what = f"The inner kernel's sockets cannot be made: {error}."
            self._give_up(SandboxUnavailable(what, hint="Free disk space or descriptors."))
            return
        inner = self._inner = Inner(started, sockets)
        self._loop.watch(started.lifeline.listener_descriptor, lambda: self._accept(inner))
        self._loop.watch(started.sandbox.console_descriptor, lambda: self._read_console(inner))
        self._loop.watch(started.sandbox.exit_descriptor, lambda: self._on_exit(inner))
        self._loop.watch(sockets.shell, lambda: self._probe(inner), zmq.POLLOUT)
        inner.deadline = self._loop.call_later(START_SECONDS, lambda: self._on_late(inner))

    def _accept(self, inner: Inner) -> None:
        self._loop.forget(inner.started.lifeline.listener_descriptor)
        inner.started.lifeline.accept()

    def _probe(self, inner: Inner) -> None:
        """The inner kernel is connected: its first answer says it is ready, and what it is."""
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
        assert inner.deadline is not None
        inner.deadline.cancel()
        self._loop.forget(inner.link.sockets.shell)
        self._author.version = str(reply.header.get("version", self._author.version))
        inner.link.sockets.take_nobody_else()
        for monitor in inner.link.sockets.monitors:
            self._loop.watch(monitor, lambda: self._on_hang_up(inner))
        facts = inner.started.sandbox.facts
        lines = [f"Sandboxed by sandbox-kernel {__version__}: {facts.summary()}", *facts.notes]
        banner = "\n".join([*lines, str(reply.content.get("banner", ""))])
        inner.link.kernel_info = {**reply.content, "banner": banner}
        self._router.attach(inner.link)

    # -- a sandbox goes ---------------------------------------------------------------------------

    def _read_console(self, inner: Inner) -> None:
        descriptor = inner.started.sandbox.console_descriptor
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, 65536)
            if not data:
                self._loop.forget(descriptor)
            # Only the end is kept, for error messages: cells can write here without bound.
            inner.console = (inner.console + data)[-CONSOLE_BYTES:]

    def _on_late(self, inner: Inner) -> None:
        self._drop_inner()
        self._give_up(
            SandboxUnavailable(
                f"The inner kernel was not ready after {START_SECONDS:.0f} s.",
                hint="The host may be overloaded: run the cell again to start another one.",
            )
        )

    def _on_hang_up(self, inner: Inner) -> None:
        """A connection is gone. Either the sandbox is ending, or a cell has broken its kernel."""
        for monitor in inner.link.sockets.monitors:
            self._loop.forget(monitor)
        self._loop.call_later(HANG_UP_SECONDS, lambda: self._on_broken(inner))

    def _on_broken(self, inner: Inner) -> None:
        if self._inner is inner and not self._stopping:
            self._lose(inner, "its kernel closed a connection or sent more than a message may hold")

    def _on_exit(self, inner: Inner) -> None:
        self._read_console(inner)
        console = inner.console.decode("utf-8", "replace")
        if self._stopping:
            self._loop.stop()
            return
        if not inner.serving:
            reason = inner.started.sandbox.explain(console)
            self._drop_inner()
            self._give_up(reason)
            return
        self._lose(inner, inner.started.lifeline.last_words() or "nothing in it could say why")

    def _lose(self, inner: Inner, how: str) -> None:
        self._router.detach(
            SandboxLost(
                f"The sandbox ended ({how}), and the variables of this notebook are gone.",
                hint="A new sandbox has been started: run the earlier cells again.",
            )
        )
        self._drop_inner()
        self.revive()

    def _drop_inner(self) -> None:
        inner, self._inner = self._inner, None
        if inner is None:
            return
        started, sockets = inner.started, inner.link.sockets
        if inner.deadline is not None:
            inner.deadline.cancel()
        self._loop.forget(started.sandbox.console_descriptor)
        self._loop.forget(started.sandbox.exit_descriptor)
        self._loop.forget(sockets.shell)
        for monitor in sockets.monitors:
            self._loop.forget(monitor)
        if started.lifeline.listening:
            self._loop.forget(started.lifeline.listener_descriptor)
        started.close()
        sockets.close()

    def _give_up(self, error: SandboxUnavailable) -> None:
        log(f"{error.ename}: {error}")
        self._router.refuse(error)

    # -- the world around ------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)

        def on_signal() -> None:
            numbers = os.read(read_end, 64)
            if signal.SIGINT in numbers and self._inner is not None:
                # Frontends should send interrupt_request; a terminal's Ctrl-C means the same.
                self._inner.started.lifeline.interrupt()
            if signal.SIGTERM in numbers or signal.SIGHUP in numbers:
                self._loop.stop()

        self._loop.watch(read_end, on_signal)

    def _watch_parent(self) -> None:
        """End with the server that started this kernel, even if that was killed."""
        if not os.environ.get("JPY_PARENT_PID"):
            return
        parent = os.getppid()
        gone = parent == 1 and os.environ["JPY_PARENT_PID"] != "1"
        try:
            descriptor = os.pidfd_open(parent)
        except ProcessLookupError:
            gone = True
        if gone:
            self._loop.call_later(0, self._loop.stop)
        else:
            self._loop.watch(descriptor, self._loop.stop)
