"""Where every message goes. One small handler per message type; all else is forwarded as it is.

Trust: what comes from the frontend is authenticated by its key. What comes from the inner side is
hostile until matched: a reply must answer an outstanding request and goes where *that* request came
from; a prompt must belong to a running cell that allows stdin; everything must carry our session id.
What does not fit is dropped and counted, never raised.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import zmq

from sandbox_kernel.errors import CellLimitExceeded, PolicyViolation, SandboxError, SandboxLost
from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.log import log
from sandbox_kernel.outputs.annotate import annotate_output, strip_metadata
from sandbox_kernel.outputs.receipt import METADATA_KEY, Exceeded, new_audit_id
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.model import Policy
from sandbox_kernel.policy.violation import CodeViolation
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.asking import Asking, told_apart
from sandbox_kernel.relay.cells import OVERTAKING, Cells, Channel, Request, RunningCell
from sandbox_kernel.relay.debugging import code_in, denial
from sandbox_kernel.relay.frontend import FrontendSockets
from sandbox_kernel.relay.inner import InnerSockets
from sandbox_kernel.relay.loop import Loop
from sandbox_kernel.relay.settle import NOTHING_USED, Ending, Settler
from sandbox_kernel.relay.sockets import receive, send
from sandbox_kernel.relay.wire import (
    Author,
    Codec,
    Message,
    WireError,
    decode_object,
    encode_object,
)

MAX_OUTSTANDING: Final = 1 << 16
# One source may not starve the others: control stays responsive in a flood of output.
TURN_SECONDS: Final = 0.02
# ipykernel sends an idle but no reply when its handler fails; the reply, if any, is right behind.
REPLY_GRACE_SECONDS: Final = 1.0
# Cells of one "Run all" come within this time.
BURST_SECONDS: Final = 0.1
# How long a kernel that is gone may still be listened to: it may have left a flood.
LAST_WORDS_SECONDS: Final = 0.2
# A kernel process that gets an interrupt before it has got to the cell would not know what it is for.
START_SECONDS: Final = 0.05
# A question behind a cell is answered in its turn, but not later than this; one that the same client
# has sent in one go with the cell may count on the order, and waits longer.
QUESTION_SECONDS: Final = 0.8
OWN_QUESTION_SECONDS: Final = 5.0
# What a cell shows, and what counts as such.
DISPLAYS: Final = frozenset({"display_data", "execute_result", "update_display_data"})
OUTPUTS: Final = DISPLAYS | {"stream", "error", "clear_output", "comm_open", "comm_msg"}
# Outputs between cells are counted anew this often.
BETWEEN_SECONDS: Final = 10.0
UNDO: Final = "%undo"
KERNEL_ENDED: Final = SandboxLost(
    "The kernel's process ended twice over this request.", hint="Do not send it again."
)
NOBODY_TO_ASK: Final = "the policy asks about such code, and this client cannot be asked"
# A frontend's debugger lets a stopped cell run on.
RUN_ON: Final = frozenset({"continue", "next", "stepIn", "stepOut", "disconnect", "terminate"})


class Host(Protocol):
    """What the router asks of the wrapper around it."""

    def shutdown(self, request: Request) -> None: ...
    def revive(self) -> None: ...
    def usage(self) -> Mapping[str, Any]: ...
    def undo(self, cell: RunningCell) -> None: ...
    def undo_request(self, request: Request) -> None: ...


@dataclass(slots=True)
class Link:
    """The way to one inner kernel; ``kernel_info`` is set once it has answered, before any cell."""

    sockets: InnerSockets
    codec: Codec
    kernel_info: Mapping[str, Any] | None = None
    # Questions of the wrapper's own, and what is done when they are answered.
    asked: dict[str, Callable[[], None]] = field(default_factory=dict)


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
        host: Host,
    ) -> None:
        self.drops: Counter[str] = Counter()
        self.enforcer: Enforcer
        self._loop = loop
        self._frontend = frontend
        self._codec = codec
        self._answers = answers
        self._author = author
        self._ports = ports
        self._policy = policy
        self._stdin_allowed = policy.stdin == "allow"
        self._settler = settler
        self._judge = judge
        self._asking = Asking(answers)
        # Cells that were approved while there was no inner kernel.
        self._approved: list[RunningCell] = []
        self._host = host
        self._link: Link | None = None
        self._kernel_info: Mapping[str, Any] = {}
        self._failure: SandboxError | None = None
        self._notice: str | None = None
        # What comes while no cell runs is counted here.
        self._between = RunningCell(Request("shell", author.message("execute_request", {})))
        self._between_until = 0.0
        # A cell whose idle has come, but not yet its reply: what comes after its idle must wait.
        self._gate: RunningCell | None = None
        self._start_announced = False
        self._debugging = False
        self._execution_count = 0
        # What the next cell's will be, if it is known.
        self._next_count: int | None = None
        self._serials = itertools.count(1)
        self._asked_again: set[str] = set()
        self._cells = Cells()
        # Requests that are no cells but run code all the same: a widget's callback, a completion.
        self._callbacks: dict[str, RunningCell] = {}
        self._outstanding: OrderedDict[str, Request] = OrderedDict()
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

    def _drop(self, reason: str) -> None:
        self.drops[reason] += 1
        if self.drops[reason] == 1:
            log(f"dropped a message: {reason}; further ones are only counted")

    # -- the inner kernel comes and goes ---------------------------------------------------------

    def attach(self, link: Link) -> None:
        """Serve this inner kernel from now on: everything that waited is forwarded."""
        assert link.kernel_info is not None
        self._link = link
        self._kernel_info = link.kernel_info
        self._failure = None
        self._loop.watch(link.sockets.control, self._read_inner_control)
        self._loop.watch(link.sockets.stdin, self._read_inner_stdin)
        self._loop.watch(link.sockets.iopub, self._read_inner_iopub)
        self._loop.watch(link.sockets.shell, self._read_inner_shell)
        approved, self._approved = self._approved, []
        for cell in approved:
            self._run(cell)
        for request in self._cells.release():
            self._forward(request)

    def suspend(self) -> None:
        """The inner kernel is gone, for now or for ever; its open cells are concluded later.

        Other requests that it has not answered are kept for the next.
        """
        if self._link is None:
            return
        # What it said before it died still counts.
        self._gate = None
        end = time.monotonic() + LAST_WORDS_SECONDS
        while self._link.sockets.iopub.poll(0) and time.monotonic() < end:
            self._read_inner_iopub()
            self._gate = None
        self._read_inner_shell()
        for socket in ("control", "stdin", "iopub", "shell"):
            self._loop.forget(getattr(self._link.sockets, socket))
        self._link = None
        lost = list(self._outstanding.values())
        self._outstanding.clear()
        # Once more, but not for ever: it may be what ended the kernel.
        again = [r for r in lost if not r.is_cell and r.msg_id not in self._asked_again]
        for request in lost:
            if not request.is_cell and request.msg_id in self._asked_again:
                self._answers.refuse(request, KERNEL_ENDED)
        self._asked_again = {request.msg_id for request in again}
        self._cells.put_back(again)

    def conclude(self, cell: RunningCell, ending: Ending) -> None:
        """Say the last words of a cell and go on with the next."""
        if not cell.request.is_cell:
            self._callbacks.pop(cell.request.msg_id, None)
            if ending.error is not None:
                self._settler.settle(cell, ending)
            return
        failed = ending.error is not None or (cell.reply is not None and cell.reply.outline.failed)
        if failed:
            self._abort_behind(cell)
        if cell.execution_count is None:
            # The inner kernel died before its execute_input got here.
            cell.execution_count = self._execution_count + (not cell.request.silent)
        if cell.serial:
            # A rollback takes the count back with all else.
            count = cell.reply.outline.count if cell.reply and ending.state == "kept" else None
            self._next_count = None if count is None else count + 1
        self._settler.settle(cell, ending)
        questions, cell.questions = cell.questions, []
        for request in questions:
            self._say_what_it_is(request)
        self._finish(cell)

    def notice(self, text: str) -> None:
        """Something to be said with the next cell, as there is none now."""
        self._notice = text

    def refuse(self, error: SandboxError) -> None:
        """There is no sandbox to be had: say so to everything that waits and that still comes."""
        self._failure = error
        approved, self._approved = self._approved, []
        for cell in approved:
            self.conclude(cell, Ending(NOTHING_USED, error=error, outcome="lost"))
        failed_lanes = set()
        for request in self._cells.take_waiting():
            if request.is_cell and request.lane_id in failed_lanes:
                self._settler.abort(request, new_audit_id())
                continue
            self._answers.refuse(request, error)
            if request.is_cell and request.stop_on_error:
                failed_lanes.add(request.lane_id)

    # -- from the frontend -----------------------------------------------------------------------

    def _read_frontend_shell(self) -> None:
        for message in self._read(self._frontend.shell, self._codec):
            self._admit(Request("shell", message), self._shell_answers)

    def _read_frontend_control(self) -> None:
        for message in self._read(self._frontend.control, self._codec):
            self._admit(Request("control", message), self._control_answers)

    def _admit(self, request: Request, answers: Mapping[str, Callable[[Request], None]]) -> None:
        answer = answers.get(request.msg_type)
        if request.channel == "control":
            self._overhear(request)
        if self._cells.running(request.msg_id) is not None:
            self._drop("msg_id of a running cell used again")
        elif answer is not None:
            answer(request)
        elif request.msg_type == "interrupt_request" and self._asking.open:
            self._answers.answer(request, {"status": "ok"})
            self._asking.withdraw()
        elif (denied := self._judge_debugger(request)) is not None:
            self._answers.answer(request, denial(request, denied))
        elif self._link is not None:
            if request.msg_type == "interrupt_request":
                self._forward_interrupt(request)
            elif request.channel == "control" and not request.is_cell:
                self._forward(request)
            else:
                # A cell sent on control takes its turn like any other; its reply goes to control.
                for ready in self._cells.admit(request):
                    self._forward(ready)
        elif self._failure is not None:
            self._admit_without_sandbox(request)
        elif request.msg_type == "interrupt_request":
            self._answers.answer(request, {"status": "ok"})
        elif request.msg_type not in OVERTAKING:
            self._cells.hold(request)

    def _forward_interrupt(self, request: Request) -> None:
        started = max((cell.sent for cell in self._cells.in_flight), default=0.0) + START_SECONDS
        wait = started - time.monotonic()
        if wait <= 0:
            self._forward(request)
            return

        def forward() -> None:
            if self._link is not None:
                self._forward(request)
            else:
                self._answers.answer(request, {"status": "ok"})

        self._loop.call_later(wait, forward)

    def _overhear(self, request: Request) -> None:
        """Requests on control that are passed on, but mean something to the wrapper too."""
        if request.msg_type == "interrupt_request":
            self.enforcer.insist()
        elif request.msg_type == "debug_request":
            self._debugging = True
            if request.message.content.get("command") in RUN_ON:
                self.enforcer.resume()

    def _admit_without_sandbox(self, request: Request) -> None:
        error = self._failure
        assert error is not None
        if request.is_cell:
            # The user may have mended it meanwhile: each cell is a reason to try again. Not at
            # once, so that the cells of a "Run all" that came with it share its fate.
            self._failure = None
            self._cells.hold(request)
            self._loop.call_later(BURST_SECONDS, self._host.revive)
        else:
            self._answers.refuse(request, error)

    def _read_frontend_stdin(self) -> None:
        for message in self._read(self._frontend.stdin, self._codec):
            if self._asking.open:
                self._asking.answer(message.content.get("value"))
            elif self._link is None or not self._cells.in_flight:
                self._drop("input_reply without a running cell")
            else:
                self.enforcer.resume()
                self._send_in(self._link.sockets.stdin, message)

    def _read_subscriptions(self) -> None:
        for frames in self._frames(self._frontend.iopub):
            event = frames[0]
            if event[:1] != b"\x01":
                continue
            topic = event[1:].decode("utf-8", "replace")
            self._answers.welcome(topic)

    def _read_heartbeat(self) -> None:
        for frames in self._frames(self._frontend.hb):
            self._frontend.hb.send_multipart(frames)

    # -- answered by the wrapper -----------------------------------------------------------------

    def _connect_request(self, request: Request) -> None:
        ports = {f"{channel}_port": port for channel, port in self._ports.items()}
        self._answers.answer(request, {**ports, "status": "ok"})

    def _usage_request(self, request: Request) -> None:
        self._answers.answer(request, self._host.usage())

    def _kernel_info_request(self, request: Request) -> None:
        cell = self._cells.ahead_of(request)
        if request.channel == "control":
            # The inner kernel's control thread is to see it; a cell can keep that from running.
            self._send_request(request, request.message)
            self._loop.call_later(QUESTION_SECONDS, lambda: self._answer_for_kernel(request))
        elif cell is None:
            self._say_what_it_is(request)
        else:
            cell.questions.append(request)
            in_one_go = (
                request.session == cell.request.session
                and time.monotonic() < cell.sent + BURST_SECONDS
            )
            wait = OWN_QUESTION_SECONDS if in_one_go else QUESTION_SECONDS
            self._loop.call_later(wait, lambda: self._answer_early(cell, request))

    def _answer_for_kernel(self, question: Request) -> None:
        if self._outstanding.pop(question.msg_id, None) is not None:
            self._say_what_it_is(question)

    def _answer_early(self, cell: RunningCell, question: Request) -> None:
        """The cell takes long: a frontend that joins a busy kernel need not wait for it."""
        if question in cell.questions:
            cell.questions.remove(question)
            self._say_what_it_is(question)
            # The idle that came with it was not the kernel's.
            self._answers.status("busy", cell.request.message)

    def _say_what_it_is(self, request: Request) -> None:
        """What the kernel said before any cell ran; a cell may have taught it to lie since."""
        self._answers.answer(request, self._kernel_info)

    # -- to the inner kernel ---------------------------------------------------------------------

    def _forward(self, request: Request) -> None:
        cell = self._cells.running(request.msg_id)
        if cell is not None:
            self._forward_cell(cell)
            return
        if request.msg_type == "kernel_info_request":
            self._kernel_info_request(request)
            return
        if request.channel == "shell" and not self._cells.in_flight:
            self._watch_callback(request)
        self._send_request(request, request.message)

    def _forward_cell(self, cell: RunningCell) -> None:
        request = cell.request
        cell.audit_id = new_audit_id()
        cell.limits = limits = self._policy.limits
        if self._notice is not None:
            text, self._notice = f"{self._notice}\n", None
            self._answers.publish("stream", {"name": "stderr", "text": text}, request.message)
        asked = request.asked_limits
        try:
            if asked is not None:
                cell.limits = limits = limits.tighten(asked)
            self.enforcer.check_budget()
        except (PolicyViolation, CellLimitExceeded) as error:
            self._deny(cell, error)
            return
        if request.code.strip() == UNDO:
            self._begin(cell)
            self._host.undo(cell)
            return
        cell.verdict = self._judge.judge(request.code, request.expressions)
        match cell.verdict.decision:
            case "deny":
                self._deny(cell, CodeViolation(cell.verdict, self._policy.name, request.code))
            case "ask":
                self._asking.ask(cell, lambda yes: self._on_answer(cell, yes))
            case _:
                self._run(cell)

    def _on_answer(self, cell: RunningCell, yes: bool) -> None:
        request = cell.request
        if not yes:
            assert cell.verdict is not None
            why = "you did not allow it" if request.allow_stdin else NOBODY_TO_ASK
            error = CodeViolation(cell.verdict, self._policy.name, request.code, f": {why}")
            self._deny(cell, error)
            return
        cell.approved = True
        self._judge.approved(request.code, request.expressions)
        if self._link is None:
            self._approved.append(cell)
        else:
            self._run(cell)

    def _run(self, cell: RunningCell) -> None:
        request, limits = cell.request, cell.limits
        assert limits is not None
        cell.serial = next(self._serials)
        # The wrapper says that the cell begins, while the inner kernel gets to it: unless something
        # else is before it there, or beside it.
        others = len(self._cells.in_flight) > 1 or self._outstanding or self._callbacks
        cell.announced = not others
        is_counted = cell.announced and not request.silent and request.lane_id is None
        count = self._next_count if is_counted else None
        cell.sent = time.monotonic()
        terms = {
            "serial": cell.serial,
            "busy": cell.announced,
            "count": count,
            "sent": cell.sent,
            "checkpoint": self._policy.checkpoint,
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes,
            "file_bytes": limits.file_bytes,
            "text_bytes": limits.text_bytes,
        }
        metadata = {**decode_object(request.message.frames[2]), METADATA_KEY: terms}
        message = request.message.with_metadata(encode_object(metadata))
        if request.allow_stdin and not self._stdin_allowed:
            content = {**request.message.content, "allow_stdin": False}
            message = message.with_content(encode_object(content))
        self.enforcer.begin(cell, limits)
        self._send_request(request, message)
        if cell.announced:
            self._answers.status("busy", request.message)
        if count is not None:
            cell.execution_count = self._execution_count = count
            self._answers.show_input(request, count)

    def _judge_debugger(self, request: Request) -> CodeViolation | None:
        """The denial of a debugger's request that would run code, if it is denied."""
        if request.msg_type != "debug_request":
            return None
        code = "\n".join(code_in(request.message.content))
        if not code:
            return None
        verdict = self._judge.judge(code)
        if verdict.decision in ("allow", "warn"):
            return None
        return CodeViolation(verdict, self._policy.name, code)

    def _begin(self, cell: RunningCell) -> None:
        """What ipykernel says first, for a cell that it will not see."""
        self._answers.status("busy", cell.request.message)
        cell.execution_count = self._execution_count + (not cell.request.silent)
        self._answers.show_input(cell.request, cell.execution_count)

    def _deny(self, cell: RunningCell, error: SandboxError) -> None:
        self._begin(cell)
        if isinstance(error, CellLimitExceeded):
            exceeded = Exceeded(error.limit, error.allowed, error.used, error.action)
            ending = Ending(NOTHING_USED, error=error, outcome=error.outcome, exceeded=exceeded)
        else:
            ending = Ending(NOTHING_USED, error=error, outcome="denied")
        self.conclude(cell, ending)

    def _watch_callback(self, request: Request) -> None:
        callback = RunningCell(request, audit_id=new_audit_id(), limits=self._policy.limits)
        self._callbacks[request.msg_id] = callback
        self.enforcer.begin(callback, self._policy.limits)

    def _send_request(self, request: Request, message: Message) -> None:
        link = self._link
        assert link is not None
        if request.expects_reply:
            self._outstanding[request.msg_id] = request
            if len(self._outstanding) > MAX_OUTSTANDING:
                self._outstanding.popitem(last=False)
        by_control = request.channel == "control" and not request.is_cell
        self._send_in(link.sockets.control if by_control else link.sockets.shell, message)

    def _send_in(self, socket: zmq.Socket[bytes], message: Message) -> None:
        assert self._link is not None
        frames = self._link.codec.write(message, message.idents)
        try:
            send(socket, frames)
        except zmq.Again:
            # Nobody is connected any more: the wrapper has heard of it too, and `detach` answers.
            self._drop("message to an inner kernel that hung up")

    # -- from the inner kernel, hostile ----------------------------------------------------------

    def _read_inner_shell(self) -> None:
        # Outputs before replies, as the inner kernel made them.
        self._read_inner_iopub()
        if self._link is not None:
            for message in self._read_hostile(self._link.sockets.shell):
                self._take_reply(message, "shell")

    def _read_inner_control(self) -> None:
        if self._link is not None:
            for message in self._read_hostile(self._link.sockets.control):
                self._take_reply(message, "control")

    def _take_reply(self, message: Message, inner_channel: Channel) -> None:
        if self._author.made(message.parent_id):
            assert self._link is not None
            answered = self._link.asked.pop(message.parent_id or "", None)
            if answered is not None:
                answered()
            return
        request = self._outstanding.get(message.parent_id or "")
        if (
            request is None
            or request.reply_type != message.msg_type
            or (request.channel == "control" and not request.is_cell)
            != (inner_channel == "control")
        ):
            self._drop("reply without a request")
            return
        del self._outstanding[request.msg_id]
        message = message.with_metadata(strip_metadata(message.frames[2]))
        if message.msg_type == "kernel_info_reply":
            message = message.with_content(encode_object(self._kernel_info))
        cell = self._cells.running(request.msg_id)
        if cell is None:
            self._answers.forward_reply(request, message)
            return
        cell.reply = message
        self._open_gate(cell)
        if cell.over:
            self.enforcer.over(cell)

    def _read_inner_stdin(self) -> None:
        if self._link is None:
            return
        for message in self._read_hostile(self._link.sockets.stdin):
            cell = self._cells.running(message.parent_id)
            allowed = cell is not None and cell.request.allow_stdin and self._stdin_allowed
            if message.msg_type != "input_request" or cell is None or not allowed:
                self._drop("input_request without a cell that allows stdin")
                continue
            self.enforcer.pause(cell)
            prompt = message.with_content(told_apart(message.frames[3]))
            self._answers.forward_prompt(cell.request, prompt)

    def _read_inner_iopub(self) -> None:
        if self._link is None or self._gate is not None:
            return
        for message in self._read_hostile(self._link.sockets.iopub):
            if self._author.made(message.parent_id):
                continue  # about a request of the wrapper's own
            if message.outline.is_state("starting"):
                # The frontend's kernel starts once, however often its sandbox does: JupyterLab
                # sends nothing to a kernel that it takes for starting.
                if self._start_announced:
                    continue
                self._start_announced = True
            cell = self._cells.running(message.parent_id) or self._callbacks.get(
                message.parent_id or ""
            )
            is_idle = message.msg_type == "status" and message.outline.is_state("idle")
            if cell is not None and is_idle:
                self._take_idle(cell, message)
                if self._gate is not None:
                    return
                continue
            # What names no cell that runs is on the bill of the one that does, or of the pause.
            account = cell or next(iter(self._cells.in_flight), self._between)
            if self._may_show(account, message) and not is_announced(cell, message):
                self._pass_output(message, cell)

    def _take_idle(self, cell: RunningCell, idle: Message) -> None:
        idle = idle.with_metadata(strip_metadata(idle.frames[2]))
        if not cell.request.is_cell:
            self._answers.forward_output(idle)
            self.enforcer.over(cell)
            return
        cell.idle = idle
        if cell.over:
            self.enforcer.over(cell)
            return
        assert self._link is not None
        self._gate = cell
        self._loop.forget(self._link.sockets.iopub)
        self._loop.call_later(REPLY_GRACE_SECONDS, lambda: self._without_reply(cell))

    def _open_gate(self, cell: RunningCell) -> None:
        if self._gate is cell and self._link is not None:
            self._gate = None
            self._loop.watch(self._link.sockets.iopub, self._read_inner_iopub)

    def _without_reply(self, cell: RunningCell) -> None:
        self._open_gate(cell)
        if self._cells.running(cell.request.msg_id) is cell and cell.reply is None:
            self.enforcer.over(cell)

    def _may_show(self, account: RunningCell, message: Message) -> bool:
        """Count a message; whether it is within the limits of the cell that answers for it."""
        account.messages += 1
        account.output_bytes += message.weight
        if message.msg_type in OUTPUTS:
            account.shown_bytes += message.size
        if message.msg_type == "stream":
            account.text_bytes += message.size
        if message.msg_type == "error" and self.enforcer.stopped(account):
            account.error = message
            return False
        if account is self._between:
            return self._may_show_between(account)
        assert account.limits is not None
        return self.enforcer.output(account, account.limits)

    def _may_show_between(self, account: RunningCell) -> bool:
        """Between cells, widgets and threads may send in each stretch of time as much as a cell."""
        now = time.monotonic()
        if now > self._between_until:
            self._between_until = now + BETWEEN_SECONDS
            account.messages = account.output_bytes = account.text_bytes = 0
        limits = self._policy.limits
        shown = (
            (limits.messages, account.messages),
            (limits.output_bytes, account.output_bytes),
            (limits.text_bytes, account.text_bytes),
        )
        if all(allowed is None or used <= allowed for allowed, used in shown):
            return True
        self._drop("output between cells beyond the limits of one")
        self._notice = "Output between cells was dropped: it was more than a cell may show."
        return False

    def _pass_output(self, message: Message, cell: RunningCell | None) -> None:
        """On to the frontend, with nothing in it that only the wrapper may say."""
        if message.msg_type in DISPLAYS:
            audit_id = None if cell is None else cell.audit_id
            message = message.with_content(annotate_output(message.frames[3], audit_id))
        elif cell is not None and message.msg_type == "execute_input":
            if message.outline.count is not None:
                cell.execution_count = self._execution_count = message.outline.count
        elif message.msg_type == "debug_event":
            self._overhear_debugger(message)
        self._answers.forward_output(message.with_metadata(strip_metadata(message.frames[2])))

    def _overhear_debugger(self, event: Message) -> None:
        # Only when the frontend debugs: else a cell could stop its own clock with it.
        if self._debugging and event.outline.is_event("stopped"):
            for cell in self._cells.in_flight:
                self.enforcer.pause(cell)

    def _abort_behind(self, cell: RunningCell) -> None:
        """Called before the frontend learns of the error: what it sends after that may run."""
        # "Run all" has sent the cells behind this one; they are aborted even if still unread.
        self._read_frontend_shell()
        self._cells.fail(cell)

    def _finish(self, cell: RunningCell) -> None:
        self._cells.finish(cell)
        for request in cell.aborted:
            self._settler.abort(request, new_audit_id())
        if self._link is not None:
            for request in self._cells.release():
                self._forward(request)

    # -- reading and writing ---------------------------------------------------------------------

    @staticmethod
    def _frames(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
        # One at a time: a batch of large frames would stand in memory all at once.
        end_of_turn = time.monotonic() + TURN_SECONDS
        # What was read may have had the inner kernel killed, and its sockets closed.
        while not socket.closed and time.monotonic() < end_of_turn:
            frames = receive(socket)
            if frames is None:
                return
            yield frames

    def _read(self, socket: zmq.Socket[bytes], codec: Codec) -> Iterator[Message]:
        for frames in self._frames(socket):
            try:
                message = codec.read(frames)
            except WireError as error:
                self._drop(str(error))
            else:
                yield message

    def _read_hostile(self, socket: zmq.Socket[bytes]) -> Iterator[Message]:
        assert self._link is not None
        for message in self._read(socket, self._link.codec):
            if message.header.get("session") == self._author.session:
                yield message
            else:
                self._drop("foreign session")


def is_announced(cell: RunningCell | None, message: Message) -> bool:
    """Whether an inner kernel says what the wrapper has said when it forwarded the cell."""
    if cell is None:
        return False
    if message.msg_type == "status":
        return cell.announced and message.outline.is_state("busy")
    is_input = message.msg_type == "execute_input" and cell.execution_count is not None
    return is_input and message.outline.count == cell.execution_count
