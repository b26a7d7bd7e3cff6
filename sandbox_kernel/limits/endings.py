"""How a cell that was stopped, or whose process ended, is said to have ended."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox_kernel.errors import (
    LIMIT_ERRORS,
    CellInterrupted,
    CellLimitExceeded,
    SandboxError,
    SandboxLost,
)
from sandbox_kernel.limits.ladder import Restored
from sandbox_kernel.limits.watch import Excess, Watch
from sandbox_kernel.outputs.receipt import Exceeded
from sandbox_kernel.policy.model import LIMITS, Policy
from sandbox_kernel.relay.settle import Ending
from sandbox_kernel.words import Action, Outcome, State


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a sandbox whose cells could not go on, and why."""

    how: str
    state: State
    not_restored: tuple[str, ...] = ()
    # Whether it was the user who wanted it.
    insisted: bool = False

    @classmethod
    def after(cls, restored: Restored | None, finished: int, how: str, *, insisted: bool) -> Fate:
        """``finished`` is the last cell whose effects were in the state."""
        if restored is None:
            return cls(how, "lost", insisted=insisted)
        not_restored = restored.not_restored
        if restored.label != finished:
            not_restored = (*not_restored, "what cells that ended meanwhile changed")
        return cls(how, "rolled_back", not_restored, insisted)


def refused(excess: Excess, policy: Policy) -> CellLimitExceeded:
    """The error of a cell that comes when the notebook's budget is used up."""
    return LIMIT_ERRORS[excess.limit](
        excess.limit,
        allowed=excess.allowed,
        used=excess.used,
        action="refused",
        state="kept",
        policy=policy.name,
    )


def kept(watch: Watch, policy: Policy) -> Ending:
    """It was interrupted, and nothing of it is left."""
    return _over_limit(watch, policy, "interrupted", "kept", ())


def ended(watch: Watch, policy: Policy, fate: Fate) -> Ending:
    """Its process is gone, or the whole sandbox."""
    state, not_restored = fate.state, fate.not_restored
    if watch.excess is not None:
        action: Action = "replaced" if state == "lost" else "rolled_back"
        return _over_limit(watch, policy, action, state, not_restored)
    error: SandboxError
    outcome: Outcome
    if fate.insisted:
        error, outcome = CellInterrupted(state, not_restored), "interrupted"
    else:
        error, outcome = sandbox_lost(fate), "lost"
    return Ending(watch.usage(), state, error, outcome, not_restored=not_restored)


def _over_limit(
    watch: Watch, policy: Policy, action: Action, state: State, not_restored: tuple[str, ...]
) -> Ending:
    excess = watch.excess
    assert excess is not None
    error = LIMIT_ERRORS[excess.limit](
        excess.limit,
        allowed=excess.allowed,
        used=excess.used,
        action=action,
        state=state,
        not_restored=not_restored,
        grace_seconds=watch.limits.grace_seconds if watch.graced else 0.0,
        policy=policy.name,
        own=excess.limit in LIMITS and watch.limits.tightens(policy.limits, excess.limit),
    )
    exceeded = Exceeded(excess.limit, excess.allowed, excess.used, action)
    return Ending(watch.usage(), state, error, error.outcome, exceeded, not_restored)


def sandbox_lost(fate: Fate) -> SandboxLost:
    """The error of a cell whose process or sandbox has ended under it."""
    if fate.state == "lost":
        return SandboxLost(
            f"The sandbox ended ({fate.how}), and the variables of this notebook are gone.",
            hint="A new sandbox has been started: run the earlier cells again.",
        )
    not_restored = ", ".join(fate.not_restored)
    lacking = f" (not restored: {not_restored})" if not_restored else ""
    return SandboxLost(
        f"The cell's process ended ({fate.how}). The kernel went back to the state before the cell: "
        f"all variables of earlier cells are kept, what this cell changed is undone{lacking}.",
        hint="Mend the cell and run it again.",
    )
