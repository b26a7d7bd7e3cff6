"""Measure what the static check costs: a cell's time under a policy, by kind of cell.

    python benchmarks/check.py CORPUS.jsonl.gz            # lines of JSON with `cells`
    python benchmarks/check.py CORPUS.jsonl.gz --json out.json
    python benchmarks/check.py CORPUS.jsonl.gz --check    # exit 1 if the target is missed

Each notebook is judged from its first cell to its last, as a kernel does it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from stats import p95, quantile

from sandbox_kernel.policy.judge import LARGE_BYTES, Judge
from sandbox_kernel.policy.load import load_policy

TARGET_SECONDS = 0.001  # the median of a cell of some 40 lines
IMPORTS = 7
_SHELL = re.compile(r"^\s*(?:!|%%(?:bash|sh)\b|\w+\s*=\s*!)", re.MULTILINE)
_SCRIPT = re.compile(r"^%%(?:javascript|js|html)\b|<script", re.MULTILINE)

SOME_40_LINES = "36–46 lines"
KINDS: dict[str, Callable[[str], bool]] = {
    "all cells": lambda text: True,
    SOME_40_LINES: lambda text: 36 <= text.count("\n") + 1 <= 46,
    "with shell": lambda text: _SHELL.search(text) is not None,
    "with JavaScript": lambda text: _SCRIPT.search(text) is not None,
    f"over {LARGE_BYTES >> 10} KiB, in a fork": lambda text: len(text.encode()) > LARGE_BYTES,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument(
        "--policy", action="append", help="default and strict, unless others are named"
    )
    parser.add_argument("--rounds", type=int, default=3, help="the fastest of so many counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--check", action="store_true", help="exit 1 if the target is missed")
    options = parser.parse_args()
    notebooks = read(options.corpus)
    policies = options.policy or ["default", "strict"]
    figures = {name: measure(name, notebooks, options.rounds) for name in policies}
    seconds = {"sandbox_kernel.policy.judge": import_seconds(), **first_cells()}
    show(figures, seconds)
    if options.json:
        options.json.write_text(json.dumps({"cells": figures, "first_use_seconds": seconds}) + "\n")
    missed = any(found[SOME_40_LINES]["median"] > TARGET_SECONDS for found in figures.values())
    return int(missed and options.check)


def read(path: Path) -> list[list[str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line)["cells"] for line in file]


def measure(
    policy: str, notebooks: Sequence[Sequence[str]], rounds: int
) -> dict[str, dict[str, float]]:
    """Seconds by kind of cell."""
    code = load_policy(policy).code
    warm = Judge(code)
    for cell in ("!ls", "%%javascript\na()", "x = 1"):
        warm.judge(cell)
    samples: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for cells in track(notebooks, policy, console=Console(stderr=True), transient=True):
        best = [float("inf")] * len(cells)
        for _ in range(rounds):
            judge = Judge(code)
            for number, cell in enumerate(cells):
                began = time.perf_counter()
                judge.judge(cell)
                best[number] = min(best[number], time.perf_counter() - began)
                judge.tidy()  # as a kernel does, once the cell is on its way
        for cell, seconds in zip(cells, best, strict=True):
            for kind, belongs in KINDS.items():
                if belongs(cell):
                    samples[kind].append(seconds)
    return {
        kind: {
            "cells": len(found),
            "median": statistics.median(found),
            "p95": p95(found),
            "p99": quantile(found, 0.99),
            "max": max(found),
        }
        for kind, found in samples.items()
        if found
    }


_IMPORT = """
import time
began = time.perf_counter()
import sandbox_kernel.policy.judge
print(time.perf_counter() - began)
"""
_FIRST = """
import sys, time
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.load import load_policy
judge = Judge(load_policy("default").code)
began = time.perf_counter()
judge.judge(sys.argv[1])
print(time.perf_counter() - began)
"""


def import_seconds() -> float:
    return median_of_processes(_IMPORT)


def first_cells() -> dict[str, float]:
    """Of a new process: parsers are loaded when a cell first needs them."""
    cells = {"plain": "x = [1]\nprint(x)", "shell": "!ls\nx = 1", "JavaScript": "%%javascript\na()"}
    return {
        f"first cell, {kind}": median_of_processes(_FIRST, cell) for kind, cell in cells.items()
    }


def median_of_processes(script: str, *arguments: str) -> float:
    argv = [sys.executable, "-c", script, *arguments]
    said = [
        subprocess.run(argv, capture_output=True, text=True, check=True) for _ in range(IMPORTS)
    ]
    return statistics.median(float(each.stdout) for each in said)


def show(figures: dict[str, dict[str, dict[str, float]]], seconds: dict[str, float]) -> None:
    console = Console()
    columns = ("median", "p95", "p99", "max")
    for policy, kinds in figures.items():
        table = Table("cells", "number", *columns, title=f"Judge.judge, policy {policy}, in ms")
        for column in table.columns[1:]:
            column.justify = "right"
        for kind, found in kinds.items():
            values = [f"{1e3 * found[column]:.2f}" for column in columns]
            if kind == SOME_40_LINES:
                values[0] += " ✓" if found["median"] <= TARGET_SECONDS else " ✗"
            table.add_row(kind, str(int(found["cells"])), *values)
        console.print(table)
    table = Table("first use", "ms")
    table.columns[1].justify = "right"
    for what, each in seconds.items():
        table.add_row(what, f"{1e3 * each:.1f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
