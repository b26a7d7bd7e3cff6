"""Everything the frontend hears: what is passed on to it, and what the wrapper says itself."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import zmq

from sandbox_kernel import __version__
from sandbox_kernel.errors import SandboxError
from sandbox_kernel.relay.cells import Request, RunningCell
from sandbox_kernel.relay.frontend import FrontendSockets
from sandbox_kernel.relay.sockets import send
from sandbox_kernel.relay.wire import Author, Codec, Message, timestamp


class Answers:
    """The way to the frontend; nothing here blocks or raises."""

    def __init__(
        self,
        frontend: FrontendSockets,
        codec: Codec,
        author: Author,
        passed_on: Callable[[Message], None] = lambda _: None,
        publish: Callable[[Sequence[bytes]], None] | None = None,
    ) -> None:
        self._frontend = frontend
        self._codec = codec
        self._author = author
        # Told of what comes from inside: it is on the bill of a cell from here on.
        self._passed_on = passed_on
        self._publish = publish or partial(send, frontend.iopub)
        self._notice: str | None = None

    # -- passed on ---------------------------------------------------------------------------------

    def forward_output(self, message: Message) -> None:
        self._passed_on(message)
        self._send(self._frontend.iopub, message, message.idents)

    def forward_reply(self, request: Request, reply: Message) -> None:
        """To where the request came from, whatever the inner kernel says."""
        self._passed_on(reply)
        socket = self._frontend.control if request.channel == "control" else self._frontend.shell
        self._send(socket, reply, request.message.idents)

    def ask(self, request: Request, content: Mapping[str, Any]) -> str:
        """A question of the wrapper's own, to who sent the request; its msg_id."""
        prompt = self._author.message("input_request", content, request.message)
        self.forward_prompt(request, prompt)
        return prompt.msg_id

    def forward_prompt(self, request: Request, prompt: Message) -> None:
        self._passed_on(prompt)
        self._send(self._frontend.stdin, prompt, request.message.idents)

    # -- said by the wrapper -----------------------------------------------------------------------

    def publish(
        self, msg_type: str, content: Mapping[str, Any], parent: Message | None = None
    ) -> None:
        message = self._author.message(msg_type, content, parent)
        self._send(self._frontend.iopub, message, [self._topic(msg_type)])

    def status(self, state: str, parent: Message | None = None) -> None:
        self.publish("status", {"execution_state": state}, parent)

    def notice(self, text: str) -> None:
        """Something to be said with the next cell, as there is none now."""
        self._notice = text

    def say_notice(self, request: Request) -> None:
        """A cell begins: say what was to be said with it."""
        if self._notice is not None:
            text, self._notice = f"{self._notice}\n", None
            self.publish("stream", {"name": "stderr", "text": text}, request.message)

    def welcome(self, subscription: str) -> None:
        message = self._author.message("iopub_welcome", {"subscription": subscription})
        topics = [subscription.encode()] if subscription else []
        self._send(self._frontend.iopub, message, topics)

    def reply(
        self,
        request: Request,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        message = self._author.message(request.reply_type, content, request.message, metadata)
        self.forward_reply(request, message)

    def answer(self, request: Request, content: Mapping[str, Any]) -> None:
        """A reply between the busy and the idle that clients wait for."""
        self.status("busy", request.message)
        self.reply(request, content)
        self.status("idle", request.message)

    def abort(self, request: Request, metadata: Mapping[str, Any]) -> None:
        self.status("busy", request.message)
        content = {"status": "aborted"}
        self.reply(request, content, {**self._cell_metadata("aborted"), **metadata})
        self.status("idle", request.message)

    def refuse(self, request: Request, error: SandboxError) -> None:
        """Answer a request for which there is no sandbox."""
        if request.is_cell:
            self.status("busy", request.message)
            self.show_input(request, 0)
            cell = RunningCell(request, execution_count=0)
            self.show_error(cell, error)
            self.cell_reply(cell, error_content(error))
            self.status("idle", request.message)
        elif request.msg_type == "kernel_info_request":
            # The frontend must come up, or nobody would see the reason.
            self.answer(request, unavailable_kernel_info(error))
        elif request.expects_reply:
            self.answer(request, error_content(error))
        else:
            # A message to a widget, which sends nothing more until it is done with this one.
            self.status("busy", request.message)
            self.status("idle", request.message)

    def show_input(self, request: Request, execution_count: int) -> None:
        """What ipykernel says when a cell begins."""
        if not request.silent:
            shown = {"code": request.message.content["code"], "execution_count": execution_count}
            self.publish("execute_input", shown, request.message)

    def show_error(
        self, cell: RunningCell, error: SandboxError, inner_traceback: Sequence[str] = ()
    ) -> None:
        content = error_content(error, inner_traceback)
        shown = {key: content[key] for key in ("ename", "evalue", "traceback")}
        self.publish("error", shown, cell.request.message)

    def cell_reply(
        self,
        cell: RunningCell,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """The wrapper's own reply to a cell."""
        rest: dict[str, Any] = {
            "execution_count": cell.execution_count,
            "user_expressions": {},
            "payload": [],
        }
        cell_metadata = self._cell_metadata(content["status"])
        self.reply(cell.request, {**content, **rest}, {**cell_metadata, **(metadata or {})})

    def _cell_metadata(self, status: str) -> dict[str, Any]:
        """Metadata of a cell's reply with the keys that ipykernel gives it."""
        return {
            "started": timestamp(),
            "dependencies_met": True,
            "engine": self._author.session,
            "status": status,
        }

    def _topic(self, msg_type: str) -> bytes:
        return f"kernel.{self._author.session}.{msg_type}".encode()

    def _send(self, socket: zmq.Socket[bytes], message: Message, idents: Sequence[bytes]) -> None:
        frames = self._codec.write(message, idents)
        if socket is self._frontend.iopub:
            self._publish(frames)
        else:
            send(socket, frames)


def error_content(error: SandboxError, inner_traceback: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "status": "error",
        "ename": error.ename,
        "evalue": str(error),
        "traceback": error.traceback(inner_traceback),
    }


def unavailable_kernel_info(error: SandboxError) -> dict[str, Any]:
    """A ``kernel_info_reply`` for a kernel whose sandbox cannot start: enough for a frontend."""
    return {
        "status": "ok",
        "protocol_version": "5.5",
        "implementation": "sandbox-kernel",
        "implementation_version": __version__,
        "language_info": {
            "name": "python",
            "version": platform.python_version(),
            "mimetype": "text/x-python",
            "file_extension": ".py",
            "pygments_lexer": "ipython3",
            "codemirror_mode": {"name": "ipython", "version": 3},
            "nbconvert_exporter": "python",
        },
        "banner": f"{error.ename}: {error}",
        "help_links": [],
        "supported_features": [],
    }
