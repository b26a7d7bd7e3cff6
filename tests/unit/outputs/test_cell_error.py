from __future__ import annotations

import json
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.outputs.annotate import (
    CUT,
    MAX_ENAME_BYTES,
    MAX_EVALUE_BYTES,
    MAX_TRACEBACK_BYTES,
    MAX_TRACEBACK_LINES,
    cell_error,
)
from tests.unit.outputs.values import VALUES

MIB = 1 << 20
NOTHING: tuple[str, str, list[str]] = ("", "", [])


def read(content: object, *, ascii_only: bool = True) -> tuple[str, str, list[str]]:
    return cell_error(json.dumps(content, ensure_ascii=ascii_only).encode())


def total(lines: list[str]) -> int:
    return sum(len(line.encode()) for line in lines)


@given(st.text(max_size=50), st.text(), st.lists(st.text()), st.booleans())
def test_an_ordinary_error_is_read_as_it_is(
    ename: str, evalue: str, traceback: list[str], ascii_only: bool
) -> None:
    content = {"status": "error", "ename": ename, "evalue": evalue, "traceback": traceback}
    assert read(content, ascii_only=ascii_only) == (ename, evalue, traceback)


@given(VALUES, VALUES, st.lists(VALUES))
def test_wrong_types_are_passed_over(
    ename: object, evalue: object, traceback: list[object]
) -> None:
    found = read({"ename": ename, "evalue": evalue, "traceback": traceback})
    assert found[0] == (ename if isinstance(ename, str) else "")
    assert found[1] == (evalue if isinstance(evalue, str) else "")
    assert found[2] == [line for line in traceback if isinstance(line, str)]


@given(st.binary(max_size=60))
def test_no_frame_whatever_raises(frame: bytes) -> None:
    cell_error(frame)
    cell_error(b'{"ename":"' + frame + b'"}')
    cell_error(b'{"traceback":[' + frame + b"]}")


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"[]",
        b"{}",
        b'{"traceback":"x"}',
        rb'{"ename":"\ud800"}',
    ],
)
def test_where_there_is_nothing_to_read_nothing_is_read(frame: bytes) -> None:
    assert cell_error(frame) == NOTHING


def test_a_traceback_of_brackets_is_none() -> None:
    assert cell_error(b'{"traceback":%b%b}' % (b"[" * 10**5, b"]" * 10**5)) == NOTHING
    assert cell_error(b'{"traceback":%b%b}' % (b"[" * 900, b"]" * 900)) == NOTHING


@pytest.mark.parametrize("char", ["x", "é", "😀", "\n", "\\", '"', "\x00"])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("offset", range(7))
def test_what_is_too_long_is_cut_between_characters(
    char: str, ascii_only: bool, offset: int
) -> None:
    long = "." * offset + char * 70_000
    content = {"ename": long, "evalue": long, "traceback": ["first", long, "never seen"]}
    ename, evalue, traceback = read(content, ascii_only=ascii_only)
    for text, most in ((ename, MAX_ENAME_BYTES), (evalue, MAX_EVALUE_BYTES)):
        assert text.endswith(CUT)
        assert long.startswith(text.removesuffix(CUT))
        assert most - 8 <= len(text.encode()) <= most
    first, cut, mark = traceback
    assert (first, mark) == ("first", CUT)
    assert long.startswith(cut)
    assert MAX_TRACEBACK_BYTES - 40 <= total(traceback) <= MAX_TRACEBACK_BYTES


def test_what_just_fits_is_not_cut() -> None:
    content = {
        "ename": "é" * (MAX_ENAME_BYTES // 2),
        "evalue": "x" * MAX_EVALUE_BYTES,
        "traceback": ["line"] * MAX_TRACEBACK_LINES,
    }
    assert read(content) == tuple(content.values())


def test_a_traceback_of_too_many_lines_ends_with_the_mark() -> None:
    traceback = read({"traceback": ["line"] * (MAX_TRACEBACK_LINES + 1)})[2]
    assert traceback == ["line"] * (MAX_TRACEBACK_LINES - 1) + [CUT]


@pytest.mark.parametrize(
    ("traceback", "repeated"),
    [
        (b'"%b"', b"x"),
        (b'"%b"', rb"\n"),
        (b'"%b"', rb"\u0041"),
        (b"%b1", b'"",'),
        (b"%b1", b"1,"),
        (b"%b1", b" "),
        (b"%b", b"9"),
    ],
)
def test_a_huge_error_costs_little_time_and_memory(traceback: bytes, repeated: bytes) -> None:
    huge = traceback % (repeated * (16 * MIB // len(repeated)))
    frame = b'{"ename":"E","evalue":"","traceback":[%b]}' % huge
    tracemalloc.start()
    try:
        start = time.perf_counter()
        ename, _, lines = cell_error(frame)
        seconds, used_bytes = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ename == "E"
    assert lines[-1] == CUT
    assert len(lines) <= MAX_TRACEBACK_LINES
    assert total(lines) <= MAX_TRACEBACK_BYTES
    assert seconds < 20  # a bound against quadratic work, not a measurement
    assert used_bytes < 4 * MIB
