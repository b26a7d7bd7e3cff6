"""Measure how fast a large audit log answers: its commands as a user calls them, interpreter included."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from sandbox_kernel.audit.records import Entry, body_of, now_us
from sandbox_kernel.audit.store import Store
from sandbox_kernel.audit.table import audit_directory
from sandbox_kernel.outputs.receipt import new_audit_id

BATCH = 2000
KERNELS, AT_ONCE, USERS, DAYS = 500, 20, 20, 90
DAY_US = 86_400_000_000
ANSWER_SECONDS = 1.0
VERIFIED_PER_SECOND = 50_000
RECEIPT = {"outcome": "ok", "state": "kept", "usage": {"wall_seconds": 0.04, "cpu_seconds": 0.03}}
# As long as that of a real kernel.
START = body_of(
    {"versions": {"python": "3.11"}, "seccomp": "0" * 64, "limits": {"wall": 60}, "pad": "x" * 700}
)


def cells(number: int) -> Iterator[Entry]:
    """Two records for each, spread over users and days, one in a hundred denied.

    Kernels start one after the other; each runs its cells among those of the next ones, so that the start of
    one lies far before its last cell.
    """
    began = now_us() - DAYS * DAY_US
    apart = max(1, number // KERNELS)
    for place in range(number):
        at, cell = began + place * DAYS * DAY_US // number, new_audit_id()
        newest, within = divmod(place, apart)
        user = f"user-{newest % USERS}"
        if within == 0:
            yield Entry("start", at, f"kernel-{newest}", "", user, "default", "process", START)
        kernel = max(0, newest - place % AT_ONCE)
        about = (f"kernel-{kernel}", cell, f"user-{kernel % USERS}", "default")
        verdict, outcome = ("deny", "denied") if place % 100 == 0 else ("allow", "ok")
        code = body_of({"code": f"frame = load({place})\nframe.describe()"})
        yield Entry("intent", at, *about, verdict, code)
        receipt = body_of({"receipt": RECEIPT})
        yield Entry("outcome", at + 40_000, *about, outcome, receipt, 40_000, 30_000, 80 << 20)


def fill(home: Path, records: int) -> str:
    """A log of so many records; the id of one of its cells."""
    store = Store(audit_directory(home))
    entries = list[Entry]()
    every = cells(records // 2)
    for _ in track(range(0, records, BATCH), "writing", transient=True):
        entries = [entry for entry, _ in zip(every, range(BATCH), strict=False)]
        store.append(entries)
        store.tidy()
    store.close()
    return next(entry.cell for entry in reversed(entries) if entry.kind == "outcome")


def seconds(home: Path, *arguments: str) -> float:
    command = [sys.executable, "-m", "sandbox_kernel", "audit", *arguments]
    began = time.perf_counter()
    env = {**os.environ, "SANDBOX_KERNEL_HOME": str(home)}
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    records = parser.parse_args().records
    table = Table(title=f"a log of {records:,} records")
    for name in ("", "seconds", "target", ""):
        table.add_column(name)
    met = True
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        cell = fill(home, records)
        for question in (
            ["list"],
            ["list", "--verdict", "deny"],
            ["list", "--outcome", "timeout"],  # there is none: all are looked at
            ["list", "--user", "user-7", "--since", "7d"],
            ["show", cell],
            ["stats"],
            ["stats", "--by", "user"],
        ):
            took = min(seconds(home, *question) for _ in range(3))
            good = took < ANSWER_SECONDS
            met = met and good
            name = " ".join(word if word != cell else "ID" for word in question)
            table.add_row(name, f"{took:.2f}", f"< {ANSWER_SECONDS:.0f}", "✓" if good else "✗")
        took = seconds(home, "verify")
        good = records / took >= VERIFIED_PER_SECOND
        met = met and good
        rate = f"{took:.1f}, {records / took:,.0f} records/s"
        table.add_row("verify", rate, f"≥ {VERIFIED_PER_SECOND:,} records/s", "✓" if good else "✗")
    Console().print(table)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
