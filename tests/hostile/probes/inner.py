"""What keeps a cell in place from within: the supervisor, its lifeline, the sockets to the wrapper.

The control meets stand-ins: an ordinary process instead of the supervisor, a folder with listening
sockets instead of the run directory.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import time

from tests.hostile.probes.attack import TARGETS, add, call, knock, probe, read

SUPERVISOR = "the supervisor"
ENDS_ITSELF = {"gvisor": "there a cell can end its own sandbox, which its banner says"}

NOT_PROTECTED = {"gvisor": "gVisor protects no process from others of its user, all in one sandbox"}


def supervisor() -> int:
    return int(TARGETS["supervisor"])


def has_died() -> bool:
    """Ended, or stopped: both are the end of a supervisor."""
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        try:
            state = (
                read(f"/proc/{supervisor()}/stat").decode("latin-1").rpartition(")")[2].split()[0]
            )
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZXTt":
            return True
        time.sleep(0.01)
    return False


for number in (signal.SIGSTOP, signal.SIGKILL):
    add(
        SUPERVISOR,
        f"it gets a {number.name}",
        lambda number=number: os.kill(supervisor(), number) is None and has_died(),
        witness="alive:sandbox",
        left_out=ENDS_ITSELF,
    )


@probe(SUPERVISOR, witness="alive:sandbox")
def it_is_traced() -> bool:
    seize = 0x4206
    return call("ptrace", seize, TARGETS["traceable"], 0, 0) == 0


@probe(SUPERVISOR, witness="alive:sandbox")
def its_memory_is_read() -> bool:
    with open(f"/proc/{TARGETS['traceable']}/mem", "rb"):
        return True


@probe(SUPERVISOR, witness="alive:sandbox", own=NOT_PROTECTED)
def its_descriptors_are_seen() -> bool:
    folder = f"/proc/{TARGETS['traceable']}/fd"
    return any(os.readlink(f"{folder}/{name}") for name in os.listdir(folder))


@probe(SUPERVISOR, witness="alive:sandbox")
def its_lifeline_is_taken_by_a_process_descriptor() -> bool:
    held = os.pidfd_open(TARGETS["traceable"])
    taken = [call("pidfd_getfd", held, number, 0) for number in (0, 1, 2)]
    return len(taken) == 3


@probe(SUPERVISOR, witness="alive:sandbox", own=NOT_PROTECTED)
def its_limits_are_changed_so_that_it_ends() -> bool:
    resource.prlimit(TARGETS["traceable"], resource.RLIMIT_CPU, (600, 600))
    return True


for name in ("lifeline", "inner-1", "inner-2", "inner-3", "inner-4"):
    add(
        SUPERVISOR,
        f"a second connection to {name}",
        lambda name=name: knock(f"{TARGETS['run']}/{name}"),
        witness="alive:sandbox",
    )


@probe(SUPERVISOR, witness="run directory")
def a_socket_is_put_in_the_wrappers_place() -> bool:
    os.chdir(TARGETS["run"])
    socket.socket(socket.AF_UNIX).bind("inner-9")
    return True


@probe(SUPERVISOR, witness="run directory")
def the_code_of_the_supervisor_is_changed() -> bool:
    descriptor = os.open(f"{TARGETS['run']}/inner/boot.py", os.O_WRONLY)
    return os.write(descriptor, b"#") == 1


@probe(SUPERVISOR, witness="run directory")
def the_inner_connection_file_is_replaced() -> bool:
    os.unlink(f"{TARGETS['run']}/connection.json")
    return True
