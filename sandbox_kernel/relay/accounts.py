"""Who answers for what the inner kernel shows, and whether it may still be shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.policy.model import Limits
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.cells import Cells, Request, RunningCell
from sandbox_kernel.relay.wire import Author, Message

# What a cell shows, and what counts as such.
DISPLAYS: Final = frozenset({"display_data", "execute_result", "update_display_data"})
OUTPUTS: Final = DISPLAYS | {"stream", "error", "clear_output", "comm_open", "comm_msg"}
# Outputs between cells are counted anew this often.
BETWEEN_SECONDS: Final = 10.0


class Accounts:
    """Counts all that is published: for the cell it names, the one that runs, or the pause."""

    def __init__(
        self,
        cells: Cells,
        enforcer: Enforcer,
        limits: Limits,
        author: Author,
        answers: Answers,
        drop: Callable[[str], None],
    ) -> None:
        self._cells = cells
        self._enforcer = enforcer
        self._limits = limits
        self._answers = answers
        self._drop = drop
        # What comes while no cell runs, or from what earlier cells left running, is counted here.
        self._between = RunningCell(Request("shell", author.message("execute_request", {})))
        self._between_until = 0.0

    def may_show(
        self, cell: RunningCell | None, message: Message, *, is_late: bool = False
    ) -> bool:
        """Count a message; whether it is within the limits of the cell that answers for it.

        One that is late is on nobody's bill but that of the pauses, whatever runs now.
        """
        watches = self._enforcer.watches
        # What names no cell that runs is on the bill of the one that does, or of the pause. One that
        # waits for the user's yes does not run, and nobody would stop it.
        if is_late:
            account = self._between
        elif cell is not None and watches(cell):
            account = cell
        else:
            account = next(filter(watches, self._cells.in_flight), self._between)
        account.messages += 1
        account.output_bytes += message.weight
        if message.msg_type in OUTPUTS:
            account.shown_bytes += message.size
        if message.msg_type == "stream":
            account.text_bytes += message.size
        if message.msg_type == "error" and self._enforcer.stopped(account):
            account.error = message
            return False
        if account is self._between:
            return self._may_show_between(account)
        return self._enforcer.output(account)

    def _may_show_between(self, account: RunningCell) -> bool:
        """Between cells, widgets and threads may send in each stretch of time as much as a cell."""
        now = time.monotonic()
        if now > self._between_until:
            self._between_until = now + BETWEEN_SECONDS
            account.messages = account.output_bytes = account.text_bytes = 0
        limits = self._limits
        shown = (
            (limits.messages, account.messages),
            (limits.output_bytes, account.output_bytes),
            (limits.text_bytes, account.text_bytes),
        )
        if all(allowed is None or used <= allowed for allowed, used in shown):
            return True
        self._drop("output between cells beyond the limits of one")
        self._answers.notice("Output between cells was dropped: it was more than a cell may show.")
        return False
