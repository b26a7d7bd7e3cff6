"""Doing something to a neighbour: its priority, limits, terminal, name."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import socket
import struct
from functools import partial

from tests.hostile.probes.attack import TARGETS, add, call, probe
from tests.hostile.probes.processes import neighbour

CONTROL = "control of processes"

# Control ------------------------------------------------------------------------------------------


@probe(CONTROL, witness="neighbour:nice")
def its_priority_is_lowered() -> bool:
    os.setpriority(os.PRIO_PROCESS, neighbour(), 15)
    return True


@probe(CONTROL, witness="neighbour:affinity")
def it_is_moved_to_one_processor() -> bool:
    os.sched_setaffinity(neighbour(), {0})
    return True


@probe(CONTROL, witness="neighbour:policy")
def its_scheduling_is_changed() -> bool:
    os.sched_setscheduler(neighbour(), os.SCHED_BATCH, os.sched_param(0))
    return True


@probe(CONTROL, witness="neighbour:io priority")
def its_access_to_disks_is_made_idle() -> bool:
    return call("ioprio_set", 1, neighbour(), 3 << 13) == 0


@probe(CONTROL, witness="neighbour:limits")
def its_limits_are_changed() -> bool:
    resource.prlimit(neighbour(), resource.RLIMIT_NOFILE, (77, 777))
    return True


def written(name: str, word: bytes) -> bool:
    descriptor = os.open(f"/proc/{neighbour()}/{name}", os.O_WRONLY)
    return os.write(descriptor, word) > 0


for what, name, word in (
    ("it is made the first to die", "oom_score_adj", b"1000"),
    ("what it would leave in a dump is changed", "coredump_filter", b"0x7f"),
    ("its sums of memory are reset", "clear_refs", b"5"),
):
    add(CONTROL, what, partial(written, name, word), witness="neighbour:state")


@probe(CONTROL, witness="neighbour:state")
def its_session_is_found() -> bool:
    return os.getsid(neighbour()) == neighbour() and os.getpgid(neighbour()) == neighbour()


@probe(CONTROL, witness="neighbour:state")
def it_is_compared_with_this_process() -> bool:
    return call("kcmp", neighbour(), neighbour(), 0, 0, 0) == 0


@probe(CONTROL, witness="neighbour:state")
def its_pages_are_asked_for() -> bool:
    status = ctypes.c_int()
    page = struct.pack("Q", TARGETS["page of the secret"])
    return call("move_pages", neighbour(), 1, page, None, ctypes.byref(status), 0) == 0


@probe(CONTROL, witness="neighbour:state")
def its_list_of_locks_is_found() -> bool:
    head, length = ctypes.c_void_p(), ctypes.c_size_t()
    answer = call("get_robust_list", neighbour(), ctypes.byref(head), ctypes.byref(length))
    return answer == 0


@probe(CONTROL, witness="neighbour:state")
def it_is_measured() -> bool:
    """``perf_event_open``, a counter of another process."""
    software, attributes_bytes = 1, 112
    attributes = struct.pack("=IIQ", software, attributes_bytes, 0).ljust(attributes_bytes, b"\0")
    return call("perf_event_open", attributes, neighbour(), -1, -1, 0) >= 0


@probe(CONTROL, witness="terminal")
def words_are_put_on_its_terminal() -> bool:
    terminal = os.open(TARGETS["terminal"], os.O_WRONLY | os.O_NOCTTY)
    return os.write(terminal, b"hello") > 0


@probe(CONTROL, witness="terminal")
def words_are_typed_at_its_terminal() -> bool:
    terminal = os.open(TARGETS["terminal"], os.O_RDONLY | os.O_NOCTTY)
    fcntl.ioctl(terminal, 0x5412, b"x")  # TIOCSTI
    return True


@probe(CONTROL, witness="neighbour:state")
def another_process_is_claimed_to_be_the_sender() -> bool:
    """``SCM_CREDENTIALS``: services ask the kernel who speaks to them."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    right.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    claim = struct.pack("=iII", neighbour(), 0, 0)
    left.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, claim)])
    _, said, _, _ = right.recvmsg(1, 64)
    return said[0][2] == claim
