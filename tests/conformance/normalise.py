"""Take out of a recording what differs between any two runs of the same kernel."""

from __future__ import annotations

import re
from typing import Any

from .exchange import Exchange
from .recorder import UNASKED, Message, Recording

# Each pattern matches a value that is drawn anew for every process.
_DRAWN = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])"), "<hex id>"),
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    # The name of a cell's file is a hash of its code and must be the same; the folder is not.
    (re.compile(r"(?:/[\w.-]+)*/ipykernel_\d+/"), "<cells>/"),
    (re.compile(r"\b\d+(?:\.\d+)?(?:e\+\d+)? (?:ns|[uµμm]s|s)\b"), "<time>"),
    # IPython greets with another tip each time.
    (re.compile(r"\nTip: .*"), "\nTip: <any>"),
)

_PROMPT = re.compile(r"In\[(\d+)\]")

# Debugpy tells of sockets, threads and modules as they come and go: a matter of timing.
_UNTIMELY_EVENTS = {
    "thread",
    "module",
    "output",
    "process",
    "debugpySockets",
    "debugpyWaitingForServer",
}

Record = dict[str, Any]


def records(recording: Recording, exchange: Exchange) -> dict[str, list[Record]]:
    """Per channel, in order: what can be compared of an exchange."""
    channels: dict[str, list[Record]] = {}
    count = _count_before(recording, exchange)
    for message in recording.said[exchange.name]:
        if message.msg_type == "debug_event" and message.content.get("event") in _UNTIMELY_EVENTS:
            continue
        channel = message.channel
        if message.lane not in (channel, "shell"):
            channel = f"{channel} for {message.lane}"
        if message.msg_type == "debug_event":
            # Debugpy speaks when it likes, also between a request's busy and idle.
            channel = f"{channel}, events"
        if exchange.output_at_any_time and message.msg_type == "stream":
            channel = f"{channel}, outputs"
        found = channels.setdefault(channel, [])
        record = _record(message, recording)
        record["content"] = _relative(record["content"], count)
        if not _continues(found, record):
            found.append(record)
    return channels


def _record(message: Message, recording: Recording) -> Record:
    return {
        "msg_type": message.msg_type,
        "parent": message.parent,
        "parent_changes": message.parent_changes,
        "header": {"keys": sorted(message.header), "version": message.header.get("version")},
        "metadata": sorted(message.metadata),
        "content": _content(message, recording),
        "buffers": message.buffers,
    }


def _count_before(recording: Recording, exchange: Exchange) -> int:
    """The execution count that the exchanges before this one ended with."""
    count = 0
    for name, messages in recording.said.items():
        if name == exchange.name:
            break
        if name != UNASKED.name:
            counts = [message.content.get("execution_count") or 0 for message in messages]
            count = max(count, *counts, 0)
    return count


def _relative(value: Any, count: int) -> Any:
    """Tell execution counts from where the exchange began.

    Then a cell that was counted by one kernel only differs once, not ever after.
    """
    if isinstance(value, dict):
        return {
            key: f"+{item - count}"
            if key == "execution_count" and isinstance(item, int)
            else _relative(item, count)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_relative(item, count) for item in value]
    if isinstance(value, str):
        return _PROMPT.sub(lambda found: f"In[+{int(found[1]) - count}]", value)
    return value


def _continues(found: list[Record], record: Record) -> bool:
    """Join output that was cut in two: where it is cut depends on a timer."""
    if not found or record["msg_type"] != "stream":
        return False
    last = found[-1]
    same = last["msg_type"] == "stream" and last["parent"] == record["parent"]
    if not same or last["content"].get("name") != record["content"].get("name"):
        return False
    last["content"]["text"] += record["content"]["text"]
    return True


def _content(message: Message, recording: Recording) -> Any:
    content = message.content
    if message.msg_type == "usage_reply":
        return _usage(content)
    if message.msg_type == "connect_reply":
        return _ports(content, recording)
    if message.msg_type in ("debug_reply", "debug_event"):
        # Debugpy counts all it ever sent, untimely events included.
        content = {key: value for key, value in content.items() if key != "seq"}
        content = _without_numbers(content)
        if "modules" in (content.get("body") or {}):
            # Which modules are loaded is no matter of the protocol.
            content["body"] = sorted(content["body"])
    return _without_drawn(content)


def _usage(content: dict[str, Any]) -> Record:
    # psutil has no CPU load to tell when it is asked for the first time.
    shape = {key: type(value).__name__ for key, value in content.items()}
    shape.pop("host_cpu_percent", None)
    memory = content.get("host_virtual_memory")
    if isinstance(memory, dict):
        shape["host_virtual_memory"] = sorted(memory)
    return shape


def _ports(content: dict[str, Any], recording: Recording) -> Record:
    """Ports are drawn, but they must be those of the connection file."""
    told = dict(content)
    for name, port in recording.ports.items():
        key = f"{name}_port" if f"{name}_port" in told else name
        if told.get(key) == port:
            told[key] = "<as in the connection file>"
    return told


def _without_numbers(value: Any) -> Any:
    """Leave out what debugpy draws or counts up: ports, ids of frames and variables."""
    if isinstance(value, dict):
        return {
            key: f"<{key}>"
            if key in ("port", "id", "variablesReference")
            else _without_numbers(item)
            for key, item in value.items()
        }
    return [_without_numbers(item) for item in value] if isinstance(value, list) else value


def _without_drawn(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_drawn(key): _without_drawn(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_drawn(item) for item in value]
    if isinstance(value, str):
        for pattern, name in _DRAWN:
            value = pattern.sub(name, value)
    return value
