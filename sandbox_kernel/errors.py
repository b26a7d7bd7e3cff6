"""What a user can be told has gone wrong.

    SandboxError
    ├── SandboxUnavailable   no sandbox could be started: nothing ran
    └── SandboxLost          the sandbox ended while it held the user's variables

The class name is the ``ename`` the frontend shows. Each message says what happened, why, what became
of the variables where there were any, and what to do.
"""

from __future__ import annotations


class SandboxError(Exception):
    """An error shown in the failing cell."""

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(f"{what} {hint}")
        self.what = what
        self.hint = hint

    @property
    def ename(self) -> str:
        return type(self).__name__

    def traceback(self) -> list[str]:
        """Lines for a Jupyter ``error`` message."""
        red, bold, off = "\x1b[31m", "\x1b[1m", "\x1b[0m"
        return [
            f"{red}{bold}{self.ename}{off}: {self.what}",
            f"  {bold}What to do:{off} {self.hint}",
        ]


class SandboxUnavailable(SandboxError):
    """No sandbox could be started; nothing ran."""


class SandboxLost(SandboxError):
    """The sandbox ended, and the user's variables with it."""
