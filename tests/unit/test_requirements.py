"""What must run on a machine and cannot is said, whichever tests are chosen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A test of no level.
CHOSEN = "tests/unit/test_words.py"


def collected(required: str, *options: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env.pop("DOCKER_HOST", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, CHOSEN],
        env={**env, "SANDBOX_KERNEL_REQUIRE": required},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("options", [(), ("-n", "2")])
@pytest.mark.parametrize(
    ("required", "said"),
    [
        ("container", "container tests must run here, but: DOCKER_HOST is not set"),
        ("proces", "there is no 'proces', only process"),
    ],
)
def test_what_is_required_and_cannot_run_ends_the_run_with_the_reason(
    required: str, said: str, options: tuple[str, ...]
) -> None:
    done = collected(required, *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_without_requirements_the_same_tests_run() -> None:
    done = collected("")
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
