"""A test that is to be alone is, and nobody waits for ever."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from tests.turns import turn

fork = multiprocessing.get_context("fork")


def take_turns(notes: Path, name: str, alone: bool) -> None:
    for _ in range(20):
        with turn(alone=alone), notes.open("a") as file:
            file.write(f"{name} begins\n")
            file.flush()
            time.sleep(0.002)
            file.write(f"{name} ends\n")


@pytest.mark.parametrize("others", [1, 3])
def test_nobody_runs_beside_one_that_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", f"turns-{tmp_path.name}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    notes = tmp_path / "notes"
    workers = [
        fork.Process(target=take_turns, args=(notes, f"other {number}", False))
        for number in range(others)
    ]
    workers.append(fork.Process(target=take_turns, args=(notes, "alone", True)))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * len(workers)
    running: set[str] = set()
    for line in notes.read_text().splitlines():
        name, _, what = line.rpartition(" ")
        if what == "begins":
            assert not running or "alone" not in running | {name}, (running, line)
            running.add(name)
        else:
            running.discard(name)
