from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from sandbox_kernel.isolation.checks.installation import (
    kernelspec,
    policies,
    python_inside,
    state_home,
    state_home_mode,
)
from sandbox_kernel.paths import KERNEL_NAME
from tests.unit.isolation.checks.hosts import made_up, program, real

# Python inside


def test_this_environment_has_the_kernel_that_runs_inside() -> None:
    check = python_inside(real())
    assert check.status == "ok", check
    assert sys.executable in check.found


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("echo 7.4.1", "ok"),
        ("echo a warning; echo 7.10.0", "ok"),
        ("echo 6.29.5", "refused"),
        ("echo 7.3.0", "refused"),
        ("echo 8.0.0a1", "refused"),
        ("echo 'ModuleNotFoundError: ipykernel' >&2; exit 1", "missing"),
        ("true", "missing"),
    ],
)
def test_a_python_without_the_right_ipykernel_is_named(
    tmp_path: Path, script: str, status: str
) -> None:
    python = str(program(tmp_path, "python", script))
    check = python_inside(made_up(tmp_path), python)
    assert check.status == status
    assert python in (check.found if check.fix is None else check.fix)


def test_a_python_that_hangs_is_unknown(tmp_path: Path) -> None:
    python = str(program(tmp_path, "python", "/bin/sleep 1000"))
    assert python_inside(made_up(tmp_path, timeout_seconds=0.5), python).status == "unknown"


# kernelspec


def spec(tmp_path: Path, *argv: str, text: str | None = None) -> tuple[str, ...]:
    directory = tmp_path / "kernels" / KERNEL_NAME
    directory.mkdir(parents=True)
    document = {"argv": argv, "display_name": "Sandboxed Python", "language": "python"}
    (directory / "kernel.json").write_text(json.dumps(document) if text is None else text)
    return (str(tmp_path / "kernels"),)


def test_jupyter_finds_the_kernel_that_is_installed_here() -> None:
    check = kernelspec(real())
    assert check.status == "ok", check
    assert KERNEL_NAME in check.found


def test_no_kernelspec_is_missing(tmp_path: Path) -> None:
    check = kernelspec(made_up(tmp_path, kernel_directories=(str(tmp_path),)))
    assert check.status == "missing"
    assert "pip install" in str(check.fix)


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("python", "-m", "sandbox_kernel", "launch"), "ok"),
        ((sys.executable, "-m", "sandbox_kernel", "launch"), "ok"),
        (("/gone/python", "-m", "sandbox_kernel", "launch"), "refused"),
        (("python", "-m", "ipykernel_launcher"), "refused"),
    ],
)
def test_a_kernelspec_must_start_this_kernel(
    tmp_path: Path, argv: tuple[str, ...], status: str
) -> None:
    check = kernelspec(made_up(tmp_path, kernel_directories=spec(tmp_path, *argv)))
    assert check.status == status
    assert (check.fix is None) == (status == "ok")


def test_a_kernelspec_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    check = kernelspec(made_up(tmp_path, kernel_directories=spec(tmp_path, text="{")))
    assert check.status == "refused"


# state home


def test_a_home_that_could_be_made_is_enough_and_is_not_made(tmp_path: Path) -> None:
    home = tmp_path / "not" / "yet"
    assert state_home(home).status == "ok"
    assert state_home_mode(made_up(tmp_path, home=home)).status == "ok"
    assert list(tmp_path.glob("not")) == []


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check = state_home(tmp_path / "file" / "home")
    assert check.status == "refused"
    assert "SANDBOX_KERNEL_HOME" in str(check.fix)


def test_a_home_below_what_nobody_can_write_is_refused() -> None:
    # Not even root can write to it.
    check = state_home(Path("/proc/sys/none/home"))
    assert check.status == "refused"
    assert "/proc/sys" in check.found


@pytest.mark.parametrize(("mode", "status"), [(0o700, "ok"), (0o755, "ok"), (0o770, "refused")])
def test_a_home_that_others_can_write_is_refused(tmp_path: Path, mode: int, status: str) -> None:
    host = made_up(tmp_path)
    host.home.mkdir()
    host.home.chmod(mode)
    check = state_home_mode(host)
    assert check.status == status
    assert f"{mode:04o}" in check.found
    if status == "refused":
        assert check.fix == f"`chmod go-w {host.home}`"


def test_a_home_of_another_user_is_refused(tmp_path: Path) -> None:
    host = made_up(tmp_path, uid=os.geteuid() + 1)
    host.home.mkdir()
    check = state_home_mode(host)
    assert check.status == "refused"
    assert f"uid {os.geteuid()}" in check.found


# policies


def test_the_shipped_policies_can_be_used() -> None:
    check = policies()
    assert check.status == "ok"
    assert "paranoid" in check.found


def own_policy(home: Path, text: str, mode: int = 0o644) -> Path:
    path = home / "sandbox-kernel" / "policies" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_policy_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SANDBOX_KERNEL_POLICY")
    path = own_policy(tmp_path, "limits: {wall: 5s}")
    assert policies().status == "ok"
    path.chmod(0o666)
    check = policies()
    assert check.status == "refused"
    assert "mine.yaml" in check.found
    assert "chmod go-w" in str(check.fix)


def test_a_choice_that_leads_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_KERNEL_POLICY", "strikt")
    check = policies()
    assert check.status == "refused"
    assert "strict" in str(check.fix)
