"""What is shared by all: memory and queues of the host's by their names, its processors, disks and dumps."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
import time

from tests.hostile.probes.attack import (
    TARGETS,
    add,
    call,
    in_child,
    probe,
    read,
)

SHARED = "shared objects"
EFFECTS = "effects on the host"

GVISOR_NUMBER = {"gvisor": "a number that gVisor's own kernel keeps, and the host never hears of"}

# Shared objects: of the host's, by the names it gave them -----------------------------------------


@probe(SHARED)
def shared_memory_by_its_key() -> bytes:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    found = call("shmget", TARGETS["ipc key"], 0, 0)
    return ctypes.string_at(libc.shmat(found, None, 0o10000), 64)


@probe(SHARED)
def a_queue_of_messages_by_its_key() -> bytes:
    queue = call("msgget", TARGETS["ipc key"], 0)
    buffer = ctypes.create_string_buffer(128)
    copy, no_wait = 0o40000, 0o4000
    call("msgrcv", queue, buffer, 64, 0, copy | no_wait)
    return buffer.raw


@probe(SHARED, witness="semaphore")
def a_semaphore_by_its_key() -> bool:
    set_value = 16
    found = call("semget", TARGETS["ipc key"], 1, 0)
    return call("semctl", found, 0, set_value, 7) == 0


@probe(SHARED)
def shared_memory_by_its_name() -> bytes:
    return read(f"/dev/shm/{TARGETS['mark']}")


@probe(SHARED)
def a_queue_of_messages_by_its_name() -> bytes:
    queue = call("mq_open", TARGETS["mark"].encode(), os.O_RDWR | os.O_NONBLOCK, 0, None)
    buffer = ctypes.create_string_buffer(8192)
    call("mq_timedreceive", queue, buffer, 8192, None, None)
    return buffer.raw


# Effects ------------------------------------------------------------------------------------------


@probe(EFFECTS, witness="kernel:scheduling", own=GVISOR_NUMBER)
def this_process_goes_before_all_others() -> bool:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return True


@probe(EFFECTS, witness="kernel:scheduling", own=GVISOR_NUMBER)
def this_process_gets_a_better_priority() -> bool:
    os.setpriority(os.PRIO_PROCESS, 0, -10)
    return True


@probe(EFFECTS, witness="kernel:scheduling", own=GVISOR_NUMBER)
def this_process_reads_disks_first() -> bool:
    return call("ioprio_set", 1, 0, 1 << 13) == 0


@probe(EFFECTS, optional=True, witness="kernel:scheduling", own=GVISOR_NUMBER)
def this_process_is_never_killed_for_memory() -> bool:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")
    return True


@probe(EFFECTS, witness="kernel:limits")
def a_limit_is_raised() -> bool:
    everything = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, everything)
    except ValueError as error:
        raise PermissionError(errno.EPERM, str(error)) from error
    return True


@probe(EFFECTS, witness="kernel:limits")
def a_crash_leaves_a_dump() -> bool:
    """The host would handle it, by a program of its own where it has one."""
    os.chdir(TARGETS["scratch"])
    child = os.fork()
    if child == 0:
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(9)
    return os.WCOREDUMP(os.waitpid(child, 0)[1])


@probe(EFFECTS, witness="machine:settings", own=GVISOR_NUMBER)
def memory_that_cannot_be_swapped() -> bool:
    current, future = 1, 2
    libc = ctypes.CDLL(None, use_errno=True)
    return in_child(lambda: libc.mlockall(current | future) == 0)


def fill(place: str) -> bool:
    """More than a sandbox's own folders may hold."""
    file = os.open(place, os.O_TMPFILE | os.O_RDWR, 0o600)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(file, 0, ctypes.c_long(0), ctypes.c_long(TARGETS["too much"])) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")
    return True


for where in ("/tmp", "/dev/shm", "/var/tmp", "the home inside"):
    add(
        EFFECTS,
        f"a disk is filled through {where}",
        lambda where=where: fill(TARGETS["writable"][where]),
        witness="machine:space",
        own={"gvisor": "memory of the sandbox, which its cgroup counts and limits"},
    )


@probe(EFFECTS, witness="machine:settings")
def file_flags_are_set() -> bool:
    """Not even root could delete such a file."""
    path = f"{TARGETS['scratch']}/flags-{os.getpid()}"
    with open(path, "w") as file:
        immutable = 0x10
        fcntl.ioctl(file, 0x40086602, struct.pack("l", immutable))  # FS_IOC_SETFLAGS
        fcntl.ioctl(file, 0x40086602, struct.pack("l", 0))
    return True
