"""The same guarantees for a user without any privilege (and without an account)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox_kernel.isolation.restricted import closed_to_others, python_paths
from tests.sandbox.ordinary_user import REPOSITORY, UID, reachable

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="the whole suite runs as an ordinary user already"
    ),
]


@pytest.mark.parametrize(
    "suite",
    [
        "test_isolation",
        "test_working_directory",
        "test_lifecycle",
        "test_restricted",
        "test_background",
        "test_unsaved_files",
        "test_hidden_credentials",
        "test_state_folder",
    ],
)
def test_the_guarantees_hold_for_an_ordinary_user(home: Path, suite: str) -> None:
    user = ("--reuid", str(UID), "--regid", str(UID), "--clear-groups", "--inh-caps=-all")
    run(suite, home, "setpriv", *user)


@pytest.mark.skipif(
    closed_to_others(python_paths()) is None, reason="the suite itself runs as root here"
)
def test_restricted_holds_for_root_where_others_can_use_its_python(home: Path) -> None:
    os.chown(home, 0, 0)  # root keeps nothing in what another user has made in /tmp
    run("test_restricted", home)


def run(suite: str, home: Path, *prefix: str) -> None:
    """Run a suite where everybody can reach this Python, as who ``prefix`` makes one."""
    paths = [Path(sys.base_prefix).resolve(), REPOSITORY]
    if not Path(sys.prefix).is_relative_to(REPOSITORY):
        paths.append(Path(sys.prefix))
    command = [
        *("bwrap", "--dev-bind", "/", "/", *reachable(paths)),
        *("--chdir", str(REPOSITORY), "--", *prefix),
        *(sys.executable, "-m", "pytest", f"tests/sandbox/{suite}.py", "-m", "not slow"),
        *("-q", "-p", "no:cacheprovider", f"--basetemp={home / 'tmp'}"),
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Its ports are this worker's: see `tests.ports`.
        "PYTEST_XDIST_WORKER": os.environ.get("PYTEST_XDIST_WORKER", "gw0"),
        "SANDBOX_KERNEL_REQUIRE": "process",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
