"""The small files of ``/proc`` and of cgroups, for what is read before the sandbox starts too."""

from __future__ import annotations

import os


def read(path: str) -> bytes:
    """All of it; raises ``OSError`` when the process or cgroup it is about is gone."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = part = os.read(descriptor, 16384)
        while len(part) > 2048:  # one call gives no more than about a page: there may be more
            part = os.read(descriptor, 65536)
            data += part
        return data
    finally:
        os.close(descriptor)


def stat_fields(pid: int | str) -> list[bytes]:
    """``/proc/PID/stat`` (of a thread ``PID/task/TID``) from the state on; raises ``OSError``.

    Before it is the name, raw and chosen by the process: parentheses, line breaks and all.
    """
    return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def start_ticks(pid: int) -> int | None:
    """When it started, in ticks since boot: with its pid, a process's identity until the next boot."""
    try:
        return int(stat_fields(pid)[19])
    except OSError:
        return None


def write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
