"""A kernel and the lean client that times it.

A request is serialised before its clock starts, and replies are read as raw frames: what is
timed is the kernel, not JSON and HMAC in this process. Both kernels get this same client.
"""

from __future__ import annotations

import json
import multiprocessing
import select
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from os import close, pidfd_open
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq
from jupyter_client import KernelManager

DELIMITER = b"<IDS|MSG>"
TIMEOUT_MS = 60_000
Message = list[bytes]  # header, parent header, metadata, content, buffers…


class Failed(Exception):
    """The kernel answered, but not with what was asked."""


@dataclass
class Run:
    """One request, from the moment it was sent until both its reply and its idle were seen."""

    seconds: float
    reply: dict[str, Any]
    messages: list[Message]  # what IOPub carried for it, the last one being `idle`

    def of_type(self, msg_type: str) -> list[Message]:
        return [m for m in self.messages if json.loads(m[0])["msg_type"] == msg_type]


def receive(socket: zmq.Socket[bytes], msg_id: bytes) -> Message:
    """The next message that answers `msg_id`; others are dropped."""
    while True:
        frames = socket.recv_multipart()
        start = frames.index(DELIMITER) + 2
        if msg_id in frames[start + 1]:
            return frames[start:]


def receive_until_idle(socket: zmq.Socket[bytes], msg_id: bytes) -> list[Message]:
    messages = []
    while True:
        message = receive(socket, msg_id)
        messages.append(message)
        if b'"status"' in message[0] and b'"idle"' in message[3]:
            return messages


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Sockets that never drop what they receive and that notice a new kernel within 5 ms."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for option, value in {"RCVHWM": 0, "RCVTIMEO": TIMEOUT_MS, "RECONNECT_IVL": 5}.items():
        context.setsockopt(getattr(zmq.SocketOption, option), value)
    return context


class Kernel:
    """A started kernel with all its channels. `with Kernel(name) as kernel: ...`"""

    def __init__(self, name: str, **launch: Any) -> None:
        self.name = name
        self.context = new_context()
        self.manager = KernelManager(kernel_name=name, context=self.context)
        started = time.perf_counter()
        self.manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **launch)
        self.pid: int = self.manager.provisioner.pid
        try:
            self._connect()
            self.seconds_to_first_result = self._first_result(started)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        identity = self.manager.session.bsession
        self.shell = self.manager.connect_shell(identity)
        self.control = self.manager.connect_control(identity)
        self.stdin = self.manager.connect_stdin(identity)
        self.iopub = self.manager.connect_iopub()

    def _first_result(self, started: float) -> float:
        # A cell sent before IOPub has its subscription may lose its idle: then ask again.
        self.iopub.rcvtimeo = 2_000
        for _ in range(5):
            with suppress(zmq.Again):
                self._execute_on_new_kernel()
                break
        else:
            self.expect(False, "no idle came after the first cell")
        seconds = time.perf_counter() - started
        self.iopub.rcvtimeo = TIMEOUT_MS
        return seconds

    def _execute_on_new_kernel(self) -> None:
        msg_id, frames = self.prepare("execute_request", cell("1+1"))
        self.shell.send_multipart(frames)
        reply = json.loads(receive(self.shell, msg_id)[3])
        self.expect(reply["status"] == "ok", str(reply))  # a refusal is no result, however fast
        receive_until_idle(self.iopub, msg_id)

    def prepare(
        self, msg_type: str, content: dict[str, Any], buffers: tuple[bytes, ...] = ()
    ) -> tuple[bytes, list[bytes]]:
        """The id of a new request and its frames, signed and ready to be sent."""
        message = self.manager.session.msg(msg_type, content)
        frames = self.manager.session.serialize(message)
        return message["header"]["msg_id"].encode(), [*frames, *buffers]

    def request(
        self, msg_type: str, content: dict[str, Any], buffers: tuple[bytes, ...] = ()
    ) -> Run:
        """Send on shell; time until the reply (comm messages have none) and the idle."""
        msg_id, frames = self.prepare(msg_type, content, buffers)
        start = time.perf_counter()
        self.shell.send_multipart(frames)
        messages = receive_until_idle(self.iopub, msg_id)
        reply = receive(self.shell, msg_id) if msg_type.endswith("_request") else None
        seconds = time.perf_counter() - start
        return Run(seconds, json.loads(reply[3]) if reply else {}, messages)

    def run(self, code: str) -> Run:
        """Execute a cell that must succeed."""
        run = self.request("execute_request", cell(code))
        self.expect(run.reply["status"] == "ok", str(run.reply))
        return run

    def run_with_input(self, code: str, answer: str) -> float:
        """Execute a cell that asks for one line of input."""
        msg_id, frames = self.prepare("execute_request", cell(code, allow_stdin=True))
        _, answer_frames = self.prepare("input_reply", {"value": answer})
        start = time.perf_counter()
        self.shell.send_multipart(frames)
        receive(self.stdin, msg_id)
        self.stdin.send_multipart(answer_frames)
        receive_until_idle(self.iopub, msg_id)
        reply = json.loads(receive(self.shell, msg_id)[3])
        seconds = time.perf_counter() - start
        self.expect(reply["status"] == "ok", str(reply))
        return seconds

    def interrupt(self, code: str) -> float:
        """Run a cell that never ends; time from interrupt_request to the cell's error reply."""
        msg_id, frames = self.prepare("execute_request", cell(code))
        self.shell.send_multipart(frames)
        while b'"execute_input"' not in receive(self.iopub, msg_id)[0]:
            pass
        time.sleep(0.1)  # execute_input is published just before the code runs
        interrupt_id, frames = self.prepare("interrupt_request", {})
        start = time.perf_counter()
        self.control.send_multipart(frames)
        reply = json.loads(receive(self.shell, msg_id)[3])
        seconds = time.perf_counter() - start
        self.expect(reply.get("ename") == "KeyboardInterrupt", str(reply))
        receive(self.control, interrupt_id)
        receive_until_idle(self.iopub, msg_id)
        return seconds

    def shut_down(self) -> float:
        """Time from shutdown_request until the kernel's process is gone."""
        _, frames = self.prepare("shutdown_request", {"restart": False})
        process = pidfd_open(self.pid)
        start = time.perf_counter()
        self.control.send_multipart(frames)
        ended = select.select([process], [], [], TIMEOUT_MS / 1000)[0]
        seconds = time.perf_counter() - start
        close(process)
        self.expect(bool(ended), "still alive after shutdown_request")
        return seconds

    def memory(self) -> int:
        """Proportional set size, in bytes, of the process that start_kernel made."""
        rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return int(rollup.split("\nPss:")[1].split()[0]) * 1024

    def expect(self, condition: bool, otherwise: str) -> None:
        if not condition:
            message = f"{self.name}: {otherwise}"
            raise Failed(message)

    def close(self) -> None:
        self.manager.shutdown_kernel(now=True)
        self.context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def cell(code: str, *, allow_stdin: bool = False) -> dict[str, Any]:
    return {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": allow_stdin,
        "stop_on_error": False,
    }


def _publish(port: Any, count: int, size: int) -> None:
    """Send `count` ready-made messages and an idle to the first subscriber, then wait for it."""
    socket = zmq.Context().socket(zmq.XPUB)
    socket.sndhwm = 0
    port.send(socket.bind_to_random_port("tcp://127.0.0.1"))
    socket.recv()
    header = b'{"msg_id": "%s", "msg_type": "%s"}'
    ident = b"0" * 36
    parent = header % (b"ask", b"execute_request")
    output = [DELIMITER, b"", header % (ident, b"stream"), parent, b"{}", b"x" * size]
    for _ in range(count):
        socket.send_multipart(output)
    idle = [DELIMITER, b"", header % (ident, b"status"), parent, b"{}", b'"idle"']
    socket.send_multipart(idle)
    port.recv()


def ceiling(count: int, size: int) -> float:
    """Seconds in which this client alone reads `count` messages of `size` bytes."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    publisher = spawn.Process(target=_publish, args=(theirs, count, size), daemon=True)
    publisher.start()
    context = new_context()
    socket = context.socket(zmq.SUB)
    socket.connect(f"tcp://127.0.0.1:{ours.recv()}")
    start = time.perf_counter()
    socket.subscribe(b"")
    received = receive_until_idle(socket, b"ask")
    seconds = time.perf_counter() - start
    ours.send("done")
    publisher.join()
    context.destroy(linger=0)
    assert len(received) == count + 1, "the client lost messages"
    return seconds
