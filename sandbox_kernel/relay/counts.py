"""The numbers of cells: the count that users see, and the serial by which checkpoints are labelled."""

from __future__ import annotations

from sandbox_kernel.relay.cells import Request, RunningCell
from sandbox_kernel.words import State


class Counts:
    """Follows the inner kernel's count, so that the wrapper can say it where that kernel cannot."""

    def __init__(self) -> None:
        self._shown = 0
        self._next: int | None = None
        self._serial = 0

    @property
    def next(self) -> int | None:
        """What the next cell's will be, if it is known."""
        return self._next

    def serial(self, request: Request) -> int:
        """The place of a cell that begins, among all cells of this kernel that users know of.

        What a frontend runs silently, for its own ends, is no cell to undo: it counts as a part of the
        one before it.
        """
        self._serial += not request.silent
        return self._serial

    def show(self, cell: RunningCell, count: int) -> None:
        """The cell begins, under this count."""
        cell.execution_count = self._shown = count

    def suppose(self, cell: RunningCell) -> int:
        """The count of a cell that the inner kernel does not see, or has not got to."""
        cell.execution_count = count = self._shown + (not cell.request.silent)
        return count

    def end(self, cell: RunningCell, state: State) -> None:
        if cell.execution_count is None:
            # The inner kernel died before its execute_input got here.
            self.suppose(cell)
        if cell.serial:
            # A rollback takes the count back with all else.
            count = cell.reply.outline.count if cell.reply and state == "kept" else None
            self._next = None if count is None else count + 1
