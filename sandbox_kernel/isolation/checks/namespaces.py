"""Bubblewrap: is it there, may it make namespaces (it is tried), and what keeps it from that."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Final

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation import probe
from sandbox_kernel.isolation.checks.base import Check, Host, Ran, failed, run
from sandbox_kernel.isolation.process import NAMESPACES, find_bwrap, stand_in_for_root
from sandbox_kernel.isolation.seccomp import SeccompError, compile_profile
from sandbox_kernel.paths import policies_directory

BWRAP: Final = "bwrap"
USER_NAMESPACES: Final = "user namespaces"
_OLDEST: Final = (0, 8)
_VERSION: Final = re.compile(r"\b(\d+)\.(\d+)(?:\.\d+)*")


def check_namespaces(host: Host) -> list[Check]:
    tried = user_namespaces(host)
    return [bwrap(host), tried, *settings(host, tried)]


def bwrap(host: Host) -> Check:
    """Whether it is installed, and new enough."""
    try:
        path = find_bwrap(host.environ)
    except SandboxUnavailable as error:
        return failed(BWRAP, "missing", error)
    ran = run([path, "--version"], host)
    if ran.code is None:
        return Check(BWRAP, "unknown", f"{path} did not say its version in time")
    version = _VERSION.search(ran.said)
    if ran.code != 0 or version is None:
        fix = probe.bwrap_too_old("").hint
        return Check(BWRAP, "unknown", f"{path} says no version: {ran.said[:200]!r}", fix)
    if (int(version[1]), int(version[2])) < _OLDEST:
        return failed(BWRAP, "refused", probe.bwrap_too_old(f"{path} is {version[0]}."))
    return Check(BWRAP, "ok", f"{version[0]}, {path}")


def user_namespaces(host: Host) -> Check:
    """Whether a sandbox's namespaces can be made by the user that will make them."""
    uid = None
    if host.uid == 0:
        try:
            uid = stand_in_for_root(host.about)
        except SandboxUnavailable:
            return Check(USER_NAMESPACES, "unknown", "not tried: root cannot leave root, see there")
    by_unshare = run(["unshare", "--user", "--map-root-user", "true"], host, uid=uid)
    try:
        by_bwrap = _try_bwrap(find_bwrap(host.environ), host, uid)
    except SandboxUnavailable:
        return _judge_unshare(by_unshare, host)
    if by_bwrap.code == 0:
        who = "" if uid is None else f" as uid {uid}"
        return Check(USER_NAMESPACES, "ok", f"bwrap made all that a sandbox has{who}")
    if by_bwrap.code is None:
        fix = (
            "Look for what holds it up: the system's log, or `strace -f bwrap --ro-bind / / true`."
        )
        return Check(USER_NAMESPACES, "unknown", "bwrap did not end in time", fix)
    check = failed(USER_NAMESPACES, "refused", probe.explain_bwrap(by_bwrap.said, host.setting))
    others = "can" if by_unshare.code == 0 else "cannot either"
    return Check(check.name, check.status, f"{check.found} `unshare` {others}.", check.fix)


def _judge_unshare(ran: Ran, host: Host) -> Check:
    """Without bwrap it is the next best to ask."""
    if ran.code == 0:
        return Check(USER_NAMESPACES, "ok", "`unshare` can make them")
    if ran.code in (None, 127):
        return Check(USER_NAMESPACES, "unknown", "not tried: neither bwrap nor unshare would do it")
    refused = probe.namespaces_refused(f"unshare said: {ran.said[-200:]!r}.", host.setting)
    return failed(USER_NAMESPACES, "refused", refused)


def _try_bwrap(path: str, host: Host, uid: int | None) -> Ran:
    """All that a sandbox has, for the shortest program there is."""
    with contextlib.ExitStack() as stack:
        # By descriptor, as a sandbox's: another uid may not reach it by its path.
        program_file = os.open(path, os.O_PATH)
        stack.callback(os.close, program_file)
        filtered, descriptors = [], [program_file]
        with contextlib.suppress(SeccompError, OSError):  # which has a check of its own
            program = compile_profile((policies_directory() / "seccomp.json").read_bytes())
            seccomp = os.memfd_create("seccomp")
            stack.callback(os.close, seccomp)
            os.write(seccomp, program)
            os.lseek(seccomp, 0, os.SEEK_SET)
            filtered, descriptors = ["--seccomp", str(seccomp)], [program_file, seccomp]
        command = [
            *(path, *NAMESPACES, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
            *("--perms", "1777", "--size", "4096", "--tmpfs", "/tmp"),
            *(*filtered, "--", "true"),
        ]
        executable = f"/proc/self/fd/{program_file}"
        return run(command, host, uid=uid, executable=executable, pass_fds=descriptors)


def settings(host: Host, tried: Check) -> list[Check]:
    """What the kernel is told about namespaces; if bwrap works all the same, it is no obstacle."""
    checks = []
    for obstacle in probe.OBSTACLES:
        value, name = host.setting(obstacle.setting), obstacle.setting.replace("/", ".")
        if value != obstacle.value:
            said = f"{name} is {value}" if value is not None else f"no {name} here"
            checks.append(Check(obstacle.name, "ok", said))
        elif tried.status == "ok":
            said = f"{name} is {value}, but bwrap is let through"
            checks.append(Check(obstacle.name, "ok", said))
        else:
            checks.append(failed(obstacle.name, "refused", obstacle.explain("")))
    return checks
