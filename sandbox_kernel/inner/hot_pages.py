"""The memory that every cell writes to, copied ahead of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MADV_POPULATE_WRITE = 23  # Linux 5.14; older ones say that they do not know it
# An entry of /proc/self/pagemap: in memory, not of a file, mapped by nobody else.
ENTRY_BYTES = 8
EXCLUSIVE = 1 << 63 | 1 << 56
# Large areas are the user's data, and reading about them takes long.
MAX_AREA_PAGES = 1 << 14
MAX_HOT_PAGES = 1 << 12
MAX_GAP_PAGES = 1
PAGES_AT_ONCE = 256
LESSONS = (2, 8)
LESSON_INTERVAL = 64


class HotPages:
    """Memory that every cell writes to, were it only to count references.

    After a fork each of these pages is copied at the first write, and a cell of one line writes to
    well over a thousand. Between cells they are copied ahead, a few at a time.
    """

    def __init__(self) -> None:
        self._madvise = ctypes.CDLL(None).madvise
        self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        # Without it (gVisor has none) nothing is learned, and so nothing copied ahead.
        self._can_learn = os.path.exists("/proc/self/pagemap")
        self._runs: list[tuple[int, int]] = []
        self._to_copy: list[tuple[int, int]] = []
        self._cells = 0

    def learn(self) -> None:
        """After a cell: what has been copied since the fork is what cells write to."""
        if self._is_lesson:
            with contextlib.suppress(OSError):  # cells have all the descriptors: another time
                self._runs = runs(islice(written_pages(), MAX_HOT_PAGES))
        self._cells += 1

    @property
    def _is_lesson(self) -> bool:
        is_due = self._cells in LESSONS or self._cells % LESSON_INTERVAL == 0
        return self._can_learn and is_due

    def begin(self) -> None:
        """After a fork: all of it is to be copied, but where that would spoil a lesson."""
        self._to_copy = [] if self._is_lesson else self._runs.copy()

    def stop(self) -> None:
        """A cell begins: it copies what it needs itself."""
        self._to_copy.clear()

    def copy_some(self) -> bool:
        """Copy for a millisecond or so; whether there is more."""
        left = PAGES_AT_ONCE
        while self._to_copy and left > 0:
            first, count = self._to_copy.pop()
            # Memory that was freed meanwhile gives an error, which is no matter.
            self._madvise(first * PAGE_BYTES, count * PAGE_BYTES, MADV_POPULATE_WRITE)
            left -= count
        return bool(self._to_copy)


def written_pages() -> Iterator[int]:
    """Numbers of the anonymous pages that are this process's alone."""
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", 0) as pagemap:
        for line in maps.read().splitlines():
            addresses, permissions, *_ = line.split(maxsplit=2)
            first, end = (int(address, 16) // PAGE_BYTES for address in addresses.split("-"))
            if permissions[1] != "w" or permissions[3] != "p" or end - first > MAX_AREA_PAGES:
                continue
            pagemap.seek(first * ENTRY_BYTES)
            entries = array("Q", pagemap.read((end - first) * ENTRY_BYTES))
            for number, entry in enumerate(entries, first):
                if entry & EXCLUSIVE == EXCLUSIVE:
                    yield number


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Where consecutive numbers begin, and how many there are."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number <= sum(found[-1]) + MAX_GAP_PAGES:
            first, _ = found[-1]
            found[-1] = (first, number - first + 1)
        else:
            found.append((number, 1))
    return found
