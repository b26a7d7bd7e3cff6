from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sandbox_kernel.isolation import probe
from sandbox_kernel.isolation.checks.base import Check
from sandbox_kernel.isolation.checks.namespaces import (
    USER_NAMESPACES,
    bwrap,
    check_namespaces,
    settings,
    user_namespaces,
)
from tests.unit.isolation.checks.hosts import made_up, program, real

REFUSED = Check(USER_NAMESPACES, "refused", "", "")
WORKS = Check(USER_NAMESPACES, "ok", "")


# bwrap


@pytest.mark.process
def test_on_this_machine_bwrap_is_found_and_makes_namespaces() -> None:
    found, tried, *rest = check_namespaces(real())
    assert found.status == "ok", found
    assert str(shutil.which("bwrap")) in found.found
    assert tried.status == "ok", tried
    assert {check.status for check in rest} == {"ok"}


def test_bwrap_that_is_not_there_is_missing_with_what_to_install(tmp_path: Path) -> None:
    check = bwrap(made_up(tmp_path))
    assert check.status == "missing"
    assert check.fix == probe.bwrap_missing().hint


def test_a_bwrap_in_a_relative_part_of_the_path_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "bwrap", "echo bubblewrap 0.9.0")
    monkeypatch.chdir(tmp_path)
    assert bwrap(made_up(tmp_path, environ={"PATH": "bin"})).status == "missing"
    assert bwrap(made_up(tmp_path)).status == "ok"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("bubblewrap 0.8.0", "ok"),
        ("bubblewrap 0.11.0", "ok"),
        ("bubblewrap 1.0", "ok"),
        ("bubblewrap 0.7.0", "refused"),
        ("bubblewrap 0.4.1", "refused"),
        ("hello", "unknown"),
    ],
)
def test_bwraps_version_is_read(tmp_path: Path, said: str, status: str) -> None:
    program(tmp_path, "bwrap", f"echo {said}")
    check = bwrap(made_up(tmp_path))
    assert check.status == status
    assert said.removeprefix("bubblewrap ") in check.found
    assert (check.fix is None) == (status == "ok")


def test_a_bwrap_that_hangs_is_unknown(tmp_path: Path) -> None:
    program(tmp_path, "bwrap", "sleep 1000")
    host = made_up(tmp_path, timeout_seconds=0.5)
    assert bwrap(host).status == "unknown"
    assert user_namespaces(host).status == "unknown"


# the attempt


@pytest.mark.parametrize(
    ("values", "fix"),
    [
        ({"kernel/unprivileged_userns_clone": "0"}, "unprivileged_userns_clone=1"),
        ({"user/max_user_namespaces": "0"}, "max_user_namespaces=15000"),
        ({"kernel/apparmor_restrict_unprivileged_userns": "1"}, "apparmor_parser"),
        ({}, "seccomp profile"),
    ],
)
def test_a_refusal_is_explained_by_the_hosts_settings(
    tmp_path: Path, values: dict[str, str], fix: str
) -> None:
    program(tmp_path, "bwrap", "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    check = user_namespaces(made_up(tmp_path, values))
    assert check.status == "refused"
    assert "No permissions" in check.found
    assert fix in str(check.fix)


def test_a_masked_proc_is_named(tmp_path: Path) -> None:
    said = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted"
    program(tmp_path, "bwrap", f'echo "{said}" >&2; exit 1')
    assert "systempaths=unconfined" in str(user_namespaces(made_up(tmp_path)).fix)


def test_root_that_cannot_leave_root_does_not_try_as_root(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    program(tmp_path, "bwrap", f"touch {witness}")
    host = made_up(tmp_path, uid=0)
    (host.about / "status").write_text("CapEff:\t0000000000000000\n")
    assert user_namespaces(host).status == "unknown"
    assert not witness.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="root's own")
def test_root_tries_as_the_user_that_sandboxes_run_as(tmp_path: Path) -> None:
    # What root may do says nothing of what that user may.
    program(tmp_path, "bwrap", 'echo "bwrap: I am $(id -u), $(id -G)"; exit 1')
    found = user_namespaces(made_up(tmp_path)).found
    assert "I am 19" in found
    assert "I am 0" not in found


@pytest.mark.process
def test_without_bwrap_unshare_tells(tmp_path: Path) -> None:
    check = user_namespaces(made_up(tmp_path))
    assert check.status == "ok"
    assert "unshare" in check.found


# settings


def test_a_kernel_without_the_settings_has_no_obstacle(tmp_path: Path) -> None:
    assert {check.status for check in settings(made_up(tmp_path), REFUSED)} == {"ok"}


@pytest.mark.parametrize("obstacle", probe.OBSTACLES)
def test_a_setting_is_an_obstacle_only_if_bwrap_is_refused(
    tmp_path: Path, obstacle: probe.Obstacle
) -> None:
    host = made_up(tmp_path, {obstacle.setting: obstacle.value})
    (found,) = [check for check in settings(host, REFUSED) if check.status != "ok"]
    assert found.name == obstacle.name
    assert found.status == "refused"
    assert found.fix == obstacle.explain("").hint
    # A setuid bwrap, or one with an AppArmor profile of its own.
    let_through = {check.name: check for check in settings(host, WORKS)}[obstacle.name]
    assert let_through.status == "ok"
    assert "let through" in let_through.found


def test_settings_with_other_values_are_told(tmp_path: Path) -> None:
    host = made_up(tmp_path, {"user/max_user_namespaces": "15000"})
    assert "user.max_user_namespaces is 15000" in [c.found for c in settings(host, REFUSED)]
