"""What the reply to a cell says, whatever its shape: an earlier cell may have changed the kernel.

Each function takes the message as it came and never raises. What has not the right type is not there.
"""

from __future__ import annotations

import re
from typing import Any, Final

# The variable in which IPython keeps the exit code of the last command. A cell can change it, so it
# is good for a warning only.
EXIT_CODE: Final = "_exit_code"
_CODE: Final = re.compile(r"-?[0-9]{1,10}")
_STATES: Final = ("kept", "rolled_back", "lost")
_MOST: Final = 1 << 60


def status(reply: Any) -> str | None:
    """``ok``, ``error``, or another word."""
    return _text(_member(reply, "content", "status"))


def traceback(reply: Any) -> str | None:
    """The traceback of a failed cell, in lines."""
    lines = _member(reply, "content", "traceback")
    if not isinstance(lines, list):
        return None
    return "\n".join(line for line in lines if isinstance(line, str)) or None


def exit_code(reply: Any) -> int | None:
    """The exit code of the last command that the kernel has run, in this cell or an earlier one.

    ``None`` is unknown: a failed cell is not asked.
    """
    answer = _member(reply, "content", "user_expressions", EXIT_CODE)
    said = _text(_member(answer, "data", "text/plain"))
    if said is not None and _CODE.fullmatch(said):
        return int(said)
    # No command has run yet, so there is no such variable.
    return 0 if _member(answer, "ename") == "NameError" else None


def usage(reply: Any) -> dict[str, Any]:
    """What the wrapper says in the reply, where it makes receipts; a sandbox cannot write it."""
    receipt = _member(reply, "metadata", "sandbox")
    state = _member(receipt, "state")
    return {
        "state": state if state in _STATES else None,
        "cpu_seconds": _number(_member(receipt, "usage", "cpu_seconds")),
        "memory_peak_bytes": _number(_member(receipt, "usage", "memory_peak_bytes")),
    }


def _member(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | float | None:
    return value if type(value) in (int, float) and 0 <= value < _MOST else None
