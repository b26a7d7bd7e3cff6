"""What of the visible is hidden: by which names it is seen inside, and how much of it can be hidden."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.text import printable

# Each is a mount of up to 6 arguments, of which bwrap takes 9,000.
MOST: Final = 500
_MOST_NAMED: Final = 10


def inside(paths: Iterable[Path], visible: Iterable[Path]) -> tuple[Path, ...]:
    """Those that can be seen inside, by each name that they have there, without those in others."""
    roots = [(root, os.path.realpath(root)) for root in visible]
    found: list[Path] = []
    for real in dict.fromkeys(map(os.path.realpath, paths)):
        for root, place in roots:
            if real == place or real.startswith(place.rstrip("/") + "/"):
                found.append(root / real[len(place) :].lstrip("/"))
    return tuple(without_nested(found))


def bounded(paths: Iterable[Path], notes: list[str]) -> list[Path]:
    """At most ``MOST`` of them: a folder that holds many of them is hidden instead."""
    found = list(paths)
    while len(found) > MOST:
        folder, _ = Counter(path.parent for path in found).most_common(1)[0]
        found = [*(path for path in found if not path.is_relative_to(folder)), folder]
        notes.append(f"{folder} holds too many credentials to hide one by one: hidden as a whole")
    return found


def without(visible: Iterable[Path], hidden: Collection[Path]) -> list[Path]:
    """What is visible but for what is hidden as a whole."""
    return [root for root in visible if not any(root.is_relative_to(path) for path in hidden)]


def without_nested(paths: Iterable[Path]) -> list[Path]:
    kept: dict[Path, None] = {}
    for path in sorted(set(paths), key=lambda path: len(path.parts)):
        if not any(parent in kept for parent in path.parents):
            kept[path] = None
    return list(kept)


def dispensable(found: Iterable[Path], needed: Collection[Path]) -> list[Path]:
    return [path for path in dict.fromkeys(found) if not holds(path, needed)]


def holds(path: Path, needed: Iterable[Path]) -> bool:
    return any(each.is_relative_to(path) for each in needed)


def listed(paths: Iterable[Path], folder: Path) -> str:
    """Their names for a note, those in ``folder`` without it; at most a few."""
    names = sorted(
        printable(str(path.relative_to(folder) if path.is_relative_to(folder) else path))
        for path in paths
    )
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def too_many(folder: Path) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"{folder} holds more files that look like credentials than can be hidden ({MOST}), and "
        "Python is in that folder.",
        hint=f"Move what only you may read, or what is called like a key, out of {folder}.",
    )
