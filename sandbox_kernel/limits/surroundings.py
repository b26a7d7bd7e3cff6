"""The last net where no cgroup counts a sandbox: memory that grows around it while it runs.

``tree`` adds up what can be attributed to a sandbox. Cells find places that nobody can attribute: a file
without a name that is on its way over a socket, shared memory that is mapped but not resident, kernel
objects. All of it shows in the host's own totals, though, and in those of a cgroup that the wrapper is in
(a container's, say). So what these gain while the sandbox runs, and what nothing explains, is taken to be
the sandbox's.

Other programs take memory at the same time, and must not get a cell stopped. Hence:

- Only kinds of memory count that a cell can hide: shared memory and what the kernel cannot take back.
  Anonymous memory, which is most of what programs take, is always some process's and is left out, and so
  is page cache. ``MemAvailable`` would have both in it.
- If there are several totals, the one that has gained least counts.
- What file systems in memory hold explains itself: the host's own, and, before anything is decided, those
  of other sandboxes and containers that can be looked into.
- It counts only for as long as the sandbox runs, and only beyond the limit and ``SLACK_BYTES``.

What is left: another program that takes shared memory or kernel memory of more than a cell's limit while
that cell runs, out of sight. The error says what was seen, and that this was the reason.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sandbox_kernel.limits.cgroup import KERNEL_PARTS
from sandbox_kernel.limits.cgroup_places import MEMORY, OURSELVES, directories_of
from sandbox_kernel.limits.files import read
from sandbox_kernel.limits.tree import free_again, tmpfs_held

# Noise: kernel objects of the sandbox's processes, and of others that come and go.
SLACK_BYTES: Final = 64 << 20
_KIBIBYTE: Final = 1024
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MEMINFO, _ZONEINFO = "/proc/meminfo", "/proc/zoneinfo"
_AT_HAND: Final = re.compile(rb"\n +count: +(\d+)")
# The host's file systems in memory that programs commonly write to.
_HOSTS_PLACES: Final = ("/dev/shm", "/tmp", "/run", "/var/tmp")
_TMPFS: Final = b"tmpfs"
# Page cache and reclaimable slabs, anonymous memory, free pages.
_ATTRIBUTED: Final = (
    *(b"MemFree", b"AnonPages", b"Buffers", b"Cached", b"SwapCached", b"SReclaimable"),
)


class Held(NamedTuple):
    """Memory that no process has as its own: by each total, and what of it the host's files explain."""

    totals: tuple[int, ...]
    files: int

    def gained_since(self, before: Held) -> int:
        gained = min(now - then for now, then in zip(self.totals, before.totals, strict=True))
        return gained - max(0, self.files - before.files)


NOTHING_HELD: Final = Held((0,), 0)


class Surroundings:
    """Totals around a sandbox: the host's, and those of the cgroup that this process is in."""

    def __init__(
        self, about: Path = OURSELVES, meminfo: str = _MEMINFO, zoneinfo: str = _ZONEINFO
    ) -> None:
        self._meminfo, self._zoneinfo = meminfo, zoneinfo
        self._cgroup = _enclosing_cgroup(about)
        self._hosts_files = tuple(_tmpfs_of(about))

    def read(self) -> Held:
        totals = [host_held(self._meminfo, self._zoneinfo)]
        if self._cgroup is not None:
            try:
                totals.append(cgroup_held(self._cgroup))
            except OSError:
                # It is gone, or closed to us. Never fewer totals than before: they are compared.
                totals.append(totals[0])
        return Held(tuple(totals), sum(map(_used_bytes, self._hosts_files)))

    def neighbours_bytes(self, own: Collection[int]) -> int:
        """What file systems in memory of other mount namespaces hold; ``own`` processes do not count.

        Costly, so only asked for when a decision depends on it. It is all that they hold, not what they
        have gained: rather too much is explained than a cell blamed.
        """
        seen = {_namespace(os.getpid()), *map(_namespace, own)}
        total = 0
        for name in os.listdir("/proc"):  # noqa: PTH208 - see `proc`
            if name.isdecimal() and (namespace := _namespace(int(name))) not in seen:
                seen.add(namespace)
                total += tmpfs_held(f"/proc/{name}/root").bytes
        return total


class Unseen:
    """What a sandbox holds that cannot be attributed to it, as it adds up from look to look."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._held = surroundings.read()
        self._measured = 0
        self._bytes = 0
        self._neighbours_bytes = 0
        self._neighbours_free_at = 0.0

    def look(self, measured: int, own: Collection[int], *, ran: bool) -> int:
        """How much it is now, beyond noise and what neighbours may have.

        ``measured``: what is known of the sandbox, which has the processes ``own``; ``ran``: whether it
        has, since the last look. One that sleeps takes nothing. What is freed counts in any case.
        """
        held = self._surroundings.read()
        gained = held.gained_since(self._held) - (measured - self._measured)
        self._held, self._measured = held, measured
        if ran or gained < 0:
            # What was measured some time ago may be freed already: then the totals fall before it does.
            self._bytes = max(-measured, self._bytes + gained)
        if self._bytes <= SLACK_BYTES:
            return 0
        if time.monotonic() >= self._neighbours_free_at:
            spent = time.thread_time()
            self._neighbours_bytes = self._surroundings.neighbours_bytes(own)
            self._neighbours_free_at = free_again(time.thread_time() - spent)
        return max(0, self._bytes - SLACK_BYTES - self._neighbours_bytes)


def host_held(meminfo: str = _MEMINFO, zoneinfo: str = _ZONEINFO) -> int:
    """Shared memory, and what the kernel holds and cannot take back: all but what is attributed.

    Some of it, pages in the buffers of pipes and sockets, is in no line of its own. Free pages that each
    processor has at hand, hundreds of megabytes at times, are not in ``MemFree``.
    """
    values = {}
    for line in read(meminfo).splitlines():
        name, _, value = line.partition(b":")
        values[name] = int(value.split()[0]) * _KIBIBYTE
    attributed = _at_hand(zoneinfo) + sum(values.get(name, 0) for name in _ATTRIBUTED)
    return values[b"MemTotal"] - attributed + values.get(b"Shmem", 0)  # which is in Cached


def _at_hand(zoneinfo: str) -> int:
    try:
        return sum(map(int, _AT_HAND.findall(read(zoneinfo)))) * _PAGE_BYTES
    except OSError:
        return 0  # a host that hides it


def cgroup_held(directory: Path) -> int:
    """The same of a cgroup and all below it, either version."""
    stat = {}
    for line in read(f"{directory}/memory.stat").splitlines():
        name, _, value = line.partition(b" ")
        stat[name] = int(value)
    if b"total_shmem" in stat:  # version 1
        kernel = sum(
            int(read(f"{directory}/memory.kmem.{part}usage_in_bytes")) for part in ("", "tcp.")
        )
        return stat[b"total_shmem"] + kernel
    kernel = stat.get(b"kernel", -1)
    if kernel >= 0:
        kernel += stat.get(b"sock", 0)
    else:
        kernel = sum(stat.get(part, 0) for part in KERNEL_PARTS)
    return stat.get(b"shmem", 0) + kernel - stat.get(b"slab_reclaimable", 0)


def _enclosing_cgroup(about: Path) -> Path | None:
    """The one that this process is in, and so every sandbox that has none of its own."""
    try:
        directories = directories_of(about / "cgroup", about / "mountinfo")
    except OSError:
        return None
    for name in ("", MEMORY):
        if name in directories:
            directory = directories[name][1]
            try:
                cgroup_held(directory)
            except (OSError, ValueError):
                continue  # without the memory controller, or not to be read
            return directory
    return None


def _tmpfs_of(about: Path) -> Iterator[str]:
    for line in read(f"{about}/mountinfo").splitlines():
        fields, _, source = line.partition(b" - ")
        place = os.fsdecode(fields.split()[4])
        if source.split()[0] == _TMPFS and place in _HOSTS_PLACES:
            yield place


def _used_bytes(place: str) -> int:
    try:
        about = os.statvfs(place)
    except OSError:
        return 0  # unmounted by now
    return (about.f_blocks - about.f_bfree) * about.f_frsize


def _namespace(pid: int) -> str:
    """Which mount namespace a process is in; nothing if it has ended or is not ours to look into."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115 - see `proc`
    except OSError:
        return ""
