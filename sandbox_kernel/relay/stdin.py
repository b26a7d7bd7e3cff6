"""Who asks the user, and whose the answer is: cells ask with ``input()``, the wrapper asks for itself.

A cell must not get a yes to a question of the wrapper's. So each answer goes to who asked, no prompt of a
cell can pass for one of the wrapper's, and none is shown to a client that has a question before it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.relay.accounts import Accounts
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.asking import Asking, told_apart
from sandbox_kernel.relay.cells import Cells, RunningCell
from sandbox_kernel.relay.frontend import FrontendSockets
from sandbox_kernel.relay.link import InnerSide, Link
from sandbox_kernel.relay.loop import Loop
from sandbox_kernel.relay.reading import Reader
from sandbox_kernel.relay.wire import Author, Codec, Message

# A cell that is interrupted while it asks may ask again; one that asks and asks makes work for nothing.
MAX_PROMPTS: Final = 16


class Stdin:
    """Passes prompts on to the user, and answers to who waits for them."""

    def __init__(
        self,
        loop: Loop,
        reader: Reader,
        frontend: FrontendSockets,
        codec: Codec,
        inner: InnerSide,
        author: Author,
        answers: Answers,
        enforcer: Enforcer,
        cells: Cells,
        accounts: Accounts,
        asking: Asking,
        *,
        cells_may_ask: bool,
    ) -> None:
        self._loop = loop
        self._reader = reader
        self._frontend = frontend
        self._codec = codec
        self._inner = inner
        self._author = author
        self._answers = answers
        self._enforcer = enforcer
        self._cells = cells
        self._accounts = accounts
        self._asking = asking
        self._cells_may_ask = cells_may_ask
        # What cells have asked while their client had a question of the wrapper's own before it.
        self._held: list[tuple[RunningCell, Message]] = []
        # How many prompts of cells each client has got and not answered, those of cells that are over too.
        self._unanswered: Counter[tuple[bytes, ...]] = Counter()

    def attach(self, link: Link) -> None:
        self._loop.watch(link.sockets.stdin, self._read_prompts)

    def suspend(self) -> None:
        """The inner kernel is gone, and with it who has asked."""
        self._held.clear()

    def withdraw(self) -> None:
        """The user has interrupted: no question of the wrapper's own is open any more."""
        self._asking.withdraw()
        self._put_held()

    # -- from the frontend -----------------------------------------------------------------------

    def read_replies(self) -> None:
        for reply in self._reader.built(self._frontend.stdin, self._codec, lambda _: None):
            if reply.msg_type != "input_reply":
                self._reader.drop("message on stdin that is no input_reply")
            elif self._is_stale(reply):
                self._note_answer(reply)
                self._reader.drop("input_reply to a prompt of a cell that is over")
                self._asking.remind(reply.idents)
            elif self._asking.is_answered_by(reply, in_order=not self._is_awaited(reply)):
                self._asking.answer(reply.content.get("value"))
                self._put_held()
            elif self._author.made(reply.parent_id):
                self._reader.drop("input_reply to a question that is not open")
            elif self._inner.link is None or not any(cell.sent for cell in self._cells.in_flight):
                self._reader.drop("input_reply without a running cell")
            else:
                self._note_answer(reply)
                for cell in self._cells.in_flight:
                    cell.asks, cell.prompts = False, 0  # which of them takes it is not known
                self._enforcer.resume()
                self._inner.send_input(reply)

    def _is_stale(self, reply: Message) -> bool:
        """Whether it answers, in order, what a cell had asked that waits no longer: it is nobody's yes."""
        is_in_order = reply.parent_id is None and not self._is_awaited(reply)
        return is_in_order and self._unanswered[reply.idents] > 0

    def _note_answer(self, reply: Message) -> None:
        self._unanswered[reply.idents] -= 1
        if self._unanswered[reply.idents] <= 0:
            del self._unanswered[reply.idents]

    def _is_awaited(self, reply: Message) -> bool:
        """Whether a cell of the same client waits for an answer."""
        return any(
            cell.asks and cell.request.message.idents == reply.idents
            for cell in self._cells.in_flight
        )

    # -- from the inner kernel, hostile ----------------------------------------------------------

    def _read_prompts(self) -> None:
        if (link := self._inner.link) is None:
            return
        for prompt in self._reader.hostile(link.sockets.stdin, link.codec):
            cell = self._cells.running(prompt.parent_id)
            if cell is None or not self._may_ask(cell, prompt):
                self._reader.drop("input_request without a cell that allows stdin")
            elif cell.prompts >= MAX_PROMPTS:
                self._reader.drop("input_request beside many that nobody has answered")
            elif self._accounts.may_show(cell, prompt):
                cell.prompts += 1
                self._enforcer.pause(cell)
                self._put(cell, prompt.with_content(told_apart(prompt.frames[3])))

    def _may_ask(self, cell: RunningCell, prompt: Message) -> bool:
        return (
            self._cells_may_ask
            and prompt.msg_type == "input_request"
            and bool(cell.sent)
            and cell.request.allow_stdin
            # A frontend names the prompt that it answers by this.
            and not self._author.made(prompt.msg_id)
        )

    def _put(self, cell: RunningCell, prompt: Message) -> None:
        if self._asking.is_put_to(cell.request.message.idents):
            self._held.append((cell, prompt))
        else:
            cell.asks = True
            self._unanswered[cell.request.message.idents] += 1
            self._answers.forward_prompt(cell.request, prompt)

    def _put_held(self) -> None:
        held, self._held = self._held, []
        for cell, prompt in held:
            if self._cells.begun_by(cell.request) is cell:
                self._put(cell, prompt)
