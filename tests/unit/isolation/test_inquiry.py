"""Statistics of a container, from engines that answer, refuse, hang up and fall silent."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.isolation.engine_http import Engine
from sandbox_kernel.isolation.inquiry import PERIOD_SECONDS, Inquiry
from tests.unit.isolation.engine_server import says, serving

SECONDS = 20
RUNS = {
    "cpu_stats": {"cpu_usage": {"total_usage": 2_000_000_000}},
    "memory_stats": {"usage": 4096},
    "pids_stats": {"current": 3},
}
USED = {"cpu_seconds": 2.0, "anon": 4096, "shmem": 0, "kernel": 0, "tasks": 3}


class Answers:
    """One for each question; the last one again and again."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, first: str, connection: socket.socket) -> None:
        self.asked.append(first)
        assert self.may_answer.wait(SECONDS)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        connection.sendall(answer)


def reports(inquiry: Inquiry) -> Iterator[dict[str, Any]]:
    """What it says, one word after the other."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        readable, _, _ = select.select(inquiry.sources, [], [], inquiry.pause)
        if said := inquiry.go_on(readable):
            yield said
    pytest.fail("it has not said another word")


def numbers(body: Any) -> bytes:
    return says(200, json.dumps(body).encode())


def test_what_a_container_uses_is_asked_for_again_and_again(tmp_path: Path) -> None:
    answers = Answers(numbers(RUNS))
    with serving(tmp_path, answers) as address:
        said = reports(Inquiry(Engine(address), "mine"))
        asked = 0.0
        for _ in range(3):
            word = next(said)
            assert word["used"] == USED
            # Once a second.
            assert asked + PERIOD_SECONDS <= word["asked_at"] <= time.monotonic()
            asked = word["asked_at"]
    assert answers.asked[0].startswith("GET /containers/mine/stats?stream=false&one-shot=true ")


def test_an_engine_that_hangs_up_is_asked_again(tmp_path: Path) -> None:
    odd = numbers({"memory_stats": "much", "cpu_stats": [1]})
    with serving(tmp_path, Answers(b"", b"nonsense", odd, numbers(RUNS))) as address:
        assert next(reports(Inquiry(Engine(address), "mine")))["used"] == USED


def test_one_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    inquiry = Inquiry(Engine(f"unix://{tmp_path}/engine.sock"), "mine")
    assert inquiry.go_on([]) == {}
    assert inquiry.sources == []
    assert inquiry.pause > 0
    with serving(tmp_path, Answers(numbers(RUNS))):
        assert next(reports(inquiry))["used"] == USED


@pytest.mark.parametrize(
    ("answer", "why"),
    [(says(501, b'{"message": "not here"}'), "not here"), (numbers({}), "it gives no numbers")],
)
def test_an_engine_that_gives_no_numbers_is_told_of(
    tmp_path: Path, answer: bytes, why: str
) -> None:
    (tmp_path / "other").mkdir()
    answers = Answers(answer)
    with serving(tmp_path, answers) as address:
        assert next(reports(Inquiry(Engine(address), "mine"))) == {"unused": why}
    # The first time it may be for another reason, which is told elsewhere or passes.
    assert len(answers.asked) == 2
    with serving(tmp_path / "other", Answers(answer, numbers(RUNS))) as address:
        assert next(reports(Inquiry(Engine(address), "mine")))["used"] == USED


def test_a_silent_engine_is_waited_for_without_a_second_question(tmp_path: Path) -> None:
    answers = Answers(numbers(RUNS))
    answers.may_answer.clear()
    with serving(tmp_path, answers) as address:
        inquiry = Inquiry(Engine(address), "mine")
        inquiry.go_on([])
        (waiting,) = inquiry.sources
        began = time.monotonic()
        for _ in range(3):
            assert inquiry.go_on([]) == {}  # at once
        assert time.monotonic() - began < 1
        assert inquiry.sources == [waiting]
        answers.may_answer.set()
        assert next(reports(inquiry))["asked_at"] <= began
        assert len(answers.asked) == 1
