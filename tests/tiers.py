"""How much of the suite runs: `push` for every change, `full` with all repetitions and a new seed.

`make test` runs `push`: each test at each level that it guards, with few repetitions and a fixed seed.
`make test-full` runs everything. ``tiers.toml`` lists what `push` leaves to `full`, each with its reason.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

FULL: Final = os.environ.get("SANDBOX_KERNEL_TIER", "push") == "full"
# `make test-full` draws a new one; the report's header shows it, so that a failure can be repeated.
SEED: Final = int(os.environ.get("SANDBOX_KERNEL_SEED", "20261116"))
# The ids of a test that is its own repetition: `full` has more of them, `push` the first.
REPETITION: Final = "repetition{}".format
LISTED: Final = Path(__file__).with_name("tiers.toml")


@dataclass(frozen=True)
class FullOnly:
    """Tests that `push` leaves out: patterns of node ids below ``tests/``, at some levels or at all."""

    tests: tuple[str, ...]
    reason: str
    levels: tuple[str, ...] = ()

    def has(self, node_id: str, level: str | None) -> bool:
        name = node_id.removeprefix("tests/")
        at_level = not self.levels or level in self.levels
        return at_level and any(fnmatchcase(name, pattern) for pattern in self.tests)


def full_only(path: Path = LISTED) -> Sequence[FullOnly]:
    entries = tomllib.loads(path.read_text())["full_only"]
    return [
        FullOnly(tuple(entry["tests"]), entry["reason"], tuple(entry.get("levels", ())))
        for entry in entries
    ]


def repetitions(level: str, whole: int) -> int:
    """How often a test repeats its attempt: in `full` all of them at `process` and a tenth elsewhere."""
    if FULL:
        return whole if level == "process" else max(2, whole // 10)
    return min(whole, 1)


def sample(whole: Sequence[T], every: int) -> Sequence[T]:
    """Of a corpus, all in `full` and one of ``every`` so many for every change."""
    return whole if FULL else whole[::every]


def rounds(whole: int, push: int) -> int:
    """How many rounds of fuzzing, kills or faults: ``whole`` in `full`, ``push`` for every change."""
    return whole if FULL else push
