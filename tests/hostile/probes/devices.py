"""Devices, and settings of the kernel in files: opened, and left alone, because the control is root."""

from __future__ import annotations

import errno
import glob
import os
import stat

from tests.hostile.probes.attack import (
    TARGETS,
    add,
    opens,
    opens_for_writing,
    probe,
)

DEVICES = "devices"
SETTINGS = "settings of the kernel"

GVISOR_OWN = {"gvisor": "of gVisor's own kernel, which is this sandbox's alone"}
OWN_SETTINGS = {
    "/proc/sys/kernel/pid_max": {
        "process": "from Linux 6.14 on each pid namespace has its own, which is the sandbox's"
    }
}

# By path, and again as a node of the same numbers that lies in the notebook's folder.
DEVICE_FILES = {
    "memory": "/dev/mem",
    "ports": "/dev/port",
    "the kernel's log": "/dev/kmsg",
    "the disk": "disk",
    "user-space file systems": "/dev/fuse",
    "virtual machines": "/dev/kvm",
    "the making of loop devices": "/dev/loop-control",
    "a loop device": "/dev/loop0",
    "networks": "/dev/net/tun",
    "the machine that runs this machine": "/dev/vsock",
    "the first terminal": "/dev/tty0",
    "the screen of a terminal": "/dev/vcs1",
    "registers of the processor": "/dev/cpu/0/msr",
    "page faults": "/dev/userfaultfd",
    "keyboards": "/dev/input/event0",
    "graphics": "/dev/dri/card0",
    "automatic mounts": "/dev/autofs",
    "the control of btrfs": "/dev/btrfs-control",
}
IN_THE_FOLDER = (
    "the kernel's log",
    "the disk",
    "user-space file systems",
    "virtual machines",
)


def name_of_node(what: str) -> str:
    return what.replace(" ", "-").replace("'", "")


def device(path: str) -> str:
    return str(TARGETS["disk"]) if path == "disk" else path


for what, path in DEVICE_FILES.items():
    own = GVISOR_OWN if path in ("/dev/fuse", "/dev/net/tun") else {}
    add(
        DEVICES,
        what,
        lambda path=path: opens(device(path)),
        optional=True,
        witness="machine:devices",
        own=own,
    )
for what in IN_THE_FOLDER:
    add(
        DEVICES,
        f"{what}, by a node in the notebook's folder",
        lambda what=what: opens(f"{TARGETS['folder']}/{name_of_node(what)}"),
        optional=True,
        witness="machine:devices",
    )


@probe(DEVICES, witness="machine:devices")
def a_device_is_made_and_opened() -> bool:
    path = f"{TARGETS['scratch']}/device-{os.getpid()}"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 11))  # the kernel's log
    return opens(path)


# Settings -----------------------------------------------------------------------------------------

SETTINGS_FILES = {
    "which program gets core dumps": "/proc/sys/kernel/core_pattern",
    "which program loads modules": "/proc/sys/kernel/modprobe",
    "which program hears of devices": "/proc/sys/kernel/hotplug",
    "what keys do": "/proc/sys/kernel/sysrq",
    "the keys themselves": "/proc/sysrq-trigger",
    "when the machine gives up": "/proc/sys/kernel/panic",
    "whether addresses are random": "/proc/sys/kernel/randomize_va_space",
    "who may see addresses": "/proc/sys/kernel/kptr_restrict",
    "how many processes there may be": "/proc/sys/kernel/pid_max",
    "how memory is promised": "/proc/sys/vm/overcommit_memory",
    "what memory is kept for files": "/proc/sys/vm/drop_caches",
    "how many files there may be": "/proc/sys/fs/file-max",
    "whether links are protected": "/proc/sys/fs/protected_symlinks",
    "programs for formats of programs": "/proc/sys/fs/binfmt_misc/register",
    "which processor serves a device": "/proc/irq/default_smp_affinity",
    "sleep": "/sys/power/state",
    "who hears of events": "/sys/kernel/uevent_helper",
    "a module's parameter": "/sys/module/printk/parameters/time",
    "a processor": "/sys/devices/system/cpu/cpu1/online",
    "huge pages": "/sys/kernel/mm/transparent_hugepage/enabled",
    "the queue of a disk": "/sys/block/*/queue/scheduler",
    "tracing of the kernel": "/sys/kernel/tracing/trace_marker",
}
for what, path in SETTINGS_FILES.items():
    add(
        SETTINGS,
        what,
        lambda path=path: opens_for_writing(next(iter(glob.glob(path)), path)),
        optional=True,
        witness="machine:settings",
        own=GVISOR_OWN | OWN_SETTINGS.get(path, {}),
    )
for what, name in {
    "the program that a cgroup calls at its end": "release_agent",
    "the limit of its memory": "memory.limit_in_bytes memory.max",
    "the limit of its processes": "pids.max",
    "the devices it may use": "devices.allow",
    "a place in another cgroup": "cgroup.procs",
}.items():
    add(
        SETTINGS,
        what,
        lambda name=name: any(map(opens_for_writing, cgroup_files(name.split()))),
        optional=True,
        witness="machine:cgroups",
        own=GVISOR_OWN,
    )


def cgroup_files(names: list[str]) -> list[str]:
    found = []
    for folder, _, files in os.walk("/sys/fs/cgroup"):
        found += [f"{folder}/{name}" for name in names if name in files]
    if not found:
        raise FileNotFoundError(errno.ENOENT, names[0])
    return found
