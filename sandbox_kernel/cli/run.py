"""`sandbox-kernel run NOTEBOOK…`: run notebooks in the sandbox, one line per cell; `-o` saves them.

Each notebook is on its own: whatever is in its file, and whatever its kernel says, the others run.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from sandbox_kernel.cli.notebook_file import NotANotebook, read_notebook, save_notebook
from sandbox_kernel.cli.run_report import CellResult, NotebookResult, print_json, print_result
from sandbox_kernel.errors import PolicyError
from sandbox_kernel.paths import KERNEL_NAME
from sandbox_kernel.policy.levels import POLICY_VARIABLE, TRUST_VARIABLE
from sandbox_kernel.text import one_line, printable, printable_lines

_EPILOG = (
    "Exits with 0 if every cell of every notebook ran without an error, with 1 if a cell failed or a "
    "notebook could not be run to its end, with 2 for a mistyped command (then nothing was run). "
    "A failed !command or %pip is a warning and does not change that."
)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line, which may hold a stranger's file names."""

    def error(self, message: str) -> NoReturn:
        super().error(printable_lines(message))


class _Formatter(logging.Formatter):
    """Cleans what asyncio logs about errors that no task awaited."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def main(argv: Sequence[str]) -> int:
    options = _parse(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Not every terminal has the characters of a cell, nor those of the table.
        sys.stdout.reconfigure(errors="replace")
    if options.policy is not None:
        # The kernel inherits it; a policy in its own kernel.json wins.
        os.environ[POLICY_VARIABLE] = options.policy
        os.environ.pop(TRUST_VARIABLE, None)  # both would be refused
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter())
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)
    try:
        results = [run_notebook(path, options) for path in options.notebooks]
    finally:
        logger.removeHandler(handler)
    return int(any(result.failed for result in results))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="sandbox-kernel run", description="Run notebooks in the sandbox.", epilog=_EPILOG
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
    missing = [str(path) for path in options.notebooks if not os.path.lexists(path)]
    if missing:
        parser.error(f"no such notebook: {', '.join(missing)}")
    if options.output_dir is not None:
        names = Counter(path.name for path in options.notebooks)
        if twice := [name for name, number in names.items() if number > 1]:
            parser.error(f"{', '.join(twice)} is there twice: one would overwrite the other in -o")
        try:
            options.output_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"nothing can be saved in {options.output_dir}: {error.strerror}")
    return options


def _policy(value: str) -> str:
    """The kernel, which is started elsewhere, takes no relative path."""
    return str(Path(value).absolute()) if "/" in value else value


class _Stopped(Exception):
    """A notebook cannot be run, or not to its end; the text says why and what to do."""


def run_notebook(path: Path, options: argparse.Namespace) -> NotebookResult:
    """Run the notebook, save it if asked to, and show what became of it."""
    cells: list[CellResult] = []
    wanted = 0
    problem: str | None = None
    try:
        notebook = read_notebook(path)
        wanted = len(_code_cells(notebook))
        try:
            _run_cells(notebook, path, options, cells)
        finally:
            if options.output_dir is not None:
                save_notebook(notebook, options.output_dir / path.name)
    except NotANotebook as error:
        problem = f"{path} is not a notebook that can be run: {error}."
    except _Stopped as error:
        problem = f"{path}: {error}"
    except OSError as error:
        problem = f"{path} could not be run and saved: {error}."
    except Exception as error:  # the boundary between notebooks: the next one runs
        problem = (
            f"{path} was given up after {len(cells)} cells, for a reason that was not foreseen: "
            f"{type(error).__name__}: {one_line(str(error), 500)}. Please report this line, and the "
            "notebook if you can, as a mistake of sandbox-kernel."
        )
    result = NotebookResult(
        path,
        tuple(cells),
        not_run=wanted - len(cells),
        problem=None if problem is None else printable(problem),
    )
    if options.json:
        print_json(result)
    else:
        print_result(result)
    if result.problem is not None:
        print(f"sandbox-kernel run: {result.problem}", file=sys.stderr)
    return result


def _code_cells(notebook: Any) -> list[tuple[int, Any]]:
    """Those that have code, with their places."""
    return [
        (index, cell)
        for index, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and cell.source.strip()
    ]


def _run_cells(
    notebook: Any, path: Path, options: argparse.Namespace, results: list[CellResult]
) -> None:
    """Append the result of each cell as it ends; raises ``_Stopped``."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sandbox_kernel.cli import run_client

    try:
        spec = KernelSpecManager().get_kernel_spec(options.kernel)
        deadline = run_client.cell_deadline(spec.argv, os.environ, spec.env)
    except NoSuchKernel as error:
        msg = f"Jupyter has no kernel {options.kernel!r}; `jupyter kernelspec list` shows what it has."
        raise _Stopped(msg) from error
    except PolicyError as error:
        raise _Stopped(str(error)) from error
    client = run_client.BatchClient(
        notebook,
        deadline=deadline,
        timeout=options.timeout,
        kernel_name=options.kernel,
        resources={"metadata": {"path": str(path.parent)}},
    )
    cells = _code_cells(notebook)
    progress = Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    name = printable(path.name)
    try:
        with progress, run_client.kernel_of(client):
            task = progress.add_task(name, total=len(cells))
            for number, (index, cell) in enumerate(cells, 1):
                progress.update(task, description=f"{name} · {one_line(cell.source, 30)}")
                results.append(client.run_cell(cell, index, number))
                progress.advance(task)
                if results[-1].is_last or (results[-1].failed and not options.keep_going):
                    break
    except run_client.NotStarted as error:
        msg = f"the kernel {options.kernel!r} did not start: {error}. Its log above may say why."
        raise _Stopped(msg) from error
