"""Play the script to one kernel and note everything it says."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.blocking.client import BlockingKernelClient

from .exchange import Exchange, Learned, Request
from .kernels import STARTUP_TIMEOUT_SECONDS, started

CHANNELS = ("shell", "control", "stdin", "iopub")
EXCHANGE_TIMEOUT_SECONDS = 30
NOBODY = "nobody"

# The debugger runs code of its own as a request that no frontend sent.
UNASKED = Exchange("what the kernel says unasked is the same", ())


@dataclass
class Message:
    """What the kernel said, before anything is normalised."""

    channel: str
    # Only what answers requests of one lane comes in a defined order.
    lane: str
    parent: str
    msg_type: str
    header: dict[str, Any]
    metadata: dict[str, Any]
    content: dict[str, Any]
    buffers: list[bytes]
    # How the echoed parent header differs from the header that was sent.
    parent_changes: list[str]


@dataclass
class Recording:
    """Everything one kernel said, by the exchange that it answers."""

    ports: dict[str, int] = field(default_factory=dict)
    said: dict[str, list[Message]] = field(default_factory=dict)
    # Exchanges whose answer did not come in time, and what was missing.
    missing: dict[str, str] = field(default_factory=dict)


@dataclass
class _Sent:
    """A request under way."""

    exchange: str
    label: str
    request: Request
    header: dict[str, Any]
    replied: bool = False
    idle: bool = False
    text: str = ""
    seen: set[str] = field(default_factory=set)
    answers: list[str] = field(default_factory=list)

    def awaits(self) -> list[str]:
        wanted = self.request
        missing = ["a reply"] if wanted.replied and not self.replied else []
        if wanted.idle and not self.idle:
            missing.append("idle")
        if wanted.until is not None and wanted.until not in self.text:
            missing.append(f"the output {wanted.until!r}")
        missing += [f"{kind} on iopub" for kind in wanted.iopub if f"iopub:{kind}" not in self.seen]
        return missing


class Recorder:
    """One client of one kernel."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self.client = client
        self.recording = Recording()
        self.learned: Learned = {}
        self._sent: dict[str, _Sent] = {}
        # Message types, and names of debugger events, since the last request was sent.
        self._heard: set[str] = set()
        self._sockets = {name: getattr(client, f"{name}_channel").socket for name in CHANNELS}
        self._poller = zmq.Poller()
        for socket in self._sockets.values():
            self._poller.register(socket, zmq.POLLIN)
        for name in (*CHANNELS, "hb"):
            port = client.get_connection_info()[f"{name}_port"]
            self.recording.ports[name] = port

    def play(self, script: Iterable[Exchange]) -> Recording:
        self.recording.said = {UNASKED.name: []}
        for exchange in script:
            self.recording.said.setdefault(exchange.name, [])
            self._play(exchange)
        return self.recording

    def _play(self, exchange: Exchange) -> None:
        waiting = list(exchange.requests)
        underway: list[_Sent] = []
        deadline = time.monotonic() + EXCHANGE_TIMEOUT_SECONDS
        while True:
            while waiting and self._is_due(waiting[0]):
                underway.append(self._send(exchange, len(underway), waiting.pop(0)))
            self._answer(underway)
            missing = [f"{sent.label}: {what}" for sent in underway for what in sent.awaits()]
            if not missing and not waiting:
                return
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                missing += [f"the turn of {request.msg_type}" for request in waiting]
                self.recording.missing[exchange.name] = ", ".join(missing)
                return
            ready = dict(self._poller.poll(remaining * 1000))
            for channel, socket in self._sockets.items():
                if socket in ready:
                    self._receive(channel)

    def _is_due(self, request: Request) -> bool:
        return request.after is None or request.after in self._heard

    def _send(self, exchange: Exchange, index: int, request: Request) -> _Sent:
        content = request.content(self.learned) if callable(request.content) else request.content
        session = self.client.session
        message = session.msg(request.msg_type, dict(content), metadata=dict(request.metadata))
        if request.subshell is not None:
            message["header"]["subshell_id"] = self.learned[request.subshell]
        label = request.msg_type if index == 0 else f"{request.msg_type} #{index + 1}"
        sent = _Sent(exchange.name, label, request, message["header"])
        sent.answers = list(request.answers)
        self._sent[message["header"]["msg_id"]] = sent
        self._heard.clear()
        session.send(self._sockets[request.channel], message, buffers=list(request.buffers))
        return sent

    def _answer(self, underway: list[_Sent]) -> None:
        """Give the next value to a cell that asks; requests that wait for it are sent by now."""
        for sent in underway:
            if "stdin:input_request" in sent.seen and sent.answers:
                sent.seen.discard("stdin:input_request")
                self.client.input(sent.answers.pop(0))

    def _receive(self, channel: str) -> None:
        _, message = self.client.session.recv(self._sockets[channel], zmq.NOBLOCK)
        sent = self._sent.get(message["parent_header"].get("msg_id"))
        said = Message(
            channel=channel,
            lane=sent.request.subshell or sent.request.channel if sent else NOBODY,
            parent=sent.label if sent else NOBODY,
            msg_type=message["header"]["msg_type"],
            header=message["header"],
            metadata=message["metadata"],
            content=message["content"],
            buffers=[bytes(buffer) for buffer in message["buffers"]],
            parent_changes=_changes(sent.header, message["parent_header"]) if sent else [],
        )
        self._heard |= _names(said)
        # A message that comes late belongs to what it answers, not to what runs now.
        self.recording.said[sent.exchange if sent else UNASKED.name].append(said)
        if sent is not None:
            self._note(sent, said)

    def _note(self, sent: _Sent, said: Message) -> None:
        sent.seen |= {f"{said.channel}:{kind}" for kind in _names(said)}
        if said.channel == sent.request.channel:
            sent.replied = True
            for name, learn in sent.request.learn.items():
                self.learned[name] = learn(said.content)
        elif said.msg_type == "stream":
            sent.text += said.content.get("text", "")
        elif said.msg_type == "status" and said.content.get("execution_state") == "idle":
            sent.idle = True


def _names(said: Message) -> set[str]:
    """What requests may wait for: a message type, or the name of a debugger's event."""
    return {said.msg_type, said.content["event"]} if "event" in said.content else {said.msg_type}


def _changes(header: dict[str, Any], echoed: dict[str, Any]) -> list[str]:
    # A date is parsed on the way in, with the precision of milliseconds lost or not.
    names = sorted((set(header) | set(echoed)) - {"date"})
    return [name for name in names if header.get(name) != echoed.get(name)]


def record(kernel: str, script: Iterable[Exchange], home: Path, level: str) -> Recording:
    """Start the kernel, play the script, end the kernel."""
    with started(kernel, home, level) as manager:
        client = manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=STARTUP_TIMEOUT_SECONDS)
            # What starting up left behind on the channels comes before the answer to this.
            recorder = Recorder(client)
            recorder.play([_SETTLE])
            return recorder.play(script)
        finally:
            client.stop_channels()


_SETTLE = Exchange("start", (Request("kernel_info_request"),))
