"""Which requests were sent in: an inner kernel may speak about these, and about no others.

The ids of requests still to come can be guessed (jupyter_client counts them), and a thread that a cell left
behind has the inner kernel's key. Without this record such a thread answers for cells that are denied.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from sandbox_kernel.relay.cells import Request
from sandbox_kernel.relay.wire import Message

# Cells and other requests are counted apart: a slider sends thousands, and must not push out the cells.
MAX_REMEMBERED: Final = 1 << 14


@dataclass(slots=True)
class SentCell:
    """A cell that was sent in: its header, and when it ended, by the monotonic clock."""

    message: Message
    ended: float | None = None
    # Whether the user was told that there is output which came after its end.
    labelled: bool = False


class SentIn:
    """The last requests that were sent in, by their ids."""

    def __init__(self) -> None:
        self._cells: OrderedDict[str, SentCell] = OrderedDict()
        self._others: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, msg_id: str) -> bool:
        return msg_id in self._cells or msg_id in self._others

    def add(self, request: Request) -> None:
        if request.is_cell:
            # A cell's code may be long, and only its header is needed.
            self._cells[request.msg_id] = SentCell(request.message.bare())
            if len(self._cells) > MAX_REMEMBERED:
                self._cells.popitem(last=False)
        else:
            self._others[request.msg_id] = None
            if len(self._others) > MAX_REMEMBERED:
                self._others.popitem(last=False)

    def forget(self, msg_id: str) -> None:
        """A new request has this id: what an earlier one was allowed is not allowed to this one."""
        self._cells.pop(msg_id, None)
        self._others.pop(msg_id, None)

    def end(self, request: Request) -> None:
        """A cell is over; nothing happens if it was never sent in."""
        if (cell := self._cells.get(request.msg_id)) is not None:
            cell.ended = time.monotonic()

    def cell(self, msg_id: str) -> SentCell | None:
        """The cell that was sent in under this id."""
        return self._cells.get(msg_id)
