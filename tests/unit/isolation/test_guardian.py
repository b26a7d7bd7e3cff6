from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from sandbox_kernel.isolation.guardian import MARK, Guardian
from tests.kernel import eventually

NAME = "1-abc"
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)", "connection.json"]


def guardian_in(folder: Path) -> Guardian:
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return Guardian(parent, NAME)
    finally:
        os.close(parent)


def made(folder: Path, mark: str = MARK) -> Path:
    """A run directory with something in it."""
    directory = folder / NAME
    (directory / "1").mkdir(parents=True)
    (directory / "lock").write_text(f"{mark}\n")
    return directory


def test_a_wrapper_that_dies_has_its_directory_removed_and_its_processes_killed(
    tmp_path: Path,
) -> None:
    directory = made(tmp_path)
    with (
        subprocess.Popen([*SLEEPER, "1-abc"]) as own,
        subprocess.Popen([*SLEEPER, "2-def"]) as siblings,
    ):
        guardian = guardian_in(tmp_path)
        os.close(guardian._write_end)  # as the kernel does for a process that is killed
        guardian._process.wait(timeout=30)
        assert own.wait(timeout=10) == -9
        assert siblings.poll() is None
        siblings.kill()
    assert not directory.exists()


def test_a_signal_to_all_processes_of_a_service_does_not_keep_it_from_its_work(
    tmp_path: Path,
) -> None:
    directory = made(tmp_path)
    guardian = guardian_in(tmp_path)
    eventually(lambda: ignores_sigterm(guardian._process.pid), what="its script has begun")
    guardian._process.terminate()
    os.close(guardian._write_end)
    assert guardian._process.wait(timeout=30) == 0
    assert not directory.exists()


def ignores_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = status.partition("SigIgn:")[2].split()[0]
    return bool(int(ignored, 16) & (1 << (signal.SIGTERM - 1)))


def test_a_guardian_that_somebody_has_killed_does_not_disturb_the_end(tmp_path: Path) -> None:
    guardian = guardian_in(tmp_path)
    guardian._process.kill()
    guardian._process.wait()
    guardian.close()


def test_a_wrapper_that_says_goodbye_has_its_directory_removed(tmp_path: Path) -> None:
    directory = made(tmp_path)
    guardian_in(tmp_path).close()
    assert not directory.exists()


def test_a_guardian_removes_no_directory_that_no_wrapper_made(tmp_path: Path) -> None:
    directory = made(tmp_path, mark="")
    guardian_in(tmp_path).close()
    assert (directory / "1").is_dir()


def test_a_guardian_removes_what_a_wrapper_made_before_it_was_killed(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    guardian_in(tmp_path).close()
    assert not (tmp_path / NAME).exists()


def test_a_guardian_goes_by_the_folder_and_not_by_its_name(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    directory = made(run)
    other = made(tmp_path / "other")
    guardian = guardian_in(run)
    run.rename(tmp_path / "moved")
    run.symlink_to(other.parent)
    guardian.close()
    assert not (tmp_path / "moved" / directory.name).exists()
    assert (other / "1").is_dir()
