from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from sandbox_kernel.isolation.guardian import Guardian
from tests.kernel import eventually

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)", "connection.json"]


def test_a_wrapper_that_dies_has_its_directory_removed_and_its_processes_killed(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "1-abc"
    directory.mkdir()
    with (
        subprocess.Popen([*SLEEPER, "1-abc"]) as own,
        subprocess.Popen([*SLEEPER, "2-def"]) as siblings,
    ):
        guardian = Guardian(directory)
        os.close(guardian._write_end)  # as the kernel does for a process that is killed
        guardian._process.wait(timeout=30)
        assert own.wait(timeout=10) == -9
        assert siblings.poll() is None
        siblings.kill()
    assert not directory.exists()


def test_a_signal_to_all_processes_of_a_service_does_not_keep_it_from_its_work(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "1-abc"
    directory.mkdir()
    guardian = Guardian(directory)
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
    guardian = Guardian(tmp_path / "1-abc")
    guardian._process.kill()
    guardian._process.wait()
    guardian.close()


def test_a_wrapper_that_says_goodbye_has_its_directory_removed(tmp_path: Path) -> None:
    directory = tmp_path / "1-abc"
    directory.mkdir()
    Guardian(directory).close()
    assert not directory.exists()
