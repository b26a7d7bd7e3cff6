"""What is kept of a run's outputs can be saved and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from sandbox_kernel.cli.notebook_file import MAX_DEPTH, read_notebook, save_notebook
from sandbox_kernel.cli.run_outputs import KeptOutputs, NotKept
from sandbox_kernel.outputs.receipt import RECEIPT_MIME


def shown(data: Any, kind: str = "display_data", **more: Any) -> dict[str, Any]:
    return {"msg_type": kind, "content": {"data": data, "metadata": {}, **more}}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_what_is_nested_too_deeply_is_not_kept() -> None:
    for depth in (MAX_DEPTH, 600, 100_000):
        with pytest.raises(NotKept, match="too deeply"):
            KeptOutputs().check(shown({"application/json": nested(depth)}), 0)


def test_the_deepest_that_is_kept_can_be_saved_and_read(tmp_path: Path) -> None:
    for depth in range(MAX_DEPTH, 0, -1):
        data = {"application/json": nested(depth)}
        try:
            KeptOutputs().check(shown(data), 0)
        except NotKept:
            continue
        break
    assert depth > 80
    output = nbformat.v4.new_output("display_data", data=data)
    cell = nbformat.v4.new_code_cell("1", outputs=[output])
    path = tmp_path / "deep.ipynb"
    save_notebook(nbformat.v4.new_notebook(cells=[cell]), path)
    assert read_notebook(path).cells[0].source == "1"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_has_not_are_not_kept(number: float) -> None:
    with pytest.raises(NotKept, match="number"):
        KeptOutputs().check(shown({"application/json": [number]}), 0)


@pytest.mark.parametrize("count", ["x", -1, True, 1.5, [], {"x": 1}, 10**30])
def test_an_execution_count_that_is_none_is_not_kept(count: object) -> None:
    for kind in ("execute_result", "display_data", "status", "execute_input"):
        with pytest.raises(NotKept, match="execution count"):
            KeptOutputs().check(shown({}, kind, execution_count=count), 0)


def test_copies_of_one_display_take_the_room_that_a_file_would_need() -> None:
    kept = KeptOutputs(20_000)
    large = shown({"text/plain": "x" * 1000}, "update_display_data", transient={"display_id": "a"})
    for _ in range(20):  # each replaces the one before
        kept.check(large, 1)
        kept.end_cell([])
    with pytest.raises(NotKept, match="more than 256 MiB"):
        kept.check(large, 100)
    other = shown({"text/plain": "x" * 1000}, transient={"display_id": "b"})
    kept.check(other, 0)
    with pytest.raises(NotKept):
        kept.check(other, 8)


def test_one_cell_has_no_more_room_than_the_notebook() -> None:
    kept = KeptOutputs(20_000)
    for _ in range(2):
        kept.check(shown({"text/plain": "x" * 8000}), 0)
    with pytest.raises(NotKept, match="more than 256 MiB"):
        kept.check(shown({"text/plain": "x" * 8000}), 0)
    kept.end_cell([])  # it has cleared them
    kept.check(shown({"text/plain": "x" * 8000}), 0)


def test_where_the_room_is_used_up_a_cell_keeps_its_receipt_and_is_told() -> None:
    kept = KeptOutputs(12_000)
    large = nbformat.v4.new_output("stream", text="x" * 6000)
    receipt = nbformat.v4.new_output("display_data", data={RECEIPT_MIME: {}})
    first = [large, receipt]
    assert kept.end_cell(first) is first
    note, last = kept.end_cell([large, receipt])
    assert "left out" in note["text"]
    assert last == receipt
    assert kept.end_cell([receipt]) == [receipt], "a small one has room still"


def test_many_small_objects_take_more_than_their_text() -> None:
    with pytest.raises(NotKept):
        KeptOutputs(100_000).check(
            shown({"application/json": [{}] * 2000}, transient={"display_id": "a"}), 0
        )
