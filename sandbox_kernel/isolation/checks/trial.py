"""A real kernel, started as Jupyter starts one: whether a cell gets its answer, or which error."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import IO, TYPE_CHECKING, Any, Final

from sandbox_kernel.isolation.checks.base import Check, Host
from sandbox_kernel.paths import HOME_VARIABLE
from sandbox_kernel.words import duration

if TYPE_CHECKING:
    from jupyter_client.blocking.client import BlockingKernelClient

TRIAL: Final = "a cell"
# From the start of the kernel to the answer: a cold container takes its time.
TRIAL_SECONDS: Final = 60.0
_END_SECONDS: Final = 10.0
_SAID_BYTES: Final = 600
_LOOK_SECONDS: Final = 0.5  # between two looks at whether the kernel still runs
_CELL: Final = "1 + 1\n"
_COMMENT: Final = (
    "# Makes this cell large: other parts of the kernel read large cells and commands.\n"
)


class _Ended(Exception):
    """The kernel ended without an answer; the text says how."""


def try_cell(host: Host, policy: str, seconds: float = TRIAL_SECONDS) -> Check:
    """Run one cell under ``policy``, from the folder that this is called in."""
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        kernel, client = stack.enter_context(_kernel(host, policy, log))
        try:
            reply = _reply(kernel, client, _cell(policy), started + seconds)
        except _Ended as error:
            found = f"the kernel {error}{_last_words(log)}"
            fix = "Mend what its log says; if that does not help, please report this line."
            return Check(TRIAL, "refused", found, fix)
        except Empty:
            found = f"the kernel gave no answer within {duration(seconds)}{_last_words(log)}"
            fix = (
                "Run it again on a quieter machine; if that does not help, please report this line."
            )
            return Check(TRIAL, "unknown", found, fix)
    if reply.get("status") == "ok":
        return Check(
            TRIAL, "ok", f"ran in a new sandbox, in {duration(time.monotonic() - started)}"
        )
    what = f"{reply.get('ename')}: {reply.get('evalue')}"
    return Check(TRIAL, "refused", f"a new sandbox did not run it: {what}", _hint(reply))


def _cell(policy: str) -> str:
    """A cell that any policy allows, so large that a process of its own reads it, as it reads commands."""
    from sandbox_kernel.errors import PolicyError
    from sandbox_kernel.policy.judge import LARGE_BYTES
    from sandbox_kernel.policy.load import load_policy

    cell = _CELL + _COMMENT * (LARGE_BYTES // len(_COMMENT) + 1)
    try:
        return cell if len(cell) <= load_policy(policy).code.max_bytes else _CELL
    except PolicyError:  # the kernel says what is wrong with it
        return _CELL


def _reply(
    kernel: subprocess.Popen[bytes], client: BlockingKernelClient, cell: str, deadline: float
) -> dict[str, Any]:
    """The content of the reply to the cell; raises ``Empty`` or ``_Ended``."""
    request = client.execute(cell, allow_stdin=False)
    while True:
        code = kernel.poll()  # before the look for what it said last
        try:
            left = max(0.0, deadline - time.monotonic())
            reply = client.get_shell_msg(timeout=min(_LOOK_SECONDS, left))
        except Empty:
            if code is not None:
                raise _Ended(_how(code)) from None
            if time.monotonic() >= deadline:
                raise
            continue
        if reply["parent_header"].get("msg_id") == request:
            content: dict[str, Any] = reply["content"]
            return content


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by signal {-code} before it answered"
    return f"ended with exit code {code} before it answered"


def _hint(reply: dict[str, Any]) -> str | None:
    """What the error itself says is to be done."""
    from sandbox_kernel.text import without_colours

    lines = without_colours("\n".join(map(str, reply.get("traceback") or ()))).split("\n")
    hints = [line.partition("What to do:")[2].strip() for line in lines if "What to do:" in line]
    return hints[-1] if hints else None


@contextlib.contextmanager
def _kernel(
    host: Host, policy: str, log: IO[bytes]
) -> Iterator[tuple[subprocess.Popen[bytes], BlockingKernelClient]]:
    from jupyter_client.blocking.client import BlockingKernelClient
    from jupyter_client.connect import write_connection_file

    # The kernel's guardian may be removing things in it until a moment after the kernel's end.
    with tempfile.TemporaryDirectory(
        prefix="sandbox-kernel-doctor-", ignore_cleanup_errors=True
    ) as folder:
        path, _ = write_connection_file(
            str(Path(folder) / "kernel.json"), key=os.urandom(32).hex().encode()
        )
        environ = {**host.environ}
        if not host.home.exists():
            environ[HOME_VARIABLE] = str(Path(folder) / "home")  # to leave nothing behind
        launch = ["-P", "-m", "sandbox_kernel", "launch", "-f", path, "--policy", policy]
        kernel = subprocess.Popen(
            [sys.executable, *launch],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
        )
        client = BlockingKernelClient()
        try:
            client.load_connection_file(path)
            client.start_channels()
            yield kernel, client
        finally:
            _end(kernel, client)


def _end(kernel: subprocess.Popen[bytes], client: BlockingKernelClient) -> None:
    client.shutdown()
    try:
        kernel.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        kernel.kill()  # its guardian removes what it had
        kernel.wait()
    client.stop_channels()


def _last_words(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _SAID_BYTES))
    said = " ".join(log.read().decode(errors="replace").split())
    return f"; its log ends with {said!r}" if said else ""
