"""Why a sandbox could not start on this host, and the one thing to do about it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from sandbox_kernel.errors import SandboxUnavailable

_SYSCTL: Final = Path("/proc/sys")
_SAID_LIMIT: Final = 600


def read_sysctl(name: str, settings: Path = _SYSCTL) -> str | None:
    """A kernel setting's value, or ``None`` where this kernel does not have it."""
    try:
        return (settings / name).read_text().strip()
    except OSError:
        return None


def bwrap_missing() -> SandboxUnavailable:
    return SandboxUnavailable(
        "bubblewrap (`bwrap`) is not installed, and cells never run without isolation.",
        hint="Install it: `apt-get install bubblewrap` (Debian, Ubuntu) or "
        "`dnf install bubblewrap` (Fedora, RHEL); then run the cell again.",
        missing=True,
    )


def root_without_privileges() -> SandboxUnavailable:
    return SandboxUnavailable(
        "The kernel runs as root but may not create mounts (no CAP_SYS_ADMIN, as in most "
        "containers), so it cannot change to an unprivileged user inside the sandbox.",
        hint="Start Jupyter as an ordinary user, or give the container CAP_SYS_ADMIN.",
    )


def root_of_a_lone_namespace() -> SandboxUnavailable:
    return SandboxUnavailable(
        "The kernel runs as root of a user namespace without a second user id to change to.",
        hint="Start Jupyter as an ordinary user, or map more ids (`/etc/subuid`).",
    )


def root_cannot_change_user() -> SandboxUnavailable:
    return SandboxUnavailable(
        "The kernel runs as root but may not become another user (CAP_SETUID, CAP_SETGID, CAP_CHOWN "
        "and CAP_KILL), and cells never run as root.",
        hint="Start Jupyter as an ordinary user, or give the container these capabilities.",
        missing=True,
    )


def environment_closed(place: Path) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The kernel runs as root, cells never do, and another user cannot use this Python: {place} "
        "is closed to others.",
        hint="Install sandbox-kernel and its Python where every user may read them (below /opt or /usr/local, "
        "say), or start Jupyter as an ordinary user.",
        missing=True,
    )


def bwrap_too_old(quoted: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The installed bubblewrap is too old. {quoted}",
        hint="Install bubblewrap 0.8 or newer.",
    )


def home_not_writable(place: Path, reason: str | None) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The run directory under {place} cannot be made: {reason}.",
        hint="Make it writable, or set SANDBOX_KERNEL_HOME to a directory that is.",
    )


def filter_impossible(error: Exception) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The system call filter cannot be made: {error}.",
        hint="Install libseccomp (`apt-get install libseccomp2`) and sandbox-kernel again.",
    )


def cpus_not_held(why: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The policy's `limits.cpus` cannot be held here: {why}.",
        hint="Leave it out of the policy; or start Jupyter where a cgroup with the cpu controller can "
        "be made (`sandbox-kernel doctor` shows which can), or use a level that has one.",
    )


def not_measurable(engine: str, why: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The processes of {engine}'s containers cannot be seen from here, so nothing would hold "
        "cells to their limits: the engine, or Jupyter, runs in a container or machine of its own. Nor "
        f"can the engine's statistics be used: {why}.",
        hint="Use an engine that runs beside Jupyter, in the same pid namespace (`--pid=host`); or "
        "the level `process`.",
    )


def proc_is_masked(quoted: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"bubblewrap may not mount /proc, as in a container whose own /proc has hidden parts. {quoted}",
        hint="Start the container with `--security-opt systempaths=unconfined` (Docker) or "
        "`--security-opt unmask=ALL` (Podman).",
    )


def explain_bwrap(
    said: str, setting: Callable[[str], str | None] = read_sysctl
) -> SandboxUnavailable:
    """Turn what bwrap printed, and the host's settings, into a cause and a fix."""
    said = "".join(c if c.isprintable() else " " for c in said[-_SAID_LIMIT:]).strip()
    quoted = f"bwrap said: {said!r}." if said else "bwrap said nothing."
    # Once bwrap has done its part, what is printed comes from inside and proves nothing about it.
    lowered = said.lower() if said.startswith("bwrap:") else ""
    if "unknown option" in lowered:
        return bwrap_too_old(quoted)
    if "(enospc)" in lowered:
        return no_namespaces_left(quoted)
    if "mount proc" in lowered:
        return proc_is_masked(quoted)
    if "namespace" in lowered or "uid map" in lowered or "permission" in lowered:
        return namespaces_refused(quoted, setting)
    return SandboxUnavailable(
        f"The sandbox ended before its kernel was ready. {quoted}",
        hint="If the message names a Python module, mend that installation (`pip check`); "
        "then run the cell again.",
    )


def descent_failed(error: Exception) -> SandboxUnavailable:
    """Root could not prepare the sandbox's view or change to another user."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        # What the kernel says when user.max_user_namespaces is used up.
        return no_namespaces_left()
    return SandboxUnavailable(
        f"Root could not hand the visible files to an unprivileged user: {error}.",
        hint="This needs Linux 5.12 or newer; or start Jupyter as an ordinary user.",
    )


def namespaces_switched_off(quoted: str = "") -> SandboxUnavailable:
    return SandboxUnavailable(
        f"Unprivileged user namespaces are switched off on this host. {quoted}",
        hint="As root: `sysctl -w kernel.unprivileged_userns_clone=1`.",
    )


def no_namespaces_left(quoted: str = "") -> SandboxUnavailable:
    return SandboxUnavailable(
        "This host allows no more user namespaces (user.max_user_namespaces is 0 or used up). "
        f"{quoted}",
        hint="As root: `sysctl -w user.max_user_namespaces=15000`.",
    )


def apparmor_forbids_namespaces(quoted: str = "") -> SandboxUnavailable:
    return SandboxUnavailable(
        f"AppArmor forbids unprivileged user namespaces (Ubuntu's default). {quoted}",
        hint="As root, let bwrap use them: put `abi <abi/4.0>, include <tunables/global> "
        "profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }` in "
        "/etc/apparmor.d/bwrap and run `apparmor_parser -r /etc/apparmor.d/bwrap`.",
    )


class Obstacle(NamedTuple):
    """A kernel setting that keeps bubblewrap from making namespaces while it has this value."""

    name: str
    setting: str
    value: str
    explain: Callable[[str], SandboxUnavailable]


OBSTACLES: Final = (
    Obstacle("namespace switch", "kernel/unprivileged_userns_clone", "0", namespaces_switched_off),
    Obstacle("namespace number", "user/max_user_namespaces", "0", no_namespaces_left),
    Obstacle(
        "AppArmor",
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        apparmor_forbids_namespaces,
    ),
)


def namespaces_refused(quoted: str, setting: Callable[[str], str | None]) -> SandboxUnavailable:
    for obstacle in OBSTACLES:
        if setting(obstacle.setting) == obstacle.value:
            return obstacle.explain(quoted)
    return SandboxUnavailable(
        f"bubblewrap may not create namespaces here. {quoted}",
        hint="Inside a container, allow user namespaces (a seccomp profile that permits "
        "`unshare` and `clone`); elsewhere ask the administrator to enable them.",
    )
