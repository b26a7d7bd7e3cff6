"""The processes of a sandbox, seen from outside at each level."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from docker.errors import NotFound

from sandbox_kernel.isolation.engine import connect
from sandbox_kernel.limits.meter import process_tree

CHECKPOINT = "checkpoint"
# Nobody has asked for its exit status yet, or somebody is just doing that.
ENDED = "ZX"
LOOK_SECONDS = 20


class Process(NamedTuple):
    """One that has not ended."""

    inner_pid: int
    pid: int | None  # the host's; a process under gVisor is none of the host's
    name: str
    threads: int

    @property
    def is_checkpoint(self) -> bool:
        """The kernel process has that name too while it forks one, but has threads."""
        return self.name == CHECKPOINT and self.threads == 1


def on_host(roots: Iterable[int]) -> list[Process]:
    """Those below ``roots`` that are in a pid namespace of their own."""
    found = []
    for pid in (pid for root in roots for pid in process_tree(root)):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
        status = dict(line.split(":\t", 1) for line in lines)
        numbers = status["NSpid"].split()
        if len(numbers) > 1 and status["State"][0] not in ENDED:
            inner = int(numbers[-1])
            found.append(Process(inner, pid, status["Name"], int(status["Threads"])))
    return found


def under_gvisor(container: str) -> list[Process]:
    """By a look that the engine takes inside: gVisor's own ``/proc``, which cells cannot change."""
    deadline = time.monotonic() + LOOK_SECONDS
    said: list[str] = []
    # The shell becomes what it runs, and has said which process that is. A rollback at that moment ends
    # it with all else.
    while not said:
        assert time.monotonic() < deadline, f"nothing is seen in {container}"
        try:
            said = run_inside(container, "echo $$; exec cat /proc/[0-9]*/stat").splitlines()
        except NotFound:  # a sandbox that was replaced, and is removed while we look
            return []
    own, *lines = said
    found = []
    for line in lines:
        before, _, after = line.rpartition(")")
        pid, _, name = before.partition(" (")
        state, *fields = after.split()
        if pid != own and state not in ENDED:
            found.append(Process(int(pid), None, name, int(fields[16])))
    return found


def run_inside(container: str, command: str) -> str:
    """Run a shell command in a container, as its own user; what it printed."""
    client = connect()
    try:
        job = client.exec_create(container, ["sh", "-c", command], stderr=False)
        return str(client.exec_start(job["Id"]).decode())
    finally:
        client.close()
