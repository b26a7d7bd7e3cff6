"""Where every message goes. One small handler per message type; all else is forwarded as it is.

Trust: what comes from the frontend is authenticated by its key. What comes from the inner side is
hostile until matched: a reply must answer an outstanding request and goes where *that* request came
from; a prompt must belong to a running cell that allows stdin (`stdin.py`); everything must carry our
session id. What does not fit is dropped and counted, never raised.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from sandbox_kernel.audit.log import AuditLog
from sandbox_kernel.errors import PolicyViolation, SandboxError, SandboxLost, WrapperFailed
from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.outputs.annotate import strip_metadata
from sandbox_kernel.outputs.receipt import new_audit_id
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.model import Policy
from sandbox_kernel.relay.accounts import Accounts
from sandbox_kernel.relay.answers import Answers, error_content, unavailable_kernel_info
from sandbox_kernel.relay.cells import BURST_SECONDS, Cells, Channel, Request, RunningCell
from sandbox_kernel.relay.counts import Counts
from sandbox_kernel.relay.debugging import Debugging, denial
from sandbox_kernel.relay.forward import Forwarder
from sandbox_kernel.relay.frontend import FrontendSockets
from sandbox_kernel.relay.judging import Judging
from sandbox_kernel.relay.kernel_info import KernelInfo
from sandbox_kernel.relay.link import InnerSide, Link
from sandbox_kernel.relay.loop import Loop
from sandbox_kernel.relay.output import Output
from sandbox_kernel.relay.reading import Reader
from sandbox_kernel.relay.settle import NOTHING_USED, Ending, Settler
from sandbox_kernel.relay.stdin import Stdin
from sandbox_kernel.relay.wire import Author, Codec, Message, encode_object

# A kernel process that gets an interrupt before it has got to the cell would not know what it is for.
START_SECONDS: Final = 0.05
KERNEL_ENDED: Final = SandboxLost(
    "The kernel's process ended twice over this request.", hint="Do not send it again."
)
NO_CODE: Final = PolicyViolation(
    "The `code` of this execute_request is no text: it cannot be checked, and nothing was run.",
    hint="Send the code of the cell as a string.",
)
UNREADABLE: Final = PolicyViolation(
    "What this request says cannot be read, and nothing was done.",
    hint="Send JSON without NaN, numbers too large for a float, halves of characters such as "
    "`\\ud83d` alone, and hundreds of nested brackets.",
)


class Host(Protocol):
    """What the router asks of the wrapper around it."""

    def shutdown(self, request: Request) -> None: ...
    def revive(self) -> None: ...
    def interrupt(self) -> None: ...
    def usage(self) -> Mapping[str, Any]: ...
    def undo(self, cell: RunningCell) -> None: ...
    def undo_request(self, request: Request) -> None: ...
    def failed(self, error: Exception, *, fatal: bool) -> None: ...


class Router:
    """The state machine between the two sides. Runs in the loop's thread only."""

    def __init__(
        self,
        loop: Loop,
        frontend: FrontendSockets,
        codec: Codec,
        author: Author,
        answers: Answers,
        ports: Mapping[str, int],
        policy: Policy,
        settler: Settler,
        judge: Judge,
        audit: AuditLog,
        enforcer: Enforcer,
        host: Host,
    ) -> None:
        self._loop = loop
        self._frontend = frontend
        self._codec = codec
        self._author = author
        self._answers = answers
        self._ports = ports
        self._settler = settler
        self._enforcer = enforcer
        self._host = host
        self._failure: SandboxError | None = None
        # Of cells that have failed here, and about which nothing was said yet.
        self._endings: dict[str, Ending] = {}
        self._reader = Reader(author.session)
        self._inner = InnerSide(self._reader.drop)
        self._cells = Cells()
        self._counts = Counts()
        self._kernel_info = KernelInfo(loop, self._inner, self._cells, answers)
        self._debugging = Debugging(self._cells, enforcer, judge, policy.name)
        self._forwarder = Forwarder(
            self._inner, self._cells, self._counts, enforcer, policy, answers, author
        )
        self._judging = Judging(
            policy,
            judge,
            audit,
            enforcer,
            self._counts,
            answers,
            run=self._run,
            undo=host.undo,
            fail=self.fail,
        )
        self._asking = self._judging.asking
        accounts = Accounts(
            self._cells, enforcer, policy.limits, author, answers, self._reader.drop
        )
        self._output = Output(
            loop,
            self._reader,
            self._inner,
            author,
            answers,
            enforcer,
            self._cells,
            self._counts,
            accounts,
            self._debugging,
            policy.late_output,
        )
        self._stdin = Stdin(
            loop,
            self._reader,
            frontend,
            codec,
            self._inner,
            author,
            answers,
            enforcer,
            self._cells,
            accounts,
            self._asking,
            cells_may_ask=policy.stdin == "allow",
        )
        self._shell_answers: dict[str, Callable[[Request], None]] = {
            "connect_request": self._connect_request,
            "shutdown_request": host.shutdown,
        }
        self._control_answers = self._shell_answers | {
            "usage_request": self._usage_request,
            "undo_request": host.undo_request,
        }
        loop.watch(frontend.hb, self._read_heartbeat)
        loop.watch(frontend.control, self._read_frontend_control)
        loop.watch(frontend.stdin, self._stdin.read_replies)
        loop.watch(frontend.iopub, self._read_subscriptions)
        loop.watch(frontend.shell, self._read_frontend_shell)

    @property
    def drops(self) -> Counter[str]:
        """What was dropped, by its reason."""
        return self._reader.drops

    # -- the inner kernel comes and goes ---------------------------------------------------------

    def attach(self, link: Link) -> None:
        """Serve this inner kernel from now on: everything that waited is forwarded."""
        assert link.kernel_info is not None
        self._inner.link = link
        self._kernel_info.content = link.kernel_info
        self._failure = None
        self._loop.watch(link.sockets.control, self._read_inner_control)
        self._stdin.attach(link)
        self._output.attach(link)
        self._loop.watch(link.sockets.shell, self._read_inner_shell)
        self._loop.watch(link.sockets.replies, self._read_inner_shell)
        for cell in self._forwarder.take_approved():
            self._forwarder.run(cell)
        for question in self._cells.questions:
            self._kernel_info.expect(question)
        self._forward_all(self._cells.release())

    def suspend(self) -> None:
        """The inner kernel is gone, for now or for ever; its open cells are concluded later.

        Other requests that it has not answered are kept for the next.
        """
        link = self._inner.link
        if link is None:
            return
        self._output.read_last_words()
        self._read_inner_shell()
        if self._inner.link is not link:
            return  # its last words ended a cell that had to be rolled back: that has suspended it
        for socket in ("control", "stdin", "iopub", "shell", "replies"):
            self._loop.forget(getattr(link.sockets, socket))
        self._stdin.suspend()
        unanswered = self._inner.lose()
        for request in unanswered.given_up:
            self._answers.refuse(request, KERNEL_ENDED)
        for request in unanswered.interrupts:
            # The next cell is not the one that was meant.
            self._answer(request, {"status": "ok"})
        self._cells.put_back(unanswered.again)

    def fail(self, cell: RunningCell, ending: Ending) -> None:
        """Conclude a cell that fails or is answered here, and was never sent in.

        That is faster than a frontend sends one cell after another: those of the same "Run all" are to
        be aborted, as behind a cell that took its time to fail. Never at once: the next one may fail here
        too, and so may hundreds.
        """
        wait = cell.request.received + BURST_SECONDS - time.monotonic()
        self._endings[cell.request.msg_id] = ending
        self._loop.call_later(
            max(0.0, wait) if ending.error is not None and cell.request.stop_on_error else 0.0,
            lambda: self.conclude(cell, ending),
        )

    def conclude(self, cell: RunningCell, ending: Ending) -> None:
        """Say the last words of a cell and go on with the next."""
        self._output.release_claims(cell)
        self._inner.sent.end(cell.request)
        if not cell.request.is_cell:
            self._cells.end_callback(cell)
            if not cell.request.expects_reply:
                self._inner.outstanding.take(cell.request)
            self._settler.settle_callback(cell, ending)
            return
        self._endings.pop(cell.request.msg_id, None)
        failed = ending.error is not None or (cell.reply is not None and cell.reply.outline.failed)
        if failed:
            self._abort_behind(cell)
        self._counts.end(cell, ending.state)
        self._settler.settle(cell, ending)
        self._kernel_info.answer_behind(cell)
        self._forwarder.ask_beside(cell)
        self._finish(cell)

    def record_cut_off(self) -> None:
        """The kernel ends: the log is to say so of each cell that has not come to its end."""
        for cell in self._cells.in_flight:
            if cell.audit_id:
                ending = self._endings.get(cell.request.msg_id) or self._enforcer.cut_off(cell)
                self._settler.record_cut_off(cell, ending)

    def _abort_behind(self, cell: RunningCell) -> None:
        """Called before the frontend learns of the error: what it sends after that may run."""
        # "Run all" has sent the cells behind this one; they are aborted even if still unread.
        self._read_frontend_shell()
        self._cells.fail(cell)

    def _finish(self, cell: RunningCell) -> None:
        self._cells.finish(cell)
        for request in cell.aborted:
            self._settler.abort(request, new_audit_id())
        if self._inner.link is not None:
            self._forward_all(self._cells.release())

    def refuse(self, error: SandboxError) -> None:
        """There is no sandbox to be had: say so to everything that waits and that still comes."""
        self._failure = error
        for cell in self._forwarder.take_approved():
            self.conclude(cell, Ending(NOTHING_USED, error=error, outcome="lost"))
        failed_lanes = set()
        for request in self._cells.take_waiting():
            if request.is_cell and request.lane_id in failed_lanes:
                self._settler.abort(request, new_audit_id())
                continue
            self._answers.refuse(request, error)
            if request.is_cell and request.stop_on_error:
                failed_lanes.add(request.lane_id)

    def delay(self, reason: SandboxError) -> None:
        """A sandbox takes longer than is normal: frontends that wait to come up need not."""
        if not self._kernel_info.content:
            self._kernel_info.content = unavailable_kernel_info(reason)
            for question in self._cells.questions:
                self._cells.take(question)
                self._answers.answer(question, self._kernel_info.content)

    # -- from the frontend -----------------------------------------------------------------------

    def _read_frontend_shell(self) -> None:
        refuse = partial(self._refuse_unreadable, "shell")
        for message in self._reader.built(self._frontend.shell, self._codec, refuse):
            self._take_in(Request("shell", message), self._shell_answers)

    def _read_frontend_control(self) -> None:
        refuse = partial(self._refuse_unreadable, "control")
        for message in self._reader.built(self._frontend.control, self._codec, refuse):
            self._take_in(Request("control", message), self._control_answers)

    def _take_in(self, request: Request, answers: Mapping[str, Callable[[Request], None]]) -> None:
        self._guard(request, lambda: self._admit(request, answers))

    def _guard(self, request: Request, handle: Callable[[], None]) -> None:
        """Handle a request; an exception becomes its answer."""
        try:
            handle()
        except Exception as error:
            # Its client waits for an answer; and one request must not cost others theirs.
            cell = self._cells.begun_by(request)
            is_inside = cell is not None and bool(cell.sent)
            self._host.failed(error, fatal=is_inside)
            reason = WrapperFailed(error)
            if cell is not None and not is_inside:
                self.conclude(cell, Ending(NOTHING_USED, error=reason, outcome="error"))
            elif cell is None and request.expects_reply:
                self._answer(request, error_content(reason))

    def _refuse_unreadable(self, channel: Channel, message: Message) -> None:
        request = Request(channel, message)
        if request.expects_reply:
            self._answer(request, error_content(UNREADABLE))

    def _admit(self, request: Request, answers: Mapping[str, Callable[[Request], None]]) -> None:
        answer = answers.get(request.msg_type)
        self._inner.sent.forget(request.msg_id)
        if request.channel == "control":
            self._overhear(request)
        if answer is not None:
            answer(request)
        elif request.is_unreadable:
            self._answer(request, error_content(NO_CODE))
        elif request.msg_type == "interrupt_request":
            self._interrupt(request)
        elif (denied := self._debugging.judge(request)) is not None:
            self._answer(request, denial(request, denied))
        elif self._inner.link is not None:
            if request.msg_type == "kernel_info_request":
                self._kernel_info.expect(request)
            # A cell sent on control takes its turn like any other; its reply goes to control.
            self._forward_all(self._cells.admit(request))
        elif self._failure is not None:
            self._admit_without_sandbox(request, self._failure)
        elif request.msg_type == "kernel_info_request" and self._kernel_info.content:
            # A sandbox is on its way, which may take as long as an engine is silent.
            self._answer(request, self._kernel_info.content)
        else:
            self._cells.hold(request)

    def _answer(self, request: Request, content: Mapping[str, Any]) -> None:
        """Answer what is not for the inner kernel; with busy and idle, unless a cell with its id runs,
        whose end they would seem to be."""
        if self._cells.running(request.msg_id) is None:
            self._answers.answer(request, content)
        else:
            self._answers.reply(request, content)

    def _overhear(self, request: Request) -> None:
        """Requests on control that are passed on, but mean something to the wrapper too."""
        if request.msg_type == "interrupt_request":
            self._enforcer.insist()
        elif request.msg_type == "debug_request":
            self._debugging.overhear_request(request)

    def _admit_without_sandbox(self, request: Request, error: SandboxError) -> None:
        if request.is_cell:
            self._cells.hold(request)
            self._try_again()
        else:
            self._answers.refuse(request, error)

    def _try_again(self) -> None:
        """The user may have mended it meanwhile: each cell is a reason to try for a sandbox again."""
        self._failure = None
        # Not at once, so that the cells of a "Run all" that came with it share its fate.
        self._loop.call_later(BURST_SECONDS, self._host.revive)

    def _read_subscriptions(self) -> None:
        for frames in self._reader.frames(self._frontend.iopub):
            event = frames[0]
            if event[:1] != b"\x01":
                continue
            topic = event[1:].decode("utf-8", "replace")
            self._answers.welcome(topic)

    def _read_heartbeat(self) -> None:
        for frames in self._reader.frames(self._frontend.hb):
            self._frontend.hb.send_multipart(frames)

    def _connect_request(self, request: Request) -> None:
        ports = {f"{channel}_port": port for channel, port in self._ports.items()}
        self._answer(request, {**ports, "status": "ok"})

    def _usage_request(self, request: Request) -> None:
        self._answer(request, self._host.usage())

    # -- to the inner kernel ---------------------------------------------------------------------

    def _forward_all(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._guard(request, partial(self._forward, request))

    def _forward(self, request: Request) -> None:
        cell = self._cells.begun_by(request)
        if cell is not None:
            self._judging.decide(cell)
        elif request.msg_type == "kernel_info_request":
            self._kernel_info.request(request)
        else:
            if request.msg_type == "create_subshell_request":
                self._enforcer.expect_thread()
            self._forwarder.pass_on(request)

    def _run(self, cell: RunningCell) -> None:
        self._forwarder.run(cell)
        if self._failure is not None:
            # The sandbox was lost while the user thought, and all that waited then was refused.
            self._try_again()

    def _interrupt(self, request: Request) -> None:
        if self._asking.open:
            self._answer(request, {"status": "ok"})
            self._stdin.withdraw()
            return
        started = max((cell.sent for cell in self._cells.in_flight), default=0.0) + START_SECONDS
        wait = started - time.monotonic()
        if wait <= 0:
            self._forward_interrupt(request)
        else:
            self._loop.call_later(wait, lambda: self._forward_interrupt(request))

    def _forward_interrupt(self, request: Request) -> None:
        if self._inner.link is not None and self._cells.running(request.msg_id) is None:
            self._forward(request)
        elif self._failure is not None:
            self._answers.refuse(request, self._failure)
        else:
            if self._inner.link is not None:
                # What the inner kernel says of the request would seem to be said of the cell.
                self._host.interrupt()
            self._answer(request, {"status": "ok"})

    # -- from the inner kernel, hostile ----------------------------------------------------------

    def _read_inner_shell(self) -> None:
        # Outputs before replies, as the inner kernel made them.
        self._output.read()
        if (link := self._inner.link) is not None:
            for socket in (link.sockets.replies, link.sockets.shell):
                for message in self._reader.hostile(socket, link.codec):
                    self._take_reply(message, "shell")

    def _read_inner_control(self) -> None:
        if (link := self._inner.link) is not None:
            for message in self._reader.hostile(link.sockets.control, link.codec):
                self._take_reply(message, "control")

    def _take_reply(self, message: Message, inner_channel: Channel) -> None:
        if self._author.made(message.parent_id):
            assert self._inner.link is not None
            answered = self._inner.link.asked.pop(message.parent_id or "", None)
            if answered is not None:
                answered()
            return
        request = self._inner.outstanding.answered(message, inner_channel)
        if request is None:
            self._reader.drop("reply without a request")
            return
        message = message.with_metadata(strip_metadata(message.frames[2]))
        if message.msg_type == "kernel_info_reply":
            message = message.with_content(encode_object(self._kernel_info.content))
        cell = self._cells.begun_by(request)
        if cell is None:
            self._answers.forward_reply(request, message)
            return
        cell.reply = message
        self._output.open_gate(cell)
        if cell.over:
            self._enforcer.over(cell)
        else:
            self._enforcer.nearly_over(cell)
