"""Any file can be given to `run`: it is read as a notebook, or the reason why not is one line."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import nbformat
import pytest

from sandbox_kernel.cli import notebook_file
from sandbox_kernel.cli.notebook_file import NotANotebook, read_notebook, save_notebook

DEEP = "[" * 100_000 + "]" * 100_000
BROKEN = {
    "": "it is empty",
    " \n": "it is empty",
    "nope": "not JSON",
    "[]": "not an object",
    "{}": "nbformat is None",
    '{"nbformat": 99, "cells": []}': "nbformat is 99",
    '{"nbformat": "4", "cells": []}': "nbformat is '4'",
    '{"nbformat": true, "cells": []}': "nbformat is True",
    '{"nbformat": 4, "cells": 5}': "the shape",
    '{"nbformat": 3, "worksheets": [5]}': "the shape",
    '{"nbformat": 2}': "the shape",
    '{"nbformat": 1}': "the shape",
    '{"nbformat": 4, "nbformat_minor": {}, "metadata": {}, "cells": []}': "the shape",
    f'{{"nbformat": 4, "cells": {DEEP}}}': "nested too deeply",
    f'{{"nbformat": 4, "cells": {"9" * 5000}}}': "not JSON",
    '{"nbformat": 4, "cells": [1e999]}': "too large",
    '{"nbformat": 4, "cells": [NaN]}': "not a number",
    '{"nbformat": 4, "cells": ["\\ud800"]}': "half a character",
    "\xff": "byte 0 is not UTF-8",
}


def reason(path: Path) -> str:
    with pytest.raises(NotANotebook) as caught:
        read_notebook(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("text", BROKEN, ids=BROKEN.values())
def test_what_is_no_notebook_is_refused_with_the_reason_in_one_line(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "broken.ipynb"
    path.write_text(text, encoding="latin-1")
    assert BROKEN[text] in reason(path)


def nested(path: Path, depth: int) -> Path:
    value = "[" * depth + "]" * depth
    path.write_text(
        f'{{"nbformat": 4, "nbformat_minor": 5, "metadata": {{"x": {value}}}, "cells": []}}'
    )
    return path


def test_what_is_read_can_be_saved(tmp_path: Path) -> None:
    path = nested(tmp_path / "deep.ipynb", 90)
    save_notebook(read_notebook(path), path)
    assert len(read_notebook(path).metadata.x) == 1


@pytest.mark.parametrize("depth", [110, 500, 900])
def test_what_could_not_be_saved_again_is_refused(tmp_path: Path, depth: int) -> None:
    assert reason(nested(tmp_path / "deep.ipynb", depth)) == "it is nested too deeply"


def test_a_folder_a_pipe_a_socket_and_a_device_are_named_and_never_waited_for(
    tmp_path: Path,
) -> None:
    pipe, place = tmp_path / "pipe.ipynb", tmp_path / "s.ipynb"
    os.mkfifo(pipe)
    assert reason(tmp_path) == "it is a folder"
    assert reason(pipe) == "it is a pipe"
    assert reason(Path("/dev/zero")) == "it is a device"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        assert reason(place) == "No such device or address"
    (tmp_path / "gone.ipynb").symlink_to("nowhere")
    assert reason(tmp_path / "gone.ipynb") == "No such file or directory"


def test_a_file_without_end_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook_file, "MAX_BYTES", 1 << 20)
    path = tmp_path / "large.ipynb"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert reason(path) == "it is larger than 1 MiB"


@pytest.mark.parametrize("number", [1_000_000, 5_000_000])
def test_a_file_that_would_take_gigabytes_to_read_is_refused(tmp_path: Path, number: int) -> None:
    path = tmp_path / "many.ipynb"
    many = ",".join(["{}"] * number)
    path.write_text(f'{{"nbformat": 4, "metadata": {{"x": [{many}]}}, "cells": []}}')
    assert reason(path).startswith("it has more than ")


def test_results_that_a_file_brings_along_are_removed(tmp_path: Path) -> None:
    forged = nbformat.v4.new_output("display_data", data={"text/plain": "forged"})
    cells = [
        nbformat.v4.new_code_cell(source, outputs=[forged], execution_count=7)
        for source in (" \n", "1")
    ]
    cells[0].metadata = {"sandbox": {"outcome": "ok"}, "execution": {}, "tags": ["kept"]}
    cells.append(nbformat.v4.new_markdown_cell("text", metadata={"sandbox": {}}))
    metadata = {"widgets": {"x": {}}, "sandbox": {}, "authors": []}
    path = tmp_path / "forged.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    assert "forged" in path.read_text()  # the control
    notebook = read_notebook(path)
    assert "forged" not in json.dumps(notebook)
    assert [cell.get("outputs") for cell in notebook.cells] == [[], [], None]
    assert [cell.get("execution_count") for cell in notebook.cells] == [None] * 3
    assert [dict(cell.metadata) for cell in notebook.cells] == [{"tags": ["kept"]}, {}, {}]
    assert dict(notebook.metadata) == {"authors": []}


def test_an_output_with_half_a_character_can_be_saved(tmp_path: Path) -> None:
    output = nbformat.v4.new_output("stream", text="\ud800!")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=[output])])
    path = tmp_path / "saved.ipynb"
    save_notebook(notebook, path)
    assert nbformat.read(path, as_version=4).cells[0].outputs[0].text == "?!"
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved.ipynb"]
