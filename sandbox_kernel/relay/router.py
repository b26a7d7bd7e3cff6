"""Where every message goes. One small handler per message type; all else is forwarded as it is.

Trust: what comes from the frontend is authenticated by its key. What comes from the inner side is
hostile until matched: a reply must answer an outstanding request and goes where *that* request came
from; a prompt must belong to a running cell that allows stdin; everything must carry our session id.
What does not fit is dropped and counted, never raised.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import zmq

from sandbox_kernel.errors import SandboxError
from sandbox_kernel.log import log
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.cells import OVERTAKING, Cells, Channel, Request, RunningCell
from sandbox_kernel.relay.frontend import FrontendSockets
from sandbox_kernel.relay.inner import InnerSockets
from sandbox_kernel.relay.loop import Loop
from sandbox_kernel.relay.wire import Author, Codec, Message, WireError

MAX_OUTSTANDING: Final = 1 << 16
# One source may not starve the others: control stays responsive in a flood of output.
TURN_SECONDS: Final = 0.02
# ipykernel sends an idle but no reply when its handler fails; the reply, if any, is right behind.
REPLY_GRACE_SECONDS: Final = 1.0


# Cells of one "Run all" come within this time.
BURST_SECONDS: Final = 0.1


class Host(Protocol):
    """What the router asks of the wrapper around it."""

    def shutdown(self, request: Request) -> None: ...
    def revive(self) -> None: ...
    def usage(self) -> Mapping[str, Any]: ...


@dataclass(slots=True)
class Link:
    """The way to one inner kernel; ``kernel_info`` is set once it has answered, before any cell."""

    sockets: InnerSockets
    codec: Codec
    kernel_info: Mapping[str, Any] | None = None


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
        host: Host,
    ) -> None:
        self.drops: Counter[str] = Counter()
        self._loop = loop
        self._frontend = frontend
        self._codec = codec
        self._answers = answers
        self._author = author
        self._ports = ports
        self._host = host
        self._link: Link | None = None
        self._failure: SandboxError | None = None
        self._notice: str | None = None
        self._start_announced = False
        self._execution_count = 0
        self._asked_again: set[str] = set()
        self._cells = Cells()
        self._outstanding: OrderedDict[str, Request] = OrderedDict()
        self._shell_answers: dict[str, Callable[[Request], None]] = {
            "connect_request": self._connect_request,
            "shutdown_request": host.shutdown,
        }
        self._control_answers = self._shell_answers | {"usage_request": self._usage_request}
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
        self._link = link
        self._failure = None
        self._loop.watch(link.sockets.control, self._read_inner_control)
        self._loop.watch(link.sockets.stdin, self._read_inner_stdin)
        self._loop.watch(link.sockets.iopub, self._read_inner_iopub)
        self._loop.watch(link.sockets.shell, self._read_inner_shell)
        for request in self._cells.release():
            self._forward(request)

    def detach(self, error: SandboxError) -> None:
        """The inner kernel is gone: end open cells with ``error``, keep other requests for the next."""
        if self._link is None:
            return
        # What it said before it died still counts.
        while self._link.sockets.iopub.poll(0):
            self._read_inner_iopub()
        self._read_inner_shell()
        for socket in ("control", "stdin", "iopub", "shell"):
            self._loop.forget(getattr(self._link.sockets, socket))
        self._link = None
        lost = list(self._outstanding.values())
        self._outstanding.clear()
        in_flight = self._cells.in_flight
        for cell in in_flight:
            self._fail_cell(cell, error)
        if not in_flight:
            self._notice = str(error)
        # Once more, but not for ever: it may be what ended the sandbox.
        again = [r for r in lost if not r.is_cell and r.msg_id not in self._asked_again]
        for request in lost:
            if not request.is_cell and request.msg_id in self._asked_again:
                self._answers.refuse(request, error)
        self._asked_again = {request.msg_id for request in again}
        self._cells.put_back(again)

    def refuse(self, error: SandboxError) -> None:
        """There is no sandbox to be had: say so to everything that waits and that still comes."""
        self._failure = error
        failed_lanes = set()
        for request in self._cells.take_waiting():
            if request.is_cell and request.lane_id in failed_lanes:
                self._answers.abort(request)
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
        if self._cells.running(request.msg_id) is not None:
            self._drop("msg_id of a running cell used again")
        elif answer is not None:
            answer(request)
        elif self._link is not None:
            if request.channel == "control" and not request.is_cell:
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
            if self._link is None or not self._cells.in_flight:
                self._drop("input_reply without a running cell")
            else:
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

    def _fail_cell(self, cell: RunningCell, error: SandboxError) -> None:
        if not cell.reply_seen:
            self._abort_behind(cell)
        if cell.execution_count is None:
            # The inner kernel died before its execute_input got here.
            cell.execution_count = self._execution_count + (not cell.request.silent)
        self._answers.fail(cell, error)
        self._finish(cell)

    # -- to the inner kernel ---------------------------------------------------------------------

    def _forward(self, request: Request) -> None:
        link = self._link
        assert link is not None
        if request.is_cell and self._notice is not None:
            text, self._notice = f"{self._notice}\n", None
            self._answers.publish("stream", {"name": "stderr", "text": text}, request.message)
        if request.expects_reply:
            self._outstanding[request.msg_id] = request
            if len(self._outstanding) > MAX_OUTSTANDING:
                self._outstanding.popitem(last=False)
        by_control = request.channel == "control" and not request.is_cell
        self._send_in(link.sockets.control if by_control else link.sockets.shell, request.message)

    def _send_in(self, socket: zmq.Socket[bytes], message: Message) -> None:
        assert self._link is not None
        frames = self._link.codec.write(message, message.idents)
        try:
            socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            # Nobody is connected any more: the wrapper has heard of it too, and `detach` answers.
            self._drop("message to an inner kernel that hung up")

    # -- from the inner kernel, hostile ----------------------------------------------------------

    def _read_inner_shell(self) -> None:
        if self._link is not None:
            # Outputs before replies, as the inner kernel made them.
            self._read_inner_iopub()
            for message in self._read_hostile(self._link.sockets.shell):
                self._take_reply(message, "shell")

    def _read_inner_control(self) -> None:
        if self._link is not None:
            for message in self._read_hostile(self._link.sockets.control):
                self._take_reply(message, "control")

    def _take_reply(self, message: Message, inner_channel: Channel) -> None:
        if self._author.made(message.parent_id):
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
        if message.msg_type == "kernel_info_reply":
            # What it said before any cell ran; a cell may have taught it to lie since.
            assert self._link is not None
            assert self._link.kernel_info is not None
            message = message.with_content(self._link.kernel_info)
        cell = self._cells.running(request.msg_id)
        if cell is not None and message.outline.failed:
            self._abort_behind(cell)
        self._answers.forward_reply(request, message)
        if cell is not None:
            cell.reply_seen = True
            if cell.over:
                self._finish(cell)

    def _read_inner_stdin(self) -> None:
        if self._link is None:
            return
        for message in self._read_hostile(self._link.sockets.stdin):
            cell = self._cells.running(message.parent_id)
            if message.msg_type != "input_request" or cell is None or not cell.request.allow_stdin:
                self._drop("input_request without a cell that allows stdin")
                continue
            self._answers.forward_prompt(cell.request, message)

    def _read_inner_iopub(self) -> None:
        if self._link is None:
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
            self._answers.forward_output(message)
            cell = self._cells.running(message.parent_id)
            if cell is None:
                continue
            if message.msg_type == "execute_input":
                if message.outline.count is not None:
                    cell.execution_count = self._execution_count = message.outline.count
            elif message.msg_type == "status" and message.outline.is_state("idle"):
                cell.idle_seen = True
                if cell.over:
                    self._finish(cell)
                else:
                    self._loop.call_later(REPLY_GRACE_SECONDS, self._without_reply(cell))

    def _without_reply(self, cell: RunningCell) -> Callable[[], None]:
        def give_up_waiting() -> None:
            if self._cells.running(cell.request.msg_id) is cell and not cell.reply_seen:
                self._finish(cell)

        return give_up_waiting

    def _abort_behind(self, cell: RunningCell) -> None:
        """Called before the frontend learns of the error: what it sends after that may run."""
        # "Run all" has sent the cells behind this one; they are aborted even if still unread.
        self._read_frontend_shell()
        self._cells.fail(cell)

    def _finish(self, cell: RunningCell) -> None:
        self._cells.finish(cell)
        for request in cell.aborted:
            self._answers.abort(request)
        if self._link is not None:
            for request in self._cells.release():
                self._forward(request)

    # -- reading and writing ---------------------------------------------------------------------

    @staticmethod
    def _frames(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
        # One at a time: a batch of large frames would stand in memory all at once.
        end_of_turn = time.monotonic() + TURN_SECONDS
        while time.monotonic() < end_of_turn:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
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
