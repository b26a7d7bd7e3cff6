"""Whose a container is: a label that tells a wrapper that lives from one that is gone."""

from __future__ import annotations

import os
from typing import Final

from sandbox_kernel.limits.files import read, start_ticks

OWNER: Final = "sandbox-kernel.wrapper"
MACHINE: Final = "/etc/machine-id"
BOOT: Final = "/proc/sys/kernel/random/boot_id"
_UNKNOWN: Final = "-"
_MACHINE_DIGITS: Final = 32


def owner_label(pid: int) -> str:
    """Who a process is: a pid means something in one pid namespace of one boot of one machine only."""
    return f"{_place()} {pid} {start_ticks(pid)}"


def is_abandoned(owner: str) -> bool:
    """Whether the process a label names has ended; ``False`` where that cannot be known."""
    process, _, start = owner.rpartition(" ")
    place, _, pid = process.rpartition(" ")
    if place != _place() or not (pid.isdecimal() and start.isdecimal()):
        return False
    started = start_ticks(int(pid))
    return _is_nobodys(int(pid)) if started is None else started != int(start)


def is_of_an_earlier_boot(owner: str) -> bool:
    """Whether a label is of this machine, but not of what runs since it was last started."""
    machine, _, rest = owner.partition(" ")
    boot, _, _ = rest.partition(" ")
    return machine == _machine() != _UNKNOWN and boot not in ("", _boot())


def _is_nobodys(pid: int) -> bool:
    """Whether there is no such process. One whose times are hidden (``hidepid``) is not gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # somebody else's
        return False
    return False


def _place() -> str:
    namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - called on every start
    return f"{_machine()} {_boot()} {namespace}"


def _machine() -> str:
    """Not known where nobody has given it an identity, as in most containers."""
    try:
        said = read(MACHINE).decode("ascii", "replace").strip()
    except OSError:
        return _UNKNOWN
    return said if len(said) == _MACHINE_DIGITS and said.isalnum() else _UNKNOWN


def _boot() -> str:
    return read(BOOT).decode().strip()
