"""A running kernel for tests: start it, run cells, see what the host sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
import yaml
from docker.errors import NotFound
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from sandbox_kernel.isolation.engine import connect
from sandbox_kernel.isolation.owner import OWNER, owner_label
from tests.processes import Process, on_host, run_inside, under_gvisor

SANDBOXED = "sandboxed-python"
# A policy that `conftest` makes: `default` without its check of the code.
UNCHECKED = "unchecked"
LEVELS = ("process", "container", "gvisor")
# What `scripts/ensure-engine` builds.
IMAGE = "sandbox-kernel-test:latest"
TIMEOUT = 60


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

    @property
    def met_memory_limit(self) -> bool:
        """Python itself meets the limit inside, or the wrapper sees it and stops the cell."""
        ends = {"MemoryError": "error", "CellMemoryExceeded": "memory"}
        return self.receipt["outcome"] == ends.get(self.ename or "")

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

    level = "process"

    def __init__(
        self, manager: KernelManager, client: BlockingKernelClient, folder: Path | str | None
    ) -> None:
        self.manager = manager
        self.client = client
        # The notebook's.
        self.folder = Path(folder or ".").resolve()
        # What the wrapper has as its stderr.
        self.log: IO[bytes] | None = None

    def reply_to(self, msg_id: str) -> dict[str, Any]:
        """The shell reply to a request; replies to others are passed over."""
        while True:
            reply = self.client.get_shell_msg(timeout=TIMEOUT)
            if reply["parent_header"]["msg_id"] == msg_id:
                return reply

    @property
    def wrapper_pid(self) -> int:
        return self.manager.provisioner.pid

    def logged(self) -> bytes:
        """What the wrapper has written to its stderr. The place where it writes is not moved."""
        assert self.log is not None
        return os.pread(self.log.fileno(), 1 << 24, 0)

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

    def processes(self) -> list[Process]:
        """What runs in the sandbox, the supervisor included."""
        if self.level == "process":
            return on_host([self.wrapper_pid])
        containers = containers_of(self.wrapper_pid)
        if self.level == "gvisor":
            return [each for about in containers for each in under_gvisor(about["Id"])]
        return on_host(about["State"]["Pid"] for about in containers)

    def sandboxed_pids(self) -> dict[int, int]:
        """The host's pids of the processes in the sandbox, with their pids inside."""
        assert self.level != "gvisor", "gVisor's processes are not the host's"
        return {each.pid: each.inner_pid for each in self.processes() if each.pid is not None}

    @property
    def kernel_process(self) -> Process:
        """The inner kernel: the supervisor's child that is awake."""
        return min(self._awake())

    @property
    def kernel_pid(self) -> int:
        """The host's pid of the inner kernel process."""
        pid = self.kernel_process.pid
        assert pid is not None, "gVisor's processes are not the host's"
        return pid

    def kill(self, victim: Process) -> None:
        """SIGKILL to a process of the sandbox, from outside; it may have ended."""
        if victim.pid is None:
            (about,) = containers_of(self.wrapper_pid)
            run_inside(about["Id"], f"kill -9 {victim.inner_pid}")
        else:
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)

    def checkpoints(self) -> list[Process]:
        return [each for each in self.processes() if each.is_checkpoint]

    def cell_pids(self) -> set[int]:
        """The pids inside of what cells have left running: no supervisor, kernel or checkpoint."""
        _, *left = sorted(self._awake())
        return {each.inner_pid for each in left}

    def _awake(self) -> list[Process]:
        return [each for each in self.processes() if each.inner_pid != 1 and not each.is_checkpoint]


def containers_of(wrapper: int) -> list[dict[str, Any]]:
    """What the engine says of a wrapper's containers, ended ones too."""
    client = connect()
    try:
        found = client.containers(all=True, filters={"label": f"{OWNER}={owner_label(wrapper)}"})
        about = []
        for each in found:
            with suppress(NotFound):  # removed while we looked
                about.append(client.inspect_container(each["Id"]))
        return about
    finally:
        client.close()


def isolation(
    *levels: str, require: str | None = None, image: str = IMAGE, runtime: str = "runsc"
) -> str:
    """The section of a policy that prefers these levels; none weaker than the first if none is named."""
    section = {"prefer": [*levels], "require": require or levels[0]}
    section |= {"image": image, "runtime": runtime}
    return yaml.safe_dump({"isolation": section})


@contextmanager
def running_kernel(
    *,
    name: str = SANDBOXED,
    level: str = "process",
    policy: str | None = None,
    cwd: Path | str | None = None,
    env: dict[str, str] | None = None,
    arguments: Sequence[str] = (),
    **options: Any,
) -> Iterator[Kernel]:
    """A kernel that is ready; ``policy`` is YAML for it alone, on top of what tests run under."""
    if level != "process":
        policy = f"{policy or ''}\n{isolation(level)}"
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
                kernel.level = level
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
        kernel = Kernel(manager, client, cwd)
        kernel.log = said
        yield kernel
    finally:
        said.close()
        client.stop_channels()
        manager.shutdown_kernel(now=not manager.is_alive())
        manager.context.destroy(linger=0)


def inside(kernel: Kernel, code: str) -> str:
    """What code prints in the sandbox."""
    outcome = kernel.run(code)
    assert outcome.status == "ok", (outcome.ename, outcome.evalue)
    return outcome.text()


def outside(code: str) -> str:
    """The control: the same code in a plain interpreter on the host."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout


def at(level: str, *values: Any, exception: str | None = None) -> Any:
    """A level, and more values, to run a test with; ``exception``: why it cannot pass there, still."""
    marks = [getattr(pytest.mark, level)]
    if exception is not None:
        marks.append(pytest.mark.xfail(reason=exception, strict=True))
    return pytest.param(level, *values, marks=marks)


def eventually(condition: Any, *, within: float = 10.0, what: object = "") -> None:
    """Wait for something the host cannot announce (a process of another parent ending).

    ``what`` it is that is waited for; if it can be called, what it says at the end.
    """
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            said = what() if callable(what) else what or condition
            pytest.fail(f"still not so after {within} s: {said}")
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
