"""The table, the JSON file and the chart."""

from __future__ import annotations

import json
import os
import platform
import statistics
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from stats import MIB, Row

MARKS = {
    "pass": "[green]✓[/]",
    "miss": "[red]✗[/]",
    "unsure": "[yellow]~[/]",
    "fail": "[red]failed[/]",
    "": "",
}


def amount(*values: float, memory: bool = False) -> str:
    """A value with its unit, and after it in brackets the ends of its range if given."""
    if memory:
        scale, unit, digits = 1 / MIB, "MiB", 1
    elif values[0] >= 1:
        scale, unit, digits = 1, "s", 2
    else:
        scale, unit, digits = 1000, "ms", 2 if values[0] < 0.1 else 0
    first, *ends = [f"{value * scale:.{digits}f}" for value in values]
    return f"{first} {unit}" + (f" [dim]({'–'.join(ends)})[/]" if ends else "")


def _side(row: Row, which: str) -> str:
    rounds = getattr(row, which)
    ends = row.spread(rounds) if row.statistic is statistics.median else ()
    return amount(row.figure(rounds), *ends, memory=row.absolute)


def _cells(row: Row) -> list[str]:
    if not row.measured:
        return [row.title, "", "", "", "", MARKS[row.verdict()]]
    low, high = row.interval()
    if row.absolute:
        ratio = f"{row.ratio:.2f}"
        target = "" if row.target is None else f"≤ {amount(row.target, memory=True)}"
    else:
        ratio = f"[bold]{row.ratio:.2f}[/] [dim]({low:.2f}–{high:.2f})[/]"
        target = "" if row.target is None else f"≤ {row.target:.2f}"
    return [row.title, _side(row, "plain"), _side(row, "ours"), ratio, target, MARKS[row.verdict()]]


def show(rows: list[Row], ours: str, plain: str, client: dict[str, float]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    table = Table(
        title=f"{ours} against {plain}",
        caption="medians, with quartiles; ratios, "
        "with bootstrap 95 % intervals; ✓ met  ~ undecided  ✗ missed",
    )
    for name in ("", plain, ours, "ratio", "target", ""):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    for row in rows:
        for failure in row.failures:
            console.print(f"{row.title}: {failure}", style="red", markup=False)
    limits = "; ".join(f"{name} in {amount(s)}" for name, s in client.items())
    console.print(f"The client alone reads {limits}.", highlight=False)


def save(rows: list[Row], ours: str, plain: str, client: dict[str, float], path: Path) -> None:
    packages = ("ipykernel", "ipython", "jupyter_client", "pyzmq", "sandbox-kernel")
    document: dict[str, Any] = {
        "kernel": ours,
        "against": plain,
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.system(),
            "release": platform.release(),
            "python": platform.python_version(),
        },
        "versions": {name: _version(name) for name in packages},
        "client_alone_seconds": client,
        "rows": [_record(row) for row in rows],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except ImportError:
        return None


def _record(row: Row) -> dict[str, Any]:
    record: dict[str, Any] = {
        "title": row.title,
        "unit": "bytes" if row.absolute else "seconds",
        "statistic": row.statistic.__name__,
        "target": row.target,
        "absolute": row.absolute,
        "verdict": row.verdict(),
        "failures": row.failures,
        "samples": {"ours": row.ours, "plain": row.plain},
    }
    if row.measured:
        record |= {
            "ours": row.figure(row.ours),
            "plain": row.figure(row.plain),
            "ratio": row.ratio,
            "interval": row.interval(),
        }
    return record


def plot(rows: list[Row], ours: str, plain: str, path: Path) -> None:
    """A bar for each ratio, its interval as a whisker, its target as a line across it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in rows if row.measured and not row.absolute][::-1]
    ratios = [row.ratio for row in shown]
    whiskers = [
        [r - row.interval()[0] for r, row in zip(ratios, shown, strict=True)],
        [row.interval()[1] - r for r, row in zip(ratios, shown, strict=True)],
    ]
    colours = [
        {"pass": "#4c9f70", "": "#8a95a5", "unsure": "#d9a441"}.get(row.verdict(), "#c44e52")
        for row in shown
    ]
    figure, axes = pyplot.subplots(figsize=(9, 0.45 * len(shown) + 1.2), layout="constrained")
    axes.barh(
        range(len(shown)),
        ratios,
        color=colours,
        xerr=whiskers,
        height=0.6,
        error_kw={"ecolor": "#444444", "lw": 1},
    )
    for place, row in enumerate(shown):
        if row.target is not None:
            axes.plot([row.target] * 2, [place - 0.42, place + 0.42], color="black", lw=2)
    axes.axvline(1, color="#444444", lw=0.8, ls=":")
    axes.set_yticks(range(len(shown)), [row.title for row in shown])
    axes.set_xlim(left=0)
    axes.set_xlabel(f"time of {ours} / time of {plain} (black: target)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
