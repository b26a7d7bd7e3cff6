"""Where every message goes. One small handler per message type; all else is forwarded as it is.

Trust: what comes from the frontend is authenticated by its key. What comes from the inner side is
hostile until matched: a reply must answer an outstanding request and goes where *that* request came
from; a prompt must belong to a running cell that allows stdin; everything must carry our session id.
What does not fit is dropped and counted, never raised.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from sandbox_kernel.audit.log import AuditLog
from sandbox_kernel.errors import PolicyViolation, SandboxError, SandboxLost
from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.outputs.annotate import strip_metadata
from sandbox_kernel.outputs.receipt import new_audit_id
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.model import Policy
from sandbox_kernel.relay.accounts import Accounts
from sandbox_kernel.relay.answers import Answers, error_content, unavailable_kernel_info
from sandbox_kernel.relay.asking import told_apart
from sandbox_kernel.relay.cells import (
    BURST_SECONDS,
    OVERTAKING,
    Cells,
    Channel,
    Request,
    RunningCell,
)
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


class Host(Protocol):
    """What the router asks of the wrapper around it."""

    def shutdown(self, request: Request) -> None: ...
    def revive(self) -> None: ...
    def usage(self) -> Mapping[str, Any]: ...
    def undo(self, cell: RunningCell) -> None: ...
    def undo_request(self, request: Request) -> None: ...


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
        self._stdin_allowed = policy.stdin == "allow"
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
            self._inner, self._cells, self._counts, enforcer, policy, answers
        )
        self._judging = Judging(
            policy,
            judge,
            audit,
            enforcer,
            self._counts,
            answers,
            run=self._forwarder.run,
            undo=host.undo,
            fail=self.fail,
        )
        self._asking = self._judging.asking
        self._output = Output(
            loop,
            self._reader,
            self._inner,
            author,
            answers,
            enforcer,
            self._cells,
            self._counts,
            Accounts(self._cells, enforcer, policy.limits, author, answers, self._reader.drop),
            self._debugging,
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
        loop.watch(frontend.stdin, self._read_frontend_stdin)
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
        self._loop.watch(link.sockets.stdin, self._read_inner_stdin)
        self._output.attach(link)
        self._loop.watch(link.sockets.shell, self._read_inner_shell)
        self._loop.watch(link.sockets.replies, self._read_inner_shell)
        for cell in self._forwarder.take_approved():
            self._forwarder.run(cell)
        for request in self._cells.release():
            self._forward(request)

    def suspend(self) -> None:
        """The inner kernel is gone, for now or for ever; its open cells are concluded later.

        Other requests that it has not answered are kept for the next.
        """
        link = self._inner.link
        if link is None:
            return
        self._output.read_last_words()
        self._read_inner_shell()
        for socket in ("control", "stdin", "iopub", "shell", "replies"):
            self._loop.forget(getattr(link.sockets, socket))
        self._inner.link = None
        unanswered = self._inner.outstanding.lose()
        for request in unanswered.given_up:
            self._answers.refuse(request, KERNEL_ENDED)
        self._cells.put_back(unanswered.again)

    def fail(self, cell: RunningCell, ending: Ending) -> None:
        """Conclude a cell that fails here, and was never sent in.

        That is faster than a frontend sends one cell after another: those of the same "Run all" are to
        be aborted, as behind a cell that took its time to fail.
        """
        wait = cell.request.received + BURST_SECONDS - time.monotonic()
        if cell.request.stop_on_error and wait > 0:
            self._endings[cell.request.msg_id] = ending
            self._loop.call_later(wait, lambda: self.conclude(cell, ending))
        else:
            self.conclude(cell, ending)

    def conclude(self, cell: RunningCell, ending: Ending) -> None:
        """Say the last words of a cell and go on with the next."""
        if not cell.request.is_cell:
            self._cells.end_callback(cell)
            if ending.error is not None:
                self._settler.settle(cell, ending)
            return
        self._endings.pop(cell.request.msg_id, None)
        failed = ending.error is not None or (cell.reply is not None and cell.reply.outline.failed)
        if failed:
            self._abort_behind(cell)
        self._counts.end(cell, ending.state)
        self._settler.settle(cell, ending)
        self._kernel_info.answer_behind(cell)
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
            for request in self._cells.release():
                self._forward(request)

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
            for request in self._cells.take_questions():
                self._answers.answer(request, self._kernel_info.content)

    # -- from the frontend -----------------------------------------------------------------------

    def _read_frontend_shell(self) -> None:
        for message in self._reader.messages(self._frontend.shell, self._codec):
            self._admit(Request("shell", message), self._shell_answers)

    def _read_frontend_control(self) -> None:
        for message in self._reader.messages(self._frontend.control, self._codec):
            self._admit(Request("control", message), self._control_answers)

    def _admit(self, request: Request, answers: Mapping[str, Callable[[Request], None]]) -> None:
        answer = answers.get(request.msg_type)
        if request.channel == "control":
            self._overhear(request)
        if self._is_taken(request):
            self._reader.drop("msg_id of a running cell used again")
        elif answer is not None:
            answer(request)
        elif request.is_unreadable:
            self._answers.answer(request, error_content(NO_CODE))
        elif request.msg_type == "interrupt_request" and self._asking.open:
            self._answers.answer(request, {"status": "ok"})
            self._asking.withdraw()
        elif (denied := self._debugging.judge(request)) is not None:
            self._answers.answer(request, denial(request, denied))
        elif self._inner.link is not None:
            if request.msg_type == "interrupt_request":
                self._forward_interrupt(request)
            elif request.inner_channel == "control":
                self._forward(request)
            else:
                # A cell sent on control takes its turn like any other; its reply goes to control.
                for ready in self._cells.admit(request):
                    self._forward(ready)
        elif self._failure is not None:
            self._admit_without_sandbox(request, self._failure)
        elif request.msg_type == "interrupt_request":
            self._answers.answer(request, {"status": "ok"})
        elif request.msg_type == "kernel_info_request" and self._kernel_info.content:
            # A sandbox is on its way, which may take as long as an engine is silent.
            self._answers.answer(request, self._kernel_info.content)
        elif request.msg_type not in OVERTAKING:
            self._cells.hold(request)

    def _is_taken(self, request: Request) -> bool:
        """Whether a cell with the id of this request runs, and is not over before its turn.

        The second client of a kernel manager numbers its messages like the first, whose cell may run.
        """
        running = self._cells.running(request.msg_id)
        if running is None or request.msg_type == "shutdown_request":
            return False  # what ends the kernel ends the cell, whatever its number
        return not request.is_cell or request.lane_id != running.request.lane_id

    def _overhear(self, request: Request) -> None:
        """Requests on control that are passed on, but mean something to the wrapper too."""
        if request.msg_type == "interrupt_request":
            self._enforcer.insist()
        elif request.msg_type == "debug_request":
            self._debugging.overhear_request(request)
        elif request.msg_type == "create_subshell_request":
            self._enforcer.expect_thread()

    def _admit_without_sandbox(self, request: Request, error: SandboxError) -> None:
        if request.is_cell:
            # The user may have mended it meanwhile: each cell is a reason to try again. Not at
            # once, so that the cells of a "Run all" that came with it share its fate.
            self._failure = None
            self._cells.hold(request)
            self._loop.call_later(BURST_SECONDS, self._host.revive)
        else:
            self._answers.refuse(request, error)

    def _read_frontend_stdin(self) -> None:
        for message in self._reader.messages(self._frontend.stdin, self._codec):
            if self._asking.open:
                self._asking.answer(message.content.get("value"))
            elif self._inner.link is None or not self._cells.in_flight:
                self._reader.drop("input_reply without a running cell")
            else:
                self._enforcer.resume()
                self._inner.send_input(message)

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
        self._answers.answer(request, {**ports, "status": "ok"})

    def _usage_request(self, request: Request) -> None:
        self._answers.answer(request, self._host.usage())

    # -- to the inner kernel ---------------------------------------------------------------------

    def _forward(self, request: Request) -> None:
        cell = self._cells.running(request.msg_id)
        if cell is not None:
            self._judging.decide(cell)
        elif request.msg_type == "kernel_info_request":
            self._kernel_info.request(request)
        else:
            self._forwarder.pass_on(request)

    def _forward_interrupt(self, request: Request) -> None:
        started = max((cell.sent for cell in self._cells.in_flight), default=0.0) + START_SECONDS
        wait = started - time.monotonic()
        if wait <= 0:
            self._forward(request)
            return

        def forward() -> None:
            if self._inner.link is not None:
                self._forward(request)
            else:
                self._answers.answer(request, {"status": "ok"})

        self._loop.call_later(wait, forward)

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
        cell = self._cells.running(request.msg_id)
        if cell is None:
            self._answers.forward_reply(request, message)
            return
        cell.reply = message
        self._output.open_gate(cell)
        if cell.over:
            self._enforcer.over(cell)
        else:
            self._enforcer.nearly_over(cell)

    def _read_inner_stdin(self) -> None:
        if (link := self._inner.link) is None:
            return
        for message in self._reader.hostile(link.sockets.stdin, link.codec):
            cell = self._cells.running(message.parent_id)
            allowed = cell is not None and cell.request.allow_stdin and self._stdin_allowed
            if message.msg_type != "input_request" or cell is None or not allowed:
                self._reader.drop("input_request without a cell that allows stdin")
                continue
            self._enforcer.pause(cell)
            prompt = message.with_content(told_apart(message.frames[3]))
            self._answers.forward_prompt(cell.request, prompt)
