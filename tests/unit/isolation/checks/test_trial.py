"""The doctor's trial: a kernel that does not answer is named by what became of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from sandbox_kernel.isolation.checks import trial
from sandbox_kernel.policy.judge import LARGE_BYTES
from tests.unit.isolation.checks.hosts import program, real

# The kernel, with a process for reading cells that finds no filter to confine itself by.
WITHOUT_A_FILTER = """
import sys
from sandbox_kernel.cli import main
from sandbox_kernel.policy import apart
lacking = "import sandbox_kernel.policy.worker as w; w.PARSER_SECCOMP = 'missing.json'; main(int"
apart.Worker.__init__.__defaults__ = (apart.PROGRAM.replace("main(int", lacking),)
sys.exit(main(sys.argv[4:]))
"""


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo no such module >&2; exit 7", "ended with exit code 7 before it answered"),
        ("echo no such module >&2; kill -9 $$", "was killed by signal 9 before it answered"),
    ],
)
def test_a_kernel_that_ends_at_once_is_refused_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: str
) -> None:
    monkeypatch.setattr(sys, "executable", str(program(tmp_path, "python", script)))
    started = time.monotonic()
    check = trial.try_cell(real(), "default")
    assert time.monotonic() - started < 20
    assert check.status == "refused"
    assert found in check.found
    assert "no such module" in check.found
    assert check.fix


def test_a_kernel_that_is_silent_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_END_SECONDS", 0.1)
    monkeypatch.setattr(sys, "executable", str(program(tmp_path, "python", "exec sleep 600")))
    check = trial.try_cell(real(), "default", seconds=1.0)
    assert (check.status, "no answer within 1 s" in check.found) == ("unknown", True)


def test_the_cell_is_read_as_commands_are_unless_the_policy_allows_no_such_cell(
    tmp_path: Path,
) -> None:
    for policy in ("default", "strict", "paranoid", "trusted"):
        assert len(trial._cell(policy)) > LARGE_BYTES
    small = tmp_path / "small.yaml"
    small.write_text("code: {max_size: 4KiB}\n")
    small.chmod(0o600)
    assert trial._cell(str(small)) == "1 + 1\n"


@pytest.mark.process
@pytest.mark.parametrize("policy", ["default", "paranoid"])
def test_where_commands_cannot_be_read_the_cell_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """As on a host without libseccomp, where a container could start all the same."""
    assert trial.try_cell(real(), policy).status == "ok", "the control"
    broken = tmp_path / "broken.py"
    broken.write_text(WITHOUT_A_FILTER)
    script = f'exec {sys.executable} {broken} "$@"'
    monkeypatch.setattr(sys, "executable", str(program(tmp_path, "python", script)))
    check = trial.try_cell(real(), policy)
    assert check.status == "refused"
    assert "libseccomp is needed" in check.found
