"""The wrapper kernel: one loop, the router in it, and a sandbox that is replaced when it is lost."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Mapping
from typing import Any, Final

import zmq

from sandbox_kernel.audit.log import AuditLog
from sandbox_kernel.errors import SandboxError, SandboxUnavailable, UndoUnavailable
from sandbox_kernel.isolation.start import StartedSandbox
from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.limits.ladder import Restored
from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.log import log
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.model import Policy
from sandbox_kernel.relay.allowance import Allowance
from sandbox_kernel.relay.answers import Answers, error_content
from sandbox_kernel.relay.cells import Request, RunningCell
from sandbox_kernel.relay.connection import ConnectionInfo
from sandbox_kernel.relay.failures import Failures
from sandbox_kernel.relay.frontend import FrontendSockets
from sandbox_kernel.relay.lifecycle import Lifecycle, Starter
from sandbox_kernel.relay.link import Link
from sandbox_kernel.relay.loop import Loop, Source
from sandbox_kernel.relay.router import Router
from sandbox_kernel.relay.settle import NOTHING_USED, Ending, Settler
from sandbox_kernel.relay.subscribers import Subscribers
from sandbox_kernel.relay.wire import Author, Codec

# The inner kernel's time for its own atexit; jupyter_client sends SIGTERM after 2.5 s.
SHUTDOWN_SECONDS: Final = 1.0


class Wrapper:
    """Puts router, enforcer and lifecycle together, between whom it passes on what concerns each."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        frontend: FrontendSockets,
        info: ConnectionInfo,
        author: Author,
        starter: Starter,
        policy: Policy,
        audit: AuditLog,
    ) -> None:
        self._audit = audit
        self._end = "ended"
        self._loop = Loop()
        self._loop.failed = self._on_failure
        self._failures = Failures()
        self._context = context
        self._frontend = frontend
        self._stopping = False
        codec = Codec(info.signer)
        allowance = Allowance(policy.limits.output_bytes)
        subscribers = Subscribers(self._loop, frontend.iopub)
        allowance.is_held_up = subscribers.are_behind
        self._answers = Answers(
            self._frontend, codec, author, allowance.passed_on, subscribers.publish
        )
        self._lifecycle = Lifecycle(
            self._loop, allowance, author, starter, policy.limits, serving=self
        )
        self._enforcer = Enforcer(self._loop, policy, self._lifecycle, concluding=self)
        self._judge = Judge(policy.code)
        self._router = Router(
            self._loop,
            self._frontend,
            codec,
            author,
            self._answers,
            info.ports,
            policy,
            Settler(
                self._answers, policy, audit, lambda: self._lifecycle.facts, self._loop.call_later
            ),
            self._judge,
            audit,
            self._enforcer,
            host=self,
        )

    def run(self, first: StartedSandbox | SandboxError) -> None:
        """Serve until told to stop. ``first`` was started before zmq was imported."""
        self._watch_signals()
        self._watch_parent()
        self._audit.anchor_with(self._loop.call_later)
        try:
            if isinstance(first, SandboxError):
                self._lifecycle.give_up(first)
            else:
                self._lifecycle.watch(first)
            self._loop.run()
        finally:
            self._router.record_cut_off()
            self._audit.ended(self._end)
            self._lifecycle.close()
            self._frontend.close()
            self._context.term()
            if self._failures.count:
                log(f"exceptions in all: {self._failures.count}")
            for reason, count in self._router.drops.items():
                log(f"dropped in all: {reason} × {count}")

    # -- what the router asks for ----------------------------------------------------------------

    def shutdown(self, request: Request) -> None:
        content = {"status": "ok", "restart": bool(request.message.content.get("restart", False))}
        self._answers.status("busy", request.message)
        self._answers.reply(request, content)
        self._answers.publish("shutdown_reply", content, request.message)
        self._answers.status("idle", request.message)
        self._stopping = True
        self._end = "restart" if content["restart"] else "shutdown"
        if self._lifecycle.shut_down(content):
            # The end of the kernel process, or the time, stops the loop.
            self._loop.call_later(SHUTDOWN_SECONDS, self._loop.stop)
        else:
            self._loop.stop()

    def revive(self) -> None:
        self._lifecycle.revive()

    def interrupt(self) -> None:
        self._lifecycle.interrupt()

    def usage(self) -> Mapping[str, Any]:
        return (self._lifecycle.meter() or Meter()).usage_reply()

    def undo(self, cell: RunningCell) -> None:
        """A cell that says ``%undo``: it has begun, and nothing of it goes to the inner kernel."""

        def undone(restored: Restored | None) -> None:
            if restored is None:
                error = UndoUnavailable(lost=True)
                ending = Ending(NOTHING_USED, "lost", error, outcome="lost")
            else:
                self._went_back(restored, cell.audit_id)
                ending = Ending(
                    NOTHING_USED,
                    "rolled_back",
                    not_restored=restored.not_restored,
                    said=undone_in_words(restored),
                )
            self._router.conclude(cell, ending)

        def impossible() -> None:
            self._router.fail(cell, Ending(NOTHING_USED, error=UndoUnavailable()))

        self._lifecycle.undo(undone, impossible)

    def undo_request(self, request: Request) -> None:
        """The same for programs: ``undo_request`` on control, ``undo_reply`` back."""

        def undone(restored: Restored | None) -> None:
            if restored is None:
                self._answers.answer(request, error_content(UndoUnavailable(lost=True)))
                return
            self._went_back(restored)
            not_restored = list(restored.not_restored)
            self._answers.answer(request, {"status": "ok", "not_restored": not_restored})

        def impossible() -> None:
            self._answers.answer(request, error_content(UndoUnavailable()))

        self._lifecycle.undo(undone, impossible)

    def _went_back(self, restored: Restored, audit_id: str = "") -> None:
        self._audit.event("undo", {"not_restored": list(restored.not_restored)}, audit_id)
        self._enforcer.went_back(restored)

    # -- what the enforcer tells -----------------------------------------------------------------

    def conclude(self, cell: RunningCell, ending: Ending) -> None:
        self._router.conclude(cell, ending)

    def notice(self, text: str, event: str) -> None:
        # No cell was running, whose outcome would say so.
        self._audit.event(event, {"why": text})
        self._answers.notice(text)

    # -- what the lifecycle tells ----------------------------------------------------------------

    def attach(self, link: Link) -> None:
        facts = self._lifecycle.facts
        assert facts is not None
        about = link.kernel_info or {}
        self._audit.started(facts, about)
        language = about.get("language_info")
        self._judge.know_inner_python(
            language.get("version") if isinstance(language, dict) else None
        )
        self._router.attach(link)
        self._enforcer.watch_idle()
        if not gc.get_freeze_count():
            # What there is now stays: it need not be looked through again and again for garbage.
            gc.freeze()

    def suspend(self) -> None:
        self._router.suspend()

    def died(self, how: str) -> None:
        self._audit.event("process_ended", {"how": how})
        self._enforcer.died(how)

    def lost(self, how: str) -> None:
        self._audit.event("sandbox_replaced", {"how": how})
        self._enforcer.lost(how)

    def refuse(self, error: SandboxError) -> None:
        self._audit.event("unavailable", {"error": error.ename, "why": error.what})
        self._router.refuse(error)

    def delay(self, reason: SandboxError) -> None:
        self._router.delay(reason)

    def watching(self) -> bool:
        """Whether anything runs in the sandbox that would have to end if it went back."""
        return self._enforcer.watching

    def busy(self) -> bool:
        """Whether the inner kernel may be at something else, if it does not answer at once."""
        return self._enforcer.busy

    def ended(self) -> bool:
        """The kernel process or the sandbox has ended: whether that is what was wanted."""
        if self._stopping:
            self._loop.stop()
        return self._stopping

    # -- when something in here fails --------------------------------------------------------------

    def _on_failure(self, source: Source | None, error: Exception) -> None:
        """A handler let an exception out, which is a mistake of the wrapper's. It goes on.

        What the sandbox says may have caused it, and a timer may be one that holds its limits: then
        the sandbox is given up. A frontend's message has been answered by the router.
        """
        try:
            self.failed(error, fatal=source is None or self._lifecycle.reads(source))
        except Exception as second:
            # Even to give the sandbox up in good order has failed: it ends, and nothing runs without one.
            self._failures.note(second)
            self._lifecycle.close()
            what = f"The wrapper failed ({type(second).__name__}), and its sandbox was ended."
            self._lifecycle.give_up(SandboxUnavailable(what, hint="Restart the kernel."))

    def failed(self, error: Exception, *, fatal: bool) -> None:
        self._failures.note(error)
        where = "sandbox" if fatal else "frontend"
        self._audit.event("wrapper_failed", {"error": type(error).__name__, "over": where})
        if fatal and not self._stopping:
            how = f"the wrapper failed over what it sent: {type(error).__name__}"
            self._lifecycle.replace(how, again=not self._failures.too_many)

    # -- the world around ------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)

        def on_signal() -> None:
            numbers = os.read(read_end, 64)
            if signal.SIGINT in numbers:
                # Frontends should send interrupt_request; a terminal's Ctrl-C means the same.
                self._enforcer.insist()
                self._lifecycle.interrupt()
            if signal.SIGTERM in numbers or signal.SIGHUP in numbers:
                self._end = "signal"
                self._loop.stop()

        self._loop.watch(read_end, on_signal)

    def _watch_parent(self) -> None:
        """End with the server that started this kernel, even if that was killed."""
        if not os.environ.get("JPY_PARENT_PID"):
            return
        if not (parent := os.getppid()):
            return  # started from outside of its pid namespace: who did that cannot be seen from here
        gone = parent == 1 and os.environ["JPY_PARENT_PID"] != "1"
        try:
            descriptor = os.pidfd_open(parent)
        except ProcessLookupError:
            gone = True
        if gone:
            self._loop.call_later(0, self._on_parent_gone)
        else:
            self._loop.watch(descriptor, self._on_parent_gone)

    def _on_parent_gone(self) -> None:
        self._end = "parent_gone"
        self._loop.stop()


def undone_in_words(restored: Restored) -> str:
    lacking = (
        f" (not restored: {', '.join(restored.not_restored)})" if restored.not_restored else ""
    )
    return f"Undone: the variables are as they were before the last cell{lacking}."
