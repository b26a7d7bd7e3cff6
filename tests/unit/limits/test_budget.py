"""A notebook's budget is what all its cells use together."""

from __future__ import annotations

from sandbox_kernel.limits.budget import Spending
from sandbox_kernel.outputs.receipt import Usage
from sandbox_kernel.policy.model import Budget


def usage(wall_seconds: float, cpu_seconds: float) -> Usage:
    return Usage(wall_seconds, cpu_seconds, 0, 0, 1, 0, "proc")


def test_a_budget_that_is_not_set_is_never_used_up() -> None:
    spending = Spending(Budget(None, None))
    spending.add(usage(1e9, 1e9))
    assert spending.excess(1e9, 1e9) is None


def test_a_budget_is_used_up_by_all_cells_together() -> None:
    spending = Spending(Budget(wall_seconds=10.0, cpu_seconds=None))
    spending.add(usage(6.0, 0.0))
    assert spending.excess() is None
    spending.add(usage(4.0, 0.0))
    assert spending.excess() == ("budget_wall", 10.0, 10.0)


def test_a_cell_that_runs_counts_with_what_it_has_used_until_now() -> None:
    spending = Spending(Budget(wall_seconds=None, cpu_seconds=10.0))
    spending.add(usage(0.0, 6.0))
    assert spending.excess(0.0, 3.0) is None
    assert spending.excess(0.0, 5.0) == ("budget_cpu", 10.0, 11.0)
    assert spending.excess() is None
