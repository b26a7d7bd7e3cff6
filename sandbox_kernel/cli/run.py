"""`sandbox-kernel run NOTEBOOK…`: run notebooks in the sandbox, one line per cell, and save them."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox_kernel.outputs.receipt import RECEIPT_MIME
from sandbox_kernel.paths import KERNEL_NAME
from sandbox_kernel.policy.levels import POLICY_VARIABLE, TRUST_VARIABLE
from sandbox_kernel.words import duration, size

_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class CellResult:
    """One executed cell, as a line of the table."""

    number: int
    source: str
    outcome: str
    result: str
    seconds: float
    # As the receipt says; nothing of these where the kernel gives none.
    state: str | None = None
    cpu_seconds: float | None = None
    memory_peak_bytes: int | None = None

    @property
    def failed(self) -> bool:
        return self.outcome != "ok"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="sandbox-kernel run", description="Run notebooks in the sandbox."
    )
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    parser.add_argument("-o", "--output-dir", type=Path, help="save executed notebooks here")
    parser.add_argument("-k", "--kernel", default=KERNEL_NAME, help="kernelspec (%(default)s)")
    parser.add_argument("-p", "--policy", help="policy of the kernel: a name, or a file")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a cell may take")
    parser.add_argument(
        "--keep-going", action="store_true", help="run the cells after a failing one too"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per notebook")
    options = parser.parse_args(argv)
    missing = [str(path) for path in options.notebooks if not path.is_file()]
    if missing:
        parser.error(f"no such notebook: {', '.join(missing)}")
    if options.policy is not None:
        # The kernel inherits it; a policy in its own kernel.json wins.
        os.environ[POLICY_VARIABLE] = options.policy
        os.environ.pop(TRUST_VARIABLE, None)  # both would be refused
    failed = False
    for path in options.notebooks:
        results = run_notebook(path, options)
        failed = failed or any(result.failed for result in results)
    return int(failed)


def run_notebook(path: Path, options: argparse.Namespace) -> list[CellResult]:
    """Execute ``path`` and show its cells; the executed notebook is saved if asked for."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    results = _execute(notebook, path, options)
    if options.output_dir is not None:
        options.output_dir.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, options.output_dir / path.name)
    if options.json:
        _print_json(path, results)
    else:
        _print_table(path, results)
    return results


def _execute(notebook: Any, path: Path, options: argparse.Namespace) -> list[CellResult]:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    client = NotebookClient(
        notebook,
        timeout=options.timeout,
        kernel_name=options.kernel,
        resources={"metadata": {"path": str(path.parent)}},
    )
    cells = [
        (index, cell)
        for index, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and cell.source.strip()
    ]
    results: list[CellResult] = []
    progress = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress, client.setup_kernel():
        task = progress.add_task(path.name, total=len(cells))
        for number, (index, cell) in enumerate(cells, 1):
            progress.update(task, description=f"{path.name} · {_one_line(cell.source, 30)}")
            started = time.monotonic()
            outcome = "ok"
            try:
                client.execute_cell(cell, index)
            except CellExecutionError as error:
                allowed = "raises-exception" in cell.metadata.get("tags", [])
                outcome = "ok" if allowed else error.ename
            seconds = time.monotonic() - started
            results.append(
                CellResult(number, cell.source, outcome, _shown(cell), seconds, **_used(cell))
            )
            progress.advance(task)
            if outcome != "ok" and not options.keep_going:
                break
    return results


def _used(cell: Any) -> dict[str, Any]:
    """What the cell's receipt says of interest, if it has one."""
    for output in reversed(cell.outputs):
        receipt = output.get("data", {}).get(RECEIPT_MIME)
        if receipt is not None:
            usage = receipt["usage"]
            return {
                "state": receipt["state"],
                "cpu_seconds": usage["cpu_seconds"],
                "memory_peak_bytes": usage["memory_peak_bytes"],
            }
    return {}


def _shown(cell: Any) -> str:
    """The last thing a cell put out, in one line; its receipt has columns of its own."""
    for output in reversed(cell.outputs):
        if RECEIPT_MIME in output.get("data", {}):
            continue
        if output.output_type == "error":
            return _one_line(f"{output.ename}: {output.evalue}")
        if output.output_type == "stream":
            return _one_line(output.text.strip().splitlines()[-1] if output.text.strip() else "")
        kinds = output.data.keys() - {"text/plain"}
        if "image/png" in kinds:
            return "[image/png]"
        if "text/plain" in output.data:
            return _one_line(output.data["text/plain"])
    return ""


def _one_line(text: str, limit: int = _SHOWN_CHARACTERS) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _print_table(path: Path, results: Sequence[CellResult]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    # Borders, mark and numbers take 48 columns; the texts share the rest.
    room = max(console.width - 48, 40)
    table = Table(title=str(path), title_justify="left")
    for heading in ("", "cell", "result", "time", "CPU", "memory"):
        table.add_column(heading, justify="left" if heading in ("", "cell", "result") else "right")
    for result in results:
        mark = Text("✘", "red") if result.failed else Text("✔", "green")
        source = Text(_one_line(result.source, room // 3))
        shown = Text(_one_line(result.result, room - room // 3), "red" if result.failed else "")
        cpu = "" if result.cpu_seconds is None else duration(result.cpu_seconds)
        memory = "" if result.memory_peak_bytes is None else size(result.memory_peak_bytes)
        table.add_row(mark, source, shown, f"{result.seconds:.2f} s", cpu, memory)
    console.print(table)


def _print_json(path: Path, results: Sequence[CellResult]) -> None:
    import json
    from dataclasses import asdict

    print(json.dumps({"notebook": str(path), "cells": [asdict(result) for result in results]}))
