"""Whose outputs a widget takes is read out of its messages, whatever their form and size."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from sandbox_kernel.outputs.comms import (
    Claim,
    Unclear,
    carries_receipt,
    claim_in,
    has_states,
    may_claim,
    without_claim,
)
from sandbox_kernel.outputs.receipt import RECEIPT_MIME

MIB = 1 << 20


def comm_msg(**data: Any) -> bytes:
    return json.dumps({"comm_id": "w", "data": data}).encode()


@pytest.mark.parametrize(
    ("content", "claim"),
    [
        (comm_msg(state={"msg_id": "a_1"}), Claim("w", "a_1")),
        (comm_msg(state={"msg_id": ""}), Claim("w", "")),
        (comm_msg(state={"msg_id": None}), Claim("w", "")),
        (comm_msg(state={"outputs": [{"msg_id": "a_1"}]}), None),
        (comm_msg(method="custom", content={"msg_id": "a_1"}), None),
        (b'{"comm_id":"w","data":{"state":{"\\u006dsg_id":"a_1"}}}', Claim("w", "a_1")),
        (b'{"comm_id":"w","data":{"state":{"msg_id":"","msg_id":"a_1"}}}', Claim("w", "a_1")),
        (b'{"comm_id":"w","data":["msg_id"]}', None),
        (b'{"data":"msg_id"}', None),
    ],
)
def test_a_claim_is_found_as_a_frontend_finds_it(content: bytes, claim: Claim | None) -> None:
    assert may_claim(content)
    assert claim_in(content) == claim


@pytest.mark.parametrize(
    "content",
    [
        comm_msg(state={"msg_id": ["a_1"]}),
        comm_msg(state={"msg_id": {"a": 1}}),
        b'{"comm_id":7,"data":{"state":{"msg_id":"a_1"}}}',
        b'{"data":{"state":{"msg_id":"a_1"}}}',
        b'{"comm_id":"%b","data":{"state":{"msg_id":"a_1"}}}' % (b"w" * 5000),
    ],
)
def test_a_claim_that_cannot_be_followed_is_none_to_pass_on(content: bytes) -> None:
    with pytest.raises(Unclear):
        claim_in(content)


def test_a_refused_claim_is_taken_out_and_nothing_else() -> None:
    content = comm_msg(method="update", state={"msg_id": "a_1", "outputs": [1]}, buffer_paths=[])
    assert json.loads(without_claim(content)) == {
        "comm_id": "w",
        "data": {"method": "update", "state": {"outputs": [1]}, "buffer_paths": []},
    }


def test_the_states_of_all_widgets_claim_nothing() -> None:
    content = comm_msg(
        states={"w": {"model_name": "O", "state": {"msg_id": "a_1", "x": 1}}, "v": 1}
    )
    assert has_states(content)
    assert json.loads(without_claim(content))["data"]["states"] == {
        "w": {"model_name": "O", "state": {"x": 1}},
        "v": 1,
    }


def test_many_states_of_many_keys_are_read_in_little_memory() -> None:
    state = b",".join(b'"k%d":1' % number for number in range(4000))
    states = b",".join(b'"%d":{"state":{"msg_id":1,%b}}' % (n, state) for n in range(100))
    content = b'{"comm_id":"w","data":{"states":{%b}}}' % states
    tracemalloc.start()
    with pytest.raises(Unclear):
        without_claim(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * MIB


def test_the_states_of_many_widgets_without_a_claim_pass() -> None:
    states = {str(n): {"state": {f"k{key}": 1 for key in range(100)}} for n in range(2000)}
    states["out"] = {"state": {"msg_id": "", "outputs": []}}
    rest = json.loads(without_claim(comm_msg(states=states)))["data"]["states"]
    assert rest == {**states, "out": {"state": {"outputs": []}}}


def test_a_huge_message_is_read_in_little_memory() -> None:
    rest = b",".join(b'"k%d":{}' % number for number in range(MIB // 4))
    content = b'{"comm_id":"w","data":{"states":{%b},"state":{"msg_id":"a_1"}}}' % rest
    tracemalloc.start()
    assert claim_in(content) == Claim("w", "a_1")
    with pytest.raises(Unclear):
        without_claim(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MIB


@pytest.mark.parametrize(
    "spelling",
    [
        RECEIPT_MIME,
        RECEIPT_MIME.upper(),
        RECEIPT_MIME.replace("/", "\\/"),
        RECEIPT_MIME.replace("s", "\\u0073"),
        "".join(f"\\u{ord(letter):04X}" for letter in RECEIPT_MIME),
    ],
)
def test_a_receipt_in_a_widgets_state_is_found_however_it_is_spelt(spelling: str) -> None:
    content = b'{"data":{"state":{"outputs":[{"data":{"%b":{}}}]}}}' % spelling.encode()
    assert json.loads(content)["data"]["state"]["outputs"][0]["data"]
    assert carries_receipt(content)


def test_other_types_in_a_widgets_state_are_none() -> None:
    assert not carries_receipt(b'{"data":{"state":{"outputs":[{"data":{"text\\/plain":"a\\n"}}]}}}')
