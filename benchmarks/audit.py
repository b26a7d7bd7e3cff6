"""Measure what the audit log costs a cell, in one run: without it, `durability: normal`, and `full`."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from client import Kernel
from rich.console import Console
from rich.table import Table
from stats import quantile

PLAIN = "plain ipykernel"
WITHOUT = "no audit log"
AUDITS = {
    WITHOUT: "{enabled: false}",
    "durability: normal": "{durability: normal}",
    "durability: full": "{durability: full}",
}
WARM_UP = 10
THINKING_SECONDS = 0.03
TARGET = 0.05  # of plain ipykernel's round trip

# Seconds of one cell with each kernel, one right after the other.
Visit = dict[str, float]


@contextmanager
def kernels() -> Iterator[dict[str, Kernel]]:
    """One of each, each with a log of its own."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as running:
        env = os.environ | {"IPYTHONDIR": directory}
        found = {PLAIN: running.enter_context(Kernel("python3", env=env))}
        for number, (name, section) in enumerate(AUDITS.items()):
            policy = Path(directory, f"bench{number}.yaml")
            policy.write_text(f"extends: trusted\naudit: {section}\n")
            policy.chmod(0o600)
            home = f"{directory}/home{number}"
            own = {"SANDBOX_KERNEL_POLICY": str(policy), "SANDBOX_KERNEL_HOME": home}
            found[name] = running.enter_context(Kernel("sandboxed-python", env=env | own))
        yield found


def measure(groups: int, visits: int) -> list[list[Visit]]:
    """Cells that come after a pause: all kernels in turn, so that what slows one slows all."""
    order, draw, taken = [PLAIN, *AUDITS], random.Random(0), []
    for _ in range(groups):
        with kernels() as running:
            group = []
            for number in range(WARM_UP + visits):
                draw.shuffle(order)
                visit = {}
                for name in order:
                    time.sleep(THINKING_SECONDS)
                    visit[name] = running[name].run("1+1").seconds
                if number >= WARM_UP:
                    group.append(visit)
            taken.append(group)
    return taken


def cost(visits: list[Visit], name: str) -> float:
    """What the log adds to a cell, the median of differences, as a share of plain ipykernel's."""
    added = statistics.median(visit[name] - visit[WITHOUT] for visit in visits)
    return added / statistics.median(visit[PLAIN] for visit in visits)


def interval(visits: list[Visit], name: str) -> tuple[float, float]:
    """A bootstrap 95 % interval of the cost."""
    draw = random.Random(0)
    costs = [cost(draw.choices(visits, k=len(visits)), name) for _ in range(500)]
    return quantile(costs, 0.025), quantile(costs, 0.975)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=5, help="new kernels so many times")
    parser.add_argument("--visits", type=int, default=100, help="cells with each of them")
    parser.add_argument("--check", action="store_true", help="exit 1 if the target is missed")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    visits = [visit for group in measure(options.groups, options.visits) for visit in group]
    table = Table("", "1+1, after a pause", "quartiles", "the log adds, of plain")
    for name in (PLAIN, *AUDITS):
        samples = [visit[name] * 1000 for visit in visits]
        low, high = quantile(samples, 0.25), quantile(samples, 0.75)
        added = ""
        if name not in (PLAIN, WITHOUT):
            least, most = interval(visits, name)
            added = f"{cost(visits, name):+.1%} ({least:+.1%} … {most:+.1%})"
        median = f"{statistics.median(samples):.2f} ms"
        table.add_row(name, median, f"{low:.2f}–{high:.2f} ms", added)
    Console().print(table)
    print(f"Load average before the run: {load:.1f}, on {os.cpu_count()} CPUs.")
    return int(options.check and cost(visits, "durability: normal") > TARGET)


if __name__ == "__main__":
    sys.exit(main())
