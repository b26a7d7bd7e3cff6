"""What an engine says of a container that cannot be seen from here: late, and as a whole.

That is so where Jupyter runs in a container of its own and has the engine's socket. An engine looks once
a second, so what a cell of less than that has used is known only after it; the limits that the engine
holds for the container, and those on time and output, do not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandbox_kernel.limits.cgroup import KERNEL_PARTS, Memory

SOURCE: Final = "engine"
LIMITATION: Final = (
    "usage is what the engine says, once a second: what shorter cells have used is not known"
)


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
    # It runs, so there is one.
    tasks = (said.get("pids_stats") or {}).get("current") or 1
    return Used(cpu["total_usage"] / 1e9, anon, shmem, kernel, tasks)


def _parts(usage: int, stats: Mapping[str, int]) -> tuple[int, int, int]:
    if "total_rss" in stats:  # version 1 of cgroups
        anon = stats["total_rss"]
        # Files in memory are on the lists of anonymous pages, but in the cache.
        listed = stats.get("total_active_anon", 0) + stats.get("total_inactive_anon", 0)
        return anon, max(0, listed - anon), max(0, usage - anon - stats.get("total_cache", 0))
    if "anon" in stats:
        kernel = sum(stats.get(part.decode(), 0) for part in KERNEL_PARTS)
        return stats["anon"], stats.get("shmem", 0), kernel
    return usage, 0, 0  # Podman tells nothing apart, and what is in it depends on its version


class Statistics:
    """An account of the last word, which is renewed from time to time."""

    source: Final = SOURCE

    def __init__(self, used: Used, asked_at: float) -> None:
        self.renew(used, asked_at)

    def renew(self, used: Used, asked_at: float) -> None:
        """``asked_at``: when the engine was asked, by the monotonic clock, which is that of the host."""
        self._used = used
        self._as_of = asked_at

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
