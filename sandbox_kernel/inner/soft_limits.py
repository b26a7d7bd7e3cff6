"""Limits of a cell that Python itself can raise as exceptions."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# The soft ceiling counts address space, which libraries take more of than they use.
ADDRESS_SLACK_BYTES = 32 << 20
# Threads of the kernel itself, the supervisor and the checkpoints.
OWN_TASK_COUNT = 24
SOFT_LIMITS = (resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)


def set_soft_limits(terms: Mapping[str, Any]) -> None:
    """Limits that Python can raise as exceptions. The wrapper enforces the same from outside."""
    memory = terms.get("memory_bytes")
    if memory is not None:
        try:
            memory += address_space() + memory // 8 + ADDRESS_SLACK_BYTES
        except OSError:  # cells have all the descriptors
            memory = None
    processes = terms.get("processes")
    if processes is not None:
        processes += OWN_TASK_COUNT
    values = (memory, processes, terms.get("file_bytes"))
    for kind, value in zip(SOFT_LIMITS, values, strict=True):
        _, hard = resource.getrlimit(kind)
        soft = hard if value is None else value
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(kind, (soft, hard))


def address_space() -> int:
    """Bytes that this process has of what the soft limit counts."""
    _, resident, *_, data, _ = map(int, Path("/proc/self/statm").read_text().split())
    return (data or resident) * resource.getpagesize()  # gVisor does not count data


@contextlib.contextmanager
def soft_limits_lifted() -> Iterator[None]:
    """The kernel's own forks, threads and descriptors are not the cell's."""
    limits = {kind: resource.getrlimit(kind) for kind in (*SOFT_LIMITS, resource.RLIMIT_NOFILE)}
    set_soft_limits({})
    _, most = limits[resource.RLIMIT_NOFILE]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        yield
    finally:
        for kind, limit in limits.items():
            resource.setrlimit(kind, limit)
