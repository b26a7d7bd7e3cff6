"""What the ``process`` level asks bwrap for, where the host's files are not as they were planned."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_kernel.isolation.base import SandboxSpec
from sandbox_kernel.isolation.process import ProcessSandbox, may_enter

pytestmark = pytest.mark.process


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[SandboxSpec]:
    descriptor = os.open(tmp_path, os.O_PATH)
    yield SandboxSpec(
        working_directory=tmp_path,
        working_descriptor=descriptor,
        python=Path(sys.executable),
        secrets=(),
        passed=(),
    )
    os.close(descriptor)


def test_what_went_away_since_it_was_found_is_not_hidden(tmp_path: Path, spec: SandboxSpec) -> None:
    (tmp_path / ".ssh").mkdir()
    tmp_path.chmod(0o755)
    for name in (".netrc", ".pgpass", ".pypirc"):
        (tmp_path / name).touch()
    sandbox = ProcessSandbox(spec)
    (tmp_path / ".netrc").unlink()
    (tmp_path / ".pgpass").unlink()
    (tmp_path / ".pgpass").symlink_to("/etc/passwd")
    hidden = [name for name in sandbox._view_mounts() if name.startswith(f"{tmp_path}/")]
    assert {*hidden} == {str(tmp_path / ".ssh"), str(tmp_path / ".pypirc")}


@pytest.mark.parametrize(
    "said",
    [
        "bwrap: Can't create file at /work/.netrc: Read-only file system\n",
        "bwrap: Can't mkdir /work/.ssh: Read-only file system\n",
    ],
)
def test_a_file_that_goes_away_meanwhile_is_named(spec: SandboxSpec, said: str) -> None:
    error = ProcessSandbox(spec).explain(said)
    assert "went away while the sandbox was made" in error.what
    assert said.strip() in error.what
    assert error.hint == "Run the cell again."


@pytest.mark.parametrize(
    ("mode", "owner", "group", "given", "may"),
    [
        (0o755, 0, 0, False, True),
        (0o750, 0, 0, False, False),
        (0o711, 1000, 1000, False, True),
        (0o700, 0, 0, True, True),
        (0o700, 1000, 0, True, False),
        (0o710, 1000, 0, True, True),
        (0o770, 1000, 1000, True, False),
        (0o755, 1000, 1000, True, True),
    ],
)
def test_who_has_nothing_enters_what_is_open_to_all_or_was_given(
    mode: int, owner: int, group: int, given: bool, may: bool
) -> None:
    status = os.stat_result((0o040000 | mode, 1, 1, 1, owner, group, 0, 0, 0, 0))
    assert may_enter(status, given=given) is may
