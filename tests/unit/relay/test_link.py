"""A reply is believed only if it answers a request; what was never answered is asked once more."""

from __future__ import annotations

import pytest

from sandbox_kernel.relay import link
from sandbox_kernel.relay.cells import Channel, Request
from sandbox_kernel.relay.link import Outstanding
from sandbox_kernel.relay.wire import Author, Message

_author = Author("session")


def request(msg_type: str = "complete_request", channel: Channel = "shell") -> Request:
    content = {"code": "1"} if msg_type == "execute_request" else {}
    return Request(channel, _author.message(msg_type, content))


def reply(to: Request, msg_type: str | None = None) -> Message:
    return _author.message(msg_type or to.reply_type, {}, to.message)


def outstanding(*requests: Request) -> Outstanding:
    owed = Outstanding()
    for each in requests:
        owed.add(each)
    return owed


def test_a_reply_is_matched_with_its_request_once() -> None:
    asked = request()
    owed = outstanding(asked, request())
    assert owed.answered(reply(asked), "shell") is asked
    assert owed.answered(reply(asked), "shell") is None


@pytest.mark.parametrize("msg_type", ["execute_reply", "complete_request", "status"])
def test_a_reply_of_another_type_is_none_and_the_request_stays_open(msg_type: str) -> None:
    asked = request()
    owed = outstanding(asked)
    assert owed.answered(reply(asked, msg_type), "shell") is None
    assert owed.answered(reply(asked), "shell") is asked


def test_only_the_request_itself_is_taken_not_a_later_one_with_its_id() -> None:
    """Clients of one kernel manager number their messages alike."""
    earlier = request("kernel_info_request", "control")
    later = Request("shell", _author.message("execute_request", {"code": "1"}))
    later.message.header["msg_id"] = earlier.msg_id
    owed = outstanding(earlier, later)
    assert not owed.take(earlier)
    assert owed.take(later)
    assert not owed.take(later)


def test_a_reply_on_another_channel_is_none() -> None:
    on_shell, on_control = request(), request("debug_request", "control")
    owed = outstanding(on_shell, on_control)
    assert owed.answered(reply(on_shell), "control") is None
    assert owed.answered(reply(on_control), "shell") is None
    assert owed.answered(reply(on_control), "control") is on_control


def test_a_cell_from_control_is_answered_on_shell() -> None:
    cell = request("execute_request", "control")
    owed = outstanding(cell)
    assert owed.answered(reply(cell), "control") is None
    assert owed.answered(reply(cell), "shell") is cell


def test_a_reply_to_nothing_is_none() -> None:
    asked = request()
    owed = outstanding(asked)
    assert owed.answered(reply(request()), "shell") is None
    assert owed.answered(_author.message(asked.reply_type, {}), "shell") is None


def test_what_somebody_else_answers_is_not_answered_again() -> None:
    asked = request()
    owed = outstanding(asked)
    assert owed.take(asked)
    assert not owed.take(asked)
    assert owed.answered(reply(asked), "shell") is None


def test_what_a_kernel_leaves_is_asked_once_more_and_not_for_ever() -> None:
    asked = request()
    owed = outstanding(asked)
    assert owed.lose() == ([asked], [])
    assert not owed
    owed.add(asked)
    later = request()
    owed.add(later)
    assert owed.lose() == ([later], [asked])


def test_a_cell_is_not_asked_again() -> None:
    owed = outstanding(request("execute_request"))
    assert owed.lose() == ([], [])
    assert not owed


def test_the_oldest_of_too_many_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "MAX_OUTSTANDING", 2)
    first, second, third = request(), request(), request()
    owed = outstanding(first, second, third)
    assert owed.answered(reply(first), "shell") is None
    assert owed.answered(reply(second), "shell") is second
    assert owed.answered(reply(third), "shell") is third
