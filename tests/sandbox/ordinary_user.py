"""An ordinary user for root's tests: a uid without an account, and what it must be able to reach."""

from __future__ import annotations

import os
from pathlib import Path

# One for each worker: what Linux counts per user is theirs alone, and some tests use all of it.
UID = 54_321 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
REPOSITORY = Path(__file__).parents[2]


def reachable(paths: list[Path]) -> list[str]:
    """bwrap arguments that let anybody reach `paths`, though they may lie in root's own folders."""
    arguments, opened = [], set()
    for path in paths:
        closed = [parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001]
        if not closed:
            continue
        if closed[0] not in opened:
            opened.add(closed[0])
            arguments += ["--perms", "0755", "--tmpfs", str(closed[0])]
        for parent in reversed(path.parents):
            if parent.is_relative_to(closed[0]) and parent != closed[0]:
                arguments += ["--perms", "0755", "--dir", str(parent)]
        arguments += ["--ro-bind", str(path), str(path)]
    return arguments
