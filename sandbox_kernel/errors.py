"""What a user can be told has gone wrong.

    SandboxError
    ├── SandboxUnavailable   no sandbox could be started: nothing ran
    ├── AuditUnavailable     the audit log cannot be written, and the policy requires it: nothing ran
    ├── ImageError           an image for the container levels cannot be built or found
    ├── PolicyError          a policy file cannot be used: nothing runs
    ├── PolicyViolation      a cell or its client asks for what the policy does not allow
    ├── SandboxLost          the sandbox ended while it held the user's variables
    ├── WrapperFailed        an exception in the wrapper that nothing expected: nothing ran
    ├── ReplyLost            a cell has ended, and its kernel has not said how
    ├── ApprovalUnknown      `%approvals` was given a word that means nothing to it
    ├── UndoUnavailable      there is no checkpoint to go back to, or it did not take over
    ├── CellInterrupted      a cell was killed because it did not stop when interrupted
    └── CellLimitExceeded    a cell was stopped: more processes, pipes or terminals than allowed, or
        ├── CellTimeout           more time
        ├── CellCpuExceeded       more CPU time
        ├── CellMemoryExceeded    more memory
        └── CellOutputExceeded    more output

The class name is the ``ename`` the frontend shows. Each message says what happened, why, what became
of the variables where there were any, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from sandbox_kernel.words import Action, Limit, Outcome, State, amount, amount_beyond


class SandboxError(Exception):
    """An error shown in the failing cell."""

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(f"{what} {hint}")
        self.what = what
        self.hint = hint

    @property
    def ename(self) -> str:
        return type(self).__name__

    def traceback(self, inner: Sequence[str] = ()) -> list[str]:
        """Lines for a Jupyter ``error`` message, below those that say where the cell was."""
        red, bold, off = "\x1b[31m", "\x1b[1m", "\x1b[0m"
        return [
            *inner,
            # Off first: nobody knows in which colour the lines from inside end.
            f"{off}{red}{bold}{self.ename}{off}: {self.what}",
            f"  {bold}What to do:{off} {self.hint}",
        ]


class SandboxUnavailable(SandboxError):
    """No sandbox could be started; nothing ran.

    ``missing``: what that takes is known not to be on this host, so another level that the policy accepts
    may do. What is merely not to be had just now is no reason for a weaker one.
    """

    def __init__(self, what: str, *, hint: str, missing: bool = False) -> None:
        super().__init__(what, hint=hint)
        self.missing = missing


class AuditUnavailable(SandboxError):
    """The audit log cannot be written or read."""


class ImageError(SandboxError):
    """An image could not be built, or the list of built ones cannot be used."""


class SandboxLost(SandboxError):
    """The sandbox ended, and the user's variables with it."""


class WrapperFailed(SandboxError):
    """An exception in the wrapper that nothing expected."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"The sandbox's wrapper failed over this request ({type(error).__name__}): that is a "
            "mistake in sandbox-kernel. Nothing of the request was run.",
            hint="Send it again; if it fails again, report it with the kernel's log.",
        )


class ReplyLost(SandboxError):
    """A cell has run to its end, but no reply has come."""

    def __init__(self) -> None:
        super().__init__(
            "The kernel says that the cell is over, but has sent no reply to it: what it has set is "
            "kept, but nobody knows whether it failed.",
            hint="Look at what it has shown and set, and run it again if need be.",
        )


class ApprovalUnknown(SandboxError):
    """``%approvals`` could not be done; nothing was changed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} Nothing was changed.",
            hint="`%approvals` lists what you have always allowed; `%approvals revoke N` and "
            "`%approvals revoke all` take it back.",
        )


class UndoUnavailable(SandboxError):
    """``%undo`` could not be done."""

    def __init__(self, *, lost: bool = False) -> None:
        if lost:
            what = (
                "The checkpoint could not take over, and the variables of this notebook are gone."
            )
            hint = "A new sandbox has been started: run the earlier cells again."
        else:
            what = "There is no checkpoint from before the last cell, and nothing was changed."
            hint = (
                "One cell can be undone, once, when none is running; `checkpoint: cell` in the "
                "policy and enough memory for a copy of what the cell changed are needed."
            )
        super().__init__(what, hint=hint)


def what_became(state: State, *, is_older: bool = False) -> str:
    """Of the variables. ``is_older``: no checkpoint of the state before the cell could be made."""
    if state == "rolled_back" and is_older:
        return "what was changed after the last checkpoint, by this cell and before it, is undone"
    return _BECAME[state]


class CellInterrupted(SandboxError):
    """The user interrupted twice; shown under the name that Python has for it."""

    def __init__(
        self, state: State, not_restored: tuple[str, ...], *, is_older: bool = False
    ) -> None:
        lacking = f" (not restored: {', '.join(not_restored)})" if not_restored else ""
        super().__init__(
            "The cell did not stop when interrupted, and was killed when interrupted again: "
            f"{what_became(state, is_older=is_older)}{lacking}.",
            hint="Run the earlier cells again." if state == "lost" else "Run the next cell.",
        )

    @property
    def ename(self) -> str:
        return "KeyboardInterrupt"


class CellLimitExceeded(SandboxError):
    """A cell was stopped at a limit. ``allowed`` and ``used`` are seconds, bytes or numbers."""

    outcome: ClassVar[Outcome] = "error"  # in the receipt

    def __init__(
        self,
        limit: Limit,
        *,
        allowed: float,
        used: float,
        action: Action,
        state: State,
        not_restored: tuple[str, ...] = (),
        is_older: bool = False,  # the state is one from before the last checkpoint that there should be
        why: str = "",  # what it did that an interrupt was not enough, if it was interrupted
        note: str = "",  # what else there is to say about what was used
        policy: str,
        own: bool = False,  # the cell's client had asked for a tighter one
    ) -> None:
        self.limit = limit
        self.allowed = allowed
        self.used = used
        self.action = action
        most, beyond = amount(limit, allowed), amount_beyond(limit, used, allowed)
        happened = _HAPPENED[limit].format(beyond)
        who = "its own limit" if own else f"policy `{policy}`"
        rule = f"; {'the sandbox' if limit in _FIXED else who} allows {most}"
        if limit == "wall" and beyond == f"more than {most}":
            happened = "The cell was stopped at "
            rule = f"its own {most} limit" if own else f"the {most} limit of policy `{policy}`"
        noted = f" {note}." if note else ""
        subject = "It" if happened.startswith("The cell ") else "The cell"
        if why:
            subject += f" {why}, so it"
        done = _DONE[action].format(_OLDER_STATE if is_older else "the state before it")
        became = (
            "all variables are kept"
            if action == "refused"
            else what_became(state, is_older=is_older)
        )
        lacking = f" (not restored: {', '.join(not_restored)})" if not_restored else ""
        again = "Run the earlier cells again. " if state == "lost" else ""
        key = limit.replace("budget_", "budget.") if "budget_" in limit else f"limits.{limit}"
        raise_it = "ask for a wider limit with the cell" if own else f"raise `{key}` in the policy"
        super().__init__(
            f"{happened}{rule}.{noted} {subject} {done} {became}{lacking}.",
            hint=f"{again}{_INSTEAD[limit]}{'' if limit in _FIXED else f', or {raise_it}'}.",
        )


class CellTimeout(CellLimitExceeded):
    """The cell, or all cells together, ran too long."""

    outcome = "timeout"


class CellCpuExceeded(CellLimitExceeded):
    """The cell, or all cells together, used too much CPU time."""

    outcome = "cpu"


class CellMemoryExceeded(CellLimitExceeded):
    """The cell, or the sandbox in the cell, used too much memory."""

    outcome = "memory"


class CellOutputExceeded(CellLimitExceeded):
    """The cell showed too much."""

    outcome = "output"


LIMIT_ERRORS: Final[Mapping[Limit, type[CellLimitExceeded]]] = {
    "wall": CellTimeout,
    "cpu": CellCpuExceeded,
    "memory": CellMemoryExceeded,
    "sandbox_memory": CellMemoryExceeded,
    "processes": CellLimitExceeded,
    "pipes": CellLimitExceeded,
    "terminals": CellLimitExceeded,
    "output": CellOutputExceeded,
    "text": CellOutputExceeded,
    "messages": CellOutputExceeded,
    "budget_wall": CellTimeout,
    "budget_cpu": CellCpuExceeded,
}
# Limits that no policy sets.
_FIXED: Final[frozenset[Limit]] = frozenset({"pipes", "terminals"})
_HAPPENED: Final[Mapping[Limit, str]] = {
    "wall": "The cell ran for {}",
    "cpu": "The cell used {} of CPU time",
    "memory": "The cell took {} of memory on top of what was there",
    "sandbox_memory": "The sandbox came to {} of memory, what earlier cells hold included",
    "processes": "There were {} and threads in the sandbox",
    "pipes": "There were {} in the sandbox",
    "terminals": "There were {} in the sandbox",
    "output": "The cell showed {} of output",
    "text": "The cell printed {} of text",
    "messages": "The cell sent {} of output",
    "budget_wall": "The cells of this notebook ran for {} in all",
    "budget_cpu": "The cells of this notebook used {} of CPU time in all",
}
_DONE: Final[Mapping[Action, str]] = {
    "interrupted": "was interrupted;",
    "refused": "was not run;",
    "rolled_back": "was killed and the kernel went back to {}:",
    "replaced": "was killed with its sandbox and a new sandbox started:",
}
_BECAME: Final[Mapping[State, str]] = {
    "kept": "all variables are kept, including what the cell had set before it stopped",
    "rolled_back": "all variables of earlier cells are kept, what this cell changed is undone",
    "lost": "the variables of this notebook are gone",
}
_OLDER_STATE: Final = "an older state"
_INSTEAD: Final[Mapping[Limit, str]] = {
    "wall": "Do less in one cell",
    "cpu": "Use less data, fewer rounds or a faster library",
    "memory": "Load the data in chunks or work on a sample",
    "sandbox_memory": "Free what is no longer needed (`del name`) or restart the kernel",
    "pipes": "Close pipes that are no longer needed or start fewer child processes at once",
    "terminals": "Close terminals that are no longer needed or start fewer programs in one at once",
    "processes": "Start fewer workers at once (`n_jobs`, the size of a pool)",
    "output": "Write the whole to a file and show a part",
    "text": "Print less, or into a file",
    "messages": "Update the display less often, for example a progress bar once a second",
    "budget_wall": "Restart the kernel for a new budget",
    "budget_cpu": "Restart the kernel for a new budget",
}


class PolicyError(SandboxError):
    """A policy file that cannot be used; nothing runs under a guess of what it meant."""


class PolicyViolation(SandboxError):
    """The policy does not allow what was asked for."""
