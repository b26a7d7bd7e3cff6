"""Logs that tests make, and what is in them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sandbox_kernel.audit.query import AuditReader
from sandbox_kernel.audit.records import Entry, Record, body_of, now_us
from sandbox_kernel.audit.store import Store
from sandbox_kernel.audit.verify import Report, verify
from sandbox_kernel.outputs.receipt import new_audit_id

REPOSITORY = Path(__file__).parents[3]
ENDS = """
import pathlib, sys
from sandbox_kernel.audit.store import Store
from tests.unit.audit.logs import cell_entries
store = Store(pathlib.Path(sys.argv[1]), busy_seconds=30)
store.append(cell_entries(0))
store.close()
"""


def cell_entries(number: int, **changes: Any) -> list[Entry]:
    """The intent and the outcome of a cell."""
    cell, now = new_audit_id(), now_us()
    intent = Entry(
        "intent",
        now,
        "kernel-1",
        cell,
        "ada",
        "default",
        "allow",
        body_of({"code": f"x = {number}"}),
    )
    outcome = Entry(
        *("outcome", now + 5, "kernel-1", cell, "ada", "default", "ok"),
        *(body_of({"receipt": {"outcome": "ok"}}), 42_000, 40_000, 1 << 26),
    )
    return [intent._replace(**changes), outcome._replace(**changes)]


def fill(directory: Path, cells: int) -> Path:
    """A log of so many cells, two records each; its path."""
    store = Store(directory)
    for number in range(cells):
        store.append(cell_entries(number))
    store.close()
    return store.path


def a_kernel_comes_and_ends(directory: Path) -> None:
    """Another process writes one cell and closes the log."""
    subprocess.run([sys.executable, "-c", ENDS, str(directory)], cwd=REPOSITORY, check=True)


def change(path: Path, *statements: str | tuple[str, Sequence[Any]]) -> None:
    """What somebody does to the file who has no key."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for each in statements:
            text, values = (each, ()) if isinstance(each, str) else each
            connection.execute(text, values)


def records(path: Path) -> list[Record]:
    with AuditReader(path) as reader:
        return list(reader.records())


def expect_whole(path: Path, number: int | None = None) -> Report:
    report = verify(path)
    assert report.problems == []
    assert number is None or report.records == number
    return report


def accused(path: Path, *anchors: Any) -> list[int]:
    """The numbers of the records that are not as they were written."""
    return [problem.seq for problem in verify(path, anchors).problems]
