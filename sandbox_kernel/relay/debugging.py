"""What the wrapper must know of the Debug Adapter Protocol, which it otherwise passes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sandbox_kernel.errors import SandboxError
from sandbox_kernel.relay.cells import Request


def code_in(content: Mapping[str, Any]) -> Iterator[str]:
    """The code in a ``debug_request``: to be evaluated now, or at a breakpoint."""
    arguments = content.get("arguments")
    if not isinstance(arguments, dict):
        return
    breakpoints = arguments.get("breakpoints")
    for place in (arguments, *(breakpoints if isinstance(breakpoints, list) else ())):
        for name in ("expression", "value", "condition", "hitCondition", "logMessage"):
            if isinstance(place, dict) and isinstance(place.get(name), str):
                yield place[name]


def denial(request: Request, error: SandboxError) -> dict[str, Any]:
    """A ``debug_reply`` that says no, as the Debug Adapter Protocol has it."""
    content = request.message.content
    return {
        "type": "response",
        "request_seq": content.get("seq", 0),
        "success": False,
        "command": content.get("command", ""),
        "message": f"{error.ename}: {error}",
        "body": {},
    }
