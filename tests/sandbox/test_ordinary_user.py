"""The same guarantees for a user without any privilege (and without an account)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="the whole suite runs as an ordinary user already"
    ),
]

UID = 54_321
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sandbox-user-"))
    os.chown(path, UID, UID)
    yield path
    shutil.rmtree(path)


def reachable(paths: list[Path]) -> list[str]:
    """bwrap arguments that let anybody reach `paths`, though they may lie in root's own folders."""
    arguments, opened = [], set()
    for path in paths:
        closed = [parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001]
        if not closed:
            continue
        if closed[0] not in opened:
            opened.add(closed[0])
            arguments += ["--perms", "0755", "--tmpfs", str(closed[0])]
        for parent in reversed(path.parents):
            if parent.is_relative_to(closed[0]) and parent != closed[0]:
                arguments += ["--perms", "0755", "--dir", str(parent)]
        arguments += ["--ro-bind", str(path), str(path)]
    return arguments


@pytest.mark.parametrize("suite", ["test_isolation", "test_working_directory", "test_lifecycle"])
def test_the_guarantees_hold_for_an_ordinary_user(home: Path, suite: str) -> None:
    paths = [Path(sys.base_prefix).resolve(), REPOSITORY]
    if not Path(sys.prefix).is_relative_to(REPOSITORY):
        paths.append(Path(sys.prefix))
    command = [
        *("bwrap", "--dev-bind", "/", "/", *reachable(paths)),
        *("--chdir", str(REPOSITORY), "--"),
        *("setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", "--inh-caps=-all"),
        *(sys.executable, "-m", "pytest", f"tests/sandbox/{suite}.py", "-m", "not slow"),
        *("-q", "-p", "no:cacheprovider", f"--basetemp={home / 'tmp'}"),
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SANDBOX_KERNEL_REQUIRE": "process",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
