from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.words import (
    LIMIT_NAMES,
    Limit,
    amount,
    amount_beyond,
    count,
    duration,
    size,
    size_change,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.0042, "4.2 ms"),
        (0.042, "42 ms"),
        (0.0996, "0.1 s"),
        (0.42, "0.42 s"),
        (5, "5 s"),
        (5.03, "5.03 s"),
        (5.1, "5.1 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (120, "2 min"),
        (125.4, "2 min 5 s"),
        (3599.6, "1 h"),
        (3900, "1 h 5 min"),
        (172_800, "48 h"),
    ],
)
def test_a_duration_reads_as_people_say_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (87 << 20, "87 MiB"),
        (512 << 20, "512 MiB"),
        ((1 << 30) - 1, "1 GiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5 TiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_a_size_is_in_the_unit_that_keeps_it_short(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


@given(st.floats(0, 1e9))
def test_no_duration_is_shown_in_a_unit_it_fills(seconds: float) -> None:
    value, unit, *_ = duration(seconds).split()
    assert float(value) < {"ms": 100, "s": 60, "min": 60, "h": 1e9}[unit]


@given(st.integers(0, 1 << 60))
def test_no_size_is_shown_in_a_unit_it_fills(size_bytes: int) -> None:
    value, unit = size(size_bytes).split()
    assert float(value) < 1024 or unit == "TiB"


def test_a_change_of_size_has_its_sign() -> None:
    assert size_change(12 << 20) == "+12 MiB"
    assert size_change(-(3 << 20)) == "−3 MiB"


def test_numbers_have_their_plural() -> None:
    assert count(1, "process") == "1 process"
    assert count(3, "process") == "3 processes"
    assert count(10_001, "message") == "10,001 messages"


def test_each_limit_is_counted_in_its_own_unit() -> None:
    shown = {limit: amount(limit, 2048) for limit in get_args(Limit)}
    assert shown == {
        "wall": "34 min 8 s",
        "cpu": "34 min 8 s",
        "memory": "2 KiB",
        "sandbox_memory": "2 KiB",
        "processes": "2,048 processes",
        "pipes": "2,048 pipes",
        "terminals": "2,048 terminals",
        "output": "2 KiB",
        "text": "2 KiB",
        "messages": "2,048 messages",
        "budget_wall": "34 min 8 s",
        "budget_cpu": "34 min 8 s",
    }
    assert set(LIMIT_NAMES) == set(shown)


def test_what_was_used_never_reads_like_what_is_allowed() -> None:
    assert amount_beyond("wall", 5.03, 5) == "5.03 s"
    assert amount_beyond("wall", 5.0004, 5) == "more than 5 s"
    assert amount_beyond("memory", 500 << 20, 512 << 20) == "more than 512 MiB"
