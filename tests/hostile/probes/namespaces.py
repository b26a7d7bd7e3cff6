"""Leaving the namespaces, or getting rights in new ones. All controls are root, in namespaces of their own."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from functools import partial
from typing import Any

from tests.hostile.probes.attack import TARGETS, add, call, in_child, probe

MOUNTS = "mounts"
NAMESPACES = "namespaces"

HERE = -100  # AT_FDCWD
BIND, REMOUNT, RDONLY, PRIVATE = 0x1000, 0x20, 0x1, 0x40000
DETACH = 2
NEW = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "network": 0x40000000,
}
GVISOR_OWN = {
    "gvisor": "gVisor's own kernel has namespaces of its own: the host's see nothing of it"
}


def apart(kind: str, **options: Any) -> Any:
    return probe(kind, control="apart", own=GVISOR_OWN, **({"witness": "machine:mounts"} | options))


def mount(source: bytes, target: str, kind: bytes, flags: int = 0) -> bool:
    return call("mount", source, target.encode(), kind, flags, None) == 0


def scratch(name: str) -> str:
    path = f"{TARGETS['scratch']}/{name}-{os.getpid()}"
    os.mkdir(path)
    return path


# File systems that show more of the host, or give rights.
for kind in ("tmpfs", "proc", "sysfs", "cgroup2", "mqueue", "devpts", "overlay"):
    options = {"control": "apart", "witness": "machine:mounts", "own": GVISOR_OWN}
    attempt = lambda kind=kind: mounted(kind)  # noqa: E731 - one of a family
    add(MOUNTS, f"a file system of type {kind} is mounted", attempt, **options)


def mounted(kind: str) -> bool:
    place = scratch(kind)
    data = None
    if kind == "overlay":
        data = f"lowerdir={scratch('below')}:{scratch('further-below')}".encode()
    return call("mount", b"none", place.encode(), kind.encode(), 0, data) == 0


@apart(MOUNTS)
def a_folder_is_mounted_elsewhere() -> bool:
    return mount(TARGETS["folder"].encode(), scratch("bind"), b"none", BIND)


@apart(MOUNTS, witness="machine:folder")
def the_notebooks_folder_is_made_writable() -> bool:
    """It is a mount of its own in the sandbox; in the control it becomes one first."""
    folder = TARGETS["folder"]
    if TARGETS["is control"]:
        mount(folder.encode(), folder, b"none", BIND)
        mount(b"none", folder, b"none", REMOUNT | BIND | RDONLY)
    return mount(b"none", folder, b"none", REMOUNT | BIND)


@apart(MOUNTS)
def the_root_is_made_writable() -> bool:
    return mount(b"none", "/", b"none", REMOUNT | BIND)


@apart(MOUNTS)
def what_covers_a_file_is_taken_away() -> bool:
    return call("umount2", TARGETS["cover"].encode(), DETACH) == 0


@apart(MOUNTS)
def mounts_are_made_to_spread() -> bool:
    shared = 0x100000
    return mount(b"none", TARGETS["mount point"], b"none", shared)


@apart(MOUNTS)
def a_mount_is_copied_by_the_new_interface() -> bool:
    clone = 1
    tree = call("open_tree", HERE, TARGETS["folder"].encode(), clone)
    empty_path = 4
    return call("move_mount", tree, b"", HERE, scratch("tree").encode(), empty_path) == 0


@apart(MOUNTS)
def a_file_system_is_made_by_the_new_interface() -> bool:
    made = call("fsopen", b"tmpfs", 0)
    create = 6
    call("fsconfig", made, create, None, None, 0)
    return call("fsmount", made, 0, 0) >= 0


@apart(MOUNTS)
def a_mount_is_changed_by_the_new_interface() -> bool:
    attributes = struct.pack("=QQQQ", 0, 1, 0, 0)  # clear "read-only"
    place = TARGETS["mount point"].encode()
    return call("mount_setattr", HERE, place, 0, attributes, len(attributes)) == 0


@apart(MOUNTS)
def the_root_is_exchanged() -> bool:
    new = scratch("root")

    def exchange() -> bool:
        if TARGETS["is control"]:
            call("unshare", NEW["mount"])  # else the other probes would have another root, too
        mount(b"none", new, b"tmpfs")
        os.mkdir(f"{new}/old")
        return call("pivot_root", new.encode(), f"{new}/old".encode()) == 0

    return in_child(exchange)


@apart(MOUNTS)
def the_classic_way_out_of_a_root() -> bool:
    """A second ``chroot`` with the working directory outside of it."""
    inside = scratch("jail")
    outside = os.open("/", os.O_RDONLY)

    def escape() -> bool:
        os.chroot(inside)
        os.fchdir(outside)
        for _ in range(40):
            os.chdir("..")
        os.chroot(".")
        return os.path.exists(TARGETS["key"])

    return in_child(escape)


@apart(MOUNTS)
def the_root_of_the_first_process() -> bool:
    def enter() -> bool:
        os.chroot("/proc/1/root")
        return os.path.exists(TARGETS["key"])

    return in_child(enter)


# Namespaces ---------------------------------------------------------------------------------------


def unshared(flag: int) -> bool:
    return in_child(lambda: call("unshare", flag) == 0)


def cloned(flag: int) -> bool:
    child = call("clone", flag | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


for kind, flag in NEW.items():
    add(
        NAMESPACES,
        f"a new {kind} namespace",
        partial(unshared, flag),
        control="apart",
        witness="kernel:namespaces",
        own=GVISOR_OWN,
    )
for kind in ("user", "mount"):
    add(
        NAMESPACES,
        f"a child in a new {kind} namespace",
        partial(cloned, NEW[kind]),
        control="apart",
        witness="kernel:namespaces",
        own=GVISOR_OWN,
    )


@apart(NAMESPACES, witness="kernel:namespaces")
def a_child_in_new_namespaces_by_clone3() -> bool:
    arguments = struct.pack(
        "=QQQQQQQQ", NEW["user"] | NEW["mount"], 0, 0, 0, signal.SIGCHLD, 0, 0, 0
    )
    child = call("clone3", arguments, len(arguments))
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


@apart(NAMESPACES, witness="kernel:namespaces")
def root_in_a_user_namespace() -> bool:
    def become_root() -> bool:
        me = os.getuid()
        call("unshare", NEW["user"])
        with open("/proc/self/setgroups", "w") as file:
            file.write("deny")
        with open("/proc/self/uid_map", "w") as file:
            file.write(f"0 {me} 1")
        return os.getuid() == 0

    return in_child(become_root)


for kind in ("mnt", "net", "pid", "ipc", "uts", "cgroup"):
    add(
        NAMESPACES,
        f"the {kind} namespace of a process on the host",
        lambda kind=kind: in_child(lambda: entered(f"/proc/{TARGETS['neighbour']}/ns/{kind}")),
        witness="kernel:namespaces",
    )


def entered(path: str) -> bool:
    return call("setns", os.open(path, os.O_RDONLY), 0) == 0


@probe(NAMESPACES, witness="kernel:namespaces")
def the_namespaces_of_a_process_by_its_descriptor() -> bool:
    both = NEW["network"] | NEW["ipc"]
    return in_child(lambda: call("setns", os.pidfd_open(TARGETS["neighbour"]), both) == 0)


@apart(NAMESPACES, witness="kernel:namespaces")
def the_namespace_of_the_first_process() -> bool:
    return in_child(lambda: entered("/proc/1/ns/mnt"))


@apart(NAMESPACES, witness="kernel:namespaces")
def the_namespace_above() -> bool:
    """``NS_GET_PARENT`` of the pid namespace: the one that this one was made in."""
    get_parent = 0xB702
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    # In the control the one asked about is made for it, so that there is one above in its sight.
    if TARGETS["is control"]:
        call("unshare", NEW["pid"])
        child = os.fork()
        if child == 0:
            signal.pause()
        own = os.open(f"/proc/{child}/ns/pid", os.O_RDONLY)
        os.kill(child, signal.SIGKILL)
    parent = fcntl.ioctl(own, get_parent)
    return call("setns", parent, 0) == 0
