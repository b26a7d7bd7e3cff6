"""Policy files that tests write, and what becomes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox_kernel.errors import PolicyError
from sandbox_kernel.paths import policies_directory
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.model import Policy

WHOLE = (policies_directory() / "default.yaml").read_text()


def write(directory: Path, text: str, name: str = "mine") -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(text)
    path.chmod(0o644)
    return path


def loaded(user: Path, text: str) -> Policy:
    write(user, text)
    return load_policy("mine")


def refusal(user: Path, text: str) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        loaded(user, text)
    return caught.value
