from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import Session

from sandbox_kernel.relay.wire import (
    REPLAY_WINDOW,
    SPARE_FRAMES,
    Author,
    BodyError,
    Codec,
    Message,
    Signer,
    WireError,
    decode_object,
    encode_object,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def codec(key: bytes = b"key") -> Codec:
    return Codec(Signer(key))


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def test_jupyter_reads_what_we_write() -> None:
    session = Session(key=b"key")
    parent = codec().read(session.serialize(session.msg("execute_request", {"code": "1"})))
    made = Author("s").message("status", {"execution_state": "busy"}, parent, topic=b"t")
    idents, frames = session.feed_identities(codec().write(made, [b"t"]))
    message = session.deserialize(frames)
    assert idents == [b"t"]
    assert message["content"] == {"execution_state": "busy"}
    assert message["parent_header"]["msg_id"] == parent.msg_id
    assert message["header"]["session"] == "s"


def test_we_read_what_jupyter_writes_and_forward_it_byte_for_byte() -> None:
    session = Session(key=b"key")
    frames = session.serialize(session.msg("execute_request", {"code": "x = 'ü'"}), ident=[b"c"])
    message = codec().read([*frames, b"buffer"])
    assert message.idents == (b"c",)
    assert message.content == {"code": "x = 'ü'"}
    forwarded = codec(b"other").write(message, message.idents)
    assert forwarded[3:] == [*frames[3:], b"buffer"]
    assert forwarded[2] != frames[2]


@pytest.mark.parametrize("size", [10, 1 << 17])
def test_small_and_large_messages_are_signed_alike(size: int) -> None:
    frames = [b"{}", b"{}", b"{}", b"x" * size]
    assert Signer(b"key").sign(frames) == Session(key=b"key").sign(frames)


def test_an_empty_key_turns_signing_off() -> None:
    header = b'{"msg_id":"1","msg_type":"x","session":"s","version":"5.4"}'
    frames = [b"<IDS|MSG>", b"", header, b"{}", b"{}", b"{}"]
    assert codec(b"").read(frames).msg_type == "x"
    assert codec(b"").read(frames).msg_type == "x"


@pytest.mark.parametrize("number", [2, 3, 4, 5], ids=["header", "parent", "metadata", "content"])
def test_odd_bytes_are_read_as_clients_read_them(number: int) -> None:
    """jupyter_client sends those of a user's or a file's name raw."""
    session = Session(key=b"key")
    message = session.msg("execute_request", {"code": "1", "name": "x-name"}, parent={})
    message["header"]["username"] = message["parent_header"]["name"] = "x-name"
    message["metadata"]["name"] = "x-name"
    frames = session.serialize(message)
    frames[number] = frames[number].replace(b"x-name", b"caf\xe9")
    frames[1] = session.sign(frames[2:6])
    read = codec().read(frames)
    read.build()
    assert "caf\N{REPLACEMENT CHARACTER}" in read.frames[number - 2].decode()


@pytest.mark.parametrize("number", [4, 5], ids=["metadata", "content"])
@pytest.mark.parametrize("body", [b'{"x":1e400}', b'{"x":"\\ud83d"}', b"[]", b"{"])
def test_of_a_message_whose_body_cannot_be_built_there_is_the_header(
    number: int, body: bytes
) -> None:
    session = Session(key=b"key")
    frames = session.serialize(session.msg("execute_request", {"code": "1"}), ident=[b"c"])
    frames[number + 1] = body
    frames[2] = session.sign(frames[3:7])
    with pytest.raises(BodyError) as caught:
        codec().read(frames).build()
    bare = caught.value.message
    assert (bare.msg_type, bare.idents) == ("execute_request", (b"c",))
    assert (bare.content, bare.metadata) == ({}, {})


def test_what_can_be_built_where_it_is_read_can_be_where_it_is_used() -> None:
    """How deep JSON may be nested depends on how deep the stack is already."""

    def used(message: Message, depth: int) -> bytes:
        if depth:
            return used(message, depth - 1)
        return encode_object({**decode_object(message.frames[3]), "more": 1})

    session, built = Session(key=b"key"), 0
    for depth in range(700, 1000, 5):
        frames = session.serialize(session.msg("x", {}))
        frames[5] = nested(depth)
        frames[1] = session.sign(frames[2:6])
        try:
            message = codec().read(frames)
            message.build()
        except BodyError:
            continue
        assert used(message, SPARE_FRAMES - 10)
        built += 1
    assert 0 < built < 60


def test_a_replay_is_refused_within_the_window() -> None:
    session, reader = Session(key=b"key"), codec()
    frames = session.serialize(session.msg("x", {}))
    reader.read(frames)
    with pytest.raises(WireError, match="replayed"):
        reader.read(frames)


def test_what_is_remembered_of_old_messages_is_bounded() -> None:
    reader = codec()
    for number in range(REPLAY_WINDOW + 10):
        reader._refuse_replay(b"%d" % number)
    assert len(reader._seen) == REPLAY_WINDOW


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_deep_json_is_refused(depth: int) -> None:
    with pytest.raises(WireError, match="deep"):
        decode_object(nested(depth))


def test_json_of_ordinary_depth_or_just_wide_is_read() -> None:
    assert decode_object(nested(100))
    wide = {"rows": [[n, {"n": n}] for n in range(1000)]}
    assert decode_object(json.dumps(wide).encode()) == wide


@given(st.dictionaries(st.text(), JSON))
def test_any_ordinary_object_is_read_as_it_is(value: dict[str, object]) -> None:
    assert decode_object(json.dumps(value).encode()) == value


@given(st.lists(st.binary(max_size=64), max_size=12))
def test_no_frames_whatever_raise_anything_but_a_wire_error(frames: list[bytes]) -> None:
    for reader in (codec(), codec(b"")):
        for candidate in (frames, [b"<IDS|MSG>", *frames], [b"id", b"<IDS|MSG>", b"", *frames]):
            try:
                assert isinstance(reader.read(candidate), Message)
            except WireError:
                continue


@pytest.mark.parametrize("scheme", ["sha256", "hmac-", "hmac-nonsense", ""])
def test_an_unknown_signature_scheme_is_named(scheme: str) -> None:
    with pytest.raises(ValueError, match="signature_scheme"):
        Signer.from_scheme(b"key", scheme)


def test_changing_the_content_changes_only_that_frame() -> None:
    message = Author("s").message("kernel_info_reply", {"banner": "old"})
    changed = message.with_content(b'{"banner":"new"}')
    assert changed.frames[:3] == message.frames[:3]
    assert decode_object(changed.frames[3]) == {"banner": "new"}


def test_an_author_knows_its_own_messages() -> None:
    author = Author("s")
    assert author.made(author.message("x", {}).msg_id)
    assert not author.made("s_2_17")
    assert not author.made(None)


def test_the_outline_tells_what_the_router_needs_and_nothing_else() -> None:
    session = Session(key=b"key")
    content = {"status": "error", "execution_state": "idle", "execution_count": 7, "x": [1, {}]}
    outline = codec().read(session.serialize(session.msg("x", content))).outline
    assert outline.failed
    assert outline.is_state("idle")
    assert not outline.is_state("busy")
    assert outline.count == 7


@pytest.mark.parametrize("value", [None, -1, 1.5, "7", [], 10**30, True])
def test_an_odd_execution_count_counts_for_none(value: object) -> None:
    session = Session(key=b"key")
    frames = session.serialize(session.msg("x", {"execution_count": value}))
    assert codec().read(frames).outline.count is None


def test_what_the_wrapper_writes_is_valid_utf8_whatever_it_holds() -> None:
    message = Author("s").message("execute_input", {"code": "\ud800"})
    assert message.frames[3].decode("utf-8")
