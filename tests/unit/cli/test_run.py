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


def test_a_cell_that_takes_longer_than_the_caller_allows_ends_its_notebook_which_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book, out = tmp_path / "slow.ipynb", tmp_path / "out"
    sources = ("print('before')", "import time; time.sleep(600)", "1")
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), book)
    options = ["--timeout", "1", "--keep-going", "--json", "-o", str(out)]
    assert main(["run", *options, str(book)]) == 1
    found = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["outcome"] for cell in found] == ["ok", "CellTimeoutError"]
    assert "after 1 seconds" in found[1]["result"]
    saved = nbformat.read(out / "slow.ipynb", as_version=4)
    assert saved.cells[0].outputs[0].text == "before\n"


@pytest.mark.parametrize(
    "text",
    ["nope", '{"nbformat": 4, "cells": 5}'],
)
def test_what_is_no_notebook_is_named_and_the_others_run(
    notebook: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    broken = tmp_path / "broken.ipynb"
    broken.write_text(text, encoding="latin-1")
    assert main(["run", "--json", str(broken), str(notebook)]) == 1
    said = capsys.readouterr()
    assert f"{broken} is not a notebook that can be run: " in said.err
    assert "Traceback" not in said.err
    not_run, run = map(json.loads, said.out.splitlines())
    assert (not_run["cells"], run["cells"][1]["result"]) == ([], "21")
    assert not_run["problem"] in said.err


def test_a_kernel_that_jupyter_does_not_have_is_named(
    notebook: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "-k", "no-such", str(notebook)]) == 1
    assert "no kernel 'no-such'; `jupyter kernelspec list`" in capsys.readouterr().err


def test_a_policy_may_be_a_relative_path(
    notebook: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SANDBOX_KERNEL_POLICY", "default")  # put back after it
    monkeypatch.chdir(tmp_path)
    policy = tmp_path / "mine.yaml"
    policy.write_text("extends: strict\nannotate: metadata\n")
    policy.chmod(0o600)
    assert main(["run", "-o", "out", "--policy", "./mine.yaml", str(notebook)]) == 1
    assert "21" in capsys.readouterr().out
    executed = nbformat.read(tmp_path / "out" / notebook.name, as_version=4)
    assert len(executed.cells[1].outputs) == 1, "without a receipt: it is that policy"


def test_two_notebooks_of_one_name_do_not_overwrite_each_other(
    notebook: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "-o", str(tmp_path / "out"), str(notebook), str(notebook)])
    assert "book.ipynb is there twice" in capsys.readouterr().err


def test_a_missing_notebook_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "nowhere.ipynb"])
    assert "no such notebook: nowhere.ipynb" in capsys.readouterr().err
