"""Credentials in what a sandbox is shown are hidden, and what only root may read stays root's."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel import Kernel, running_kernel
from tests.sandbox.ordinary_user import UID

SECRET = "hunter2-of-the-host"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="about files of root's")


def can_read(kernel: Kernel, path: Path) -> bool:
    """Whether a cell gets the secret out of the file."""
    outcome = kernel.run(f"print(open({str(path)!r}).read())")
    return SECRET in outcome.text()


def put(path: Path, mode: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SECRET)
    path.chmod(mode)
    return path


def in_prefix() -> list[tuple[str, int]]:
    """Places in the Python environment, and modes."""
    name = f"sandbox-kernel-test-{os.getpid()}"
    packages = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    return [
        (f"etc/jupyter/{name}.json", 0o644),
        (f"etc/{name}/token", 0o600),
        (f"etc/{name}-closed/token", 0o600),
        (f"{name}-token", 0o600),
        *([(f"{packages}/{name}.txt", 0o600)] if os.geteuid() == 0 else []),
    ]


@pytest.fixture
def secrets_in_prefix() -> Iterator[list[Path]]:
    if not os.access(sys.prefix, os.W_OK):
        pytest.skip("this user may not write to the Python environment")
    paths = [put(Path(sys.prefix, place), mode) for place, mode in in_prefix()]
    for path in paths:
        if path.parent.name.endswith("-closed"):
            path.parent.chmod(0o700)
    try:
        yield paths
    finally:
        for path in paths:
            path.unlink()
            if path.parent.name.startswith("sandbox-kernel-test"):
                path.parent.rmdir()


# Alone: what comes and goes in the environment is seen by every kernel that starts.
@pytest.mark.alone
@pytest.mark.process
def test_a_cell_cannot_read_secrets_of_the_python_environment(
    tmp_path: Path, secrets_in_prefix: list[Path]
) -> None:
    with running_kernel(cwd=tmp_path) as kernel:
        assert kernel.run("import IPython, zmq").status == "ok"
        assert [path for path in secrets_in_prefix if can_read(kernel, path)] == []
    with running_kernel(name="python3", cwd=tmp_path) as kernel:
        assert all(can_read(kernel, path) for path in secrets_in_prefix)


@pytest.mark.every_level
def test_a_cell_cannot_read_credentials_beside_the_notebook(tmp_path: Path, level: str) -> None:
    folder = tmp_path / "work"
    hidden = [
        put(folder / place, 0o644)
        for place in (".netrc", ".pypirc", ".git-credentials", ".aws/credentials", ".ssh/id_rsa")
    ]
    hidden += [put(folder / ".venv" / place, 0o644) for place in ("pip.conf", "etc/jupyter/x.json")]
    hidden += [put(folder / place, 0o644) for place in ("pgpass", "gnupg/key", "mine.p12")]
    (folder / ".venv" / "pyvenv.cfg").touch()
    (folder / ".pgpass").symlink_to("pgpass")
    (folder / ".gnupg").symlink_to("gnupg")
    key = put(folder / "server.pem", 0o644)
    key.write_text(f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n")
    hidden.append(key)
    shown = [put(folder / place, 0o644) for place in (".env", "data.csv", "n/data.csv")]
    for place in (folder, *folder.parents):
        if place.is_relative_to(tempfile.gettempdir()) and place.stat().st_mode & 0o005 != 0o005:
            place.chmod(0o755)
    with running_kernel(level=level, cwd=folder) as kernel:
        assert [path for path in hidden if can_read(kernel, path)] == []
        assert all(can_read(kernel, path) for path in shown)
        banner = kernel.client.kernel_info(reply=True, timeout=10)["content"]["banner"]
        assert ".netrc" in banner
    assert all(SECRET in path.read_text() for path in hidden)


@pytest.mark.process
def test_in_the_home_folder_files_that_are_credentials_are_not_there(tmp_path: Path) -> None:
    home = tmp_path / "home"
    hidden = [
        put(home / place, 0o644)
        for place in ("kaggle.json", "jupyter_server_config.json", "dotfiles/netrc")
    ]
    for name in ("id_rsa_old", "aws-key.pem"):
        hidden.append(put(home / name, 0o644))
        hidden[-1].write_text(f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n")
    (home / ".netrc").symlink_to("dotfiles/netrc")
    shown = [put(home / place, 0o644) for place in ("notes.txt", "dotfiles/vimrc")]
    with running_kernel(cwd=home, env={"HOME": str(home)}) as kernel:
        assert [path for path in hidden if can_read(kernel, path)] == []
        assert all(can_read(kernel, path) for path in shown)
        assert kernel.value("sorted(__import__('os').listdir())") == ["dotfiles", "notes.txt"]


@pytest.mark.process
def test_a_file_that_vanishes_while_bwrap_starts_costs_a_start_and_no_cell() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, programs = Path(name, "work"), Path(name, "bin")
        fleeting = put(folder / ".netrc", 0o644)
        stays = put(folder / ".pgpass", 0o644)
        script = f'#!/bin/sh\nrm -f {fleeting}\nexec {shutil.which("bwrap")} "$@"\n'
        put(programs / "bwrap", 0o755).write_text(script)
        Path(name).chmod(0o755)
        folder.chmod(0o777)  # as root, bwrap is another user's
        path = f"{programs}:{os.environ['PATH']}"
        with running_kernel(cwd=folder, env={"PATH": path}) as kernel:
            assert kernel.run("1 + 1").result == "2"
            assert not can_read(kernel, stays)
            assert b"went away while the sandbox was made" in kernel.logged()


@as_root
@pytest.mark.process
def test_a_folder_that_the_sandbox_cannot_enter_costs_no_start() -> None:
    with tempfile.TemporaryDirectory(dir="/opt") as name:
        token = put(Path(name, ".netrc"), 0o600)
        Path(name).chmod(0o750)
        with running_kernel(cwd=name) as kernel:
            assert kernel.run("1 + 1").result == "2"
            assert not can_read(kernel, token)


@as_root
@pytest.mark.alone
@pytest.mark.process
@pytest.mark.parametrize("mode", [0o750, 0o700, 0o710])
def test_root_may_keep_its_configuration_below_usr_local(tmp_path: Path, mode: int) -> None:
    Path("/usr/local/etc").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/usr/local/etc") as name:
        token = put(Path(name, "app", "token"), 0o600)
        Path(name).chmod(mode)
        with running_kernel(cwd=tmp_path) as kernel:
            assert kernel.run("1 + 1").result == "2"
            assert not can_read(kernel, token)


@as_root
@pytest.mark.process
def test_a_folder_of_another_user_with_credentials_costs_root_no_start(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    token = put(folder / ".netrc", 0o600)
    folder.chmod(0o750)
    for path in (folder, token):
        os.chown(path, UID, UID)
    with running_kernel(cwd=folder) as kernel:
        assert kernel.run("1 + 1").result == "2"
        assert not can_read(kernel, token)


@pytest.mark.process
def test_many_hidden_files_fit(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    hidden = [put(folder / f"{number:03}.ppk", 0o644) for number in range(450)]
    with running_kernel(cwd=folder) as kernel:
        assert kernel.run("1 + 1").result == "2"
        assert not can_read(kernel, hidden[-1])


@as_root
@pytest.mark.process
@pytest.mark.parametrize("place", ["/var/lib", "/opt", "/srv"])
def test_what_only_root_may_read_in_a_system_folder_stays_roots(place: str) -> None:
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        folder.chmod(0o755)
        closed, opened = put(folder / "closed", 0o600), put(folder / "opened", 0o644)
        grouped = put(folder / "grouped", 0o640)
        within = put(folder / "folder" / "within", 0o644)
        within.parent.chmod(0o700)
        with running_kernel(cwd=folder) as kernel:
            assert can_read(kernel, opened)
            assert not can_read(kernel, closed)
            assert not can_read(kernel, grouped)
            assert not can_read(kernel, within)
        with running_kernel(name="python3", cwd=folder) as kernel:
            assert can_read(kernel, closed)
