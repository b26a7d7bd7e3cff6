"""Where this process could make a cgroup: what is mounted, where it is itself, what is handed on.

Version 2 where that has the memory controller, else version 1, whose controllers may be mounted apart
or together. Imported before the sandbox starts: see ``isolation.base`` on what that means.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandbox_kernel.limits.files import start_ticks

PREFIX: Final = "sandbox-kernel-"
OURSELVES: Final = Path("/proc/self")
# The names of version 1; in version 2 every cgroup has an account of its CPU time.
MEMORY, CPU, PIDS = "memory", "cpuacct", "pids"
# Who has how much of the processors: an account and its limit are two controllers there.
SHARE: Final = "cpu"


def family() -> str:
    """What the names of all of this process's cgroups begin with."""
    return f"{PREFIX}{os.getpid()}-{start_ticks(os.getpid())}-"


def prefixes() -> list[str]:
    """What the paths of all of this process's cgroups begin with, if any can be made."""
    parents = {path for _, places in find_places() for path in places.values()}
    return sorted(f"{parent}/{family()}" for parent in parents)


def find_places(about: Path = OURSELVES) -> Iterator[tuple[int, dict[str, Path]]]:
    """Where this process could make cgroups: versions, best first, with a parent per controller.

    ``about`` has the files ``cgroup`` and ``mountinfo`` of this process.
    """
    try:
        directories = directories_of(about / "cgroup", about / "mountinfo")
    except FileNotFoundError:
        return  # a kernel without cgroups
    if "" in directories and (parent := _parent_v2(*directories[""])) is not None:
        more = [name for name in (PIDS, SHARE) if _hands_on(parent, name)]
        controllers = [MEMORY, CPU, *more]
        yield 2, dict.fromkeys(controllers, parent)
    every = (MEMORY, CPU, PIDS, SHARE)
    found = {name: directories[name][1] for name in every if name in directories}
    if found:
        yield 1, found


def directories_of(cgroups: Path, mounts: Path) -> dict[str, tuple[Path, Path]]:
    """For each controller where it is mounted, and the directory of the process in question.

    The one without a name is that of version 2.
    """
    own: dict[str, str] = {}
    for line in _lines(cgroups):
        if line:  # a kernel may have cgroups and nobody who has set them up
            _, names, path = line.split(":", 2)
            own.update(dict.fromkeys(names.split(","), path))
    directories: dict[str, tuple[Path, Path]] = {}
    for line in _lines(mounts):
        before, _, after = line.partition(" - ")
        kind = after.partition(" ")[0]
        if kind not in ("cgroup", "cgroup2"):
            continue  # others may have anything in their options, even spaces
        options = after.rpartition(" ")[2]
        root, mount = map(_unescape, before.split(" ")[3:5])
        controllers = [""] if kind == "cgroup2" else options.split(",")
        for controller in controllers:
            below = _below(root, own.get(controller))
            if below is not None:
                directories.setdefault(controller, (Path(mount), Path(mount, below)))
    return directories


def _lines(path: Path) -> list[str]:
    # Not `splitlines`: names may have other line breaks in them than the kernel's.
    return os.fsdecode(path.read_bytes()).removesuffix("\n").split("\n")


def _below(root: str, path: str | None) -> str | None:
    """``path`` as seen from ``root``. A mount may show another part of the hierarchy than ours."""
    root = root.rstrip("/")
    if path is None or ".." in path.split("/") or not f"{path}/".startswith(f"{root}/"):
        return None
    return path[len(root) :].lstrip("/")


def _parent_v2(mount: Path, own: Path) -> Path | None:
    """Own, if that hands the memory controller on to its children; else its parent if that does.

    Beside its own a sandbox is free of the limits that were set there. So only where there are none:
    in a systemd user session, say, but not in a service with ``MemoryMax``.
    """
    if _hands_on(own, MEMORY):
        return own
    if own != mount and _hands_on(own.parent, MEMORY) and not _is_limited(own):
        return own.parent
    return None


def _hands_on(path: Path, controller: str) -> bool:
    try:
        return controller in (path / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False  # hidden from us


def _is_limited(path: Path) -> bool:
    for name in ("memory.max", "memory.high", "cpu.max"):
        try:
            if not (path / name).read_text().startswith("max"):
                return True
        except OSError:
            continue  # without the controller there is no limit of this kind
    return False


def _unescape(path: str) -> str:
    """Mount points in ``mountinfo`` have spaces and the like as octal numbers."""
    head, *parts = path.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts)
