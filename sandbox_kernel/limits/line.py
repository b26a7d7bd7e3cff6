"""What was sent in and waits for its turn: in each lane the inner kernel does one thing after the other."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sandbox_kernel.policy.model import Limits
from sandbox_kernel.relay.cells import RunningCell


class Waiting(NamedTuple):
    """A cell, or a callback, and the limits it is to have."""

    cell: RunningCell
    limits: Limits


class Line:
    """All that waits, in the order in which it was sent."""

    def __init__(self) -> None:
        self._waiting: dict[str, Waiting] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def join(self, cell: RunningCell, limits: Limits) -> None:
        self._waiting[cell.request.msg_id] = Waiting(cell, limits)

    def leave(self, cell: RunningCell) -> Waiting | None:
        """Take it out of the line, if it stands there."""
        return self._waiting.pop(cell.request.msg_id, None)

    def leave_all(self) -> list[Waiting]:
        waiting, self._waiting = list(self._waiting.values()), {}
        return waiting

    def holds(self, lane_id: str | None) -> bool:
        """Whether something waits in this lane."""
        return any(each.cell.request.lane_id == lane_id for each in self._waiting.values())

    def next(self, running: Collection[RunningCell]) -> Waiting | None:
        """Take out the first that has its turn beside what runs; ``None`` if none has.

        A cell has it when nothing is ahead of it in its lane. What is no cell has it when nothing runs
        at all: else that answers for it.
        """
        taken = {each.request.lane_id for each in running}
        for waiting in self._waiting.values():
            request = waiting.cell.request
            if request.lane_id not in taken if request.is_cell else not running:
                return self.leave(waiting.cell)
            taken.add(request.lane_id)
        return None
