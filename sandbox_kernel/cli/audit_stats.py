"""`sandbox-kernel audit stats` and `export`: the log in numbers, and all of it as lines."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sandbox_kernel.text import printable
from sandbox_kernel.words import duration, size

if TYPE_CHECKING:
    from sandbox_kernel.audit.query import Total
    from sandbox_kernel.audit.records import Record

SECONDS_PER_DAY: Final = 86_400
_BAR_CHARACTERS: Final = 12
# What a spreadsheet begins a formula with.
_FORMULA: Final = ("=", "+", "-", "@")
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def add_commands(command: Callable[[str, Any, str], argparse.ArgumentParser]) -> None:
    from sandbox_kernel.cli.audit import moment

    stats = command("stats", _stats, "cells, denials, time and memory by day, policy or user")
    stats.add_argument(
        "--by",
        choices=("day", "policy", "user"),
        default="day",
        help="what a row is about (%(default)s)",
    )
    stats.add_argument("--since", type=moment, metavar="WHEN", help="2026-01-31, or 2h, 7d ago")
    stats.add_argument("--json", action="store_true", help="print JSON")
    export = command("export", _export, "all records in order, as lines on stdout")
    export.add_argument(
        "--format", choices=("jsonl", "csv"), default="jsonl", help="of the lines (%(default)s)"
    )


def _stats(options: argparse.Namespace) -> int:
    from sandbox_kernel.audit.query import AuditReader
    from sandbox_kernel.cli.audit import log_path
    from sandbox_kernel.cli.audit_words import narrow_table, show_rich

    with AuditReader(log_path(options)) as reader:
        totals = reader.totals(options.by, options.since)
    if options.json:
        said = [{**total._asdict(), "group": _name(total, options.by)} for total in totals]
        print(json.dumps([{options.by: each.pop("group"), **each} for each in said]))
        return 0
    from rich.text import Text

    most = max((total.cells for total in totals), default=0)
    names = (options.by, "cells", "", "denied", "failed", "time", "CPU", "memory")
    table = narrow_table(*names)
    for total in totals:
        table.add_row(
            Text(printable(_name(total, options.by))),
            f"{total.cells:,}",
            bar(total.cells, most),
            f"{total.denied:,}",
            f"{total.failed:,}",
            duration(total.wall_seconds),
            duration(total.cpu_seconds),
            size(total.memory_peak_bytes),
        )
    show_rich(table)
    return 0


def _name(total: Total, by: str) -> str:
    if by != "day":
        return str(total.group)
    try:
        when = datetime.fromtimestamp(int(total.group) * SECONDS_PER_DAY, UTC)
    except (ValueError, OverflowError):
        return f"day {total.group}"  # none that a writer has stored
    return when.date().isoformat()


def bar(value: float, most: float) -> str:
    """A bar of at most so many characters, in eighths of one."""
    eighths = round(value / most * _BAR_CHARACTERS * 8) if most else 0
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def _export(options: argparse.Namespace) -> int:
    from sandbox_kernel.audit.mirror import as_json
    from sandbox_kernel.audit.query import AuditReader
    from sandbox_kernel.audit.records import Record
    from sandbox_kernel.cli.audit import log_path

    with AuditReader(log_path(options)) as reader:
        if options.format == "jsonl":
            for record in reader.records():
                print(json.dumps(as_json(record)))
            return 0
        writer = csv.writer(sys.stdout)
        writer.writerow([name for name in Record._fields if name != "day"])
        for record in reader.records():
            writer.writerow(_as_row(record))
    return 0


def _as_row(record: Record) -> Sequence[Any]:
    said = record._asdict()
    del said["day"]
    said |= {
        "body": record.body.decode("utf-8", "replace"),
        "previous": record.previous.hex(),
        "mac": record.mac.hex(),
    }
    return [_for_a_sheet(value) if isinstance(value, str) else value for value in said.values()]


def _for_a_sheet(text: str) -> str:
    """Text that neither a terminal nor a spreadsheet takes for something to be done."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
