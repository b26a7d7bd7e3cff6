"""Whether sandboxes get a cgroup: exact usage and limits that the kernel holds. Nothing is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sandbox_kernel.isolation.checks.base import Check, Host
from sandbox_kernel.limits.cgroup_places import find_places

CGROUP: Final = "cgroup"
MEMORY: Final = "memory controller"
_SESSION: Final = (
    "Start Jupyter where systemd hands them on to you: `systemd-run --user --scope jupyter lab`."
)
_VERSION_1: Final = (
    "Let the host use version 2 (`systemd.unified_cgroup_hierarchy=1` on the kernel's command "
    "line), or start Jupyter as root."
)


def check_cgroups(host: Host) -> list[Check]:
    """Without one, usage is read from ``/proc`` and limits hold a little later: no level needs it."""
    try:
        places = list(find_places(host.about))
    except (OSError, ValueError) as error:
        found = f"this process's cgroups cannot be read: {error}"
        return [Check(CGROUP, "unknown", found), Check(MEMORY, "unknown", "see cgroup")]
    for version, parents in places:
        usable = {name: path for name, path in parents.items() if _can_make(path, version)}
        if not usable:
            continue
        below = ", ".join(sorted({str(path) for path in usable.values()}))
        made = Check(CGROUP, "ok", f"version {version}, below {below}")
        if "memory" in usable:
            return [made, Check(MEMORY, "ok", "handed on to sandboxes")]
        return [made, Check(MEMORY, "missing", "not handed on to sandboxes", _VERSION_1)]
    versions = " and ".join(str(version) for version, _ in places) or "2"
    found = f"none can be made in version {versions}: usage is read from /proc instead"
    fix = _VERSION_1 if versions == "1" else _SESSION
    return [Check(CGROUP, "missing", found, fix), Check(MEMORY, "missing", "see cgroup")]


def _can_make(parent: Path, version: int) -> bool:
    # In version 2 a process is moved only by who may write to both cgroups' common ancestor.
    wanted = [parent, *([parent / "cgroup.procs"] if version == 2 else [])]
    return all(os.access(path, os.W_OK, effective_ids=True) for path in wanted)
