"""What messages to widgets say about whose outputs a widget takes.

An Output widget takes the outputs of the request whose id is its ``msg_id``: frontends put them into the
widget and not below the cell. Contents may be many MiB, so only what leads to that id is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from sandbox_kernel.outputs.receipt import RECEIPT_MIME

MAX_KEYS: Final = 1 << 14
MAX_COMM_ID_BYTES: Final = 1024
_KEY: Final = b"msg_id"
_RECEIPT: Final = RECEIPT_MIME.encode()
_ESCAPED: Final = re.compile(rb"\\u00([0-7][0-9a-fA-F])")


class _State(msgspec.Struct):
    msg_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Data(msgspec.Struct):
    state: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    states: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Content(msgspec.Struct):
    comm_id: msgspec.Raw = msgspec.Raw(b"null")
    data: msgspec.Raw = msgspec.Raw(b"null")


class Claim(msgspec.Struct, frozen=True):
    """A widget sets its ``msg_id``: to an id, or to nothing, which releases what it had."""

    comm_id: str
    msg_id: str


class Unclear(Exception):
    """What a message claims cannot be said."""


_read_content = msgspec.json.Decoder(_Content).decode
_read_data = msgspec.json.Decoder(_Data).decode
_read_state = msgspec.json.Decoder(_State).decode
_read_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


_Read: TypeAlias = Callable[[msgspec.Raw], dict[str, Any]]


class _Key(str):
    """A key that has been counted."""

    __slots__ = ()


class _Members:
    """Reads the members of the objects in one message: ``MAX_KEYS`` of them in all."""

    def __init__(self) -> None:
        self._keys_left = MAX_KEYS
        self._decode = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=self._count).decode

    def read(self, frame: bytes | msgspec.Raw) -> dict[str, Any]:
        members: dict[str, Any] = {}
        members.update(self._decode(frame).items())
        return members

    def _count(self, _: type, key: str) -> _Key:
        self._keys_left -= 1
        if self._keys_left < 0:
            raise Unclear
        return _Key(key)


def carries_receipt(content: bytes) -> bool:
    """Whether a receipt is anywhere in it: an Output widget shows what is in its state as outputs.

    The type may be written with escapes, and in other letters than small ones.
    """
    if b"\\u00" in content:
        content = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), content)
    if b"\\/" in content:
        content = content.replace(b"\\/", b"/")
    return _RECEIPT in content.lower()


def may_claim(content: bytes) -> bool:
    """Whether it is worth a look: a key may be written with escapes, too."""
    # One byte is looked for a hundred times as fast as two.
    return _KEY in content or (b"\\" in content and b"\\u" in content)


def claim_in(content: bytes) -> Claim | None:
    """What a ``comm_msg`` sets its widget's ``msg_id`` to; ``None`` if it leaves that alone.

    ``Unclear`` if it is set to what is neither text nor nothing, or by a widget without a proper id.
    """
    try:
        said = _read_content(content)
        state = _read_data(said.data).state
        msg_id = msgspec.UNSET if state is msgspec.UNSET else _read_state(state).msg_id
    except RecursionError:
        raise Unclear from None
    except ValueError:
        return None  # no widget's message: nothing in it is a state
    if msg_id is msgspec.UNSET:
        return None
    if len(memoryview(said.comm_id)) > MAX_COMM_ID_BYTES:
        raise Unclear
    try:
        value = "" if bytes(msg_id) == b"null" else _read_text(msg_id)
        return Claim(_read_text(said.comm_id), value)
    except ValueError:
        raise Unclear from None


def without_claim(content: bytes) -> bytes:
    """The same content without a ``msg_id`` in its state, or in any of its ``states``.

    ``Unclear`` if it has more keys than any widget.
    """
    read = _Members().read
    try:
        members = read(content)
        data = read(members["data"])
        if "state" in data:
            data["state"] = _without_id(data["state"], read)
        if "states" in data:
            states = read(data["states"])
            data["states"] = {key: _without_ids(each, read) for key, each in states.items()}
    except (KeyError, ValueError):
        return content  # it is no widget's message
    except RecursionError:
        raise Unclear from None
    return _encode({**members, "data": data})


def has_states(content: bytes) -> bool:
    """Whether it has the states of many widgets, as a frontend gets them that asks for all."""
    try:
        return _read_data(_read_content(content).data).states is not msgspec.UNSET
    except RecursionError:
        raise Unclear from None
    except ValueError:
        return False


def _without_id(state: msgspec.Raw, read: _Read) -> Any:
    if not _may_have_id(state):
        return state
    return {key: value for key, value in read(state).items() if key != "msg_id"}


def _without_ids(about: msgspec.Raw, read: _Read) -> Any:
    if not _may_have_id(about):
        return about
    members = read(about)
    return (
        members | {"state": _without_id(members["state"], read)} if "state" in members else members
    )


def _may_have_id(value: msgspec.Raw) -> bool:
    """Only then is it worth its keys: the states of all widgets of a notebook may have many."""
    text = bytes(value)
    return text[:1] == b"{" and may_claim(text)
