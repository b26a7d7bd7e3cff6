"""No test of policies sees those of the machine it runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox_kernel.policy import find, levels


@pytest.fixture(autouse=True)
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of ``/etc/sandbox-kernel/policies``."""
    directory = tmp_path / "etc"
    directory.mkdir(mode=0o755)
    monkeypatch.setattr(find, "SYSTEM_DIRECTORY", directory)
    monkeypatch.setattr(levels, "SYSTEM_CONFIG", (tmp_path / "jupyter",))
    return directory


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own policies."""
    directory = tmp_path / "home" / ".config" / "sandbox-kernel" / "policies"
    (tmp_path / "home").mkdir(mode=0o755)  # parents of a directory are made as the umask says
    directory.mkdir(mode=0o755, parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return directory
