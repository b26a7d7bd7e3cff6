from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sandbox_kernel.isolation.guardian import Guardian

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


def test_a_wrapper_that_says_goodbye_has_its_directory_removed(tmp_path: Path) -> None:
    directory = tmp_path / "1-abc"
    directory.mkdir()
    Guardian(directory).close()
    assert not directory.exists()
