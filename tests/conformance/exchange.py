"""The words of the script: what is sent to a kernel, and when it counts as answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Content = Mapping[str, Any]
Learned = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One message to the kernel, and what must come back before the script goes on."""

    msg_type: str
    # A function where the content holds something that the kernel chose, such as an id.
    content: Content | Callable[[Learned], Content] = field(default_factory=dict)
    channel: str = "shell"
    metadata: Content = field(default_factory=dict)
    buffers: tuple[bytes, ...] = ()
    subshell: str | None = None
    replied: bool = True
    idle: bool = True
    # Sent only when a message of this type, or a debugger event of this name, was heard
    # since the request before it.
    after: str | None = None
    # Values given to input_requests, in turn.
    answers: tuple[str, ...] = ()
    # Wait for this text in an output as well: it may come after idle.
    until: str | None = None
    # Wait for these message types, or debugger events, on iopub as well.
    iopub: tuple[str, ...] = ()
    # Names for what later requests need of the reply's content.
    learn: Mapping[str, Callable[[Content], Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Exchange:
    """One or several requests, compared together; the name is a statement."""

    name: str
    requests: tuple[Request, ...]
    # Output that a thread sends has no fixed place among the other messages.
    output_at_any_time: bool = False


def exchange(name: str, *requests: Request, output_at_any_time: bool = False) -> Exchange:
    return Exchange(name, requests, output_at_any_time)


def execute(code: str, **options: Any) -> Request:
    """An execute_request as a notebook sends it; options of either part are told apart by name."""
    content = {
        "code": code,
        "silent": options.pop("silent", False),
        "store_history": options.pop("store_history", True),
        "user_expressions": options.pop("user_expressions", {}),
        "allow_stdin": options.pop("allow_stdin", True),
        "stop_on_error": options.pop("stop_on_error", True),
    }
    return Request("execute_request", content, **options)


def cell(name: str, code: str, **options: Any) -> Exchange:
    """An exchange of one cell."""
    output_at_any_time = options.pop("output_at_any_time", False)
    return exchange(name, execute(code, **options), output_at_any_time=output_at_any_time)


def ask(name: str, msg_type: str, content: Any = None, **options: Any) -> Exchange:
    """An exchange of one request of another type."""
    return exchange(name, Request(msg_type, content or {}, **options))


def debug(name: str, command: str, arguments: Any = None, **options: Any) -> Exchange:
    """An exchange of one debug_request; the arguments may depend on what was learned."""

    def content(learned: Learned) -> Content:
        given = arguments(learned) if callable(arguments) else arguments or {}
        # The number is only echoed, so that a fixed one shows more than a running one.
        return {"type": "request", "seq": 7, "command": command, "arguments": given}

    return exchange(name, Request("debug_request", content, channel="control", **options))
