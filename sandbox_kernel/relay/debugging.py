"""What the wrapper must know of the Debug Adapter Protocol, which it otherwise passes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
        for code in code_in(request.message.content):
            # Each by itself, as it is evaluated: one that is no code says nothing about the others.
            verdict = self._judge.judge(code)
            if verdict.decision not in ("allow", "warn"):
                return CodeViolation(verdict, self._policy_name, code)
        return None


def code_in(content: Mapping[str, Any]) -> Iterator[str]:
    """The code in a ``debug_request``: to be evaluated now, or at a breakpoint."""
    arguments = content.get("arguments")
    if not isinstance(arguments, dict):
        return
    lists = [arguments.get(name) for name in ("breakpoints", "filterOptions")]
    places = [place for each in lists if isinstance(each, list) for place in each]
    for place in (arguments, *places):
        if not isinstance(place, dict):
            continue
        for name, read in _CODE.items():
            if isinstance(text := place.get(name), str):
                yield from read(text)


def whole(text: str) -> Iterator[str]:
    if text:
        yield text


def compared(condition: str) -> Iterator[str]:
    """A condition on how often a breakpoint was hit: ``>= 3``, or with ``@HIT@`` for the number."""
    text = condition.strip().replace("@HIT@", "1")
    yield f"1 {text}" if text.startswith(("%", "==", ">", "<")) else text


def logged(message: str) -> Iterator[str]:
    """The expressions in ``{…}`` of a logpoint's message, of which the rest is text.

    The debugger counts braces without a look at quotes, and evaluates all expressions as one tuple:
    ``{f(x} {)}`` has none that is one by itself.
    """
    found, depth, begin = [], 0, 0
    for index, character in enumerate(message):
        if character == "{":
            depth += 1
            begin = index + 1 if depth == 1 else begin
        elif character == "}" and depth:
            depth -= 1
            if not depth:
                found.append(message[begin:index].strip())
    found = [code for code in found if code]
    yield from found
    if found:
        yield f"({', '.join(found)},)"


# Where a request has code, and how it is read.
_CODE: Final[Mapping[str, Callable[[str], Iterator[str]]]] = {
    "expression": whole,
    "value": whole,
    "condition": whole,
    "hitCondition": compared,
    "logMessage": logged,
}


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
