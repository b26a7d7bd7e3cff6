"""What a sandbox uses, read from the host's ``/proc``: never anything said from inside."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """One reading of a process tree."""

    cpu_seconds: float
    memory_bytes: int
    processes: int


def process_tree(root: int) -> Iterator[int]:
    """``root`` and its descendants. Orphans stay in it: a pid namespace's init adopts them."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                waiting += map(int, children.read_text().split())
            except OSError:
                continue  # ended while we looked


def read_usage(root: int) -> Usage:
    """CPU time (ended children included), proportional memory and number of processes."""
    ticks = memory = processes = 0
    for pid in process_tree(root):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            memory += _memory_bytes(pid)
        except OSError:
            continue  # ended while we looked
        ticks += sum(map(int, stat[11:15]))
        processes += 1
    return Usage(ticks / _TICKS_PER_SECOND, memory, processes)


def _memory_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except PermissionError:
        pass  # a process of another user: its resident set is public
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


class Meter:
    """Answers ``usage_request``: CPU in percent since the last answer, memory now."""

    def __init__(self) -> None:
        self._last: tuple[int, float, float] | None = None

    def usage_reply(self, root: int | None) -> dict[str, Any]:
        """Content of a ``usage_reply`` for the sandbox below ``root``, in ipykernel's terms."""
        now = time.monotonic()
        usage = Usage(0.0, 0, 0) if root is None else read_usage(root)
        percent = 0.0
        if root is not None and self._last is not None and self._last[0] == root:
            _, then, cpu_seconds = self._last
            percent = 100 * max(0.0, usage.cpu_seconds - cpu_seconds) / max(now - then, 1e-3)
        self._last = None if root is None else (root, now, usage.cpu_seconds)
        return {
            "hostname": os.uname().nodename,
            "pid": os.getpid(),
            "kernel_cpu": round(percent, 1),
            "kernel_memory": usage.memory_bytes,
            "cpu_count": os.cpu_count(),
            "host_virtual_memory": host_virtual_memory(),
        }


def host_virtual_memory() -> dict[str, Any]:
    """The host's memory with psutil's keys: frontends read some of them without asking."""
    info = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        info[name] = int(value.split()[0]) * 1024
    total, available = info["MemTotal"], info["MemAvailable"]
    cached = info["Cached"] + info.get("SReclaimable", 0)
    return {
        "total": total,
        "available": available,
        "percent": round(100 * (total - available) / total, 1),
        "used": total - available,
        "free": info["MemFree"],
        "active": info["Active"],
        "inactive": info["Inactive"],
        "buffers": info["Buffers"],
        "cached": cached,
        "shared": info.get("Shmem", 0),
        "slab": info.get("Slab", 0),
    }
