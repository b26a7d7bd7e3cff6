"""What all cells of a notebook have used together, and whether its budget has some left."""

from __future__ import annotations

from sandbox_kernel.limits.watch import Excess
from sandbox_kernel.outputs.receipt import Usage
from sandbox_kernel.policy.model import Budget


class Spending:
    """Adds up over the life of the kernel: neither a rollback nor a new sandbox gives it back."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._wall_seconds = 0.0
        self._cpu_seconds = 0.0

    def add(self, usage: Usage) -> None:
        self._wall_seconds += usage.wall_seconds
        self._cpu_seconds += usage.cpu_seconds

    def add_background(self, cpu_seconds: float) -> None:
        """What cells left running has used it, while none ran or beside one."""
        self._cpu_seconds += cpu_seconds

    def excess(self, wall_seconds: float = 0.0, cpu_seconds: float = 0.0) -> Excess | None:
        """The budget that is used up, with what a cell that runs has used until now."""
        wall, cpu = self._wall_seconds + wall_seconds, self._cpu_seconds + cpu_seconds
        budget = self._budget
        if budget.wall_seconds is not None and wall >= budget.wall_seconds:
            return Excess("budget_wall", budget.wall_seconds, wall)
        if budget.cpu_seconds is not None and cpu >= budget.cpu_seconds:
            return Excess("budget_cpu", budget.cpu_seconds, cpu)
        return None
