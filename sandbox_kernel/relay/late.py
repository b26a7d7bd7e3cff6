"""Outputs that name a request which is over: threads and tasks that cells left running make them.

Nobody can tell which cell's thread it is that speaks: all share one process. So such output is labelled,
for the user in the text and for programs in the metadata, and it cannot clear what the cell had shown.
"""

from __future__ import annotations

import time
from typing import Final

from sandbox_kernel.policy.model import LateOutput
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.sent import SentIn
from sandbox_kernel.relay.wire import Message

# What programs print that a cell starts is read from a pipe, and may come behind the cell's end. Until then
# the cell might have shown it itself, so nothing is gained by whoever speaks for it.
GRACE_SECONDS: Final = 1.0
LABEL: Final = "[sandbox-kernel] This cell has ended. What follows came later, from code that was left running:\n"
# What adds to the outputs of a cell, where a user sees it.
_SEEN: Final = frozenset(
    {"stream", "display_data", "update_display_data", "execute_result", "error"}
)
# What no thread says, and what would replace the error or the receipt of a cell that is over.
_REFUSED: Final = frozenset({"execute_input", "clear_output"})


class Late:
    """Decides about outputs of requests that do not run."""

    def __init__(self, sent: SentIn, answers: Answers, rule: LateOutput) -> None:
        self._sent = sent
        self._answers = answers
        self._rule = rule

    def refuses(self, message: Message) -> str | None:
        """Why this output, which names no request that runs, is dropped; ``None`` if it is not."""
        if message.msg_type in _REFUSED:
            return f"{message.msg_type} of a request that is not running"
        if message.parent_id is None:
            return None  # no frontend takes it for a cell's
        if message.parent_id not in self._sent:
            return "output of a request that was not sent in"
        if self._rule == "drop" and message.msg_type in _SEEN and self._long_over(message):
            return "output of a cell that is over, which the policy drops"
        return None

    def label(self, message: Message) -> None:
        """Tell the user, once per cell, that what follows came after its end."""
        cell = self._sent.cell(message.parent_id or "")
        if cell is None or cell.labelled or message.msg_type not in _SEEN:
            return
        if self._long_over(message):
            cell.labelled = True
            self._answers.publish("stream", {"name": "stderr", "text": LABEL}, cell.message)

    def _long_over(self, message: Message) -> bool:
        cell = self._sent.cell(message.parent_id or "")
        # What is no cell has no outputs below it; what has not ended here ended with its kernel.
        return cell is None or time.monotonic() - (cell.ended or 0.0) > GRACE_SECONDS
