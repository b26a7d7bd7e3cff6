"""Facts about this host that probes are told: addresses, numbers, handles, paths."""

from __future__ import annotations

import ctypes
import os
import site
import socket
import struct
import sys
from pathlib import Path

from sandbox_kernel.isolation import seccomp
from tests.hostile.probes.control import ROOT

CALLS_TEXT = """
    acct add_key adjtimex bpf capset clone clone3 fanotify_init fsconfig fsmount fsopen
    get_robust_list io_uring_setup ioprio_set iopl kcmp kexec_load keyctl linkat mount mount_setattr
    move_mount move_pages mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd
    open_tree perf_event_open pidfd_getfd pivot_root prctl process_madvise process_vm_readv
    process_vm_writev ptrace reboot renameat2 rt_sigqueueinfo semctl semget setdomainname
    sethostname setns shmctl shmget swapoff swapon syslog tgkill timerfd_create umount2 unshare
    userfaultfd
"""
CALLS = CALLS_TEXT.split()
# Newer than the libseccomp that knows the names.
NUMBERS = {"process_madvise": 440, "mount_setattr": 442}
_FILE_HANDLE_BYTES = 128


def call_numbers() -> dict[str, int]:
    return {name: NUMBERS.get(name) or number_of(name) for name in CALLS}


def number_of(name: str) -> int:
    return int(seccomp._libseccomp().seccomp_syscall_resolve_name(name.encode()))


def own_address() -> str | None:
    """An address of this host beside loopback; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        try:
            client.connect(("192.0.2.254", 9))
        except OSError:
            return None
        return str(client.getsockname()[0])


def hardware_address(name: str) -> str:
    return Path(f"/sys/class/net/{name}/address").read_text().strip().replace(":", "")


def disk_of(path: Path) -> str:
    number = path.stat().st_dev
    event = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/uevent")
    if not event.exists():
        return "/nowhere"
    facts = dict(line.split("=", 1) for line in event.read_text().splitlines())
    return f"/dev/{facts['DEVNAME']}"


def handle_of(path: Path) -> tuple[int, str]:
    """``name_to_handle_at``: what ``open_by_handle_at`` takes."""
    handle = ctypes.create_string_buffer(struct.pack("=Ii", _FILE_HANDLE_BYTES, 0), 200)
    here, mount_id = -100, ctypes.c_int()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.name_to_handle_at(here, os.fsencode(path), handle, ctypes.byref(mount_id), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    length, kind = struct.unpack_from("=Ii", handle)
    return kind, handle.raw[8 : 8 + length].hex()


def environment_files() -> dict[str, str]:
    """Files of the Python environment that run later, on the host."""
    packages = site.getsitepackages()[0]
    return {
        "a path file": f"{packages}/probe.pth",
        "sitecustomize": f"{packages}/sitecustomize.py",
        "the kernelspec": f"{sys.prefix}/share/jupyter/kernels/sandboxed-python/kernel.json",
        "the code inside": str(ROOT / "sandbox_kernel/inner/boot.py"),
        "the interpreter": f"{sys.prefix}/bin/probe-python",
        "a compiled module": f"{packages}/__pycache__/probe.cpython-311.pyc",
    }
