"""A running kernel for tests: start it, run cells, see what the host sees."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from sandbox_kernel.limits.meter import process_tree

SANDBOXED = "sandboxed-python"
# A policy that `conftest` makes: `default` without its check of the code.
UNCHECKED = "unchecked"
TIMEOUT = 60
# In which a fork of the kernel has become a checkpoint by name.
BIRTH_SECONDS = 2.0


@dataclass
class Outcome:
    """What one cell gave back."""

    reply: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return self.reply["content"]["status"]

    @property
    def ename(self) -> str | None:
        return self.reply["content"].get("ename")

    @property
    def evalue(self) -> str:
        return self.reply["content"].get("evalue", "")

    def text(self, name: str = "stdout") -> str:
        return "".join(
            message["content"]["text"]
            for message in self.messages
            if message["msg_type"] == "stream" and message["content"]["name"] == name
        )

    @property
    def receipt(self) -> dict[str, Any]:
        return self.reply["metadata"]["sandbox"]

    @property
    def result(self) -> str | None:
        assert self.status == "ok", f"{self.ename}: {self.evalue}"
        for message in self.messages:
            if message["msg_type"] == "execute_result":
                return message["content"]["data"]["text/plain"]
        return None


class Kernel:
    """A kernel manager and its client, for code that reads like a notebook."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def reply_to(self, msg_id: str) -> dict[str, Any]:
        """The shell reply to a request; replies to others are passed over."""
        while True:
            reply = self.client.get_shell_msg(timeout=TIMEOUT)
            if reply["parent_header"]["msg_id"] == msg_id:
                return reply

    @property
    def wrapper_pid(self) -> int:
        return self.manager.provisioner.pid

    def run(self, code: str, **options: Any) -> Outcome:
        messages: list[dict[str, Any]] = []
        options.setdefault("timeout", TIMEOUT)
        reply = self.client.execute_interactive(code, output_hook=messages.append, **options)
        return Outcome(reply, messages)

    def run_within(self, limits: dict[str, Any], code: str, **options: Any) -> Outcome:
        """Run a cell with limits of its own."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
            **options,
        }
        metadata = {"sandbox": {"limits": limits}}
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        return self.outcome_of(message["header"]["msg_id"])

    def outcome_of(self, msg_id: str) -> Outcome:
        """What becomes of a cell that was sent: all its messages up to idle, and its reply."""
        messages: list[dict[str, Any]] = []
        while True:
            message = self.client.get_iopub_msg(timeout=TIMEOUT)
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            messages.append(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return Outcome(self.reply_to(msg_id), messages)

    def value(self, expression: str) -> Any:
        """The value of an expression inside, as a Python literal."""
        import ast

        outcome = self.run(f"print(repr({expression}))")
        assert outcome.status == "ok", outcome.evalue
        return ast.literal_eval(outcome.text())

    def sandboxed_pids(self) -> dict[int, int]:
        """The host's pids of the processes in the sandbox, with their pids inside."""
        pids = {}
        for pid in process_tree(self.wrapper_pid):
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended while we looked
            status = dict(line.split(":\t", 1) for line in lines)
            if len(numbers := status["NSpid"].split()) > 1:
                pids[pid] = int(numbers[-1])
        return pids

    @property
    def kernel_pid(self) -> int:
        """The host's pid of the inner kernel process: the supervisor's child that is awake."""
        return min(
            (inner, pid)
            for pid, inner in self.sandboxed_pids().items()
            if inner != 1 and name_of(pid) not in ("checkpoint", None)
        )[1]

    def cell_pids(self) -> set[int]:
        """The host's pids of what cells have left running: no supervisor, kernel or checkpoint.

        After a cell the kernel process forks its next checkpoint, which has its name a moment later:
        what is seen in the act is the cell's only if it does not turn into one.
        """
        others = {pid for pid, inner in self.sandboxed_pids().items() if inner != 1}
        found = others - {self.kernel_pid}
        deadline = time.monotonic() + BIRTH_SECONDS
        while time.monotonic() < deadline and any(name_of(pid) == "python" for pid in found):
            time.sleep(0.005)
        return {pid for pid in found if name_of(pid) not in ("checkpoint", None)}


def name_of(pid: int) -> str | None:
    """A process's name; ``None`` if it has ended."""
    if not is_running(pid):
        return None
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


@contextmanager
def running_kernel(
    *,
    name: str = SANDBOXED,
    policy: str | None = None,
    cwd: Path | str | None = None,
    env: dict[str, str] | None = None,
    arguments: Sequence[str] = (),
    **options: Any,
) -> Iterator[Kernel]:
    """A kernel that is ready; ``policy`` is YAML for it alone, on top of what tests run under."""
    if policy is not None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "test.yaml")
            checked = "code:" in policy or "extends:" in policy
            path.write_text(policy if checked else f"extends: {UNCHECKED}\n{policy}")
            path.chmod(0o600)
            env = {**(env or {}), "SANDBOX_KERNEL_POLICY": str(path)}
            with running_kernel(
                name=name, cwd=cwd, env=env, arguments=arguments, **options
            ) as kernel:
                yield kernel
        return
    manager = KernelManager(kernel_name=name, **options)
    # A file, not a pipe that nobody reads; it is shown if the kernel does not come up.
    said = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    start: dict[str, Any] = {"stderr": said, "extra_arguments": list(arguments)}
    if cwd is not None:
        start["cwd"] = str(cwd)
    if env is not None:
        start["env"] = {**os.environ, **env}
    manager.start_kernel(**start)
    client = manager.client()
    client.start_channels()
    try:
        try:
            client.wait_for_ready(timeout=TIMEOUT)
        except RuntimeError as error:
            said.seek(0)
            status = manager.provisioner.process.poll()
            error.add_note(f"exit status {status}, stderr: {said.read().decode()}")
            raise
        yield Kernel(manager, client)
    finally:
        said.close()
        client.stop_channels()
        manager.shutdown_kernel(now=not manager.is_alive())
        manager.context.destroy(linger=0)


def eventually(condition: Any, *, within: float = 10.0, what: str = "") -> None:
    """Wait for something the host cannot announce (a process of another parent ending)."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {within} s: {what or condition}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
