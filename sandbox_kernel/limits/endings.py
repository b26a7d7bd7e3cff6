"""How a cell that was stopped, or whose process ended, is said to have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandbox_kernel.errors import (
    LIMIT_ERRORS,
    CellInterrupted,
    CellLimitExceeded,
    ReplyLost,
    SandboxError,
    SandboxLost,
    what_became,
)
from sandbox_kernel.limits.ladder import Restored
from sandbox_kernel.limits.watch import Excess, Watch
from sandbox_kernel.outputs.receipt import Exceeded
from sandbox_kernel.policy.model import LIMITS, Policy
from sandbox_kernel.relay.cells import RunningCell
from sandbox_kernel.relay.settle import NOTHING_USED, Ending
from sandbox_kernel.words import Action, Outcome, State, amount, count, duration, size

NOT_KEPT: Final = "what earlier cells changed after the last checkpoint"


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a sandbox whose cells could not go on, and why."""

    how: str
    state: State
    not_restored: tuple[str, ...] = ()
    # Whether it was the user who wanted it.
    insisted: bool = False
    # Whether the state is an older one than that before the cell.
    is_older: bool = False

    @classmethod
    def after(cls, restored: Restored | None, finished: int, how: str, *, insisted: bool) -> Fate:
        """``finished`` is the last cell whose effects were in the state."""
        if restored is None:
            return cls(how, "lost", insisted=insisted)
        is_older = restored.is_older or restored.label != finished
        not_restored = (*restored.not_restored, *((NOT_KEPT,) if is_older else ()))
        return cls(how, "rolled_back", not_restored, insisted, is_older)


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


def of_itself(watch: Watch) -> Ending:
    """It was not stopped, and nothing has ended under it."""
    cell = watch.cell
    if cell.request.is_cell and cell.reply is None:
        return Ending(watch.usage(), error=ReplyLost(), outcome="error")
    failed = cell.reply is not None and cell.reply.outline.failed
    # The user's interrupt is what the wrapper knows; a cell can raise a KeyboardInterrupt of its own.
    is_interrupted = failed and watch.interrupted_at is not None
    return Ending(watch.usage(), outcome="interrupted" if is_interrupted else None)


def kept(watch: Watch, policy: Policy) -> Ending:
    """It was interrupted, and nothing of it is left."""
    return _over_limit(watch, policy, "interrupted", Fate("", "kept"))


def ended(watch: Watch, policy: Policy, fate: Fate) -> Ending:
    """Its process is gone, or the whole sandbox."""
    state, not_restored = fate.state, fate.not_restored
    if watch.excess is not None:
        action: Action = "replaced" if state == "lost" else "rolled_back"
        return _over_limit(watch, policy, action, fate)
    error: SandboxError
    outcome: Outcome
    if fate.insisted:
        error = CellInterrupted(state, not_restored, is_older=fate.is_older)
        outcome = "interrupted"
    else:
        error, outcome = sandbox_lost(fate), "lost"
    return Ending(watch.usage(), state, error, outcome, not_restored=not_restored)


def never_begun(cell: RunningCell, fate: Fate) -> Ending:
    """It was to run behind what its process ended with. Only a cell is told: all else is sent again."""
    if not cell.request.is_cell:
        return Ending(NOTHING_USED, fate.state)
    error = sandbox_lost(fate)
    return Ending(NOTHING_USED, fate.state, error, "lost", not_restored=fate.not_restored)


def _over_limit(watch: Watch, policy: Policy, action: Action, fate: Fate) -> Ending:
    excess = watch.excess
    assert excess is not None
    error = LIMIT_ERRORS[excess.limit](
        excess.limit,
        allowed=excess.allowed,
        used=excess.used,
        action=action,
        state=fate.state,
        not_restored=fate.not_restored,
        is_older=fate.is_older,
        why=_why_killed(watch),
        note=_what_was_seen(watch.unseen_reason()),
        policy=policy.name,
        own=excess.limit in LIMITS and watch.limits.tightens(policy.limits, excess.limit),
    )
    exceeded = Exceeded(excess.limit, excess.allowed, excess.used, action)
    return Ending(watch.usage(), fate.state, error, error.outcome, exceeded, fate.not_restored)


def _what_was_seen(unseen: int) -> str:
    """Why the cell is held to have taken memory that none of its processes shows."""
    if not unseen:
        return ""
    return (
        f"None of its processes shows {size(unseen)} of that: shared memory and kernel memory of "
        "this machine grew by so much while the cell ran, and nothing else that can be seen explains it"
    )


def _why_killed(watch: Watch) -> str:
    """What the cell did, if it was killed though it was interrupted."""
    if watch.outlasted_grace:
        return f"did not stop when interrupted ({duration(watch.limits.grace_seconds)} grace)"
    if watch.threads_left:
        threads = count(watch.threads_left, "thread")
        return f"left {threads} running, which cannot be ended from outside"
    return "stopped, but its process did not answer any more" if watch.fell_silent else ""


def still_too_much(used: int, allowed: int, policy: Policy) -> str:
    """What is said once when nothing is left that the wrapper could give up."""
    return (
        f"Between cells the sandbox has {amount('sandbox_memory', used)} of memory; policy "
        f"`{policy.name}` allows {amount('sandbox_memory', allowed)}. What earlier cells had left "
        "running was ended and the kernel went back to its last checkpoint, but that has not freed "
        "enough: files in /tmp, /dev/shm and the home directory are memory, too. Delete files or "
        "`del` variables; until then cells run, but are stopped if they take much more."
    )


def too_much_cpu(used: float, allowed: float | None, policy: Policy) -> str:
    """Why what cells left running is stopped; ``allowed`` is ``None`` if the budget is used up."""
    what = f"what earlier cells left running used {duration(used)} of CPU time with no cell"
    if allowed is None:
        return f"{what}, and the notebook's CPU budget is used up"
    return f"{what}; policy `{policy.name}` allows {duration(allowed)} (limits.background.cpu)"


def processes_ended(why: str) -> str:
    """What is said when it was enough to end processes."""
    return (
        f"The processes that earlier cells had left running were ended: {why}. All variables are kept. "
        "Start again what you need, and wait for it in the cell that starts it, or allow more."
    )


def returns_in_vain(times: int, how: str) -> str:
    """Why a sandbox is given up, for which going back to a checkpoint is no help."""
    return (
        f"it had to be stopped {times} times with no cell in between, after it had gone back to a "
        f"checkpoint too: something in the variables themselves, such as a timer, does it. Last: {how}"
    )


def between_cells(fate: Fate) -> SandboxLost:
    """What is said when the process or the sandbox has ended, and no cell with it."""
    if fate.state == "lost":
        return sandbox_lost(fate)
    not_restored = ", ".join(fate.not_restored)
    lacking = f" (not restored: {not_restored})" if not_restored else ""
    to = (
        "an older state"
        if fate.is_older
        else "the state after the last cell: all variables are kept"
    )
    return SandboxLost(
        f"The kernel's process ended between two cells ({fate.how}). The kernel went back to "
        f"{to}{lacking}.",
        hint="Start again what earlier cells had left running, if it is needed.",
    )


def sandbox_lost(fate: Fate) -> SandboxLost:
    """The error of a cell whose process or sandbox has ended under it."""
    if fate.state == "lost":
        return SandboxLost(
            f"The sandbox ended ({fate.how}), and the variables of this notebook are gone.",
            hint="A new sandbox has been started: run the earlier cells again.",
        )
    not_restored = ", ".join(fate.not_restored)
    lacking = f" (not restored: {not_restored})" if not_restored else ""
    to = "an older state" if fate.is_older else "the state before the cell"
    return SandboxLost(
        f"The cell's process ended ({fate.how}). The kernel went back to {to}: "
        f"{what_became(fate.state, is_older=fate.is_older)}{lacking}.",
        hint="Fix the cell and run it again.",
    )
