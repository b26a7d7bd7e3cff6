from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.outputs.annotate import (
    MAX_KEY_CHARS,
    MAX_KEYS,
    annotate_output,
    annotate_reply,
    strip_metadata,
)
from sandbox_kernel.outputs.receipt import METADATA_KEY, RECEIPT_MIME
from tests.unit.outputs.values import VALUES

AUDIT_ID = "0198c0de-0000-7000-8000-000000000000"
MARK = {"audit_id": AUDIT_ID}
FORGED = {"audit_id": "forged"}
MIB = 1 << 20

JSON = VALUES.map(json.dumps)
NAMES = ["sandbox", "Sandbox", "sandboxed", RECEIPT_MIME, RECEIPT_MIME.upper(), "text/plain", ""]
FIELDS = ["data", "metadata", "transient", "execution_count", "Metadata", "extra"]


@st.composite
def spelled(draw: st.DrawFn, names: st.SearchStrategy[str]) -> str:
    """A key in JSON, with some of its characters escaped."""
    name, escaped = draw(names), draw(st.integers(0, 2**50))
    if draw(st.booleans()) or not name.isascii():
        return json.dumps(name)
    spelling = [f"\\u{ord(c):04x}" if escaped >> n & 1 else c for n, c in enumerate(name)]
    return json.dumps(name) if not name.isprintable() else '"' + "".join(spelling) + '"'


def members(keys: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """An object in JSON, in which a key may come more than once."""
    pairs = st.lists(st.tuples(spelled(keys), values), max_size=6)
    return st.tuples(pairs, st.sampled_from(["", " ", "\n\t"])).map(
        lambda drawn: f"{{{','.join(f'{k}{drawn[1]}:{drawn[1]}{v}' for k, v in drawn[0])}}}"
    )


PLAIN_TEXT = st.text(st.characters(exclude_characters='"\\', exclude_categories=["Cs"]))
OBJECTS = members(st.sampled_from(NAMES) | PLAIN_TEXT, JSON)
CONTENTS = members(st.sampled_from(FIELDS), OBJECTS | JSON)


def without(value: Any, *reserved: str) -> dict[str, Any]:
    members = value if isinstance(value, dict) else {}
    return {key: member for key, member in members.items() if key.lower() not in reserved}


def model(content: dict[str, Any], audit_id: str | None) -> dict[str, Any]:
    mark = {} if audit_id is None else {METADATA_KEY: {"audit_id": audit_id}}
    passed = ("transient", "execution_count")
    return {
        "data": without(content.get("data"), RECEIPT_MIME),
        "metadata": without(content.get("metadata"), METADATA_KEY, RECEIPT_MIME) | mark,
    } | {key: content[key] for key in passed if key in content}


class Members(dict[str, Any]):
    """An object as it was written: how many members it had in the frame."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.written = len(pairs)


def annotated(content: str | dict[str, Any], audit_id: str | None = AUDIT_ID) -> dict[str, Any]:
    frame = content if isinstance(content, str) else json.dumps(content)
    result = annotate_output(frame.encode(), audit_id)
    read: Members = json.loads(result, object_pairs_hook=Members)
    for members in (read, read["data"], read["metadata"]):
        assert members.written == len(members)
    return read


# -- outputs ---------------------------------------------------------------------------------------


@given(CONTENTS, st.sampled_from([AUDIT_ID, None]))
def test_any_output_is_what_it_was_but_for_the_marks(content: str, audit_id: str | None) -> None:
    assert annotated(content, audit_id) == model(json.loads(content), audit_id)


@given(st.binary(max_size=60) | CONTENTS.map(lambda content: content.encode()[1:]))
def test_what_is_no_object_is_a_value_error_and_nothing_else(frame: bytes) -> None:
    try:
        assert annotate_output(frame, AUDIT_ID)
    except ValueError:
        return


def test_an_ordinary_result_gets_its_mark_and_keeps_the_rest() -> None:
    content = {"execution_count": 3, "data": {"text/plain": "2"}, "metadata": {"text/plain": {}}}
    marked = {"text/plain": {}, METADATA_KEY: MARK}
    assert annotated(content) == content | {"metadata": marked}
    assert annotated(content, None) == content


def test_values_pass_byte_for_byte() -> None:
    value = rb'{ "a" : [1.0e400, -0, 1.50, "\u00e9\/", {"sandbox":1, "sandbox":2}] }'
    frame = b'{"data":{"x":%b},"metadata":{"y":%b},"transient":%b}' % (value, value, value)
    assert annotate_output(frame, None) == frame


def test_a_forged_mark_and_a_forged_receipt_are_removed() -> None:
    content = {
        "data": {RECEIPT_MIME: FORGED, "text/plain": "x"},
        "metadata": {METADATA_KEY: FORGED, RECEIPT_MIME: {}, "isolated": True},
    }
    assert annotated(content, None) == {
        "data": {"text/plain": "x"},
        "metadata": {"isolated": True},
    }
    assert annotated(content)["metadata"][METADATA_KEY] == MARK


@pytest.mark.parametrize(
    "metadata",
    [
        r'"metadata":{"\u0073andbox":{"audit_id":"forged"}}',
        r'"\u006detadata":{"sandbox":{"audit_id":"forged"}}',
        r'"metadata":{"SandBox":{"audit_id":"forged"}}',
        r'"metadata":{},"metadata":{"sandbox":{"audit_id":"forged"}}',
        r'"metadata":{"sandbox":{"audit_id":"forged"}},"metadata":{}',
        r'"metadata":{"sandbox":1,"sandbox":{"audit_id":"forged"},"\u0073andbox":2}',
    ],
)
def test_no_spelling_and_no_repetition_saves_a_forged_mark(metadata: str) -> None:
    assert annotated(f'{{"data":{{}},{metadata}}}') == {"data": {}, "metadata": {"sandbox": MARK}}


@pytest.mark.parametrize("value", [None, 1, "x", [], [["sandbox", 1]], True])
@pytest.mark.parametrize("field", ["data", "metadata"])
def test_what_should_be_an_object_and_is_none_becomes_empty(field: str, value: object) -> None:
    assert annotated({"data": {}, "metadata": {}} | {field: value}, None) == {
        "data": {},
        "metadata": {},
    }


def test_missing_fields_are_added_and_keys_a_notebook_cannot_hold_go() -> None:
    assert annotated("{}") == {"data": {}, "metadata": {METADATA_KEY: MARK}}
    assert annotated('{"output_type":"error","data":{}}', None) == {"data": {}, "metadata": {}}


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b'{"data":NaN}',
        b'{"data":{"x":Infinity}}',
        rb'{"data":{"x":"\ud800"}}',
        rb'{"data":{"\ud800":1}}',
    ],
    ids=str,
)
def test_malformed_contents_are_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|truncated|object"):
        annotate_output(frame, AUDIT_ID)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_an_output_nested_too_deeply_becomes_empty(opening: bytes, closing: bytes) -> None:
    for depth in (*range(900, 1000, 7), 10**5):  # the edge is near 1000, minus the stack
        nested = opening * depth + b"1" + closing * depth
        result = annotate_output(b'{"metadata":%b}' % nested, AUDIT_ID)
        assert result.endswith(b'"sandbox":{"audit_id":"%b"}}}' % AUDIT_ID.encode())
    assert json.loads(result) == {"data": {}, "metadata": {METADATA_KEY: MARK}}


def test_a_content_of_nothing_but_brackets_is_refused() -> None:
    with pytest.raises(ValueError, match="object"):
        annotate_output(b"[" * 10**5, AUDIT_ID)


def test_an_object_of_absurdly_many_or_long_keys_becomes_empty() -> None:
    sane = {f"k{n}": n for n in range(MAX_KEYS)}
    assert annotated({"data": sane, "metadata": sane}, None) == {"data": sane, "metadata": sane}
    assert annotated({"data": sane | {"one more": 1}, "metadata": sane})["data"] == {}
    assert annotated({"data": {"k" * (MAX_KEY_CHARS + 1): 1}})["data"] == {}


def cost(call: Callable[[], object]) -> tuple[float, int]:
    tracemalloc.start()
    try:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("frame", "repeated", "most_bytes"),
    [
        # The result itself, in a buffer that grows by half; of the rest nothing is built.
        (b'{"data":{"image/png":"%b"}}', b"A", 30 * MIB),
        (b'{"data":{"x":[%b1]}}', b"[],", 30 * MIB),
        (b'{"x":[%b1]}', b"[],", MIB),
        (b'{"data":{%b"b":1}}', b'"a":1,', MIB),
        (b'{"metadata":{%b"b":1}}', b'"a":1,', MIB),
        (b'{%b"b":1}', b'"metadata":{"a":1},', MIB),
        (b'{"data":{"%b":1}}', b"k", 20 * MIB),
    ],
)
def test_a_huge_output_costs_little_time_and_memory(
    frame: bytes, repeated: bytes, most_bytes: int
) -> None:
    huge = frame % (repeated * (16 * MIB // len(repeated)))
    seconds, used_bytes = cost(lambda: annotate_output(huge, AUDIT_ID))
    assert seconds < 20  # a bound against quadratic work, not a measurement
    assert used_bytes < most_bytes


def test_a_small_result_costs_microseconds() -> None:
    frame = b'{"execution_count":3,"data":{"text/plain":"2"},"metadata":{}}'
    rounds = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            annotate_output(frame, AUDIT_ID)
        rounds.append((time.perf_counter() - start) / 100)
    assert min(rounds) < 50e-6  # about 4 µs on a quiet machine


# -- metadata of messages --------------------------------------------------------------------------


@given(OBJECTS)
def test_any_metadata_is_what_it_was_without_the_key(metadata: str) -> None:
    expected = without(json.loads(metadata), METADATA_KEY, RECEIPT_MIME)
    stripped = json.loads(strip_metadata(metadata.encode()), object_pairs_hook=Members)
    assert stripped == expected
    assert stripped.written == len(stripped)
    reply = annotate_reply(metadata.encode(), {"schema": 1})
    assert json.loads(reply) == expected | {METADATA_KEY: {"schema": 1}}


def test_a_reply_keeps_what_jupyter_says_in_its_metadata() -> None:
    metadata = {"started": "2024-01-01T00:00:00Z", "status": "ok", METADATA_KEY: FORGED}
    reply = annotate_reply(json.dumps(metadata).encode(), {"audit_id": AUDIT_ID})
    assert json.loads(reply) == metadata | {METADATA_KEY: MARK}


def test_a_receipt_that_quotes_odd_code_is_still_valid_json() -> None:
    reply = annotate_reply(b"{}", {"findings": [{"text": "\ud800"}]})
    assert json.loads(reply.decode("utf-8"))[METADATA_KEY] == {"findings": [{"text": "\ud800"}]}


@pytest.mark.parametrize("frame", [b"", b"[]", b"nonsense", b"deep", b'{"\xff":1}'])
def test_metadata_beyond_repair_becomes_empty(frame: bytes) -> None:
    frame = frame.replace(b"deep", b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}")
    assert strip_metadata(frame) == b"{}"
    assert json.loads(annotate_reply(frame, MARK)) == {METADATA_KEY: MARK}
