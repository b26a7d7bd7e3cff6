"""The queue of cells: one lane per subshell, one execute in flight in each, aborts owned here.

ipykernel aborts the execute requests it has already received when a cell fails. The wrapper forwards
one cell at a time (it meters and settles each), so the queue is here, and so are the aborts.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from sandbox_kernel.errors import PolicyViolation
from sandbox_kernel.outputs.receipt import METADATA_KEY
from sandbox_kernel.policy.model import Limits
from sandbox_kernel.policy.units import shown
from sandbox_kernel.policy.verdict import Answer, Verdict
from sandbox_kernel.relay.wire import Message

Channel = Literal["shell", "control"]

# A running cell may await a widget's answer: in ipykernel comm messages overtake the queue for that.
OVERTAKING: Final = frozenset({"comm_open", "comm_msg", "comm_close"})
# What a client may say with a cell under `METADATA_KEY`; outputs have the id there, and are copied.
ASKING_KEYS: Final = frozenset({"limits", "audit_id"})
# By these a receipt is known.
RECEIPT_KEYS: Final = frozenset({"schema", "audit_id"})
# Cells of one "Run all" come within this time.
BURST_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the frontend and where its reply goes."""

    channel: Channel
    message: Message
    # By the monotonic clock.
    received: float = field(default_factory=time.monotonic)

    @property
    def msg_id(self) -> str:
        return self.message.msg_id

    @property
    def msg_type(self) -> str:
        return self.message.msg_type

    @property
    def session(self) -> object:
        """Who sent it: each client has its own."""
        return self.message.header.get("session")

    @property
    def reply_type(self) -> str:
        return self.msg_type.removesuffix("_request") + "_reply"

    @property
    def inner_channel(self) -> Channel:
        """Where it goes in: a cell sent on control takes its turn like any other."""
        return "control" if self.channel == "control" and not self.is_cell else "shell"

    @property
    def expects_reply(self) -> bool:
        return self.msg_type.endswith("_request")

    @property
    def is_cell(self) -> bool:
        """Whether this takes a turn in the queue, is judged and recorded."""
        return self.msg_type == "execute_request" and self._has_code

    @property
    def is_unreadable(self) -> bool:
        """A cell that cannot be judged must not get in: IPython evaluates the ``user_expressions`` of
        one whose code is ``0`` or ``null``."""
        return self.msg_type == "execute_request" and not self._has_code

    @property
    def _has_code(self) -> bool:
        return isinstance(self.message.content.get("code"), str)

    @property
    def silent(self) -> bool:
        return bool(self.message.content.get("silent", False))

    @property
    def stop_on_error(self) -> bool:
        return bool(self.message.content.get("stop_on_error", True)) and not self.silent

    @property
    def allow_stdin(self) -> bool:
        return bool(self.message.content.get("allow_stdin", False))

    @property
    def code(self) -> str:
        return str(self.message.content["code"])

    @property
    def expressions(self) -> list[str]:
        """What is evaluated behind the cell: code too."""
        expressions = self.message.content.get("user_expressions")
        values = expressions.values() if isinstance(expressions, dict) else ()
        return [value for value in values if isinstance(value, str)]

    @property
    def asked_limits(self) -> object:
        """What the client wants this cell's limits to be; ``None`` if it says nothing.

        ``PolicyViolation`` if it says something that means nothing: a mistyped key must not run the
        cell without its limits. JupyterLab sends a cell's metadata along: a receipt that was put there
        asks for nothing.
        """
        asked = self.message.metadata.get(METADATA_KEY)
        if not isinstance(asked, dict):
            return asked
        if asked.keys() >= RECEIPT_KEYS:
            return None
        if unknown := sorted(asked.keys() - ASKING_KEYS):
            what = f"{shown(unknown[0])} in the metadata of this cell, under {METADATA_KEY!r}, means nothing."
            raise PolicyViolation(what, hint='Send for example {"limits": {"wall": "5s"}}.')
        return asked.get("limits")

    @property
    def lane_id(self) -> str | None:
        subshell_id = self.message.header.get("subshell_id")
        return subshell_id if isinstance(subshell_id, str) else None


@dataclass(slots=True)
class RunningCell:
    """The execute in flight: over when both its reply and its idle have come, which are held."""

    request: Request
    # Its place among all cells of this kernel: checkpoints are labelled with it.
    serial: int = 0
    audit_id: str = ""
    # Whether the audit log has its intent.
    recorded: bool = False
    limits: Limits | None = None
    # What the policy says of its code, and what the user has answered where the policy asks.
    verdict: Verdict | None = None
    answer: Answer | None = None
    approved: bool = False
    execution_count: int | None = None
    # Whether the wrapper has said its busy; it is not the inner kernel's to say then.
    announced: bool = False
    # When it was forwarded, by the monotonic clock.
    sent: float = 0.0
    # Whether the user was asked for it, and nothing was answered inside since.
    asks: bool = False
    # How often it has asked since.
    prompts: int = 0
    # Whether the inner kernel has said that it has come to it.
    begun: bool = False
    reply: Message | None = None
    idle: Message | None = None
    # The error it published after it was stopped; shown within the wrapper's own.
    error: Message | None = None
    shown_bytes: int = 0
    # What counts against its limits: all it sends.
    output_bytes: int = 0
    text_bytes: int = 0
    messages: int = 0
    # The hash of what it has shown, for the audit log.
    shown: hashlib._Hash | None = None
    shown_messages: int = 0
    # What stands right behind it and is answered by the wrapper, in its turn.
    questions: list[Request] = field(default_factory=list)
    aborted: list[Request] = field(default_factory=list)

    def note_shown(self, message: Message) -> None:
        """Count an output that is passed on as it is now into the hash of all."""
        if self.shown is None:
            self.shown = hashlib.sha256()
        content = message.frames[3]
        self.shown.update(b"%b %d\n" % (message.msg_type.encode(), len(content)))
        self.shown.update(content)
        self.shown_messages += 1

    @property
    def over(self) -> bool:
        return self.reply is not None and self.idle is not None


@dataclass(slots=True)
class Lane:
    """One subshell's requests in order."""

    running: RunningCell | None = None
    waiting: deque[Request] = field(default_factory=deque)

    @property
    def idle(self) -> bool:
        return self.running is None and not self.waiting


class Cells:
    """All lanes. Says what runs and what may be forwarded now; forwards nothing itself."""

    def __init__(self) -> None:
        self._lanes: dict[str | None, Lane] = {}
        # What goes in by control waits for no cell.
        self._control = Lane()
        self._running: dict[str, RunningCell] = {}
        # Requests that are no cells but run code all the same: a widget's callback, a completion.
        self._callbacks: dict[str, RunningCell] = {}
        # Messages to widgets that came while there was no inner kernel.
        self._overtaking: list[Request] = []

    def admit(self, request: Request) -> list[Request]:
        """Take a request in; the requests (it, or none) that may be forwarded now."""
        if request.msg_type in OVERTAKING and not self._is_taken(request):
            return [request]
        lane = self._lane(request)
        lane.waiting.append(request)
        return self._next(lane)

    def hold(self, request: Request) -> None:
        """Queue a request without forwarding: there is no inner kernel to take it yet."""
        if request.msg_type in OVERTAKING:
            self._overtaking.append(request)
        else:
            self._lane(request).waiting.append(request)

    def put_back(self, requests: Iterable[Request]) -> None:
        """Queue requests that were forwarded in vain, ahead of those that never were."""
        for request in reversed(list(requests)):
            self._lane(request).waiting.appendleft(request)

    def release(self) -> list[Request]:
        """Everything that may be forwarded now; lanes with nothing left are forgotten."""
        ready = [request for lane in self._all_lanes() for request in self._next(lane)]
        self._lanes = {lane_id: lane for lane_id, lane in self._lanes.items() if not lane.idle}
        # Behind the cells that begin, which may await them, and ahead of those that wait.
        overtaking, self._overtaking = self._overtaking, []
        return ready + overtaking

    def running(self, msg_id: str | None) -> RunningCell | None:
        return None if msg_id is None else self._running.get(msg_id)

    def begun_by(self, request: Request) -> RunningCell | None:
        """The cell that is this very request, not another one with its id."""
        cell = self._running.get(request.msg_id)
        return cell if cell is not None and cell.request is request else None

    def watched(self, msg_id: str | None) -> RunningCell | None:
        """The cell, or the callback, that the request with this id has begun inside."""
        if msg_id is None:
            return None
        cell = self._running.get(msg_id)
        return cell if cell is not None and cell.sent else self._callbacks.get(msg_id)

    def ahead_of(self, request: Request) -> RunningCell | None:
        """The cell that runs in the request's lane."""
        lane = self._lanes.get(request.lane_id)
        return None if lane is None else lane.running

    def before(self, request: Request) -> Request | None:
        """The cell right before it in its lane, which runs or waits."""
        lane = self._lane(request)
        cell = None if lane.running is None else lane.running.request
        for each in lane.waiting:
            if each is request:
                break
            if each.is_cell:
                cell = each
        return cell

    @property
    def in_flight(self) -> list[RunningCell]:
        return list(self._running.values())

    @property
    def one_runs(self) -> bool:
        """Whether one cell runs, and nothing else."""
        return len(self._running) == 1 and not self._callbacks

    @property
    def callbacks(self) -> list[RunningCell]:
        return list(self._callbacks.values())

    def begin_callback(self, callback: RunningCell) -> None:
        self._callbacks[callback.request.msg_id] = callback

    def end_callback(self, callback: RunningCell) -> None:
        self._callbacks.pop(callback.request.msg_id, None)

    def fail(self, cell: RunningCell) -> None:
        """The cell failed: what waits behind it now, and nothing that comes later, is aborted."""
        if cell.request.stop_on_error:
            lane = self._lanes[cell.request.lane_id]
            cell.aborted += [request for request in lane.waiting if request.is_cell]
            lane.waiting = deque(request for request in lane.waiting if not request.is_cell)

    def finish(self, cell: RunningCell) -> None:
        """End a running cell; `release` says what may follow."""
        self._lanes[cell.request.lane_id].running = None
        del self._running[cell.request.msg_id]

    def take_waiting(self) -> list[Request]:
        """Empty all queues: what waits will be answered some other way."""
        waiting = [request for lane in self._all_lanes() for request in lane.waiting]
        for lane in self._all_lanes():
            lane.waiting.clear()
        overtaking, self._overtaking = self._overtaking, []
        return waiting + overtaking

    def take(self, request: Request) -> bool:
        """Somebody else answers it; whether it was still waiting."""
        waiting = self._lane(request).waiting
        if request not in waiting:
            return False
        waiting.remove(request)
        return True

    @property
    def questions(self) -> list[Request]:
        """The questions what kernel this is that wait for their turn."""
        waiting = [request for lane in self._all_lanes() for request in lane.waiting]
        return [each for each in waiting if each.msg_type == "kernel_info_request"]

    def _lane(self, request: Request) -> Lane:
        if request.inner_channel == "control":
            return self._control
        return self._lanes.setdefault(request.lane_id, Lane())

    def _all_lanes(self) -> list[Lane]:
        return [self._control, *self._lanes.values()]

    def _next(self, lane: Lane) -> list[Request]:
        if lane is self._control:
            # No order is kept there: it must go on, whatever waits.
            waiting, lane.waiting = lane.waiting, deque(filter(self._is_taken, lane.waiting))
            return [request for request in waiting if not self._is_taken(request)]
        ready: list[Request] = []
        while lane.waiting and not self._must_wait(lane, lane.waiting[0]):
            request = lane.waiting.popleft()
            if request.is_cell:
                lane.running = self._running[request.msg_id] = RunningCell(request)
            ready.append(request)
        return ready

    def _must_wait(self, lane: Lane, request: Request) -> bool:
        # Behind a running cell ipykernel itself keeps the order, so only cells must wait here,
        # and whatever stands behind a waiting cell.
        return (lane.running is not None and request.is_cell) or self._is_taken(request)

    def _is_taken(self, request: Request) -> bool:
        """Whether a cell with its id runs, in whatever lane: what is said of the one would be taken to
        be said of the other.

        The clients of one kernel manager number their messages alike.
        """
        return request.msg_id in self._running
