"""A reply of any shape has an answer to each question: a cell can change what its kernel replies."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_kernel.cli import run_reply

NOTHING = {"state": None, "cpu_seconds": None, "memory_peak_bytes": None}
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**5000, float("nan"), float("inf"), "", "x", "\x1b[2J\ud800"),
    *([], ["x"], [[]], {}, {"x": {}}, {"data": "x"}, {"data": {"text/plain": 3}}),
    *({"data": {"text/plain": "9" * 10**6}}, {"usage": "x"}, {"usage": {"cpu_seconds": "x"}}),
    {"usage": {"cpu_seconds": 10**5000, "memory_peak_bytes": float("nan")}, "state": ["kept"]},
)


def replies() -> list[Any]:
    """Each odd thing in each place of a reply."""
    return [
        reply
        for odd in ODD
        for reply in (
            odd,
            {"content": odd},
            {"metadata": odd},
            {"metadata": {"sandbox": odd}},
            {"content": {"user_expressions": odd}},
            {"content": {"user_expressions": {"_exit_code": odd}}},
            {"content": {"user_expressions": {"_exit_code": {"data": odd}}}},
            {"content": {"status": odd, "traceback": odd}},
            {"content": {"traceback": [odd]}},
        )
    ]


def test_a_hostile_reply_says_nothing() -> None:
    for reply in replies():
        assert run_reply.exit_code(reply) is None
        assert run_reply.usage(reply) == NOTHING
        assert isinstance(run_reply.status(reply), str | None)
        assert isinstance(run_reply.traceback(reply), str | None)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"status": "ok", "data": {"text/plain": "3"}}, 3),
        ({"status": "ok", "data": {"text/plain": "-9"}}, -9),
        ({"status": "error", "ename": "NameError"}, 0),
        ({"status": "error", "ename": "KeyError"}, None),
        ({"status": "ok", "data": {"text/plain": "None"}}, None),
    ],
)
def test_an_honest_one_has_the_exit_code(answer: dict[str, Any], code: int | None) -> None:
    reply = {"content": {"user_expressions": {"_exit_code": answer}}}
    assert run_reply.exit_code(reply) == code


def test_an_honest_one_has_what_the_receipt_says() -> None:
    usage = {"cpu_seconds": 0.5, "memory_peak_bytes": 1 << 40}
    reply = {"metadata": {"sandbox": {"state": "rolled_back", "usage": usage}}}
    assert run_reply.usage(reply) == {"state": "rolled_back", **usage}
