"""What cells leave running (threads, children, timers) uses while no cell runs, and when it is stopped.

Nothing of it is the next cell's: the notebook's budget pays, the next receipt tells it apart, and
``limits.background`` ends it. The sandbox's whole CPU time counts. So does what the kernel process does
for itself, such as a checkpoint: that is too little to be told or to reach a limit.
"""

from __future__ import annotations

import math
import time
from typing import Final, Literal

from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.outputs.receipt import BackgroundUsage

# A thread that polls may go on for ever: this share of one processor reaches no limit.
FREE_SHARE: Final = 0.05
# What is left may use this much after a step until the next one is taken: the step has not helped.
AGAIN_SECONDS: Final = 0.5
# A checkpoint of a large state costs less than this.
TOLD_SECONDS: Final = 0.2
TOLD_BYTES: Final = 16 << 20

Step = Literal["nothing", "end processes", "roll back"]


class Background:
    """Bills what one sandbox after the other uses between cells."""

    def __init__(self, allowed_seconds: float | None) -> None:
        self._allowed = math.inf if allowed_seconds is None else allowed_seconds
        self._meter: Meter | None = None
        # The sandbox's CPU time that somebody has been billed for; ``None``: the next look says.
        self._billed: float | None = None
        self._looked_at = 0.0
        # Since the last cell, beyond the free share; and at how much something is done about it.
        self._used = 0.0
        self._next_step = self._allowed
        self._ended_processes = False
        self._is_over_budget = False
        # The sandbox's memory at the first look after the last cell, and at the last one.
        self._memory_before: int | None = None
        self._memory = 0
        # What no receipt has told yet.
        self._untold_seconds = 0.0

    @property
    def used_seconds(self) -> float:
        """Since the last cell, beyond the free share."""
        return self._used

    def look(self, meter: Meter) -> float:
        """Between cells: the CPU seconds that were used since somebody was last billed."""
        now = time.monotonic()
        total = meter.cpu_seconds_now()
        if meter is not self._meter:
            self._forget(meter)
        if self._billed is None or not meter.covers_last_cell:
            # What is known now may be the last cell's, or what it took to come up or to go back.
            self._billed = total if meter.covers_last_cell else None
            self._looked_at = now
            return 0.0
        used, seconds = self._bill(total), now - self._looked_at
        self._looked_at = now
        self._used = max(0.0, self._used + used - FREE_SHARE * seconds)
        return used

    def note_memory(self, memory_bytes: int) -> None:
        """What the sandbox has, at a look between cells."""
        self._memory = memory_bytes
        if self._memory_before is None:
            self._memory_before = memory_bytes

    def step(self, meter: Meter, *, over_budget: bool) -> Step:
        """What is to be done about it now."""
        if over_budget and not self._is_over_budget:
            # From now on there is no allowance, but for what a step takes to show.
            self._next_step = min(self._next_step, self._used + AGAIN_SECONDS)
        self._is_over_budget = over_budget
        if self._used <= self._next_step:
            return "nothing"
        self._next_step = self._used + AGAIN_SECONDS
        # Threads cannot be ended from outside; where nobody sees who is at work, it may be either.
        if self._ended_processes or meter.processes_at_work() is False:
            return "roll back"
        self._ended_processes = True
        return "end processes"

    def close(self, total_seconds: float) -> float:
        """Something begins to run: the CPU seconds that were used since the last look."""
        return 0.0 if self._billed is None else self._bill(total_seconds)

    def renew(self) -> None:
        """A cell begins: as much again may be used after it."""
        self._used, self._next_step, self._ended_processes = 0.0, self._allowed, False
        self._is_over_budget = False

    def after_cell(self, meter: Meter) -> None:
        """All that ran is over, and was billed until the last look at it."""
        self._billed = None if meter.is_late else meter.cpu_seconds
        self._meter, self._looked_at, self._memory_before = meter, time.monotonic(), None

    def add_beside(self, cpu_seconds: float) -> None:
        """It used this while a cell ran."""
        self._used += cpu_seconds
        self._untold_seconds += cpu_seconds

    def add_callback(self, cpu_seconds: float) -> None:
        """A callback has limits of its own, and no receipt."""
        self._untold_seconds += cpu_seconds

    def went_back(self) -> None:
        """A checkpoint takes over. What it costs to wake is the wrapper's doing."""
        self._billed = self._memory_before = None

    def tell(self) -> BackgroundUsage | None:
        """What the next receipt is to say, once."""
        growth = 0 if self._memory_before is None else self._memory - self._memory_before
        told = BackgroundUsage(
            self._untold_seconds if self._untold_seconds >= TOLD_SECONDS else 0.0,
            growth if growth >= TOLD_BYTES else 0,
        )
        self._untold_seconds, self._memory_before = 0.0, None
        return told if told.cpu_seconds or told.memory_bytes else None

    def _bill(self, total_seconds: float) -> float:
        assert self._billed is not None
        used = max(0.0, total_seconds - self._billed)
        self._billed = total_seconds
        self._untold_seconds += used
        return used

    def _forget(self, meter: Meter) -> None:
        """Another sandbox: nothing of the last one runs in it."""
        self._meter, self._billed, self._memory_before = meter, None, None
        self.renew()
