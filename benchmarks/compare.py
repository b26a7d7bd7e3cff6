"""Measure two kernels side by side, in one run, and print how their times compare."""

from __future__ import annotations

import argparse
import compileall
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import zmq
from client import Failed, Kernel, ceiling
from report import plot, save, show
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from stats import MIB, Round, Row, p95

import sandbox_kernel

OUTPUT_BYTES = 100_000_000
DISPLAYS = 5_000
RECEIPT = b"application/vnd.sandbox-kernel.receipt+json"
BUFFER = os.urandom(1_000_000)
CELLS_PER_ROUND = 25
THINKING_SECONDS = 0.1
# Its limits are wide enough for 100 MB of output; checkpoints and receipts are on.
POLICY = "trusted"
# A start at each level, against plain ipykernel's.
START_TARGETS = {"process": 1.25, "container": 1.6, "gvisor": None}

ECHO = """
def _echo(comm, _):
    comm.on_msg(lambda msg: comm.send({}, buffers=msg["buffers"]))
get_ipython().kernel.comm_manager.register_target("echo", _echo)
"""


@dataclass
class Plan:
    """How much is measured. A round is one visit to each kernel of a pair.

    Two processes of one and the same kernel can differ by a few per cent for as long as they
    live, so the rounds are spread over several pairs.
    """

    starts: int
    pairs: int
    # rounds for each pair:
    cells: int
    trips: int
    interrupts: int
    displays: int
    outputs: int


FULL = Plan(starts=10, pairs=5, cells=5, trips=4, interrupts=3, displays=2, outputs=1)
QUICK = Plan(starts=3, pairs=2, cells=4, trips=2, interrupts=2, displays=1, outputs=1)


def cells(kernel: Kernel) -> Round:
    """As people and agents send them: one, and after a while the next."""
    samples = []
    for _ in range(CELLS_PER_ROUND):
        time.sleep(THINKING_SECONDS)
        samples.append(kernel.run("1+1").seconds)
    return samples


def burst(kernel: Kernel) -> Round:
    """As "Run all" sends them: the next at once."""
    return [kernel.run("1+1").seconds for _ in range(CELLS_PER_ROUND)]


def output_rows() -> list[tuple[Row, int]]:
    """The shapes 100 MB are printed in, with their numbers of lines."""
    shapes = {"1,000,000 lines": 1_000_000, "100 lines": 100, "1 line": 1}
    return [(Row(f"100 MB printed, {s}", target=1.15), lines) for s, lines in shapes.items()]


def printed(lines: int) -> Callable[[Kernel], Round]:
    """Print 100 MB as so many lines and see that every byte arrived."""
    length = OUTPUT_BYTES // lines

    def measure(kernel: Kernel) -> Round:
        run = kernel.run(f"for _ in range({lines}): print('x' * {length - 1})")
        text = "".join(json.loads(message[3])["text"] for message in run.of_type("stream"))
        whole = text == ("x" * (length - 1) + "\n") * lines
        kernel.expect(whole, f"{len(text):,} of {lines * length:,} bytes arrived")
        return [run.seconds]

    return measure


def displays(kernel: Kernel) -> Round:
    run = kernel.run(f"for _ in range({DISPLAYS}): display({{'text/plain': 'x'}}, raw=True)")
    # A receipt comes on top of what the cell shows.
    arrived = sum(RECEIPT not in message[3] for message in run.of_type("display_data"))
    kernel.expect(arrived == DISPLAYS, f"{arrived:,} of {DISPLAYS:,} messages arrived")
    return [run.seconds]


def completions(kernel: Kernel) -> Round:
    code = "import os; os.pa"
    request = {"code": code, "cursor_pos": len(code)}
    runs = [kernel.request("complete_request", request) for _ in range(5)]
    kernel.expect(all("path" in run.reply["matches"] for run in runs), "no completion came")
    return [run.seconds for run in runs]


def inputs(kernel: Kernel) -> Round:
    return [kernel.run_with_input("_ = input()", "hello") for _ in range(5)]


def comm_echoes(kernel: Kernel) -> Round:
    kernel.run(ECHO)
    kernel.request("comm_open", {"comm_id": "c", "target_name": "echo", "data": {}})
    message = {"comm_id": "c", "data": {}}
    runs = [kernel.request("comm_msg", message, (BUFFER,)) for _ in range(5)]
    returned = [[m[4:] for m in run.of_type("comm_msg")] for run in runs]
    kernel.expect(returned == [[[BUFFER]]] * 5, "the buffer did not come back")
    kernel.request("comm_close", message)
    return [run.seconds for run in runs]


def interrupts(kernel: Kernel) -> Round:
    return [kernel.interrupt("import time; time.sleep(100)")]


def _visit(measure: Callable[[Kernel], Round], pair: dict[int, Kernel], side: int) -> Round:
    return measure(pair[side])


class Comparison:
    """Two kernels, measured in turns."""

    def __init__(
        self, ours: str, plain: str, plan: Plan, progress: Progress, level: str, image: str
    ) -> None:
        self.names = (ours, plain)
        self.level = level
        self.image = image
        self.plan = plan
        self.progress = progress
        self.task = progress.add_task("")

    def in_turns(
        self, row: Row, rounds: int, measure: Callable[[int], Round], *, warm_up: bool = True
    ) -> None:
        """Measure both sides, the order alternating from round to round so that drift cancels."""
        self.progress.reset(self.task, total=rounds + warm_up, description=row.title)
        for number in range(-warm_up, rounds):
            if row.failures:
                return
            samples: dict[int, Round] = {}
            for side in (0, 1) if len(row.ours) % 2 else (1, 0):
                gc.collect()
                try:
                    samples[side] = measure(side)
                except (Failed, zmq.Again) as error:
                    row.failures.append(str(error) or f"{self.names[side]}: timed out")
                    return
            if number >= 0:
                row.ours.append(samples[0])
                row.plain.append(samples[1])
            self.progress.advance(self.task)

    def lives(self) -> list[Row]:
        """Start, rest, weigh and shut down new kernels, one at a time."""
        at_level = "" if self.level == "process" else f", {self.level}"
        start = Row(f"start to first result{at_level}", target=START_TARGETS[self.level])
        memory = Row("wrapper memory, idle", target=40 * MIB, absolute=True)
        shutdown = Row("shutdown")
        taken: dict[int, list[tuple[float, float]]] = {0: [], 1: []}

        def live(side: int) -> Round:
            with self.launch(side) as kernel:
                kernel.run("import time; time.sleep(0.3)")
                weight = kernel.memory()
                taken[side].append((weight, kernel.shut_down()))
                return [kernel.seconds_to_first_result]

        self.in_turns(start, self.plan.starts, live)
        for side, name in enumerate(("ours", "plain")):
            kept = taken[side][1 : len(start.ours) + 1]  # the first is the warm-up
            setattr(memory, name, [[weight] for weight, _ in kept])
            setattr(shutdown, name, [[seconds] for _, seconds in kept])
        return [start, shutdown, memory]

    def work(self) -> list[Row]:
        """Everything that is asked of kernels that keep running."""
        plan = self.plan
        trip = Row("1+1, after a pause", target=1.0)
        tail = Row("1+1, 95th percentile", statistic=p95, ours=trip.ours, plain=trip.plain)
        last = Row("wrapper memory, after all this", absolute=True)
        small = [
            (trip, plan.cells, cells),
            (Row("1+1, back to back"), plan.cells, burst),
            (Row("completion"), plan.trips, completions),
            (Row("stdin, one input()"), plan.trips, inputs),
            (Row("comm echo of 1 MB"), plan.trips, comm_echoes),
            (Row("interrupt to error reply"), plan.interrupts, interrupts),
            (Row("5,000 display messages", target=1.15), plan.displays, displays),
        ]
        large = [
            # A million lines take ten times as long as the others, and vary less.
            (row, plan.outputs if lines > 100 else 3 * plan.outputs, printed(lines))
            for row, lines in output_rows()
        ]

        def weigh(kernel: Kernel) -> Round:
            return [kernel.memory()]

        for number in range(plan.pairs):
            with ExitStack() as running:
                pair: dict[int, Kernel] = {}
                for side in (0, 1) if number % 2 else (1, 0):
                    pair[side] = running.enter_context(self.launch(side))
                for row, rounds, measure in [*small, *large, (last, 1, weigh)]:
                    visit = partial(_visit, measure, pair)
                    self.in_turns(row, rounds, visit, warm_up=rounds > 1)
        rows = [row for row, _, _ in [*small, *large]]
        return [trip, tail, *rows[1:], last]

    def launch(self, side: int) -> Kernel:
        return Kernel(self.names[side], env=self.env)

    @contextmanager
    def place(self) -> Iterator[None]:
        """An IPython directory of their own: no one's history or profile takes part."""
        with tempfile.TemporaryDirectory() as directory:
            policy = Path(directory, "policy.yaml")
            policy.write_text(
                f"extends: {POLICY}\n"
                f"isolation: {{prefer: [{self.level}], require: {self.level}, image: '{self.image}'}}\n"
            )
            chosen = POLICY if self.level == "process" else str(policy)
            self.env = os.environ | {"IPYTHONDIR": directory, "SANDBOX_KERNEL_POLICY": chosen}
            yield


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="sandboxed-python", help="kernelspec to measure")
    parser.add_argument("--against", default="python3", help="kernelspec to compare it with")
    parser.add_argument("--level", choices=START_TARGETS, default="process", help="of isolation")
    parser.add_argument("--image", default="python", help="of the container levels")
    parser.add_argument("--starts", action="store_true", help="measure starts and ends only")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a first impression")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample here")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the ratios here")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    # As pip does when it installs a package: plain ipykernel has its bytecode, too.
    compileall.compile_dir(Path(sandbox_kernel.__file__).parent, quiet=1)
    gc.disable()
    load = os.getloadavg()[0]
    client = {
        "100 × 1 MB": ceiling(100, OUTPUT_BYTES // 100),
        f"{DISPLAYS:,} small messages": ceiling(DISPLAYS, 1),
    }
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        plan = QUICK if options.quick else FULL
        comparison = Comparison(
            options.kernel, options.against, plan, progress, options.level, options.image
        )
        with comparison.place():
            rows = comparison.lives()
            if not rows[0].failures and not options.starts:  # they start: see how they work
                rows += comparison.work()
    show(rows, options.kernel, options.against, client)
    print(f"Load average before the run: {load:.1f}, on {os.cpu_count()} CPUs.")
    if options.json:
        save(rows, options.kernel, options.against, client, options.json)
    if options.plot:
        plot(rows, options.kernel, options.against, options.plot)
    return int(options.check and any(row.verdict() in {"miss", "fail"} for row in rows))


if __name__ == "__main__":
    sys.exit(main())
