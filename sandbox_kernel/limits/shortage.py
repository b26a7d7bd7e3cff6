"""A sandbox that has more memory than it may: what is given up for it, in which order, and how often."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Literal

# How long the memory of a checkpoint that is given up may take to come back.
RELIEF_SECONDS: Final = 0.5
# What is let pass beyond the limit meanwhile, as a part of it: half of the way to the kernel's own limit,
# at which something would die without a word.
MARGIN_PART: Final = 16

Step = Literal["nothing", "roll back", "tell"]


class Shortage:
    """First goes the checkpoint for undo; then, between cells, what they have left running, once.

    Files in memory survive both: what is still too much then is for the user to free.
    """

    def __init__(self, allowed: int | None, forget: Callable[[], None]) -> None:
        self._allowed = math.inf if allowed is None else allowed
        self._forget = forget
        self._forgot = False
        # Whether there was too much when the sandbox was last looked at between cells.
        self._over = False
        self._rolled_back = False
        # What there was after all that could be done was done, and a little more.
        self._tolerated = 0.0

    def renew(self) -> None:
        """A cell begins or has ended: there is another checkpoint for undo."""
        self._forgot = False

    def give_up_undo(self) -> bool:
        """Give the memory of the checkpoint for undo back; whether that was still to be had."""
        if self._forgot:
            return False
        self._forgot = True
        self._forget()
        return True

    def before_cell(self, used: int) -> bool:
        """Whether a cell begins with too much, ``used`` by an estimate: it may be there to free some."""
        return self._over or used > self._allowed

    def between_cells(self, used: int) -> Step:
        """What is to be done, some time after the last step."""
        self._over = used > self._allowed
        if not self._over:
            self._rolled_back, self._tolerated = False, 0.0
            return "nothing"
        if used <= self._tolerated or self.give_up_undo():
            return "nothing"
        if not self._rolled_back:
            self._rolled_back = True
            return "roll back"
        self._rolled_back = False
        self._tolerated = used + self._allowed // MARGIN_PART
        return "tell"
