from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.base import SandboxFacts
from sandbox_kernel.isolation.rundir import RunDirectory
from sandbox_kernel.isolation.start import start_sandbox


class Refusing:
    """A sandbox that cannot be started, as where a library is missing."""

    def __init__(self) -> None:
        self.killed = False
        self.facts = SandboxFacts("process", "bwrap", "none", "/")

    def place(self, path: Path) -> str:
        return str(path)

    def settings(self) -> dict[str, Any]:
        return {}

    def give(self, path: Path) -> None:
        pass

    def start(self, path: Path) -> None:
        assert (path / "connection.json").exists(), "the control: there is something to leave"
        what = "It cannot."
        raise SandboxUnavailable(what, hint="Mend it.")

    def kill(self) -> None:
        self.killed = True


def test_a_start_that_fails_leaves_neither_boot_files_nor_key(tmp_path: Path) -> None:
    run_directory, sandbox = RunDirectory(tmp_path), Refusing()
    try:
        with pytest.raises(SandboxUnavailable):
            start_sandbox(sandbox, run_directory, "session", [])  # type: ignore[arg-type]
        assert [path.name for path in run_directory.path.iterdir()] == ["lock"]
        assert sandbox.killed
    finally:
        run_directory.close()
