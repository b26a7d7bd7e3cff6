"""What the wrapper must know of the Debug Adapter Protocol, which it otherwise passes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sandbox_kernel.errors import SandboxError
from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.violation import CodeViolation
from sandbox_kernel.relay.cells import Cells, Request
from sandbox_kernel.relay.wire import Message

# A frontend's debugger lets a stopped cell run on.
END: Final = frozenset({"disconnect", "terminate"})
RUN_ON: Final = frozenset({"continue", "next", "stepIn", "stepOut"}) | END


class Debugging:
    """Overhears the frontend's debugger: a cell that it has stopped is not on the clock."""

    def __init__(self, cells: Cells, enforcer: Enforcer, judge: Judge, policy_name: str) -> None:
        self._cells = cells
        self._enforcer = enforcer
        self._judge = judge
        self._policy_name = policy_name
        self._debugs = False

    def overhear_request(self, request: Request) -> None:
        command = request.message.content.get("command")
        # Frontends ask about the debugger without using it.
        if command == "attach":
            self._debugs = True
        elif command in END:
            self._debugs = False
        if command in RUN_ON:
            self._enforcer.resume()

    def overhear_event(self, event: Message) -> None:
        # Only when the frontend debugs: else a cell could stop its own clock with it.
        if self._debugs and event.outline.is_event("stopped"):
            for cell in self._cells.in_flight:
                self._enforcer.pause(cell)

    def judge(self, request: Request) -> CodeViolation | None:
        """The denial of a debugger's request that would run code, if it is denied."""
        if request.msg_type != "debug_request":
            return None
        code = "\n".join(code_in(request.message.content))
        if not code:
            return None
        verdict = self._judge.judge(code)
        if verdict.decision in ("allow", "warn"):
            return None
        return CodeViolation(verdict, self._policy_name, code)


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
