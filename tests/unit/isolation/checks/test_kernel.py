from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sandbox_kernel.isolation.checks.kernel import landlock, seccomp, system_call_filter
from sandbox_kernel.paths import policies_directory
from tests.unit.isolation.checks.hosts import made_up, real

ACTIONS = "kernel/seccomp/actions_avail"


def test_this_kernel_has_what_the_profile_needs() -> None:
    check = seccomp(real())
    assert check.status == "ok"
    assert "kill_process" in check.found


def test_a_kernel_without_filters_is_named(tmp_path: Path) -> None:
    check = seccomp(made_up(tmp_path))
    assert check.status == "missing"
    assert "CONFIG_SECCOMP_FILTER" in str(check.fix)


def test_an_action_that_the_kernel_lacks_is_named(tmp_path: Path) -> None:
    check = seccomp(made_up(tmp_path, {ACTIONS: "kill_thread trap errno trace allow"}))
    assert check.status == "missing"
    assert "kill_process" in check.found


def test_the_shipped_profile_compiles() -> None:
    check = system_call_filter(policies_directory() / "seccomp.json")
    assert check.status == "ok"
    assert "instructions" in check.found


@pytest.mark.parametrize("content", [None, "{}", "not JSON"])
def test_a_profile_that_cannot_be_used_is_missing(tmp_path: Path, content: str | None) -> None:
    profile = tmp_path / "seccomp.json"
    if content is not None:
        profile.write_text(content)
    check = system_call_filter(profile)
    assert check.status == "missing"
    assert "libseccomp" in str(check.fix)


def test_landlock_of_this_kernel_is_asked_for_real() -> None:
    check = landlock()
    # Whatever it answers, it must be one of the three that a kernel can give.
    assert check.status in ("ok", "missing", "refused")
    listed = Path("/sys/kernel/security/lsm")
    if listed.exists():
        assert ("landlock" in listed.read_text()) == (check.status == "ok")


@pytest.mark.parametrize(
    ("code", "status"), [(errno.ENOSYS, "missing"), (errno.EOPNOTSUPP, "refused")]
)
def test_a_kernel_without_landlock_is_told_from_one_that_has_it_off(code: int, status: str) -> None:
    def ask() -> int:
        raise OSError(code, os.strerror(code))

    check = landlock(ask)
    assert check.status == status
    assert "no level needs it" in check.found
