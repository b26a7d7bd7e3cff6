"""What `sandbox-kernel run` shows of a notebook: a line per cell, then whole errors, warnings and a sum.

Nothing of it is trusted: sources, outputs, errors and file names are strangers' text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandbox_kernel.outputs.receipt import RECEIPT_MIME
from sandbox_kernel.text import one_line, printable, without_colours
from sandbox_kernel.words import count, duration, size

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_CHARACTERS: Final = 200
# All other outcomes are failures.
OWN_OUTCOMES: Final = ("ok", "skipped")
# Of one error: what people write is shorter, what a cell makes up has no end.
_ERROR_LINES: Final = 1000
_ERROR_LINE_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell that was run, or passed over as it asks to be."""

    number: int
    source: str
    outcome: str
    result: str
    seconds: float
    # As the receipt says; nothing of these where the kernel gives none.
    state: str | None = None
    cpu_seconds: float | None = None
    memory_peak_bytes: int | None = None
    # Of a failed cell, without colours.
    error: str | None = None
    # What went wrong though the cell did not fail.
    warning: str | None = None
    # Whether the kernel cannot run another cell after it.
    is_last: bool = False

    @property
    def failed(self) -> bool:
        return self.outcome not in OWN_OUTCOMES


@dataclass(frozen=True, slots=True)
class NotebookResult:
    """What became of one notebook. ``problem`` is why it could not be run, or not to its end."""

    path: Path
    cells: tuple[CellResult, ...] = ()
    not_run: int = 0
    problem: str | None = None

    @property
    def failed(self) -> bool:
        return self.problem is not None or any(cell.failed for cell in self.cells)

    @property
    def warnings(self) -> int:
        return sum(cell.warning is not None for cell in self.cells)


def print_json(result: NotebookResult) -> None:
    document = {
        "notebook": str(result.path),
        "cells": [asdict(cell) for cell in result.cells],
        "not_run": result.not_run,
        "warnings": result.warnings,
        "problem": result.problem,
    }
    print(json.dumps(document).replace("\x7f", "\\u007f"))


def print_result(result: NotebookResult) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, force_jupyter=False)
    if result.cells:
        console.print(_table(result, console.width))
    for cell in result.cells:
        if cell.failed:
            _print_error(console, cell)
        if cell.warning is not None:
            line = Text(f"⚠ cell {cell.number}: {printable(cell.warning)}", "yellow")
            console.print(line, soft_wrap=True)
    if result.cells:
        console.print(Text(_sum(result)), soft_wrap=True)


def _table(result: NotebookResult, width: int) -> Any:
    from rich.table import Table
    from rich.text import Text

    # Borders, mark and numbers take 41 columns; the texts share the rest.
    room = max(width - 41, 24)
    # As a text: a title that is a string may hold markup.
    table = Table(title=Text(printable(str(result.path))), title_justify="left")
    for heading in ("", "cell", "result", "time", "CPU", "memory"):
        words = heading in ("", "cell", "result")
        table.add_column(heading, justify="left" if words else "right", no_wrap=True)
    for cell in result.cells:
        source = Text(one_line(cell.source, room // 3))
        shown = Text(one_line(cell.result, room - room // 3), "red" if cell.failed else "")
        cpu = "" if cell.cpu_seconds is None else duration(cell.cpu_seconds)
        memory = "" if cell.memory_peak_bytes is None else size(cell.memory_peak_bytes)
        table.add_row(_mark(cell), source, shown, f"{cell.seconds:.2f} s", cpu, memory)
    return table


def _mark(cell: CellResult) -> Any:
    from rich.text import Text

    if cell.failed:
        return Text("✘", "red")
    if cell.warning is not None:
        return Text("⚠", "yellow")
    return Text("–", "dim") if cell.outcome == "skipped" else Text("✔", "green")


def _print_error(console: Console, cell: CellResult) -> None:
    from rich.text import Text

    heading = f"✘ cell {cell.number}: {one_line(cell.outcome, SHOWN_CHARACTERS)}"
    console.print(Text(heading, "bold red"), soft_wrap=True)
    for line in _bounded(cell.error or cell.result):
        console.print(Text(f"  {line}"), soft_wrap=True)


def _bounded(error: str) -> Iterator[str]:
    lines = without_colours(error).strip("\n").split("\n")
    left_out = len(lines) - _ERROR_LINES
    if left_out > 0:
        half = _ERROR_LINES // 2
        note = f"… {count(left_out, 'line')} left out; `-o` saves the whole error …"
        lines = [*lines[:half], note, *lines[-half:]]
    for line in lines:
        cut = len(line) > _ERROR_LINE_CHARACTERS
        yield f"{line[:_ERROR_LINE_CHARACTERS]}…" if cut else line


def _sum(result: NotebookResult) -> str:
    failed = sum(cell.failed for cell in result.cells)
    parts = [count(len(result.cells), "cell"), f"{failed} failed" if failed else ""]
    parts += [count(result.warnings, "warning")] if result.warnings else []
    parts += [f"{result.not_run} not run"] if result.not_run else []
    return f"{printable(str(result.path))}: {', '.join(filter(None, parts))}"


def last_output(outputs: Sequence[Any]) -> str:
    """The last thing a cell put out, in one line; its receipt has columns of its own."""
    for output in reversed(outputs):
        data = output.get("data", {})
        if RECEIPT_MIME in data:
            continue
        if output["output_type"] == "error":
            return one_line(f"{output['ename']}: {output['evalue']}", SHOWN_CHARACTERS)
        if output["output_type"] == "stream":
            text = without_colours(str(output["text"])).strip()
            return one_line(text.splitlines()[-1] if text else "", SHOWN_CHARACTERS)
        if "image/png" in data:
            return "[image/png]"
        if "text/plain" in data:
            return one_line(without_colours(str(data["text/plain"])), SHOWN_CHARACTERS)
    return ""
