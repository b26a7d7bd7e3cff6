"""What the inner kernel publishes, over real sockets: order, and what becomes of it with the kernel."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.relay.accounts import Accounts
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.cells import Cells, Request, RunningCell
from sandbox_kernel.relay.connection import CHANNELS, ConnectionInfo
from sandbox_kernel.relay.counts import Counts
from sandbox_kernel.relay.debugging import Debugging
from sandbox_kernel.relay.frontend import FrontendSockets
from sandbox_kernel.relay.inner import InnerSockets
from sandbox_kernel.relay.link import InnerSide, Link
from sandbox_kernel.relay.loop import Loop
from sandbox_kernel.relay.output import Output
from sandbox_kernel.relay.reading import Reader
from sandbox_kernel.relay.settle import Ending
from sandbox_kernel.relay.wire import Author, Codec, Signer

SESSION = "session"
KEY = Signer(b"key")
PATIENCE_SECONDS = 10.0


class Around:
    """What the enforcer needs of the wrapper; nothing here is stopped, so it only takes note."""

    def __init__(self) -> None:
        self.concluded: list[RunningCell] = []

    ready = False

    def meter(self) -> Meter:
        return Meter()

    def interrupt(self) -> None:
        pass

    def forget(self) -> None:
        raise AssertionError

    def conclude(self, cell: RunningCell, ending: Ending) -> None:
        self.concluded.append(cell)


class Stage:
    """An `Output` between two real sides: a frontend that listens, and kernels one after the other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        info = ConnectionInfo(
            "ipc", f"{directory}/f", {c: n for n, c in enumerate(CHANNELS, 1)}, KEY
        )
        self._frontend = FrontendSockets(self._context, info)
        self._listener = self._context.socket(zmq.SUB)
        self._listener.subscribe(b"")
        self._listener.connect(info.endpoint("iopub"))
        assert self._frontend.iopub.poll(PATIENCE_SECONDS * 1000), "the subscription did not come"
        self._codec = Codec(KEY)
        self._open: list[Any] = [self._frontend, self._listener]
        policy = load_policy("default")
        author = Author(SESSION)
        self.loop = Loop()
        self.reader = Reader(SESSION)
        self.inner = InnerSide(self.reader.drop)
        self.cells = Cells()
        self.answers = answers = Answers(self._frontend, Codec(KEY), author)
        self.limits = policy.limits
        self.enforcer = enforcer = Enforcer(self.loop, policy, Around(), Around())  # type: ignore[arg-type]
        self.output = Output(
            self.loop,
            self.reader,
            self.inner,
            author,
            answers,
            enforcer,
            self.cells,
            Counts(),
            Accounts(self.cells, enforcer, policy.limits, author, answers, self.reader.drop),
            Debugging(self.cells, enforcer, Judge(policy.code), policy.name),
            "label",
        )
        # Its ids are not the wrapper's: those of its own requests are not shown.
        self.author = Author(SESSION, username="inner")
        self._client = Author("client")
        self._numbers = iter(range(1000))

    def new_kernel(self) -> Kernel:
        number = next(self._numbers)
        sockets = InnerSockets(self.loop, self._directory, lambda _: None, prefix=f"k{number}")
        link = Link(sockets, Codec(KEY), {})
        peer = self._context.socket(zmq.PUSH)
        peer.linger = 0
        peer.connect(f"ipc://{self._directory}/k{number}-2")
        self._open += [sockets, peer]
        self.inner.link = link
        self.output.attach(link)
        return Kernel(self, peer)

    def cell(self) -> RunningCell:
        message = Author("frontend").message("execute_request", {"code": "1"})
        request = Request("shell", message)
        self.cells.admit(request)
        cell = self.cells.running(request.msg_id)
        assert cell is not None
        cell.sent = time.monotonic()
        return cell

    def callback(self, msg_type: str = "comm_msg") -> RunningCell:
        request = Request("shell", self._client.message(msg_type, {}))
        callback = RunningCell(request)
        self.cells.begin_callback(callback)
        self.inner.outstanding.add(request)
        self.inner.statuses.expect(request)
        return callback

    def go_on(self, seconds: float = 0.1) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.loop.step(int(left * 1000) + 1)

    def expect(self, *texts: str) -> None:
        """See that the frontend hears this and no more, with what has to pass for it."""
        heard: list[str] = []
        deadline = time.monotonic() + 10
        self.go_on()
        while len(heard) < len(texts) and time.monotonic() < deadline:
            self.go_on(0.02)
            heard += self._listen()
        self.go_on()
        assert tuple(heard + self._listen()) == texts

    def _listen(self) -> list[str]:
        texts = []
        while self._listener.poll(50):
            message = self._codec.read(self._listener.recv_multipart())
            texts.append(message.content.get("text") or message.content["execution_state"])
        return texts

    def close(self) -> None:
        for each in self._open:
            each.close()
        self._context.term()


class Kernel:
    """The other end of an inner kernel's iopub."""

    def __init__(self, stage: Stage, socket: zmq.Socket[bytes]) -> None:
        self._stage, self._socket = stage, socket
        self._codec = Codec(KEY)

    def show(self, text: str, cell: RunningCell | None = None) -> None:
        self._publish("stream", {"name": "stdout", "text": text}, cell)

    def begin(self, cell: RunningCell) -> None:
        self._publish("status", {"execution_state": "busy"}, cell)

    def end(self, cell: RunningCell) -> None:
        self._publish("status", {"execution_state": "idle"}, cell)

    def _publish(self, msg_type: str, content: dict[str, Any], cell: RunningCell | None) -> None:
        parent = None if cell is None else cell.request.message
        message = self._stage.author.message(msg_type, content, parent)
        self._socket.send_multipart(self._codec.write(message, [b"topic"]))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def test_what_comes_behind_a_cells_idle_waits_for_its_reply(stage: Stage) -> None:
    kernel, cell = stage.new_kernel(), stage.cell()
    kernel.show("of the cell", cell)
    kernel.end(cell)
    kernel.show("later")
    stage.expect("of the cell")
    cell.reply = cell.idle
    stage.output.open_gate(cell)
    stage.expect("later")
    assert cell.idle is not None


def test_a_reply_is_waited_for_until_the_kernel_answers_something_else(stage: Stage) -> None:
    kernel, cell = stage.new_kernel(), stage.cell()
    kernel.end(cell)
    kernel.show("later")
    stage.expect()
    stage.go_on(1.0)
    stage.expect()  # it may be busy, or gone
    assert stage.inner.link is not None
    (answered,) = stage.inner.link.asked.values()
    answered()
    stage.expect("later")


def test_a_reply_that_comes_when_it_is_not_waited_for_any_longer_is_none(stage: Stage) -> None:
    kernel, cell = stage.new_kernel(), stage.cell()
    stage.inner.outstanding.add(cell.request)
    kernel.end(cell)
    stage.go_on(1.1)
    assert stage.inner.link is not None
    (answered,) = stage.inner.link.asked.values()
    answered()
    assert not stage.inner.outstanding


def test_a_kernel_does_not_wait_for_the_reply_of_the_one_before_it(stage: Stage) -> None:
    kernel, cell = stage.new_kernel(), stage.cell()
    kernel.end(cell)
    stage.expect()
    stage.new_kernel().show("of the next")
    stage.expect("of the next")


def test_last_words_are_heard_though_a_reply_is_missing(stage: Stage) -> None:
    kernel, cell = stage.new_kernel(), stage.cell()
    kernel.end(cell)
    kernel.show("last words")
    stage.expect()
    stage.output.read_last_words()
    stage.expect("last words")


def test_what_is_said_of_a_cell_that_was_not_sent_is_not_of_that_cell(stage: Stage) -> None:
    """It may wait for the user's yes, and whatever an earlier cell left can guess its id."""
    kernel, cell = stage.new_kernel(), stage.cell()
    cell.sent = 0.0
    kernel.show("forged", cell)
    kernel.end(cell)
    kernel.show("later")
    stage.expect("later")
    assert (cell.idle, cell.messages) == (None, 0)
    assert set(stage.reader.drops) == {
        "output of a request that was not sent in",
        "status that is not due",
    }


def test_what_carries_another_session_is_dropped_and_counted(stage: Stage) -> None:
    kernel = stage.new_kernel()
    kernel.show("honest")
    stage.author.session = "another"
    kernel.show("forged")
    stage.expect("honest")
    assert stage.reader.drops == {"foreign session": 1}


def test_other_requests_begin_and_end_though_a_cell_may_show_nothing_more(stage: Stage) -> None:
    """Their clients wait for that."""
    kernel, cell, other = stage.new_kernel(), stage.cell(), stage.callback("complete_request")
    stage.enforcer.begin(cell, replace(stage.limits, messages=0))
    kernel.show("too much", cell)
    kernel.begin(other)
    kernel.begin(other)
    kernel.end(other)
    stage.expect("busy", "idle")


def test_what_is_shown_before_its_turn_is_on_the_bill_of_the_cell_that_runs(stage: Stage) -> None:
    kernel, cell = stage.new_kernel(), stage.cell()
    stage.enforcer.begin(cell, replace(stage.limits, text_bytes=200))
    waiting = stage.callback()
    stage.enforcer.begin(waiting, stage.limits)
    kernel.show("little", waiting)
    kernel.show("more" * 50, waiting)
    kernel.show("too much", waiting)
    stage.expect("little")
    assert cell.text_bytes > 200


def test_a_message_to_a_widget_is_repeated_unless_it_has_begun(stage: Stage) -> None:
    kernel, begun, never_begun = stage.new_kernel(), stage.callback(), stage.callback()
    kernel.begin(begun)
    stage.expect("busy")
    assert begun.begun
    assert stage.inner.lose().again == [never_begun.request]


def test_a_message_to_a_widget_that_nobody_can_take_is_over_all_the_same(stage: Stage) -> None:
    """The widget sends nothing more until it hears that."""
    error = SandboxUnavailable("There is none.", hint="Wait.")
    stage.answers.refuse(stage.callback().request, error)
    stage.expect("busy", "idle")
