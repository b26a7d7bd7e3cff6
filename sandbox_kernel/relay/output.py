"""What the inner kernel publishes on iopub: hostile, and in order with the replies beside it."""

from __future__ import annotations

import time
from typing import Final

from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.outputs.annotate import annotate_output, mark_late, strip_metadata
from sandbox_kernel.policy.model import LateOutput
from sandbox_kernel.relay.accounts import DISPLAYS, OUTPUTS, Accounts
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.cells import Cells, RunningCell
from sandbox_kernel.relay.claims import OutputClaims
from sandbox_kernel.relay.counts import Counts
from sandbox_kernel.relay.debugging import Debugging
from sandbox_kernel.relay.late import Late
from sandbox_kernel.relay.link import InnerSide, Link
from sandbox_kernel.relay.loop import Loop
from sandbox_kernel.relay.reading import Reader
from sandbox_kernel.relay.wire import Author, Message

# ipykernel sends an idle but no reply when its handler fails; the reply, if any, is right behind. If it
# is not, the kernel is asked something.
REPLY_GRACE_SECONDS: Final = 1.0
# How long a kernel that is gone may still be listened to: it may have left a flood.
LAST_WORDS_SECONDS: Final = 0.2
# A frontend that believed them would take the kernel for ended, or itself for subscribed.
_SAID_BY_THE_WRAPPER: Final = frozenset({"shutdown_reply", "iopub_welcome"})


class Output:
    """Passes on what may be shown, and holds each cell's idle.

    What comes after the idle of a cell waits behind a gate until its reply has come.
    """

    def __init__(
        self,
        loop: Loop,
        reader: Reader,
        inner: InnerSide,
        author: Author,
        answers: Answers,
        enforcer: Enforcer,
        cells: Cells,
        counts: Counts,
        accounts: Accounts,
        debugging: Debugging,
        late_output: LateOutput,
    ) -> None:
        self._loop = loop
        self._reader = reader
        self._inner = inner
        self._author = author
        self._answers = answers
        self._enforcer = enforcer
        self._cells = cells
        self._counts = counts
        self._accounts = accounts
        self._debugging = debugging
        self._late = Late(inner.sent, answers, late_output)
        self._claims = OutputClaims(cells, answers, reader.drop)
        # A cell whose idle has come, but not yet its reply: what comes after its idle must wait.
        self._gate: RunningCell | None = None
        self._start_announced = False

    def attach(self, link: Link) -> None:
        """Listen to this inner kernel. What was waited for from the one before it will not come."""
        self._gate = None
        self._loop.watch(link.sockets.iopub, self.read)

    def read(self) -> None:
        link = self._inner.link
        if link is None or self._gate is not None:
            return
        for message in self._reader.hostile(link.sockets.iopub, link.codec):
            if self._author.made(message.parent_id):
                continue  # about a request of the wrapper's own
            if message.msg_type in _SAID_BY_THE_WRAPPER:
                self._reader.drop(f"{message.msg_type}, which only the wrapper says")
                continue
            cell = self._cells.watched(message.parent_id)
            if cell is not None and not cell.begun:
                self._note_begun(cell, message)
            if message.msg_type == "status":
                self._take_status(cell, message)
                if self._gate is not None:
                    return
            elif cell is None:
                self._take_unowned(message)
            elif self._accounts.may_show(cell, message) and not is_announced(cell, message):
                self._pass_on(message, cell)

    def read_last_words(self) -> None:
        """The inner kernel is gone: what it said before it died still counts."""
        self._gate = None
        end = time.monotonic() + LAST_WORDS_SECONDS
        while (
            (link := self._inner.link) is not None
            and link.sockets.iopub.poll()
            and time.monotonic() < end
        ):
            self.read()
            self._gate = None

    def open_gate(self, cell: RunningCell) -> None:
        """The cell's reply is here, or is not waited for any longer."""
        if self._gate is cell and self._inner.link is not None:
            self._gate = None
            self._loop.watch(self._inner.link.sockets.iopub, self.read)

    def _note_begun(self, cell: RunningCell, message: Message) -> None:
        """The inner kernel says something about it for the first time."""
        if cell.request.is_cell:
            # Not before it was sent, whoever says so.
            cell.begun = cell.sent > 0
            self._enforcer.began(cell)
        elif message.msg_type == "status" and message.outline.is_state("busy"):
            cell.begun = True
            if not cell.request.expects_reply:
                # A widget's callback has begun: if it goes with its kernel, it is not repeated.
                self._inner.outstanding.take(cell.request)

    def _take_status(self, cell: RunningCell | None, status: Message) -> None:
        """Pass on a status that is due; no other, as clients take an idle for the end of a request."""
        is_due = self._inner.statuses.take(status)
        is_busy = status.outline.is_state("busy")
        if cell is not None and status.outline.is_state("idle"):
            self._take_idle(cell, status)
        elif cell is not None and cell.request.is_cell and is_busy and not cell.announced:
            cell.announced = True
            if self._accounts.may_show(cell, status):
                self._pass_on(status, cell)
        elif status.parent_id is None and status.outline.is_state("starting"):
            # The frontend's kernel starts once, however often its sandbox does: JupyterLab
            # sends nothing to a kernel that it takes for starting.
            if not self._start_announced:
                self._start_announced = True
                self._pass_on(status, None)
        elif is_due:
            self._pass_on(status, cell)
        else:
            self._accounts.may_show(cell, status)
            if cell is None or not is_busy:
                self._reader.drop("status that is not due")

    def _take_unowned(self, message: Message) -> None:
        """Pass on what names no request that runs, if it may be."""
        if (reason := self._late.refuses(message)) is not None:
            self._accounts.may_show(None, message)
            self._reader.drop(reason)
            return
        is_late = message.msg_type in OUTPUTS and message.parent_id is not None
        if self._accounts.may_show(None, message, is_late=is_late):
            if is_late:
                self._late.label(message)
            self._pass_on(message, None, is_late=is_late)

    def release_claims(self, cell: RunningCell) -> None:
        """No widget takes the outputs of this cell any more."""
        self._claims.release(cell)

    def _take_idle(self, cell: RunningCell, idle: Message) -> None:
        cell.idle = idle = idle.with_metadata(strip_metadata(idle.frames[2]))
        if not cell.request.is_cell:
            self._answers.forward_output(idle)
            self._enforcer.over(cell)
            return
        if cell.over:
            self._enforcer.over(cell)
            return
        assert self._inner.link is not None
        self._gate = cell
        self._loop.forget(self._inner.link.sockets.iopub)
        self._enforcer.nearly_over(cell)
        self._loop.call_later(REPLY_GRACE_SECONDS, lambda: self._question(cell))

    def _question(self, cell: RunningCell) -> None:
        """A kernel that answers has no reply for the cell; one that does not is busy, or gone."""
        if self._awaits_reply(cell) and self._inner.link is not None:
            # In the cell's own lane: in another one a cell may run for long.
            question = self._author.message("kernel_info_request", {})
            self._inner.ask(question, lambda: self._end(cell), cell.request.lane_id)

    def _end(self, cell: RunningCell) -> None:
        self.open_gate(cell)
        if self._awaits_reply(cell):
            # One that comes after all would be a second one.
            self._inner.outstanding.take(cell.request)
            self._enforcer.over(cell)

    def _awaits_reply(self, cell: RunningCell) -> bool:
        return self._cells.running(cell.request.msg_id) is cell and cell.reply is None

    def _pass_on(
        self, message: Message, cell: RunningCell | None, *, is_late: bool = False
    ) -> None:
        """On to the frontend, with nothing in it that only the wrapper may say."""
        if message.msg_type in DISPLAYS:
            audit_id = None if cell is None else cell.audit_id
            content = annotate_output(message.frames[3], audit_id, is_late=is_late)
            message = message.with_content(content)
            self._note(cell, message)
        elif message.msg_type in ("stream", "error"):
            self._note(cell, message)
        elif cell is not None and message.msg_type == "execute_input":
            if message.outline.count is not None:
                self._counts.show(cell, message.outline.count)
        elif message.msg_type == "debug_event":
            self._debugging.overhear_event(message)
        elif message.msg_type in ("comm_open", "comm_msg"):
            checked = self._claims.check(message)
            if checked is None:
                return
            message = checked
        mark = mark_late if is_late else strip_metadata
        self._answers.forward_output(message.with_metadata(mark(message.frames[2])))

    def _note(self, cell: RunningCell | None, message: Message) -> None:
        if cell is not None and cell.recorded:
            cell.note_shown(message)


def is_announced(cell: RunningCell | None, message: Message) -> bool:
    """Whether an inner kernel says what the wrapper has said when it forwarded the cell."""
    if cell is None:
        return False
    is_input = message.msg_type == "execute_input" and cell.execution_count is not None
    return is_input and message.outline.count == cell.execution_count
