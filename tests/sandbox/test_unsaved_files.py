"""Where the working directory cannot be shown, a cell that saves a file in it fails, and says why."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.kernel import running_kernel

pytestmark = pytest.mark.every_level

NAME = "sandbox-kernel-results.csv"
SAVE = f"import csv; csv.writer(open('{NAME}', 'w')).writerow([1, 2])"
# gVisor looks at the folder's mode first.
REFUSALS = ("OSError", "PermissionError")


def working_directories(tmp_path: Path) -> dict[str, tuple[Path, dict[str, str]]]:
    """Folders that are not shown, or not whole, and the environment that Jupyter has in them."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    (home / "project" / "data.txt").write_text("data")
    for folder in (*home.parents, home, home / "project"):
        if folder.is_relative_to(tempfile.gettempdir()) and folder.stat().st_mode & 0o077 == 0:
            folder.chmod(0o755)
    return {
        "/tmp": (Path("/tmp"), {}),
        "shared": (shared, {}),
        "home": (home, {"HOME": str(home)}),
        "above home": (tmp_path, {"HOME": str(home)}),
        "/var/tmp": (Path("/var/tmp"), {}),
    }


@pytest.mark.parametrize("which", ["/tmp", "shared", "home", "above home", "/var/tmp"])
def test_no_cell_saves_a_file_that_is_lost(tmp_path: Path, level: str, which: str) -> None:
    folder, environment = working_directories(tmp_path)[which]
    with running_kernel(level=level, cwd=folder, env=environment) as kernel:
        assert kernel.value("__import__('os').getcwd()") == str(folder)
        outcome = kernel.run(SAVE)
        assert outcome.ename in REFUSALS
        explanation = outcome.reply["content"]["traceback"][-1]
        assert f"{folder}" in explanation
        assert "sandbox" in explanation
        assert NAME not in kernel.value("__import__('os').listdir()")
        assert kernel.run(f"!touch {NAME} && echo made").text().count("made") == 0
        # What programs need to write for themselves works.
        assert kernel.run("import tempfile; tempfile.TemporaryFile().write(b'x')").result == "1"
        assert (
            kernel.run("open(__import__('os').path.expanduser('~/x'), 'w').write('x')").result
            == "1"
        )
        if which == "home":
            assert kernel.run("open('project/data.txt').read()").result == "'data'"
    assert not (folder / NAME).exists()


def test_plain_ipykernel_saves_it(tmp_path: Path) -> None:
    with running_kernel(name="python3", cwd=tmp_path) as kernel:
        assert kernel.run(SAVE).status == "ok"
    assert (tmp_path / NAME).exists()


def test_a_project_folder_can_be_read_and_says_that_it_cannot_be_written(
    tmp_path: Path, level: str
) -> None:
    (tmp_path / "data.csv").write_text("a\n1\n")
    tmp_path.chmod(0o755)
    tmp_path.parent.chmod(0o755)
    with running_kernel(level=level, cwd=tmp_path) as kernel:
        assert kernel.run("open('data.csv').read()").result == r"'a\n1\n'"
        outcome = kernel.run(SAVE)
        assert outcome.ename in REFUSALS
        assert "read-only" in outcome.reply["content"]["traceback"][-1]
        # Errors that have nothing to do with it say nothing of it.
        other = kernel.run("open('missing.csv')").reply["content"]["traceback"]
        assert "sandbox" not in "".join(other)
    assert not (tmp_path / NAME).exists()
