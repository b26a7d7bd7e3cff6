"""A notebook in batch whose cell is stopped, killed or lost: the error is the cell's, the kernel lives on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from papermill.exceptions import PapermillExecutionError

from sandbox_kernel.cli import main
from sandbox_kernel.outputs.receipt import RECEIPT_MIME
from tests.kernel import UNCHECKED, isolation

pytestmark = pytest.mark.process

POLICY = f"""
extends: {UNCHECKED}
limits:
  wall: 2s
  memory: 128MiB
  text: 64KiB
  grace: 500ms
"""
# What the third cell does, and what it is told.
CASES = {
    "times_out": ("import time; time.sleep(600)", "CellTimeout"),
    "hangs": (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)",
        "CellTimeout",
    ),
    "takes_too_much_memory": (
        "import mmap, time\nbig = mmap.mmap(-1, 400 << 20)\n"
        "for page in range(0, len(big), 4096): big[page] = 1\ntime.sleep(600)",
        "CellMemoryExceeded",
    ),
    "asks_for_too_much_memory": ("big = b'x' * (800 << 20)", "MemoryError"),
    "is_killed": ("import os; os.kill(os.getpid(), 9)", "SandboxLost"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "SandboxLost"),
    "floods": ("while True: print('flood' * 20)", "CellOutputExceeded"),
}
# A cell can raise a MemoryError of its own: that is no finding of the wrapper's.
MEMORY = {"CellMemoryExceeded": "memory", "MemoryError": "error"}
OUTCOMES = {
    "CellTimeout": "timeout",
    "SandboxLost": "lost",
    "CellOutputExceeded": "output",
    **MEMORY,
}

cases = pytest.mark.parametrize("case", CASES)


@pytest.fixture(autouse=True)
def policy(tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy" / "batch.yaml"
    path.parent.mkdir()
    path.write_text(POLICY if level == "process" else f"{POLICY}\n{isolation(level)}")
    path.chmod(0o600)
    monkeypatch.setenv("SANDBOX_KERNEL_POLICY", str(path))


def notebook_of(case: str, *, tags: tuple[str, ...] = ()) -> nbformat.NotebookNode:
    bad, _ = CASES[case]
    sources = (
        "first = [1, 2, 3]",
        "second = {'of': first}",
        bad,
        "print(first, second['of'] is first)",
    )
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells[2].metadata["tags"] = list(tags)
    metadata = {
        "kernelspec": {"name": "sandboxed-python", "display_name": "x", "language": "python"}
    }
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def client_of(notebook: nbformat.NotebookNode, folder: Path, **options: Any) -> NotebookClient:
    resources = {"metadata": {"path": str(folder)}}
    return NotebookClient(
        notebook, kernel_name="sandboxed-python", timeout=60, resources=resources, **options
    )


def shown_error(cell: nbformat.NotebookNode) -> str:
    errors = [output for output in cell.outputs if output.output_type == "error"]
    assert len(errors) == 1
    return errors[0].ename


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def receipt(cell: nbformat.NotebookNode) -> dict[str, Any]:
    return cell.outputs[-1].data[RECEIPT_MIME]


@cases
def test_nbclient_stops_at_the_cell_with_its_error(tmp_path: Path, case: str) -> None:
    _, ename = CASES[case]
    notebook = notebook_of(case)
    with pytest.raises(CellExecutionError) as caught:  # and no DeadKernelError
        client_of(notebook, tmp_path).execute()
    assert caught.value.ename == ename
    assert shown_error(notebook.cells[2]) == ename
    assert receipt(notebook.cells[2])["outcome"] == OUTCOMES[ename]
    assert notebook.cells[3].outputs == []
    nbformat.validate(notebook)


@pytest.mark.every_level
@cases
def test_nbclient_goes_on_with_the_variables_if_errors_are_allowed(
    tmp_path: Path, level: str, case: str
) -> None:
    _, ename = CASES[case]
    if level == "gvisor" and ename == "MemoryError":  # that is not raised there
        ename = "CellMemoryExceeded"
    notebook = notebook_of(case)
    client_of(notebook, tmp_path, allow_errors=True).execute()
    assert shown_error(notebook.cells[2]) == ename
    assert receipt(notebook.cells[2])["state"] in ("kept", "rolled_back")
    assert printed(notebook.cells[3]) == "[1, 2, 3] True\n"
    assert receipt(notebook.cells[3])["outcome"] == "ok"


def run_with_papermill(
    tmp_path: Path, notebook: nbformat.NotebookNode
) -> tuple[Path, PapermillExecutionError | None]:
    written, out = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    nbformat.write(notebook, written)
    try:
        papermill.execute_notebook(written, out, cwd=tmp_path, progress_bar=False)
    except PapermillExecutionError as error:
        return out, error
    return out, None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@cases
def test_papermill_stops_at_the_cell_with_its_error(tmp_path: Path, case: str) -> None:
    _, ename = CASES[case]
    out, error = run_with_papermill(tmp_path, notebook_of(case))
    assert error is not None
    assert error.ename == ename
    written = nbformat.read(out, as_version=4)
    stopped = [cell for cell in written.cells if cell.source == CASES[case][0]]
    assert shown_error(stopped[0]) == ename
    nbformat.validate(written)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("case", ["hangs", "is_killed", "floods"])
def test_papermill_goes_on_behind_a_cell_that_may_fail(tmp_path: Path, case: str) -> None:
    out, error = run_with_papermill(tmp_path, notebook_of(case, tags=("raises-exception",)))
    assert error is not None  # papermill's way: it runs all, and tells of the error at the end
    assert error.ename == CASES[case][1]
    written = nbformat.read(out, as_version=4)
    assert printed(written.cells[-1]) == "[1, 2, 3] True\n"


@cases
def test_sandbox_kernel_run_names_the_error_and_can_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    _, ename = CASES[case]
    path, out = tmp_path / "book.ipynb", tmp_path / "out"
    nbformat.write(notebook_of(case), path)
    assert main(["run", "--json", "--keep-going", "-o", str(out), str(path)]) == 1
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["outcome"] for cell in cells] == ["ok", "ok", ename, "ok"]
    executed = nbformat.read(out / "book.ipynb", as_version=4)
    assert printed(executed.cells[3]) == "[1, 2, 3] True\n"


@pytest.mark.every_level
def test_sandbox_kernel_run_stops_at_the_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "book.ipynb"
    nbformat.write(notebook_of("is_killed"), path)
    assert main(["run", "--json", str(path)]) == 1
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["outcome"] for cell in cells] == ["ok", "ok", "SandboxLost"]
