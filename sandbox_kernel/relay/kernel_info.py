"""``kernel_info_request``: the wrapper knows the answer, and gives it in its turn."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.cells import BURST_SECONDS, Cells, Request, RunningCell
from sandbox_kernel.relay.link import InnerSide
from sandbox_kernel.relay.loop import Loop

# A question behind a cell is answered in its turn, but not later than this; one that the same client
# has sent in one go with the cell may count on the order, and waits longer.
QUESTION_SECONDS: Final = 0.5
OWN_QUESTION_SECONDS: Final = 5.0


class KernelInfo:
    """What the kernel said before any cell ran; a cell may have taught it to lie since."""

    def __init__(self, loop: Loop, inner: InnerSide, cells: Cells, answers: Answers) -> None:
        self.content: Mapping[str, Any] = {}
        self._loop = loop
        self._inner = inner
        self._cells = cells
        self._answers = answers

    def expect(self, request: Request) -> None:
        """It may have to wait for its turn: see that it does not wait for too long."""
        if request.channel == "control":
            return
        cell = self._cells.before(request)
        in_one_go = (
            cell is not None
            and cell.session == request.session
            and request.received < cell.received + BURST_SECONDS
        )
        seconds = OWN_QUESTION_SECONDS if in_one_go else QUESTION_SECONDS
        wait = max(0.0, request.received + seconds - time.monotonic())
        self._loop.call_later(wait, lambda: self._answer_early(request))

    def request(self, request: Request) -> None:
        """Its turn: answer it, behind the cell that runs, or for the inner kernel if that takes too long."""
        cell = self._cells.ahead_of(request)
        if request.channel == "control":
            # The inner kernel's control thread is to see it; a cell can keep that from running.
            self._inner.send_request(request, request.message)
            self._loop.call_later(QUESTION_SECONDS, lambda: self._answer_for_kernel(request))
        elif cell is None:
            self._answer(request)
        else:
            cell.questions.append(request)

    def answer_behind(self, cell: RunningCell) -> None:
        """The cell is over: it is the turn of the questions right behind it."""
        questions, cell.questions = cell.questions, []
        for request in questions:
            self._answer(request)

    def _answer_for_kernel(self, question: Request) -> None:
        if self._inner.outstanding.take(question):
            self._answer(question)

    def _answer_early(self, question: Request) -> None:
        """What is before it takes long: a frontend that joins a busy kernel need not wait for it."""
        if self._cells.running(question.msg_id) is not None:
            return  # its idle would be taken for that of the cell with its id
        cell = self._cells.ahead_of(question)
        if cell is not None and question in cell.questions:
            cell.questions.remove(question)
        elif not self._cells.take(question):
            return
        self._answer(question)
        if cell is not None:
            # The idle that came with it was not the kernel's.
            self._answers.status("busy", cell.request.message)

    def _answer(self, request: Request) -> None:
        self._answers.answer(request, self.content)
