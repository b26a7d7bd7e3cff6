from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from sandbox_kernel.cli import main

pytestmark = pytest.mark.process


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    path = tmp_path / "book.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for source in ("x = 20", "x + 1", "1 / 0", "x + 2")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_it_stops_at_a_failing_cell_and_says_so(
    notebook: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--json", str(notebook)]) == 1
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["outcome"] for cell in cells] == ["ok", "ok", "ZeroDivisionError"]
    assert cells[1]["result"] == "21"


def test_it_can_go_on_and_save_what_it_ran(
    notebook: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["run", "--keep-going", "-o", str(out), str(notebook)]) == 1
    shown = capsys.readouterr().out
    assert "✘" in shown
    assert "22" in shown
    executed = nbformat.read(out / "book.ipynb", as_version=4)
    assert executed.cells[3].outputs[0].data["text/plain"] == "22"
    assert nbformat.read(notebook, as_version=4).cells[3].outputs == []


def test_a_missing_notebook_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "nowhere.ipynb"])
    assert "no such notebook: nowhere.ipynb" in capsys.readouterr().err
