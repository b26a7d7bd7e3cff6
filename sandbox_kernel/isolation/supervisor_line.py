"""What the supervisor says over the lifeline, as values: the one place that reads its lines.

A cell can reach the supervisor's desk and so have a part in what it says. A line is words and whole
numbers with one space between them; a number has at most 19 digits. Whatever else comes is nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

# What `waitpid` gives: an exit status or a signal.
MAX_WAIT_STATUS: Final = 0xFFFF
MAX_LOST: Final = 16
_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_LOST: Final = re.compile(r"([a-z]{1,16})=([0-9]{1,6})", re.ASCII)


class Clock(NamedTuple):
    """The time inside, in ticks since the boot."""

    ticks: int


class Exited(NamedTuple):
    """The kernel process has ended, with this status of ``waitpid``."""

    status: int


class Swept(NamedTuple):
    """What was ended by a sweep, and the threads of the kernel process that it left."""

    processes: int
    threads: int


class Checkpoints(NamedTuple):
    """How many there are in a row, and the last cell in the newest."""

    in_a_row: int
    label: int


class TookOver(NamedTuple):
    """A checkpoint is the kernel process now: the last cell in it, and how many of what it lacks."""

    label: int
    lost: Mapping[str, int]


class NothingToWake(NamedTuple):
    """There is no checkpoint to go back to."""


Line = Clock | Exited | Swept | Checkpoints | TookOver | NothingToWake

_OF_NUMBERS: Final[Mapping[str, tuple[int, Callable[..., Line]]]] = {
    "clock": (1, Clock),
    "exited": (1, Exited),
    "swept": (2, Swept),
    "checkpoints": (2, Checkpoints),
    "nothing": (0, NothingToWake),
}


def parse(line: bytes) -> Line | None:
    """The value of a line; ``None`` if it is none of the supervisor's."""
    try:
        word, *values = line.decode("ascii").split(" ")
    except UnicodeDecodeError:
        return None
    if word == "restored":
        return _took_over(values)
    count, make = _OF_NUMBERS.get(word, (-1, NothingToWake))
    if len(values) != count or not all(map(_NUMBER.fullmatch, values)):
        return None
    said = make(*map(int, values))
    if isinstance(said, Exited) and said.status > MAX_WAIT_STATUS:
        return None
    return said


def _took_over(values: list[str]) -> TookOver | None:
    if not values or not _NUMBER.fullmatch(values[0]) or len(values) > 1 + MAX_LOST:
        return None
    lost = [_LOST.fullmatch(each) for each in values[1:]]
    return TookOver(int(values[0]), {each[1]: int(each[2]) for each in lost if each is not None})
