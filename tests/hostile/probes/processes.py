"""Other processes: a neighbour on the host, whose environment, memory and open file hold the secret, the
kernel's own wrapper and what it started, and another kernel.

Pids are the host's. In the sandbox such a number may belong to a process of its own: what counts is
what happens to the neighbour.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
from contextlib import suppress

from tests.hostile.probes.attack import TARGETS, add, call, opens, probe, read

SIGNALS = "signals to processes"
MEMORY = "memory of processes"
PROC = "processes in /proc"

BUFFER_BYTES = 64


def neighbour() -> int:
    return int(TARGETS["neighbour"])


# Signals: each way with a number of its own, which the neighbour keeps a list of ------------------


@probe(SIGNALS, witness=f"signal:{signal.SIGUSR1.value}")
def a_signal() -> bool:
    os.kill(neighbour(), signal.SIGUSR1)
    return True


@probe(SIGNALS, witness=f"signal:{signal.SIGUSR2.value}")
def a_signal_to_its_group() -> bool:
    os.killpg(neighbour(), signal.SIGUSR2)
    return True


@probe(SIGNALS, witness="signal:40")
def a_signal_to_a_thread() -> bool:
    return call("tgkill", neighbour(), neighbour(), 40) == 0


@probe(SIGNALS, witness="signal:41")
def a_signal_through_a_process_descriptor() -> bool:
    signal.pidfd_send_signal(os.pidfd_open(neighbour()), 41)
    return True


@probe(SIGNALS, witness="signal:42")
def a_signal_with_a_message() -> bool:
    info = struct.pack("=iii", 42, 0, -1).ljust(128, b"\0")
    return call("rt_sigqueueinfo", neighbour(), 42, info) == 0


@probe(SIGNALS, witness="signal:43")
def a_signal_when_a_pipe_can_be_read() -> bool:
    """The kernel sends it for the one who has set the owner."""
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, neighbour())
    fcntl.fcntl(reader, 10, 43)  # F_SETSIG
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writer, b"x")
    return fcntl.fcntl(reader, fcntl.F_GETOWN) == neighbour()


@probe(SIGNALS, witness="alive:wrapper")
def the_wrapper_is_told_to_continue() -> bool:
    os.kill(TARGETS["wrapper"], signal.SIGCONT)
    return True


@probe(SIGNALS, witness="alive:outer")
def who_holds_the_sandbox_is_told_to_continue() -> bool:
    os.kill(TARGETS["outer"], signal.SIGCONT)
    return True


@probe(SIGNALS, witness="alive:sibling")
def another_kernel_is_told_to_continue() -> bool:
    os.kill(TARGETS["sibling"], signal.SIGCONT)
    return True


@probe(SIGNALS, witness="alive:sibling sandbox")
def another_sandbox_is_told_to_continue() -> bool:
    os.kill(TARGETS["sibling sandbox"], signal.SIGCONT)
    return True


# Memory -------------------------------------------------------------------------------------------


def vectors(buffer: object, address: int) -> tuple[bytes, bytes]:
    """One of our own and one of the neighbour's, as ``struct iovec``."""
    own = ctypes.addressof(buffer)  # type: ignore[arg-type]
    return struct.pack("QQ", own, BUFFER_BYTES), struct.pack("QQ", address, BUFFER_BYTES)


@probe(MEMORY)
def memory_is_read() -> bytes:
    buffer = ctypes.create_string_buffer(BUFFER_BYTES)
    own, theirs = vectors(buffer, TARGETS["address of the secret"])
    call("process_vm_readv", neighbour(), own, 1, theirs, 1, 0)
    return buffer.raw


@probe(MEMORY, witness="neighbour:memory")
def memory_is_written() -> bool:
    buffer = ctypes.create_string_buffer(b"changed", BUFFER_BYTES)
    own, theirs = vectors(buffer, TARGETS["address of the blackboard"])
    return call("process_vm_writev", neighbour(), own, 1, theirs, 1, 0) > 0


@probe(MEMORY)
def memory_is_read_as_a_file() -> bytes:
    memory = os.open(f"/proc/{neighbour()}/mem", os.O_RDONLY)
    return os.pread(memory, BUFFER_BYTES, TARGETS["address of the secret"])


@probe(MEMORY, witness="neighbour:memory")
def memory_is_written_as_a_file() -> bool:
    memory = os.open(f"/proc/{neighbour()}/mem", os.O_RDWR)
    return os.pwrite(memory, b"changed too", TARGETS["address of the blackboard"] + 16) > 0


@probe(MEMORY, witness="neighbour:state")
def a_process_is_traced() -> bool:
    seize = 0x4206
    return call("ptrace", seize, neighbour(), 0, 0) == 0


@probe(MEMORY, witness="alive:wrapper")
def the_memory_of_the_wrapper() -> bool:
    return opens(f"/proc/{TARGETS['wrapper']}/mem")


@probe(MEMORY)
def an_open_file_is_taken() -> bytes:
    held = os.pidfd_open(neighbour())
    with open(call("pidfd_getfd", held, TARGETS["descriptor"], 0), "rb") as file:
        file.seek(0)
        return file.read()


@probe(MEMORY, witness="neighbour:state")
def memory_is_given_advice() -> bool:
    cold = 20
    _, theirs = vectors(ctypes.create_string_buffer(1), TARGETS["page of the secret"])
    theirs = theirs[:8] + struct.pack("Q", 4096)
    return call("process_madvise", os.pidfd_open(neighbour()), theirs, 1, cold, 0) > 0


# What /proc tells of it ---------------------------------------------------------------------------

FILES_OF_A_PROCESS = {
    "its environment": "environ",
    "its arguments": "cmdline",
    "an open file that was deleted": "fd/{descriptor}",
    "a file in its working directory": "cwd/private.txt",
    "a file by its root": "root{key}",
    "a thread's arguments": "task/{neighbour}/cmdline",
    "its name": "comm",
    "its map of memory": "maps",
}
for what, name in FILES_OF_A_PROCESS.items():
    add(
        PROC,
        what,
        lambda name=name: read(f"/proc/{neighbour()}/{name.format(**TARGETS)}"),
    )


@probe(PROC)
def what_its_descriptors_are() -> str:
    return targets_of(f"/proc/{neighbour()}/fd")


@probe(PROC)
def what_it_has_mapped() -> str:
    return targets_of(f"/proc/{neighbour()}/map_files")


def targets_of(folder: str) -> str:
    return " ".join(os.readlink(f"{folder}/{name}") for name in os.listdir(folder))


@probe(PROC)
def it_is_in_the_list_of_processes() -> str:
    """As ``ps`` shows it."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended
            found.append(read(f"/proc/{name}/comm").decode("latin-1"))
    return " ".join(found)


@probe(PROC)
def the_environment_of_the_wrapper() -> bytes:
    return read(f"/proc/{TARGETS['wrapper']}/environ")


@probe(PROC, witness="alive:wrapper")
def the_arguments_of_the_wrapper() -> bool:
    return b"sandbox_kernel" in read(f"/proc/{TARGETS['wrapper']}/cmdline")


@probe(PROC, witness="alive:wrapper")
def the_descriptors_of_the_wrapper() -> bool:
    folder = f"/proc/{TARGETS['wrapper']}/fd"
    return any(TARGETS["state"] in os.readlink(f"{folder}/{name}") for name in os.listdir(folder))


@probe(PROC)
def the_environment_of_another_kernel() -> bytes:
    return read(f"/proc/{TARGETS['sibling']}/environ")


@probe(PROC, witness="alive:sibling")
def the_run_directory_of_another_kernel() -> bool:
    run = f"{TARGETS['state']}/run"
    return any(name.startswith(f"{TARGETS['sibling']}-") for name in os.listdir(run))
