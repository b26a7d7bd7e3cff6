"""Who accounts for a sandbox as a whole: its cgroup, or the engine where that is out of reach."""

from __future__ import annotations

from typing import Protocol

from sandbox_kernel.limits.cgroup import Memory


class Account(Protocol):
    """Readings answer ``None`` for what is not accounted for, and after the end."""

    @property
    def source(self) -> str: ...
    @property
    def as_of(self) -> float | None:
        """When it was read, by the monotonic clock; ``None``: it is read whenever it is asked."""

    def pids(self) -> list[int] | None:
        """The processes; ``None`` where they cannot be seen."""

    def memory(self) -> Memory | None: ...
    def cpu_seconds(self) -> float | None: ...
    def tasks(self) -> int | None: ...
    def oom_kills(self) -> int: ...
