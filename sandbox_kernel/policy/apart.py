"""Has texts read by a ``worker``: asks, waits, and checks the form of what comes back.

The worker is started when it is first needed, serves all later cells, and ends with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sandbox_kernel import children
from sandbox_kernel.policy.python_memory import Proposal
from sandbox_kernel.policy.verdict import Hit
from sandbox_kernel.policy.worker import FORKED, READY

# To load its parsers, on a machine that is busy with other things.
START_SECONDS: Final = 30.0
# For one fork of it, which takes milliseconds.
FORK_SECONDS: Final = 3.0
# For one answer, by the clock. A machine that is busy must not have cells denied. But not for ever.
PATIENCE_SECONDS: Final = 3.0
MAX_ANSWER_BYTES: Final = 16 << 20
_MOST_COLUMNS: Final = 1 << 31
_ROOT: Final = str(Path(__file__).parent.parent.parent)
# Without `site`: all that is on the path here is on it there.
PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from sandbox_kernel.policy.worker import main; main(int(sys.argv[1]))"
)


class NotConfined(Exception):
    """There is no worker, or none that can be held: nothing is read."""


class NoAnswer(Exception):
    """It took too long, was killed, or said what no answer looks like."""


class Answer(NamedTuple):
    """What was found, each with the expression that it is in; and what the cell binds."""

    hits: list[tuple[Hit, str]]
    proposed: Proposal
    log: str


class Worker:
    """A process that forks for each question."""

    def __init__(self, program: str = PROGRAM) -> None:
        self.owner = os.getpid()
        self._control, theirs = _pair(socket.SOCK_SEQPACKET)
        path = [_ROOT, *(each for each in sys.path if each.startswith("/"))]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", program, str(theirs.fileno()), json.dumps(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                # Not the wrapper's, which may hold tokens.
                env={"PATH": "/usr/bin:/bin"},
                # jupyter_client interrupts and kills a kernel's whole process group.
                start_new_session=True,
            )
        except OSError as error:
            self._control.close()
            raise NotConfined(str(error)) from error
        finally:
            theirs.close()
        children.OWN.add(self.process.pid)
        self._control.settimeout(START_SECONDS)
        try:
            said = self._control.recv(4096)
        except OSError as error:
            said = str(error).encode()
        self._control.settimeout(FORK_SECONDS)
        if said != READY:
            self.close()
            raise NotConfined(said.decode(errors="replace") or "its process has ended")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def ask(self, question: bytes) -> bytes:
        """What a fork of it says; raises ``NotConfined`` or ``NoAnswer``."""
        ours, theirs = _pair(socket.SOCK_STREAM)
        with ours:
            with theirs:
                process = self._fork(theirs)
            try:
                return _converse(ours, question)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                os.close(process)

    def _fork(self, channel: socket.socket) -> int:
        try:
            socket.send_fds(self._control, [b"read"], [channel.fileno()])
            said, processes, _, _ = socket.recv_fds(self._control, 4096, 1)
        except OSError as error:
            raise NotConfined(str(error)) from error
        if said != FORKED or not processes:
            raise NotConfined(said.decode(errors="replace") or "its process has ended")
        return processes[0]

    def close(self) -> None:
        self._control.close()
        self.process.kill()
        self.process.wait()
        children.OWN.discard(self.process.pid)


def _pair(kind: int) -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair(socket.AF_UNIX, kind)
    except OSError as error:  # no descriptor is left, for example
        raise NotConfined(str(error)) from error


def _converse(channel: socket.socket, question: bytes) -> bytes:
    deadline = time.monotonic() + PATIENCE_SECONDS
    pieces: list[bytes] = []
    length = 0
    try:
        channel.settimeout(PATIENCE_SECONDS)
        channel.sendall(question)
        channel.shutdown(socket.SHUT_WR)
        while length <= MAX_ANSWER_BYTES:
            channel.settimeout(max(0.001, deadline - time.monotonic()))
            piece = channel.recv(1 << 20)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            length += len(piece)
    except OSError as error:
        raise NoAnswer(str(error)) from error
    msg = "its answer is too long"
    raise NoAnswer(msg)


_shared: list[Worker] = []


def ask(question: bytes) -> bytes:
    """The answer of this process's worker, which is started, or started anew, if need be."""
    worker = _shared[0] if _shared else None
    # A fork of this process would share its socket.
    if worker is None or worker.ended or worker.owner != os.getpid():
        if worker is not None and worker.owner == os.getpid():
            close()
        else:
            _shared.clear()
            atexit.register(close)
        _shared.append(Worker())
    try:
        return _shared[0].ask(question)
    except NotConfined:
        close()  # whatever is wrong with it: the next cell gets a new one
        raise


def close() -> None:
    """End this process's worker."""
    while _shared:
        worker = _shared.pop()
        if worker.owner == os.getpid():
            worker.close()


def read_answer(answer: bytes, lines: Sequence[int]) -> Answer:
    """The answer as values of the right types, with places that exist in texts of so many ``lines``."""
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise NoAnswer(str(error)) from error
    try:
        if "failed" in document:
            raise NoAnswer(_text(document["failed"]))
        most = max(lines)
        hits = [
            (
                Hit(_text(rule), _text(about), _number(line, 1, most), _number(column, 0)),
                _text(expression),
            )
            for rule, about, line, column, expression in document["hits"]
        ]
        names = {
            _text(name): None if standing is None else tuple(map(_text, standing))
            for name, standing in document["names"].items()
        }
        texts = {_text(name): _text(text) for name, text in document["texts"].items()}
        return Answer(hits, (names, texts), _text(document["log"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        msg = f"the answer is not what the check says: {error}"
        raise NoAnswer(msg) from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value))
    return value


def _number(value: Any, least: int, most: int = _MOST_COLUMNS) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(type(value))
    return min(max(value, least), most)
