from __future__ import annotations

import itertools
from typing import Any

import pytest

from sandbox_kernel.errors import PolicyViolation
from sandbox_kernel.relay.cells import Cells, Request, RunningCell
from sandbox_kernel.relay.wire import Message, Outline, encode_object

_numbers = itertools.count()


def request(msg_type: str = "execute_request", lane: str | None = None, **content: Any) -> Request:
    if msg_type == "execute_request":
        content.setdefault("code", "1")
    header = {"msg_id": str(next(_numbers)), "msg_type": msg_type, "subshell_id": lane}
    frames = (b"{}", b"{}", b"{}", encode_object(content))
    return Request("shell", Message((), header, {}, Outline(), frames))


def asking(sandbox: object) -> object:
    """The limits that a client's metadata asks for."""
    frames = (b"{}", b"{}", encode_object({"sandbox": sandbox}), b"{}")
    header = {"msg_id": "1", "msg_type": "execute_request"}
    return Request("shell", Message((), header, {}, Outline(), frames)).asked_limits


def finish(cells: Cells, request: Request) -> None:
    cell = cells.running(request.msg_id)
    assert cell is not None
    cells.finish(cell)


def test_one_cell_is_in_flight_and_the_next_waits_for_it() -> None:
    cells, first, second = Cells(), request(), request()
    assert cells.admit(first) == [first]
    assert cells.admit(second) == []
    finish(cells, first)
    assert cells.release() == [second]


def test_lanes_do_not_wait_for_each_other() -> None:
    cells, main, sub = Cells(), request(), request(lane="s")
    assert cells.admit(main) == [main]
    assert cells.admit(sub) == [sub]
    assert len(cells.in_flight) == 2


def test_questions_behind_a_running_cell_are_forwarded_in_order() -> None:
    cells, cell, question = Cells(), request(), request("complete_request")
    cells.admit(cell)
    assert cells.admit(question) == [question]


def test_questions_behind_a_waiting_cell_wait_with_it() -> None:
    cells, running, waiting, question = Cells(), request(), request(), request("complete_request")
    cells.admit(running)
    cells.admit(waiting)
    assert cells.admit(question) == []
    finish(cells, running)
    assert cells.release() == [waiting, question]


def test_comm_messages_overtake_waiting_cells() -> None:
    cells, comm = Cells(), request("comm_msg")
    cells.admit(request())
    cells.admit(request())
    assert cells.admit(comm) == [comm]


def test_a_failed_cell_aborts_the_cells_behind_it_but_not_the_questions() -> None:
    cells, failing, queued = Cells(), request(), request()
    question = request("complete_request")
    for each in (failing, queued, question):
        cells.admit(each)
    cell = cells.running(failing.msg_id)
    assert cell is not None
    cells.fail(cell)
    late = request()
    assert cells.admit(late) == [question]
    assert cell.aborted == [queued]
    cells.finish(cell)
    assert cells.release() == [late]


def test_without_stop_on_error_nothing_is_aborted() -> None:
    for options in ({"stop_on_error": False}, {"silent": True}):
        cells, failing, queued = Cells(), request(**options), request()
        cells.admit(failing)
        cells.admit(queued)
        cell = cells.running(failing.msg_id)
        assert cell is not None
        cells.fail(cell)
        assert cell.aborted == []
        cells.finish(cell)
        assert cells.release() == [queued]


def test_a_cell_without_code_does_not_hold_the_lane() -> None:
    cells, broken, next_cell = Cells(), request(code=None), request()
    assert cells.admit(broken) == [broken]
    assert cells.admit(next_cell) == [next_cell]


def test_what_was_held_is_released_in_order() -> None:
    cells, first, second = Cells(), request("kernel_info_request"), request()
    cells.hold(first)
    cells.hold(second)
    assert cells.release() == [first, second]


def test_what_was_forwarded_in_vain_goes_first() -> None:
    cells, question, cell = Cells(), request("complete_request"), request()
    cells.hold(cell)
    cells.put_back([question])
    assert cells.release() == [question, cell]


def test_a_cell_that_waits_when_its_kernel_is_lost_runs_in_the_next() -> None:
    cells, lost, waiting = Cells(), request(stop_on_error=False), request()
    cells.admit(lost)
    cells.admit(waiting)
    finish(cells, lost)
    assert cells.in_flight == []
    assert cells.release() == [waiting]


def with_id_of(
    other: Request, msg_type: str = "execute_request", lane: str | None = None
) -> Request:
    """A request of another client of the same kernel manager: they number theirs alike."""
    made = request(msg_type, lane)
    header = {**made.message.header, "msg_id": other.msg_id}
    return Request("shell", Message((), header, {}, Outline(), made.message.frames))


@pytest.mark.parametrize("msg_type", ["execute_request", "complete_request", "comm_msg"])
@pytest.mark.parametrize("lane", [None, "s"])
def test_what_has_the_id_of_a_running_cell_waits_for_its_end(
    msg_type: str, lane: str | None
) -> None:
    cells, running = Cells(), request()
    same = with_id_of(running, msg_type, lane)
    cells.admit(running)
    cell = cells.running(running.msg_id)
    assert cells.admit(same) == []
    assert cells.release() == []
    assert cells.begun_by(running) is cell
    assert cells.begun_by(same) is None
    finish(cells, running)
    assert cells.release() == [same]


def test_what_has_the_id_of_a_cell_before_it_in_the_queue_waits_for_that_too() -> None:
    cells, first, second = Cells(), request(), request()
    same = with_id_of(second, "complete_request")
    for each in (first, second, same):
        cells.admit(each)
    finish(cells, first)
    assert cells.release() == [second]
    finish(cells, second)
    assert cells.release() == [same]


def test_control_waits_for_no_cell_and_for_nothing_else_on_control() -> None:
    cells, cell, waiting = Cells(), request(), request()
    same, other = (
        Request("control", each.message)
        for each in (with_id_of(cell, "debug_request"), request("debug_request"))
    )
    cells.hold(waiting)
    cells.put_back([other])
    assert cells.release() == [other, waiting]
    finish(cells, waiting)
    cells.admit(cell)
    assert cells.admit(same) == []
    assert cells.admit(other) == [other]
    finish(cells, cell)
    assert cells.release() == [same]


def test_the_cell_before_a_question_is_the_last_one_ahead_of_it_in_its_lane() -> None:
    cells, running, waiting, behind = Cells(), request(), request(), request()
    question = request("kernel_info_request")
    assert cells.before(question) is None
    cells.admit(running)
    assert cells.before(question) is running
    for each in (waiting, question, behind):
        cells.admit(each)
    assert cells.before(question) is waiting
    assert cells.before(request("kernel_info_request", lane="s")) is None


def test_a_request_that_somebody_else_answers_waits_no_longer() -> None:
    cells, question = Cells(), request("kernel_info_request")
    cells.admit(request())
    cells.admit(request())
    cells.admit(question)
    assert cells.questions == [question]
    assert cells.take(question)
    assert not cells.take(question)
    assert cells.questions == []


def test_a_lane_that_is_done_is_forgotten() -> None:
    cells, cell = Cells(), request(lane="s")
    cells.admit(cell)
    finish(cells, cell)
    assert cells.release() == []
    assert cells._lanes == {}


def test_a_callback_is_watched_like_a_cell_but_is_none() -> None:
    cells, callback = Cells(), RunningCell(request("comm_msg"))
    msg_id = callback.request.msg_id
    cells.begin_callback(callback)
    assert cells.watched(msg_id) is callback
    assert cells.running(msg_id) is None
    assert cells.in_flight == []
    cells.end_callback(callback)
    assert cells.watched(msg_id) is None


def test_one_cell_runs_only_if_nothing_runs_beside_it() -> None:
    cells, cell, callback = Cells(), request(), RunningCell(request("comm_msg"))
    assert not cells.one_runs
    cells.admit(cell)
    assert cells.one_runs
    cells.begin_callback(callback)
    assert not cells.one_runs
    cells.end_callback(callback)
    cells.admit(request(lane="s"))
    assert not cells.one_runs


def test_a_mistyped_key_is_refused_by_its_name_and_does_not_run_the_cell_without_limits() -> None:
    for sandbox in ({"limit": {"wall": "5s"}}, {"limits": {"wall": "5s"}, "limit": {}}):
        with pytest.raises(PolicyViolation, match="'limit'") as caught:
            asking(sandbox)
        assert '{"limits":' in caught.value.hint
    assert asking({"limits": {"wall": "5s"}}) == {"wall": "5s"}
    assert asking({}) is asking(None) is None


def test_a_receipt_that_comes_back_with_a_cell_asks_for_nothing() -> None:
    """JupyterLab sends all metadata of a cell along."""
    assert asking({"audit_id": "x"}) is None
    receipt = {"schema": 1, "audit_id": "x", "usage": {}, "limits": {"wall_seconds": 5.0}}
    assert asking(receipt) is None


def test_messages_to_widgets_that_were_held_wait_for_no_cell_but_the_first() -> None:
    cells, first, second, comm = Cells(), request(), request(), request("comm_msg")
    for each in (first, second, comm):
        cells.hold(each)
    assert cells.release() == [first, comm]


def test_messages_to_widgets_that_were_held_are_among_what_waits() -> None:
    cells, cell, comm = Cells(), request(), request("comm_msg")
    cells.hold(comm)
    cells.hold(cell)
    assert cells.take_waiting() == [cell, comm]
    assert cells.release() == []
