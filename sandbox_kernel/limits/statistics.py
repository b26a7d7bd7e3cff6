"""What an engine says of a container that cannot be seen from here: late, and as a whole.

That is so where Jupyter runs in a container of its own and has the engine's socket. An engine looks once
a second, so what a cell of less than that has used is known only after it; the limits that the engine
holds for the container, and those on time and output, do not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandbox_kernel.limits.cgroup import Memory

SOURCE: Final = "engine"
LIMITATION: Final = (
    "usage is what the engine says, once a second: what shorter cells have used is not known"
)
# Kernel memory in `memory_stats.stats` of version 2 of cgroups.
_KERNEL_PARTS: Final = ("kernel_stack", "pagetables", "percpu", "slab", "sock")


class Used(NamedTuple):
    """An engine's word at one moment. A value that goes through JSON, as a mapping."""

    cpu_seconds: float
    anon: int
    shmem: int
    kernel: int
    tasks: int


def parse(said: Mapping[str, Any]) -> Used | None:
    """What ``GET /containers/…/stats`` says; ``None`` of a container that does not run."""
    memory = said.get("memory_stats") or {}
    cpu = (said.get("cpu_stats") or {}).get("cpu_usage") or {}
    if not memory.get("usage") or not cpu.get("total_usage"):
        return None
    anon, shmem, kernel = _parts(memory["usage"], memory.get("stats") or {})
    tasks = (said.get("pids_stats") or {}).get("current") or 0
    return Used(cpu["total_usage"] / 1e9, anon, shmem, kernel, tasks)


def _parts(usage: int, stats: Mapping[str, int]) -> tuple[int, int, int]:
    if "total_rss" in stats:  # version 1 of cgroups
        anon = stats["total_rss"]
        # Files in memory are on the lists of anonymous pages, but in the cache.
        listed = stats.get("total_active_anon", 0) + stats.get("total_inactive_anon", 0)
        return anon, max(0, listed - anon), max(0, usage - anon - stats.get("total_cache", 0))
    if "anon" in stats:
        kernel = sum(stats.get(part, 0) for part in _KERNEL_PARTS)
        return stats["anon"], stats.get("shmem", 0), kernel
    return usage, 0, 0  # Podman does not tell it apart; page cache is in it


class Statistics:
    """An account of the last word, which is renewed from time to time."""

    source: Final = SOURCE

    def __init__(self, used: Used, age_seconds: float) -> None:
        self.renew(used, age_seconds)

    def renew(self, used: Used, age_seconds: float) -> None:
        """``age_seconds``: how long ago the engine was asked."""
        self._used = used
        self._as_of = time.monotonic() - age_seconds

    @property
    def as_of(self) -> float:
        return self._as_of

    def pids(self) -> None:
        return None

    def memory(self) -> Memory:
        return Memory(self._used.anon, self._used.shmem, self._used.kernel)

    def cpu_seconds(self) -> float:
        return self._used.cpu_seconds

    def tasks(self) -> int:
        return self._used.tasks

    def oom_kills(self) -> int:
        return 0  # no engine says
