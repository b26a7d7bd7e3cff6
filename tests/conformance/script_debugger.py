"""The part of the script that debugs a cell as JupyterLab does."""

from __future__ import annotations

from typing import Any

from .exchange import Content, Learned, Request, cell, debug, exchange, execute

_CODE = "def traced(a, b):\n    c = a + b\n    return c\n\ntraced(2, 3)"

_CLIENT = {
    "clientID": "test",
    "clientName": "test",
    "adapterID": "",
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
    "supportsVariableType": True,
    "supportsVariablePaging": True,
    "supportsRunInTerminalRequest": True,
    "locale": "en",
}


def _breakpoints(*lines: int) -> Any:
    return lambda learned: {
        "breakpoints": [{"line": line} for line in lines],
        "source": {"path": learned["source"]},
        "sourceModified": False,
    }


def _paused(command: str, arguments: Any, after: str = "debug_reply", **options: Any) -> Request:
    def content(learned: Learned) -> Content:
        given = arguments(learned) if callable(arguments) else arguments
        return {"type": "request", "seq": 7, "command": command, "arguments": given}

    return Request("debug_request", content, channel="control", after=after, **options)


def _frame(reply: Content) -> Any:
    return reply["body"]["stackFrames"][0]["id"]


def _locals(reply: Content) -> Any:
    return reply["body"]["scopes"][0]["variablesReference"]


DEBUGGER = (
    debug("debugInfo is told before the debugger starts", "debugInfo"),
    debug("the debugger starts", "initialize", _CLIENT),
    debug("the debugger attaches", "attach", iopub=("initialized",)),
    debug("debugInfo is told", "debugInfo"),
    debug(
        "a cell is dumped for the debugger",
        "dumpCell",
        {"code": _CODE},
        learn={"source": lambda reply: reply["body"]["sourcePath"]},
    ),
    debug("breakpoints are set", "setBreakpoints", _breakpoints(2)),
    debug(
        "the dumped source is told", "source", lambda found: {"source": {"path": found["source"]}}
    ),
    debug("exception breakpoints are set", "setExceptionBreakpoints", {"filters": []}),
    debug("the configuration is done", "configurationDone"),
    debug("breakpoints are told again", "debugInfo"),
    exchange(
        "a cell stops at its breakpoint and can be looked into",
        execute(_CODE),
        _paused("stackTrace", {"threadId": 1}, after="stopped", learn={"frame": _frame}),
        _paused("scopes", lambda found: {"frameId": found["frame"]}, learn={"locals": _locals}),
        _paused("variables", lambda found: {"variablesReference": found["locals"]}),
        _paused(
            "richInspectVariables",
            lambda found: {"variableName": "a", "frameId": found["frame"]},
        ),
        _paused(
            "evaluate",
            lambda found: {"expression": "a * 10", "frameId": found["frame"], "context": "repl"},
        ),
        _paused("next", {"threadId": 1}),
        _paused("stackTrace", {"threadId": 1}, after="stopped", learn={"frame": _frame}),
        _paused("continue", {"threadId": 1}, iopub=("continued",)),
    ),
    debug("breakpoints are removed", "setBreakpoints", _breakpoints()),
    cell("a cell runs through without breakpoints", _CODE),
    debug("a variable is shown richly", "richInspectVariables", {"variableName": "x"}),
    debug("an expression is evaluated", "evaluate", {"expression": "x + 1", "context": "repl"}),
    debug("modules are told", "modules", {"startModule": 0, "moduleCount": 0}),
    debug("a source that is not there is told", "source", {"source": {"path": "/no/such.py"}}),
    debug("the debugger leaves", "disconnect", {"restart": False, "terminateDebuggee": False}),
    debug("debugInfo is told after the debugger left", "debugInfo"),
    cell("after the debugger cells run", "'run on'"),
)
