"""The machine itself: insight into its kernel, and powers over all that runs on it.

What would change the machine is asked for with an argument that is looked at after the caller's rights:
the control gets another answer than a process without those rights.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from functools import partial

from tests.hostile.probes.attack import (
    BLOCK,
    TARGETS,
    add,
    call,
    opens,
    probe,
    read,
)
from tests.hostile.probes.devices import GVISOR_OWN

INSIGHT = "insight into the kernel"
POWERS = "powers over the machine"

# Insight ------------------------------------------------------------------------------------------


@probe(INSIGHT, optional=True, witness="machine:settings", own=GVISOR_OWN)
def the_memory_of_the_kernel() -> bool:
    return read("/proc/kcore")[:4] == b"\x7fELF"


@probe(INSIGHT, optional=True, witness="machine:settings")
def addresses_of_the_kernel() -> bool:
    with open("/proc/kallsyms") as file:
        return any(int(line.split()[0], 16) for line in file.readlines(BLOCK))


@probe(INSIGHT, optional=True, witness="machine:settings")
def addresses_of_memory() -> bool:
    """Which of the machine's pages this process has: the way to attack memory itself."""
    buffer = mmap.mmap(-1, mmap.PAGESIZE)
    buffer[:1] = b"x"
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    pages = os.open("/proc/self/pagemap", os.O_RDONLY)
    entry = os.pread(pages, 8, address // mmap.PAGESIZE * 8)
    return bool(int.from_bytes(entry, "little") & (1 << 55) - 1)


@probe(INSIGHT, optional=True, witness="machine:settings", own=GVISOR_OWN)
def the_log_of_the_kernel() -> bool:
    read_all = 3
    return call("syslog", read_all, ctypes.create_string_buffer(BLOCK), BLOCK) > 0


@probe(INSIGHT, optional=True, witness="machine:settings")
def the_file_of_the_kernels_log() -> bool:
    return opens("/proc/kmsg")


@probe(INSIGHT, optional=True, witness="machine:settings")
def how_often_pages_are_used() -> bool:
    return len(os.pread(os.open("/proc/kpagecount", os.O_RDONLY), 8, 0)) == 8


@probe(INSIGHT, optional=True, witness="machine:settings")
def where_memory_is() -> bool:
    return any(int(line.split("-")[0], 16) for line in read("/proc/iomem").decode().splitlines())


@probe(INSIGHT, optional=True, witness="machine:settings")
def sizes_of_the_kernels_objects() -> bool:
    return b"slabinfo" in read("/proc/slabinfo")


@probe(INSIGHT, optional=True, witness="machine:settings")
def the_timers_of_all_processes() -> bool:
    return len(read("/proc/timer_list")) > 0


@probe(INSIGHT)
def a_key_in_the_kernels_keyring() -> bytes:
    buffer = ctypes.create_string_buffer(64)
    user_keyring, search, read_key = -4, 10, 11
    name = TARGETS["key name"].encode()
    found = call("keyctl", search, user_keyring, b"user", name, 0)
    call("keyctl", read_key, found, buffer, 64, 0)
    return buffer.raw


@probe(INSIGHT)
def names_of_keys() -> bytes:
    return read("/proc/keys")


@probe(INSIGHT, optional=True, witness="machine:settings")
def a_counter_of_the_whole_machine() -> bool:
    software, size = 1, 112
    attributes = struct.pack("=IIQ", software, size, 0).ljust(size, b"\0")
    return call("perf_event_open", attributes, -1, 0, -1, 0) >= 0


@probe(INSIGHT, optional=True, witness="machine:settings")
def a_program_in_the_kernel() -> bool:
    """``bpf``: the smallest one, "return 0"."""
    instructions = ctypes.create_string_buffer(
        struct.pack("=BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
    )
    licence = ctypes.create_string_buffer(b"GPL")
    socket_filter, load = 1, 5
    addresses = ctypes.addressof(instructions), ctypes.addressof(licence)
    attributes = struct.pack("=IIQQ", socket_filter, 2, *addresses).ljust(128, b"\0")
    return call("bpf", load, attributes, len(attributes)) >= 0


# Powers -------------------------------------------------------------------------------------------


def past_the_check_of_rights(name: str, *arguments: object) -> bool:
    """Whether the kernel got as far as to look at arguments that it cannot take."""
    try:
        call(name, *arguments)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS, errno.EACCES):
            raise
    return True


WRONG_TICK = struct.pack("=I", 0x4000).ljust(256, b"\0")  # ADJ_TICK, to 0
for what, name, arguments in (
    ("the machine is restarted", "reboot", (1, 2, 3, 0)),
    ("the clock is set", "adjtimex", (WRONG_TICK,)),
    ("swap is added", "swapon", (b"/nowhere", 0)),
    ("swap is taken away", "swapoff", (b"/nowhere",)),
    ("all processes are written down", "acct", (b"/nowhere/at/all",)),
    ("another kernel is prepared", "kexec_load", (0, 17, None, 0xFFFF)),
    ("ports of the processor", "iopl", (3,)),
):
    add(
        POWERS,
        what,
        partial(past_the_check_of_rights, name, *arguments),
        optional=True,
        witness="machine:settings",
        own={"gvisor": "gVisor's own kernel looks at the arguments first, and does nothing of it"},
    )


@probe(POWERS, control="apart", witness="machine:names")
def the_machines_name_is_changed() -> bool:
    return call("sethostname", b"taken", 5) == 0


@probe(POWERS, control="apart", witness="machine:names")
def the_machines_domain_is_changed() -> bool:
    return call("setdomainname", b"taken", 5) == 0


@probe(POWERS, witness="machine:settings")
def the_machine_is_woken_up() -> bool:
    boottime_alarm = 9
    return call("timerfd_create", boottime_alarm, 0) >= 0


@probe(POWERS, witness="machine:settings")
def page_faults_are_taken_over() -> bool:
    return call("userfaultfd", 0) >= 0


@probe(POWERS, witness="machine:settings", own=GVISOR_OWN)
def work_is_queued_past_the_filter() -> bool:
    """``io_uring``: calls made by the kernel for a process, which no filter sees."""
    return call("io_uring_setup", 1, bytes(120)) >= 0


@probe(POWERS, witness="machine:settings")
def every_access_to_files_is_watched() -> bool:
    return call("fanotify_init", 0, 0) >= 0
