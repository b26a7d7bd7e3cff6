"""The way to the inner kernel, while there is one, and the requests that it has not answered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from sandbox_kernel.relay.cells import OVERTAKING, Channel, Request
from sandbox_kernel.relay.channel import InnerChannel
from sandbox_kernel.relay.inner import WRAPPER_IDENTITY, InnerSockets
from sandbox_kernel.relay.sent import SentIn
from sandbox_kernel.relay.wire import Codec, Message, encode_object

MAX_OUTSTANDING: Final = 1 << 16
# An honest one has a hundred bytes.
MAX_STATUS_BYTES: Final = 1 << 12


@dataclass(slots=True)
class Link:
    """The way to one inner kernel; ``kernel_info`` is set once it has answered, before any cell."""

    sockets: InnerSockets
    codec: Codec
    kernel_info: Mapping[str, Any] | None = None
    # Questions of the wrapper's own, and what is done when they are answered.
    asked: dict[str, Callable[[], None]] = field(default_factory=dict)


class Unanswered(NamedTuple):
    """Requests that an inner kernel has left when it went."""

    again: list[Request]
    given_up: list[Request]
    # What they were to end has ended.
    interrupts: list[Request]


class Outstanding:
    """Requests that were sent in and expect a reply. A reply is believed only if it is to one of them.

    Messages to widgets, which expect none, are among them until the inner kernel has come to them.
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self._asked_again: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request) -> None:
        self._requests[request.msg_id] = request
        if len(self._requests) > MAX_OUTSTANDING:
            self._requests.popitem(last=False)

    def take(self, request: Request) -> bool:
        """Somebody else answers it; whether it was still to be answered.

        Clients of one kernel manager number their messages alike: another one may have the id by now.
        """
        if self._requests.get(request.msg_id) is not request:
            return False
        del self._requests[request.msg_id]
        return True

    def answered(self, reply: Message, inner_channel: Channel) -> Request | None:
        """The request that this is the reply to: of its type, on its channel, and the only one."""
        request = self._requests.get(reply.parent_id or "")
        if (
            request is None
            or not request.expects_reply
            or request.reply_type != reply.msg_type
            or request.inner_channel != inner_channel
        ):
            return None
        del self._requests[request.msg_id]
        return request

    def lose(self) -> Unanswered:
        """The inner kernel is gone: what the next one is to be asked, and what it is not.

        Cells are neither: how they ended is for others to say.
        """
        lost = [request for request in self._requests.values() if not request.is_cell]
        self._requests.clear()
        interrupts = [request for request in lost if request.msg_type == "interrupt_request"]
        lost = [request for request in lost if request not in interrupts]
        # Once more, but not for ever: it may be what ended the kernel.
        again = [request for request in lost if request.msg_id not in self._asked_again]
        given_up = [request for request in lost if request.msg_id in self._asked_again]
        self._asked_again = {request.msg_id for request in again}
        return Unanswered(again, given_up, interrupts)


class Statuses:
    """Of which requests the inner kernel has yet to say that it is busy with them, and idle again.

    Clients wait for that: a frontend takes a request for open, and a widget sends nothing more, until it
    has come. It is not a cell's output, whatever that may still show.
    """

    def __init__(self) -> None:
        self._due: OrderedDict[str, str] = OrderedDict()

    def expect(self, request: Request) -> None:
        self._due[request.msg_id] = "busy"
        if len(self._due) > MAX_OUTSTANDING:
            self._due.popitem(last=False)

    def take(self, status: Message) -> bool:
        """Whether this was still to come; each does once."""
        msg_id = status.parent_id or ""
        due = self._due.get(msg_id)
        # Its parent is the request's header, as long as the frontend made that.
        if due is None or status.weight - len(status.frames[1]) > MAX_STATUS_BYTES:
            return False
        if status.outline.is_state("idle"):
            del self._due[msg_id]
        elif status.outline.is_state(due):
            self._due[msg_id] = "idle"
        else:
            return False
        return True

    def clear(self) -> None:
        self._due.clear()


class InnerSide:
    """Sends to the inner kernel of the moment. Nothing here blocks or raises."""

    def __init__(self, drop: Callable[[str], None]) -> None:
        self.link: Link | None = None
        self.outstanding: Final = Outstanding()
        self.statuses: Final = Statuses()
        self.sent: Final = SentIn()
        self._drop = drop

    def lose(self) -> Unanswered:
        """This inner kernel is gone."""
        self.link = None
        self.statuses.clear()
        return self.outstanding.lose()

    def send_request(self, request: Request, message: Message) -> None:
        """``message`` is the request as the inner kernel is to see it."""
        assert self.link is not None
        self.sent.add(request)
        if request.expects_reply or request.msg_type in OVERTAKING:
            self.outstanding.add(request)
        if not request.is_cell:
            self.statuses.expect(request)
        sockets = self.link.sockets
        by_control = request.inner_channel == "control"
        self._send(self.link, sockets.control if by_control else sockets.shell, message)

    def ask(
        self, question: Message, answered: Callable[[], None], lane_id: str | None = None
    ) -> None:
        """A question of the wrapper's own; ``answered`` is called if this kernel answers it.

        That is when all is over that was sent into this lane before it.
        """
        assert self.link is not None
        if lane_id is not None:
            question = in_lane(question, lane_id)
        self.link.asked[question.msg_id] = answered
        self._send(self.link, self.link.sockets.shell, question, (WRAPPER_IDENTITY,))

    def send_input(self, message: Message) -> None:
        """What the user has typed for a cell."""
        assert self.link is not None
        self._send(self.link, self.link.sockets.stdin, message)

    def _send(
        self,
        link: Link,
        channel: InnerChannel,
        message: Message,
        idents: tuple[bytes, ...] | None = None,
    ) -> None:
        frames = link.codec.write(message, message.idents if idents is None else idents)
        if not channel.send(frames):
            # Nobody is connected any more: the wrapper has heard of it too, and what was to be
            # answered is lost with the kernel, which `Outstanding.lose` sees to.
            self._drop("message to an inner kernel that hung up")


def in_lane(message: Message, lane_id: str) -> Message:
    """The message as one for a subshell."""
    header = {**message.header, "subshell_id": lane_id}
    return replace(message, header=header, frames=(encode_object(header), *message.frames[1:]))
