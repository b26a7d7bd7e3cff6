"""What `make test` leaves out is listed with a reason, and everything else runs at every push."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import has_its_turn
from tests.kernel import LEVELS
from tests.tiers import FullOnly, full_only

REPOSITORY = Path(__file__).parents[2]
# A test that repeats itself has one pair, however often it runs.
REPETITION = re.compile(r"repetition\d+")


def collected(tier: str) -> set[str]:
    """The node ids of a tier at all levels, whatever this machine can run."""
    environment = {
        **os.environ,
        "SANDBOX_KERNEL_TIER": tier,
        "SANDBOX_KERNEL_LEVELS": ",".join(LEVELS),
    }
    environment.pop("SANDBOX_KERNEL_REQUIRE", None)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = done.stdout.splitlines()
    return {REPETITION.sub("repetition", line) for line in lines if line.startswith("tests/")}


def level_in(node_id: str) -> str | None:
    parameters = node_id.partition("[")[2].rstrip("]").split("-")
    return next((level for level in LEVELS if level in parameters), None)


@pytest.fixture(scope="module")
def tiers() -> tuple[set[str], set[str]]:
    with ThreadPoolExecutor() as both:
        push, full = both.map(collected, ("push", "full"))
    return push, full


def test_each_test_of_the_full_tier_runs_at_every_push_or_is_listed(
    tiers: tuple[set[str], set[str]],
) -> None:
    push, full = tiers
    assert len(push) > 5000, "the control: tests were collected"
    listed = full_only()
    unlisted = [
        node for node in full - push if not any(entry.has(node, level_in(node)) for entry in listed)
    ]
    assert sorted(unlisted) == []
    assert sorted(push - full) == [], "the full tier has everything"


def test_each_entry_of_the_list_leaves_something_out_and_says_why(
    tiers: tuple[set[str], set[str]], record_property: pytest.RecordProperty
) -> None:
    push, full = tiers
    counts = Counter[str]()
    for entry in full_only():
        assert len(entry.reason) > 20, entry
        for pattern in entry.tests:
            alone = FullOnly((pattern,), entry.reason, entry.levels)
            left_out = [node for node in full - push if alone.has(node, level_in(node))]
            assert left_out, f"{pattern} matches nothing"
            counts[entry.reason] += len(left_out)
    lines = [f"{count:5} {reason}" for reason, count in counts.most_common()]
    figures = "\n".join([f"{len(push)} of {len(full)} run at every push; left to full:", *lines])
    record_property("figures", figures)


class Item:
    """What decides on a test's turn: its mark, whether a worker has it, and what was asked for."""

    def __init__(self, *, alone: bool, worker: bool = False, alone_asked: bool = False) -> None:
        self._alone = alone
        self.config = SimpleNamespace(getoption=lambda name: {"--alone": alone_asked}[name])
        if worker:
            self.config.workerinput = {}

    def get_closest_marker(self, name: str) -> object:
        return {"alone": self._alone or None}[name]


@pytest.mark.parametrize("alone", [True, False])
def test_each_test_has_a_turn_among_workers_or_alone_and_never_both(alone: bool) -> None:
    among_workers = has_its_turn(Item(alone=alone, worker=True))
    assert among_workers is not alone
    assert has_its_turn(Item(alone=alone, alone_asked=True)) is alone
    assert has_its_turn(Item(alone=alone)), "all of them, one by one, if nothing is asked for"
