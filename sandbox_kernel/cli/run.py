"""`sandbox-kernel run NOTEBOOK…`: run notebooks in the sandbox, one line per cell; `-o` saves them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
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
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK", help=".ipynb")
    parser.add_argument(
        "-o", "--output-dir", type=Path, help="save executed notebooks here; else nothing is saved"
    )
    parser.add_argument("-k", "--kernel", default=KERNEL_NAME, help="kernelspec (%(default)s)")
    parser.add_argument(
        "-p",
        "--policy",
        type=_policy,
        help="policy of the kernel: a name, or a path with a slash (one in kernel.json wins)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        help="seconds a cell may take, besides the policy's own limits; then its notebook ends",
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="run the cells after a failing one too"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per notebook")
    options = parser.parse_args(argv)
    missing = [str(path) for path in options.notebooks if not path.is_file()]
    if missing:
        parser.error(f"no such notebook: {', '.join(missing)}")
    names = Counter(path.name for path in options.notebooks)
    if options.output_dir is not None and (twice := [name for name, n in names.items() if n > 1]):
        parser.error(f"{', '.join(twice)} is there twice: one would overwrite the other in -o")
    if options.policy is not None:
        # The kernel inherits it; a policy in its own kernel.json wins.
        os.environ[POLICY_VARIABLE] = options.policy
        os.environ.pop(TRUST_VARIABLE, None)  # both would be refused
    failed = False
    for path in options.notebooks:
        try:
            results = run_notebook(path, options)
        except NotRun as reason:
            print(f"sandbox-kernel run: {reason}", file=sys.stderr)
            failed = True
        else:
            failed = failed or any(result.failed for result in results)
    return int(failed)


def _policy(value: str) -> str:
    """The kernel, which is started elsewhere, takes no relative path."""
    return str(Path(value).absolute()) if "/" in value else value


class NotRun(Exception):
    """No cell of a notebook could be run."""


def _read(path: Path) -> Any:
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (
        *(OSError, ValueError, nbformat.ValidationError),
        *(AttributeError, TypeError),  # of JSON that has not even the shape of one
    ) as error:
        reason = str(error).partition("\n")[0]
        msg = f"{path} is not a notebook that can be run: {reason}"
        raise NotRun(msg) from error
    return notebook


def run_notebook(path: Path, options: argparse.Namespace) -> list[CellResult]:
    """Execute ``path`` and show its cells; the executed notebook is saved if asked for."""
    import nbformat
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import DeadKernelError

    notebook = _read(path)
    try:
        results = _execute(notebook, path, options)
    except NoSuchKernel as error:
        msg = f"Jupyter has no kernel {options.kernel!r}; `jupyter kernelspec list` shows what it has."
        raise NotRun(msg) from error
    except DeadKernelError as error:
        msg = f"the kernel {options.kernel!r} ended before {path} could begin: its log above says why."
        raise NotRun(msg) from error
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
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
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
            outcome, shown, goes_on = "ok", "", True
            try:
                client.execute_cell(cell, index)
            except CellExecutionError as error:
                allowed = "raises-exception" in cell.metadata.get("tags", [])
                outcome = "ok" if allowed else error.ename
                goes_on = allowed or options.keep_going
            except (CellTimeoutError, DeadKernelError) as error:
                # The kernel is busy with it still, or is no more.
                outcome, goes_on = type(error).__name__, False
                shown = _one_line(f"{outcome}: {str(error).partition('Here is')[0]}")
            seconds = time.monotonic() - started
            results.append(
                CellResult(
                    number, cell.source, outcome, shown or _shown(cell), seconds, **_used(cell)
                )
            )
            progress.advance(task)
            if not goes_on:
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
