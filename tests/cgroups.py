"""Where the kernel keeps account of a sandbox, as seen from a test."""

from __future__ import annotations

from pathlib import Path

from sandbox_kernel.limits.cgroup import Cgroup
from sandbox_kernel.limits.cgroup_places import PREFIX, find_places
from tests.kernel import Kernel, containers_of


def root_of(kernel: Kernel) -> int:
    """The host's pid of the sandbox's outer process."""
    if kernel.level != "process":
        (about,) = containers_of(kernel.wrapper_pid)
        return int(about["State"]["Pid"])
    supervisor = next(pid for pid, inner in kernel.sandboxed_pids().items() if inner == 1)
    status = Path(f"/proc/{supervisor}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def cgroup_of(kernel: Kernel) -> Cgroup | None:
    """The cgroup that a wrapper has made, or its engine."""
    if kernel.level != "process":
        return Cgroup.of(root_of(kernel))
    wrapper = kernel.wrapper_pid
    for version, parents in find_places(Path(f"/proc/{wrapper}")):
        found = {c: path for c, p in parents.items() for path in p.glob(f"{PREFIX}{wrapper}-*")}
        if found:
            return Cgroup(version, found)
    return None
