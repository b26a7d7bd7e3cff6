"""The sandbox's first process: a supervisor that starts the kernel process and outlives it.

It holds the lifeline, a stream socket to the wrapper. When the lifeline closes, the supervisor ends,
and with it every process of its pid namespace. The wrapper says ``interrupt`` over it; what goes the
other way (``exited STATUS``) is a hint for error messages, never evidence.

Runs as ``python boot.py CONNECTION_FILE``; imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
HIGHEST_CAPABILITY = 63
CAPABILITY_VERSION_3 = 0x20080522


def libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def give_up_capabilities() -> None:
    """Empty every capability set, the bounding set included, for good."""
    c = libc()
    for capability in range(HIGHEST_CAPABILITY + 1):
        c.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    c.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if c.capset(struct.pack("Ii", CAPABILITY_VERSION_3, 0), bytes(24)) != 0:
        msg = "cannot give up the capabilities"
        raise OSError(msg)


def start_kernel(connection_file: str, lifeline: socket.socket) -> int:
    """Fork the kernel process; it never returns from here."""
    pid = os.fork()
    if pid:
        return pid
    lifeline.close()
    # Its own session and group, as jupyter_client starts kernels: an interrupt reaches the cell's
    # children, never the supervisor.
    os.setsid()
    # Thousands of objects are about to be made and kept: `bridge` turns collection on again.
    gc.disable()
    # The directory of this file must not shadow the user's modules.
    here = sys.path.pop(0)
    import importlib.util

    spec = importlib.util.spec_from_file_location("_sandbox_bridge", here + "/bridge.py")
    assert spec is not None
    assert spec.loader is not None
    bridge = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bridge)
    bridge.main(connection_file)
    os._exit(0)


def supervise(kernel_pid: int, lifeline: socket.socket) -> int:
    """Serve the lifeline and reap until the kernel process ends; return its wait status."""
    wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    # The first process of a namespace gets only signals it handles: cells cannot end it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pending = b""
    status = reap(kernel_pid)
    while status is None:
        readable, _, _ = select.select([lifeline.fileno(), wakeup_read], [], [])
        if wakeup_read in readable:
            os.read(wakeup_read, 4096)
            status = reap(kernel_pid)
        if lifeline.fileno() in readable:
            received = lifeline.recv(4096)
            if not received:
                os._exit(0)
            *commands, pending = (pending + received).split(b"\n")
            if b"interrupt" in commands:
                os.killpg(kernel_pid, signal.SIGINT)
    return status


def reap(kernel_pid: int) -> int | None:
    """Collect every ended child; the kernel's wait status if it is among them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == kernel_pid:
            return status
        if pid == 0:
            return None


def main(connection_file: str) -> None:
    # Whatever was open on the host stays out.
    os.closerange(3, 1 << 20)
    settings = json.loads(Path(connection_file).read_text())["sandbox"]
    give_up_capabilities()
    try:
        os.chdir(settings["working_directory"])
    except PermissionError:
        # A folder of root's on a file system that cannot show it to another user; the banner says.
        os.chdir(os.environ["HOME"])
    lifeline = socket.socket(socket.AF_UNIX)
    lifeline.connect(settings["lifeline"])
    kernel_pid = start_kernel(connection_file, lifeline)
    # Same user as the cells: without this a cell could read or trace the supervisor.
    libc().prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    status = supervise(kernel_pid, lifeline)
    lifeline.sendall(b"exited %d\n" % status)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
