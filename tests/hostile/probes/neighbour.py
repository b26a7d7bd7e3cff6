"""A process on the host for probes to be after: the secret is in its environment, arguments, name, memory,
working directory, open and mapped files.

Run as a script it is that process; it says where things are, then what signals it gets, as JSON lines.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

COUNTED = (signal.SIGUSR1, signal.SIGUSR2, 40, 41, 42, 43)


class Neighbour:
    def __init__(self, folder: Path, secret: str) -> None:
        folder.mkdir()
        (folder / "private.txt").write_text(secret)
        self._signals = folder / "signals"
        self._signals.touch()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._signals), secret],
            cwd=folder,
            env={"PRIVATE": secret},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.facts: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.pid = self._process.pid

    def signals(self, number: int) -> int:
        return self._signals.read_text().split().count(str(number))

    def observe(self, what: str) -> object:
        match what:
            case "memory":
                with Path(f"/proc/{self.pid}/mem").open("rb") as memory:
                    memory.seek(self.facts["address of the blackboard"])
                    return memory.read(64)
            case "nice":
                return os.getpriority(os.PRIO_PROCESS, self.pid)
            case "affinity":
                return os.sched_getaffinity(self.pid)
            case "policy":
                return os.sched_getscheduler(self.pid)
            case "limits":
                return resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
            case "io priority":
                io_prio_get = {"x86_64": 252, "aarch64": 31}[os.uname().machine]
                return ctypes.CDLL(None).syscall(io_prio_get, 1, self.pid)
            case _:
                status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
                kept = ("Name", "Uid", "TracerPid", "Groups", "NSpid")
                return [line for line in status if line.startswith(kept)]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def live(signals: str, secret: str) -> None:
    Path("/proc/self/comm").write_text(secret)
    heard = os.open(signals, os.O_WRONLY | os.O_APPEND)
    for number in COUNTED:
        signal.signal(number, lambda number, _: os.write(heard, f"{number} ".encode()) and None)
    deleted = Path("deleted")
    deleted.write_text(secret)
    descriptor = os.open(deleted, os.O_RDONLY)
    deleted.unlink()
    named = Path(f"mapped-{secret}")
    named.write_bytes(bytes(mmap.PAGESIZE))
    mapped_file = named.open("rb")
    mapped = mmap.mmap(mapped_file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ)
    kept = ctypes.create_string_buffer(secret.encode(), 64)
    blackboard = ctypes.create_string_buffer(64)
    facts = {
        "descriptor": descriptor,
        "address of the secret": ctypes.addressof(kept),
        "page of the secret": ctypes.addressof(kept) // mmap.PAGESIZE * mmap.PAGESIZE,
        "address of the blackboard": ctypes.addressof(blackboard),
    }
    print(json.dumps(facts), flush=True)
    while mapped:
        signal.pause()


if __name__ == "__main__":
    live(*sys.argv[1:])
