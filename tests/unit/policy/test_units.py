from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.policy.units import COUNT, DURATION, SIZE, Kind, UnitError, shown

KINDS = (DURATION, SIZE, COUNT)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("90s", 90),
        ("90 s", 90),
        ("10min", 600),
        ("1.5h", 5400),
        ("7", 7),
        ("0.25", 0.25),
        ("0", 0),
        (5, 5),
        (2.5, 2.5),
    ],
)
def test_a_duration_is_in_seconds(text: object, seconds: float) -> None:
    assert DURATION.parse(text) == seconds
    assert isinstance(DURATION.parse(text), float)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("12B", 12),
        ("3kB", 3000),
        ("3KiB", 3072),
        ("1MB", 10**6),
        ("1MiB", 2**20),
        ("2GB", 2 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("4096", 4096),
        (4096, 4096),
        (1e3, 1000),
    ],
)
def test_a_size_is_in_whole_bytes(text: object, size: int) -> None:
    assert SIZE.parse(text) == size
    assert isinstance(SIZE.parse(text), int)


def test_a_fraction_of_a_byte_is_rounded_down() -> None:
    assert SIZE.parse("0.1MiB") == 104857


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "none", "yes", "null", "~", "ten", "-1", "+1", "1 000", "1_000", "010", "0x10"),
        *("1e3", "1:30", "nan", "inf", "1.", ".5", "1..5", " 5", "5 ", "5\n", "٣", "5x", "1,5"),
        *("9" * 19, "9" * 5000, -1, -0.5, float("nan"), float("inf"), 10**400, 2**63),
        *(True, False, None, [], {}, b"5", [5]),
    ],
    ids=shown,
)
def test_what_is_no_amount_or_reads_two_ways_is_refused(kind: Kind, value: object) -> None:
    with pytest.raises(UnitError):
        kind.parse(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (DURATION, "5m"),
        (DURATION, "5MiB"),
        (DURATION, "5S"),
        (SIZE, "5s"),
        (SIZE, "2gb"),
        (SIZE, "5K"),
        (SIZE, "0.5B"),
        (SIZE, "1.5"),
        (SIZE, 1.5),
        (SIZE, "9999999999GiB"),
        (COUNT, "5s"),
        (COUNT, "1.0"),
        (COUNT, 1.5),
    ],
)
def test_a_unit_of_another_kind_or_spelling_is_refused(kind: Kind, value: object) -> None:
    with pytest.raises(UnitError):
        kind.parse(value)


@pytest.mark.parametrize(
    ("kind", "amount", "text"),
    [
        (DURATION, 600.0, "10min"),
        (DURATION, 90.0, "90s"),
        (DURATION, 7200.0, "2h"),
        (DURATION, 1.5, "1500ms"),
        (DURATION, 0.000001, "0.001ms"),
        (DURATION, 0.0, "0ms"),
        (SIZE, 2**31, "2GiB"),
        (SIZE, 5 * 10**9, "5GB"),
        (SIZE, 1000 * 2**20, "1000MiB"),
        (SIZE, 1025, "1025B"),
        (SIZE, 0, "0B"),
        (COUNT, 256, "256"),
        (COUNT, 0, "0"),
    ],
)
def test_an_amount_is_shown_in_the_unit_a_person_would_choose(
    kind: Kind, amount: float, text: str
) -> None:
    assert kind.show(amount) == text


@given(st.sampled_from(KINDS), st.integers(0, 2**50))
def test_what_is_shown_reads_back_as_the_same_amount(kind: Kind, steps: int) -> None:
    amount = steps / 1_000_000 if kind is DURATION else steps
    assert kind.parse(kind.show(amount)) == amount


@given(st.sampled_from(KINDS), ANYTHING | st.from_regex(r"\d{1,20}(\.\d{1,10})? ?\w{0,3}"))
def test_anything_whatever_is_an_amount_within_bounds_or_a_unit_error(
    kind: Kind, value: object
) -> None:
    try:
        amount = kind.parse(value)
    except UnitError:
        return
    assert 0 <= amount < 2**63


@given(st.integers(0, 10**9), st.integers(0, 999), st.sampled_from(["kB", "KiB", "MB", "MiB"]))
def test_a_size_is_never_larger_than_written(whole: int, thousandths: int, unit: str) -> None:
    factor = {"kB": 1000, "KiB": 1024, "MB": 1000**2, "MiB": 1024**2}[unit]
    written = (whole * 1000 + thousandths) * factor
    assert written - 1000 < SIZE.parse(f"{whole}.{thousandths:03}{unit}") * 1000 <= written


@pytest.mark.parametrize(
    "value",
    [10**5000, "x" * 10**6, [[[[[[[[[]]]]]]]]], "\x1b[31m", "\ud800", {"a": ["b"] * 99}],
    ids=shown,
)
def test_what_is_shown_of_a_hostile_value_is_short_and_printable(value: object) -> None:
    assert len(shown(value)) < 100
    assert shown(value).isprintable()
