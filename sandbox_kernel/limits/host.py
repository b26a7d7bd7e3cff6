"""Memory in psutil's terms, for ``usage_reply``: frontends read some of these keys without asking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sandbox_kernel.limits.cgroup import Memory


def host_virtual_memory() -> dict[str, Any]:
    """The host's memory."""
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


def sandbox_virtual_memory(memory: Memory, limit: int) -> dict[str, Any]:
    """A sandbox's memory as if it were a host with as much as its limit: the user's budget."""
    available = max(0, limit - memory.total)
    return {
        "total": limit,
        "available": available,
        "percent": round(100 * memory.total / limit, 1),
        "used": memory.total,
        "free": available,
        "active": memory.anon,
        "inactive": 0,
        "buffers": 0,
        "cached": 0,
        "shared": memory.shmem,
        "slab": memory.kernel,
    }
