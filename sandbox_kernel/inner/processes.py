"""The processes of a sandbox, as seen from inside."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

# The supervisor, where it is the first process of a pid namespace: then all there are are its own.
FIRST = 1
# What a process is called that sleeps until it takes the kernel's place.
SLEEPING = b"checkpoint"


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def killpg(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def signal_all(number: int) -> None:
    """By the supervisor, to every process of the sandbox but itself."""
    supervisor = os.getpid()
    if supervisor == FIRST:
        with contextlib.suppress(ProcessLookupError):  # there is none
            os.kill(-1, number)
        return
    # Until there are no others: one may have been in the middle of a fork.
    signalled: set[int] = set()
    while others := all_pids(supervisor) - signalled:
        for pid in others:
            kill(pid, number)
        signalled |= others


def forbid_forks(is_doomed: Callable[[int], bool], deadline: float) -> None:
    """See that these processes, which are stopped, get no more children.

    Under gVisor a fork under way is completed whatever signal has come, and the child is not stopped: it
    goes on to fork. But whether one more process is allowed is asked last of all. Linux has a fork that a
    signal waits for begin anew; there the filter of most levels allows no limits for others.
    """
    asked: set[int] = set()
    # The newest first: they are the ones that run.
    while new := sorted(all_pids(os.getpid()) - asked, reverse=True):
        if time.monotonic() > deadline:
            return
        for pid in filter(is_doomed, new):
            try:
                resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0))
            except PermissionError:
                return
            except ProcessLookupError:
                continue
        asked |= set(new)


def all_pids(supervisor: int) -> set[int]:
    """The processes of the sandbox but the supervisor: without a namespace, those below it."""
    visible = visible_pids()
    if supervisor == FIRST:
        return visible - {FIRST}
    children: dict[int, list[int]] = {}
    for pid in visible:
        children.setdefault(parent_of(pid), []).append(pid)
    found = children.get(supervisor, [])
    for pid in found:
        found += children.get(pid, [])
    return set(found)


def visible_pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def about(pid: int | str) -> tuple[str, list[str]]:
    """A process's name, and what ``/proc`` says of it from its state on; nothing if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "", []
    before, _, after = text.rpartition(")")
    return before.partition("(")[2], after.split()


def parent_of(pid: int) -> int:
    _, fields = about(pid)
    return int(fields[1]) if fields else 0


def started(pid: int | str) -> int:
    _, fields = about(pid)
    return int(fields[19]) if fields else 0


def threads_of(pid: int) -> list[tuple[int, int]]:
    """The threads of a process: each one's number, of one count with processes, and when it was started."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        return [
            (int(task), started(f"{pid}/task/{task}")) for task in os.listdir(f"/proc/{pid}/task")
        ]
    return []


def alive(pid: int) -> bool:
    return is_alive(about(pid)[1])


def is_alive(fields: list[str]) -> bool:
    """Its main thread may have ended before its others, who have all its memory still."""
    return bool(fields) and (fields[0] not in "ZX" or int(fields[17]) > 1)


def will_live(pid: int) -> bool:
    """Whether it lives, and nobody has killed it: to give back its memory may take it a while."""
    _, fields = about(pid)
    # Without address space it is on its way out.
    if not is_alive(fields) or not int(fields[20]):
        return False
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        pending = [status.partition(f"{name}:")[2].split()[0] for name in ("SigPnd", "ShdPnd")]
        return not any(int(signals, 16) & 1 << (signal.SIGKILL - 1) for signals in pending)
    return True  # gVisor does not say


def is_users(pid: int) -> bool:
    """Whether it runs and is no checkpoint, not even one that is about to end."""
    name, fields = about(pid)
    return name != SLEEPING.decode() and is_alive(fields)


def children_of(pid: int) -> set[int]:
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):  # gVisor
        return {child for child in visible_pids() if parent_of(child) == pid}
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            children.update(map(int, (task / "children").read_text().split()))
    return children
