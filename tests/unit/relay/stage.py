"""A router between two real sides: clients, and an inner kernel that does what a test says.

Whoever sends waits until the message has reached the router's socket. Whoever reads first lets the router's
socket send a fence, and reads up to it: so a test hears all that was said before, however busy the machine.
"""

from __future__ import annotations

import dataclasses
import itertools
import select
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zmq

from sandbox_kernel.audit.log import AuditLog
from sandbox_kernel.isolation.start import PORTS
from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.limits.ladder import Restored
from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.model import Limits
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.cells import Request, RunningCell
from sandbox_kernel.relay.connection import CHANNELS, ConnectionInfo
from sandbox_kernel.relay.frontend import FrontendSockets
from sandbox_kernel.relay.inner import WRAPPER_IDENTITY, InnerSockets
from sandbox_kernel.relay.link import Link
from sandbox_kernel.relay.loop import Loop
from sandbox_kernel.relay.router import Router
from sandbox_kernel.relay.settle import Ending, Settler
from sandbox_kernel.relay.wire import Author, Codec, Message, Outline, Signer, encode_object

SESSION = "session"
KEY = Signer(b"key")
PATIENCE_SECONDS = 10.0
TURN_SECONDS = 0.05
FENCE_MILLISECONDS = 100
KERNEL_INFO = {"status": "ok", "implementation": "staged"}
# The policy `strict` asks about the one and denies the other.
ASKED, DENIED = "import tempfile", "import ctypes"


def message(
    msg_type: str,
    content: Mapping[str, Any] | bytes = b"{}",
    *,
    msg_id: str,
    parent_id: str | None = None,
    session: str = SESSION,
    metadata: bytes = b"{}",
    **header: Any,
) -> Message:
    """Frames of somebody's making."""
    said = {"msg_id": msg_id, "msg_type": msg_type, "session": session, "version": "5.4", **header}
    parent = {} if parent_id is None else {"msg_id": parent_id}
    body = content if isinstance(content, bytes) else encode_object(content)
    frames = (encode_object(said), encode_object(parent), metadata, body)
    return Message((), said, parent, Outline(), frames)


class Around:
    """The wrapper around the router, and the sandbox: what is done to them is noted."""

    def __init__(self) -> None:
        self.finished = 0
        self.ready = True
        self.done: list[str] = []
        self.conclude: Callable[[RunningCell, Ending], None]

    def meter(self) -> Meter:
        return Meter()

    def forget(self) -> None:
        self.done.append("forget")

    def sweep(self, since_ticks: int, done: Callable[[int], None]) -> None:
        done(0)

    def roll_back(self, to: object, done: Callable[[Restored | None], None]) -> None:
        self.done.append("roll back")

    def notice(self, text: str, event: str) -> None:
        self.done.append(text)

    def interrupt(self) -> None:
        self.done.append("interrupt")

    def revive(self) -> None:
        self.done.append("revive")

    def shutdown(self, request: Request) -> None:
        self.done.append("shutdown")

    def usage(self) -> Mapping[str, Any]:
        return {"status": "ok"}

    def undo(self, cell: RunningCell) -> None:
        self.done.append("undo")

    def undo_request(self, request: Request) -> None:
        self.done.append("undo")

    def failed(self, error: Exception, *, fatal: bool) -> None:
        self.done.append(f"failed: {error!r}")


class Stage:
    """A `Router` with all that is behind it, under the policy ``strict``; no process is started."""

    def __init__(self, directory: Path, **limits: Any) -> None:
        self._directory = directory
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        strict = load_policy("strict")
        policy = dataclasses.replace(
            strict,
            stdin="allow",
            limits=dataclasses.replace(strict.limits, **limits) if limits else strict.limits,
            audit=strict.audit._replace(enabled=False),
        )
        self.limits: Limits = policy.limits
        ports = {channel: number for number, channel in enumerate(CHANNELS, 1)}
        self.info = ConnectionInfo("ipc", f"{directory}/f", ports, KEY)
        self.frontend = FrontendSockets(self.context, self.info)
        self.loop, self.around = Loop(), Around()
        author, codec = Author(SESSION), Codec(KEY)
        answers = Answers(self.frontend, codec, author)
        audit = AuditLog(policy, "kernel", directory)
        enforcer = Enforcer(self.loop, policy, self.around, self.around)
        self.router = Router(
            self.loop,
            self.frontend,
            codec,
            author,
            answers,
            ports,
            policy,
            Settler(answers, policy, audit, lambda: None, self.loop.call_later),
            Judge(policy.code),
            audit,
            enforcer,
            self.around,
        )
        self.around.conclude = self.router.conclude
        self._listener = self.context.socket(zmq.SUB)
        self._listener.subscribe(b"")
        self._listener.connect(self.info.endpoint("iopub"))
        self._open: list[Any] = [self.frontend, self._listener]
        self._codec = Codec(KEY)
        self.numbers = itertools.count()
        self._await_welcome()

    def _await_welcome(self) -> None:
        """The listener hears everything from now on."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while ("iopub_welcome", None) not in self.published():
            assert time.monotonic() < deadline, "nobody has subscribed"
            self.go_on()

    def client(self, name: str = "client") -> Client:
        client = Client(self, name)
        self._open.append(client)
        return client

    def attach(self) -> Kernel:
        """Let the router have an inner kernel."""
        prefix = f"k{next(self.numbers)}"
        sockets = InnerSockets(self.loop, self._directory, lambda _: None, prefix)
        kernel = Kernel(self, sockets, f"ipc://{self._directory}/{prefix}")
        self._open += [sockets, kernel]
        end = time.monotonic() + PATIENCE_SECONDS
        while not all(channel.connected for channel in sockets.all):
            assert time.monotonic() < end, "nobody has connected"
            select.select([c for c in sockets.all if not c.connected], [], [], PATIENCE_SECONDS)
            for channel in sockets.all:
                channel.greet()
        self.router.attach(Link(sockets, Codec(KEY), KERNEL_INFO))
        self.go_on()
        return kernel

    def go_on(self, seconds: float = TURN_SECONDS) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            timer = self.loop._milliseconds_to_next_timer()
            end_of_turn = int(left * 1000) + 1
            self.loop.step(end_of_turn if timer is None else min(timer, end_of_turn))

    def published(self) -> list[tuple[str, str | None]]:
        """What all clients have heard since: its type, or the state that it tells, and of what."""
        return [
            (each.content.get("execution_state", each.msg_type), each.parent_id)
            for each in read_all(self._listener, self._codec, self.frontend.iopub.send_multipart)
        ]

    def close(self) -> None:
        for each in self._open:
            each.close()
        self.context.term()


class Client:
    """One frontend. Those of one kernel manager have one session, and number their messages alike."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage, self._name = stage, name
        self._codec = Codec(KEY)
        self._sockets = {}
        for channel in ("shell", "control", "stdin"):
            socket = self._sockets[channel] = stage.context.socket(zmq.DEALER)
            socket.identity, socket.linger = name.encode(), 0
            socket.connect(stage.info.endpoint(channel))

    def send(
        self,
        channel: str,
        msg_type: str,
        content: Any = b"{}",
        *,
        seconds: float = TURN_SECONDS,
        **about: Any,
    ) -> None:
        """Send it, and let the wrapper do for some time what follows from it."""
        about.setdefault("session", self._name)
        sent = message(msg_type, content, **about)
        self._sockets[channel].send_multipart(self._codec.write(sent, ()))
        assert getattr(self._stage.frontend, channel).poll(PATIENCE_SECONDS * 1000)
        self._stage.go_on(seconds)

    def execute(
        self, msg_id: str, code: str = "1", *, lane: str | None = None, **content: Any
    ) -> None:
        content = {"code": code, "allow_stdin": True, **content}
        self.send("shell", "execute_request", content, msg_id=msg_id, subshell_id=lane)

    def answer(self, value: str, *, to: str | None = None, msg_type: str = "input_reply") -> None:
        msg_id = f"answer {next(self._stage.numbers)}"
        self.send("stdin", msg_type, {"value": value}, msg_id=msg_id, parent_id=to)

    def heard(self, channel: str = "shell") -> list[Message]:
        router = getattr(self._stage.frontend, channel)
        name = self._name.encode()
        return read_all(
            self._sockets[channel],
            self._codec,
            lambda fence: router.send_multipart([name, *fence]),
        )

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close()


class Kernel:
    """The other end of an inner kernel's sockets."""

    def __init__(self, stage: Stage, wrapper: InnerSockets, place: str) -> None:
        self._stage, self._wrapper, self._codec = stage, wrapper, Codec(KEY)
        kinds = {"shell": zmq.ROUTER, "iopub": zmq.PUSH, "replies": zmq.PUSH}
        self._sockets = {}
        for channel, port in PORTS.items():
            socket = self._sockets[channel] = stage.context.socket(kinds.get(channel, zmq.DEALER))
            socket.linger = 0
            socket.connect(f"{place}-{port}")

    def got(self, channel: str = "shell") -> list[tuple[str, str]]:
        """What has come since: types and ids."""
        return [(each.msg_type, each.msg_id) for each in self.messages(channel)]

    def messages(self, channel: str) -> list[Message]:
        return read_all(self._sockets[channel], self._codec, getattr(self._wrapper, channel).send)

    def ask(self, parent_id: str, prompt: str = "? ", *, msg_id: str = "") -> None:
        msg_id = msg_id or f"prompt {next(self._stage.numbers)}"
        self._send("stdin", "input_request", {"prompt": prompt}, msg_id, parent_id)

    def reply(self, msg_type: str, parent_id: str, channel: str = "shell") -> None:
        msg_id = f"reply {next(self._stage.numbers)}"
        self._send(channel, msg_type, {"status": "ok"}, msg_id, parent_id)

    def end(self, parent_id: str) -> None:
        """A cell ends: its reply and its idle."""
        self.reply("execute_reply", parent_id)
        msg_id = f"idle {next(self._stage.numbers)}"
        self._send("iopub", "status", {"execution_state": "idle"}, msg_id, parent_id)

    def _send(self, channel: str, msg_type: str, content: Any, msg_id: str, parent_id: str) -> None:
        made = message(msg_type, content, msg_id=msg_id, parent_id=parent_id)
        idents = [WRAPPER_IDENTITY] if channel == "shell" else [b"topic"]
        self._sockets[channel].send_multipart(self._codec.write(made, idents))
        arrived = getattr(self._wrapper, channel)
        if not arrived.closed:
            select.select([arrived], [], [], PATIENCE_SECONDS)
        self._stage.go_on()

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close()


def read_all(
    socket: zmq.Socket[bytes], codec: Codec, send: Callable[[list[bytes]], object]
) -> list[Message]:
    """All messages on their way to ``socket``; ``send`` is how the router sends there."""
    messages = []
    end = time.monotonic() + PATIENCE_SECONDS
    # A router drops what it sends to somebody who is not connected yet, so one fence may not be enough.
    fence = f"fence {time.monotonic_ns()}".encode()
    while time.monotonic() < end:
        has_hung_up = send([fence]) is False
        while socket.poll(FENCE_MILLISECONDS):
            *_, last = frames = socket.recv_multipart()
            if last == fence:
                return messages
            if not last.startswith(b"fence "):
                messages.append(codec.read(frames))
        if has_hung_up:
            return messages
    msg = "nobody is connected"
    raise AssertionError(msg)
