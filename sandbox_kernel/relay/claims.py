"""Whose outputs Output widgets may take: those of a request that runs, until it is over.

A widget that could take the outputs of requests still to come would swallow their errors and receipts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sandbox_kernel.outputs.comms import (
    Unclear,
    carries_receipt,
    claim_in,
    has_states,
    may_claim,
    without_claim,
)
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.cells import Cells, RunningCell
from sandbox_kernel.relay.wire import Message

# Open at once. An honest cell has one for each Output widget that it is inside of.
MAX_CLAIMS: Final = 256


class OutputClaims:
    """Follows which widget takes the outputs of which request."""

    def __init__(self, cells: Cells, answers: Answers, drop: Callable[[str], None]) -> None:
        self._cells = cells
        self._answers = answers
        self._drop = drop
        # By the id of the widget's comm, in the order of the claims: the id of the request.
        self._open: dict[str, str] = {}

    def check(self, message: Message) -> Message | None:
        """The ``comm_open`` or ``comm_msg`` as it may be passed on; ``None`` if it may not be."""
        content = message.frames[3]
        if carries_receipt(content):
            self._drop("receipt in a widget's message")
            return None
        if not may_claim(content):
            return message
        try:
            if message.msg_type == "comm_msg" and has_states(content):
                return message.with_content(without_claim(content))
            if self._allows(message):
                return message
            self._drop("claim of an output widget on a request that does not run")
            return message.with_content(without_claim(content))
        except Unclear:
            self._drop("claim of an output widget that cannot be read")
            return None

    def release(self, cell: RunningCell) -> None:
        """The cell is about to end: what the wrapper says of it belongs below the cell."""
        msg_id = cell.request.msg_id
        # The last claim first: nbclient keeps a stack of them.
        for comm_id in [each for each, id in reversed(self._open.items()) if id == msg_id]:
            del self._open[comm_id]
            data = {"method": "update", "state": {"msg_id": ""}, "buffer_paths": []}
            said = {"comm_id": comm_id, "data": data}
            self._answers.publish("comm_msg", said, cell.request.message)

    def _allows(self, message: Message) -> bool:
        claim = claim_in(message.frames[3])
        if message.msg_type == "comm_open":
            return claim is None or not claim.msg_id
        if claim is None:
            return True
        if not claim.msg_id:
            # One release for each claim: nbclient fails at another.
            return self._open.pop(claim.comm_id, None) is not None
        if claim.comm_id in self._open or len(self._open) >= MAX_CLAIMS:
            return False
        if self._cells.watched(claim.msg_id) is None:
            return False
        self._open[claim.comm_id] = claim.msg_id
        return True
