"""What the batch client knows of a cell before it runs, and how long it waits."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sandbox_kernel.cli.run_client import SLACK_SECONDS, Commands, cell_deadline, read_commands

ARGV = ("python", "-m", "sandbox_kernel", "launch", "-f", "{connection_file}")


@pytest.mark.parametrize(
    ("source", "commands"),
    [
        ("100 % 7, 'a!b'", Commands(0, False)),
        ("!ls", Commands(1, True)),
        ("x = 1\n!ls\n%pip list", Commands(2, True)),
        ("if x:\n    !ls", Commands(1, False)),
        ("if x:\n    !ls\n!ls", Commands(2, True)),
        # IPython keeps no exit code of these.
        ("x = !ls", Commands(0, False)),
        ("%sx ls", Commands(0, False)),
        ("!!ls", Commands(0, False)),
        ("!\x00", Commands(1, True)),
        ("!ls\n'''", Commands(1, True)),
    ],
)
def test_the_commands_of_a_cell(source: str, commands: Commands) -> None:
    assert read_commands(source) == commands


def test_no_cell_takes_long_to_look_for_commands() -> None:
    for source in ("!a\n" * 300_000, "%" + "(" * 300_000, "!" * 300_000, "?" * 300_000):
        started = time.monotonic()
        read_commands(source)
        assert time.monotonic() - started < 10


@pytest.fixture
def short(tmp_path: Path) -> Path:
    path = tmp_path / "short.yaml"
    path.write_text("limits: {wall: 7s, grace: 1s}\n")
    path.chmod(0o600)
    return path


def test_a_policy_that_kernel_json_sets_in_its_environment_holds(short: Path) -> None:
    environ = {"SANDBOX_KERNEL_POLICY": "default", "FOLDER": str(short.parent)}
    usual = cell_deadline(ARGV, environ, {})
    assert usual is not None
    assert usual > 100
    for value in (str(short), "${FOLDER}/short.yaml"):
        settings = {"SANDBOX_KERNEL_POLICY": value}
        assert cell_deadline(ARGV, environ, settings) == 8 + SLACK_SECONDS
    # The control: an option wins over both.
    argv = (*ARGV, "--policy", "default")
    assert cell_deadline(argv, environ, {"SANDBOX_KERNEL_POLICY": str(short)}) == usual
