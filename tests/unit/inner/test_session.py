"""What is too large for a message is an error where somebody can see it."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_kernel.inner.session import MAX_FRAME_BYTES, BridgeSession

LARGE = "x" * (MAX_FRAME_BYTES + 1)


class Socket:
    """Takes note of what is sent."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []

    def send_multipart(self, frames: list[bytes], *, copy: bool) -> None:
        self.sent.append(frames)


def sent(msg_type: str, content: dict[str, Any]) -> dict[str, Any]:
    """The content that leaves in place of this one."""
    socket, session = Socket(), BridgeSession(key=b"key")
    session.send(socket, msg_type, content, None, b"client")
    (frames,) = socket.sent
    _, frames = session.feed_identities(frames)
    content = session.deserialize(frames)["content"]
    return content


@pytest.mark.parametrize("msg_type", ["complete_reply", "inspect_reply", "execute_reply"])
def test_who_has_asked_for_too_much_is_told_so(msg_type: str) -> None:
    content = sent(msg_type, {"status": "ok", "matches": [LARGE]})
    assert (content["status"], content["ename"]) == ("error", "ValueError")
    assert "16 MiB" in content["evalue"]


def test_a_reply_that_fits_is_sent_as_it_is() -> None:
    assert sent("complete_reply", {"status": "ok"}) == {"status": "ok"}


def test_an_output_that_is_too_large_is_an_error_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="16 MiB"):
        sent("display_data", {"data": {"text/plain": LARGE}})
