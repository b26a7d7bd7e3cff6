"""What the Linux kernel can hold a sandbox with: system call filters, Landlock."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sandbox_kernel.isolation import probe
from sandbox_kernel.isolation.checks.base import Check, Host, failed
from sandbox_kernel.isolation.landlock import ask_version
from sandbox_kernel.isolation.seccomp import SeccompError, compile_profile
from sandbox_kernel.paths import policies_directory
from sandbox_kernel.words import count

SECCOMP: Final = "seccomp"
FILTER: Final = "system call filter"
LANDLOCK: Final = "Landlock"
# What the compiled profile does with a call.
_ACTIONS: Final = ("allow", "errno", "kill_process")
_INSTRUCTION_BYTES: Final = 8


def check_kernel(host: Host) -> list[Check]:
    return [seccomp(host), system_call_filter(policies_directory() / "seccomp.json"), landlock()]


def seccomp(host: Host) -> Check:
    """Whether the kernel has the actions that the profile asks for."""
    fix = "Use a kernel that is built with CONFIG_SECCOMP_FILTER, Linux 5.3 or newer."
    available = host.setting("kernel/seccomp/actions_avail")
    if available is None:
        return Check(SECCOMP, "missing", "this kernel tells of no system call filters", fix)
    lacking = [action for action in _ACTIONS if action not in available.split()]
    if lacking:
        return Check(SECCOMP, "missing", f"this kernel has no {', '.join(lacking)}", fix)
    return Check(SECCOMP, "ok", f"actions {available}")


def system_call_filter(profile: Path) -> Check:
    """Whether libseccomp can be loaded, and makes a program of the profile."""
    try:
        program = compile_profile(profile.read_bytes())
    except (SeccompError, OSError) as error:
        return failed(FILTER, "missing", probe.filter_impossible(error))
    return Check(FILTER, "ok", count(len(program) // _INSTRUCTION_BYTES, "instruction"))


def landlock(ask: Callable[[], int] = ask_version) -> Check:
    """Which version of Landlock the kernel has. No level needs it; `restricted` is weaker without."""
    try:
        return Check(LANDLOCK, "ok", f"version {ask()} of its interface")
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            found = "switched off when the kernel started; no level needs it"
            fix = "Add `landlock` to `lsm=` of the kernel's command line, if you want it."
            return Check(LANDLOCK, "refused", found, fix)
        return Check(LANDLOCK, "missing", f"not there ({error.strerror}); no level needs it")
