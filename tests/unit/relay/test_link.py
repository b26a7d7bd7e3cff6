"""A reply is believed only if it answers a request; what was never answered is asked once more."""

from __future__ import annotations

import pytest

from sandbox_kernel.relay import link
from sandbox_kernel.relay.cells import Channel, Request
from sandbox_kernel.relay.link import Outstanding, Statuses, in_lane
from sandbox_kernel.relay.wire import Author, Codec, Message, Signer

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
    assert owed.lose() == ([asked], [], [])
    assert not owed
    owed.add(asked)
    later = request()
    owed.add(later)
    assert owed.lose() == ([later], [asked], [])


def test_an_interrupt_is_not_repeated_to_a_kernel_that_runs_something_else() -> None:
    interrupt, asked = request("interrupt_request", "control"), request("debug_request", "control")
    assert outstanding(interrupt, asked).lose() == ([asked], [], [interrupt])


def test_a_message_to_a_widget_expects_no_reply_but_is_repeated_if_it_has_not_begun() -> None:
    never_begun, begun = request("comm_msg"), request("comm_msg")
    owed = outstanding(never_begun, begun)
    assert owed.answered(reply(never_begun), "shell") is None
    assert owed.take(begun)
    assert owed.lose() == ([never_begun], [], [])


def test_a_cell_is_not_asked_again() -> None:
    owed = outstanding(request("execute_request"))
    assert owed.lose() == ([], [], [])
    assert not owed


def test_the_oldest_of_too_many_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "MAX_OUTSTANDING", 2)
    first, second, third = request(), request(), request()
    owed = outstanding(first, second, third)
    assert owed.answered(reply(first), "shell") is None
    assert owed.answered(reply(second), "shell") is second
    assert owed.answered(reply(third), "shell") is third


def test_a_question_can_be_asked_in_any_lane() -> None:
    codec = Codec(Signer(b"key"))
    question = in_lane(_author.message("kernel_info_request", {}), "s")
    assert codec.read(codec.write(question, [])).header["subshell_id"] == "s"


def status(state: str, to: Request, size: int = 0) -> Message:
    made = _author.message("status", {"execution_state": state, "x": "x" * size}, to.message)
    codec = Codec(Signer(b""))
    return codec.read(codec.write(made, []))


def test_each_status_of_a_request_is_due_once() -> None:
    asked, statuses = request(), Statuses()
    statuses.expect(asked)
    heard = [statuses.take(status(state, asked)) for state in ("busy", "busy", "idle", "idle")]
    assert heard == [True, False, True, False]


def test_no_other_status_is_due() -> None:
    asked, statuses = request(), Statuses()
    statuses.expect(asked)
    assert not statuses.take(status("busy", request()))
    assert not statuses.take(status("starting", asked))
    assert not statuses.take(status("idle", asked, size=1 << 20))
    statuses.clear()
    assert not statuses.take(status("idle", asked))
