"""Measure what checkpoints cost, and how fast they bring a killed kernel back, by size of state."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from client import Kernel, cell
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

CELLS = 15
ROLLBACKS = 5
THINKING_SECONDS = 0.15
# How a state of so many MiB is made. Small objects are the worst case: to look at one is to write
# its reference count, which copies its page.
STATES = {
    "60 MiB (a new kernel)": "state = None",
    "500 MiB, arrays": "import numpy; state = numpy.ones(440 << 17)",
    "500 MiB, small objects": "state = [str(n) for n in range(6_500_000)]",
    "2 GiB, arrays": "import numpy; state = numpy.ones(1988 << 17)",
    "2 GiB, small objects": "state = [str(n) for n in range(29_000_000)]",
}


@dataclass
class Cost:
    """Seconds, by whether checkpoints were on."""

    after_pause: dict[str, float]
    back_to_back: dict[str, float]
    recovery: float


@contextmanager
def kernel_with(checkpoint: str) -> Iterator[Kernel]:
    with tempfile.TemporaryDirectory() as directory:
        policy = Path(directory, "bench.yaml")
        policy.write_text(f"extends: trusted\ncheckpoint: {checkpoint}\n")
        policy.chmod(0o600)
        env = os.environ | {"SANDBOX_KERNEL_POLICY": str(policy), "IPYTHONDIR": directory}
        with Kernel("sandboxed-python", env=env) as kernel:
            yield kernel


def round_trip(kernel: Kernel, pause_seconds: float) -> float:
    samples = []
    for _ in range(CELLS):
        time.sleep(pause_seconds)
        samples.append(kernel.run("1+1").seconds)
    return statistics.median(samples)


def recovery(kernel: Kernel) -> float:
    """From the kill to the next result, with the state there."""
    samples = []
    for _ in range(ROLLBACKS):
        started = time.perf_counter()
        lost = kernel.request("execute_request", cell("import os; os.kill(os.getpid(), 9)"))
        kernel.expect(lost.reply.get("ename") == "SandboxLost", str(lost.reply))
        kernel.run("assert type(state) is not int")
        samples.append(time.perf_counter() - started)
        time.sleep(THINKING_SECONDS)
    return max(samples)


def measure(make_state: str, progress: Progress) -> Cost:
    cost = Cost({}, {}, 0.0)
    for checkpoint in ("off", "cell"):
        with kernel_with(checkpoint) as kernel:
            kernel.run(make_state)
            cost.after_pause[checkpoint] = round_trip(kernel, THINKING_SECONDS)
            cost.back_to_back[checkpoint] = round_trip(kernel, 0)
            if checkpoint == "cell":
                cost.recovery = recovery(kernel)
        progress.advance(progress.tasks[0].id)
    return cost


def main() -> int:
    with Progress(console=Console(stderr=True), transient=True) as progress:
        progress.add_task("checkpoints", total=2 * len(STATES))
        costs = {state: measure(code, progress) for state, code in STATES.items()}
    table = Table(title="What a checkpoint before each cell costs (1+1, median of reply and idle)")
    for heading in ("state", "after a pause: off", "on", "back to back: off", "on"):
        table.add_column(heading, justify="left" if heading == "state" else "right")
    table.add_column("killed cell to next result (worst)", justify="right")
    for state, cost in costs.items():
        times = [cost.after_pause["off"], cost.after_pause["cell"]]
        times += [cost.back_to_back["off"], cost.back_to_back["cell"], cost.recovery]
        table.add_row(state, *(f"{1000 * seconds:.1f} ms" for seconds in times))
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    slow = [state for state, cost in costs.items() if cost.recovery > 0.5]
    if slow:
        print(f"Slower to recover than 0.5 s: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
