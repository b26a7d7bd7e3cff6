"""The control: the same probes in a plain process of root's, on the host or in namespaces of its own.

``python -m tests.hostile.probes.control host|apart`` reads what to run as JSON from stdin.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hostile.probes.attack import MODULES, run

ROOT = Path(__file__).parents[3]
CONTROL_SECONDS = 120
# Everything but a user namespace, in which root would not be root.
APART = (
    *("unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"),
    *("--fork", "--kill-child", "--mount-proc"),
)
# The address of clouds' metadata, and one that is for documentation: both on loopback here.
ADDRESSES = ("169.254.169.254", "198.51.100.7")
BEACON_SECONDS = 0.01
BEACON_PORT = 9


def controls(
    names: Sequence[str], targets: dict[str, Any], secret: str, *, apart: bool
) -> dict[str, list[str]]:
    """How these probes end without a sandbox."""
    mode = "apart" if apart else "host"
    done = subprocess.run(
        [*(APART if apart else ()), sys.executable, "-m", "tests.hostile.probes.control", mode],
        input=json.dumps({"names": list(names), "targets": targets, "secret": secret}),
        env={"PATH": os.environ["PATH"], "PROBE_TOKEN": secret, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=CONTROL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"the control failed: {done.stderr}"
    outcomes: dict[str, list[str]] = json.loads(done.stdout)
    return outcomes


def set_the_scene(targets: dict[str, Any], secret: str) -> None:
    """In the new namespaces: files to be spoilt, a mount, a network with a cloud in it."""
    stage = Path(targets["apart"])
    mount("tmpfs", stage / "upper", "tmpfs")
    for number, folder in enumerate(targets["overlaid"]):
        for name in ("upper", "work"):
            (stage / "upper" / str(number) / name).mkdir(parents=True)
        layers = f"lowerdir={folder},upperdir={stage}/upper/{number}/upper"
        mount("overlay", folder, "overlay", f"{layers},workdir={stage}/upper/{number}/work")
    mount("tmpfs", targets["mount point"], "tmpfs")
    mount("tmpfs", targets["cover"], "tmpfs")
    with socket.socket() as any_socket:
        for number, address in enumerate(("127.0.0.1", *ADDRESSES)):
            name = f"lo:{number}".encode() if number else b"lo"
            packed = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
            set_address, set_flags, up = 0x8916, 0x8914, 0x49
            fcntl.ioctl(any_socket, set_address, name.ljust(16, b"\0") + packed)
            flags = name.ljust(16, b"\0") + struct.pack("=H14x", up)
            fcntl.ioctl(any_socket, set_flags, flags)
    for address in ADDRESSES:
        server = socket.create_server((address, 80))
        threading.Thread(target=serve, args=(server, secret.encode()), daemon=True).start()
    threading.Thread(target=shine, args=(secret.encode(),), daemon=True).start()


def mount(source: str, target: str | Path, kind: str, data: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = (source, str(target), kind)
    if libc.mount(*(word.encode() for word in words), ctypes.c_ulong(0), data.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {words}")


def serve(server: socket.socket, answer: bytes) -> None:
    while True:
        connection, _ = server.accept()
        with connection:
            connection.send(answer)


def shine(word: bytes) -> None:
    """Send ``word`` on loopback, again and again, to nobody."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as beacon:
        while True:
            beacon.sendto(word, ("127.0.0.1", BEACON_PORT))
            time.sleep(BEACON_SECONDS)


def main(mode: str) -> None:
    order = json.load(sys.stdin)
    for name in MODULES:
        importlib.import_module(f"tests.hostile.probes.{name}")
    if mode == "apart":
        set_the_scene(order["targets"], order["secret"])
    # What a sandbox must not inherit.
    os.set_inheritable(os.open("/", os.O_RDONLY | os.O_DIRECTORY), True)
    print(json.dumps(run(order["names"], order["targets"])))


if __name__ == "__main__":
    main(sys.argv[1])
