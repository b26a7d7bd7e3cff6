from __future__ import annotations

import pytest

from sandbox_kernel.isolation.probe import explain_bwrap

NO_NAMESPACES = "bwrap: No permissions to create new namespace"


@pytest.mark.parametrize(
    ("settings", "cause", "fix"),
    [
        ({"kernel/unprivileged_userns_clone": "0"}, "switched off", "unprivileged_userns_clone=1"),
        (
            {"user/max_user_namespaces": "0"},
            "max_user_namespaces is 0",
            "max_user_namespaces=15000",
        ),
        (
            {"kernel/apparmor_restrict_unprivileged_userns": "1"},
            "AppArmor",
            "/etc/apparmor.d/bwrap",
        ),
        ({}, "may not create namespaces", "seccomp"),
    ],
)
def test_the_cause_and_the_fix_are_named(settings: dict[str, str], cause: str, fix: str) -> None:
    error = explain_bwrap(NO_NAMESPACES, settings.get)
    assert cause in error.what
    assert fix in error.hint
    assert NO_NAMESPACES in error.what


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        (
            "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces "
            "exceeded (ENOSPC)",
            "max_user_namespaces=15000",
        ),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths"),
        ("bwrap: Unknown option --size", "0.8 or newer"),
    ],
)
def test_what_bwrap_says_outright_needs_no_setting(said: str, fix: str) -> None:
    assert fix in explain_bwrap(said, {}.get).hint


def test_what_comes_from_inside_is_not_taken_for_bwraps_word() -> None:
    error = explain_bwrap("ImportError: no namespace package", {}.get)
    assert "before its kernel was ready" in error.what


def test_control_characters_are_not_passed_on() -> None:
    assert "\x1b" not in str(explain_bwrap("bwrap: \x1b[31mred\x07", {}.get))
