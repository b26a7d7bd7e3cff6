"""The wrapper's count is the inner kernel's, where it is known."""

from __future__ import annotations

import msgspec

from sandbox_kernel.relay.cells import Request, RunningCell
from sandbox_kernel.relay.counts import Counts
from sandbox_kernel.relay.wire import Author, Message, Outline

_author = Author("session")


def cell(**content: object) -> RunningCell:
    return RunningCell(
        Request("shell", _author.message("execute_request", {"code": "1", **content}))
    )


def reply(count: int) -> Message:
    frames = (b"{}", b"{}", b"{}", b"{}")
    outline = Outline(execution_count=msgspec.Raw(str(count).encode()))
    return Message((), {}, {}, outline, frames)


def run(counts: Counts, count: int) -> RunningCell:
    ran = cell()
    ran.serial = counts.serial(ran.request)
    counts.show(ran, count)
    ran.reply = reply(count)
    return ran


def test_a_cell_that_the_kernel_does_not_see_is_the_next_after_the_last() -> None:
    counts = Counts()
    counts.end(run(counts, 7), "kept")
    assert counts.suppose(cell()) == 8
    assert counts.suppose(cell()) == 8
    assert counts.suppose(cell(silent=True)) == 7


def test_what_runs_silently_is_a_part_of_the_cell_before_it() -> None:
    counts = Counts()
    serials = [counts.serial(cell(silent=silent).request) for silent in (False, True, True, False)]
    assert serials == [1, 1, 1, 2]


def test_the_next_count_is_known_from_the_last_reply() -> None:
    counts = Counts()
    assert counts.next is None
    counts.end(run(counts, 7), "kept")
    assert counts.next == 8


def test_a_rollback_makes_the_next_count_unknown() -> None:
    counts = Counts()
    counts.end(run(counts, 7), "kept")
    counts.end(run(counts, 8), "rolled_back")
    assert counts.next is None


def test_a_cell_that_did_not_run_leaves_the_next_count_as_it_is() -> None:
    counts = Counts()
    counts.end(run(counts, 7), "kept")
    counts.end(cell(), "kept")
    assert counts.next == 8


def test_a_cell_that_ended_before_it_was_counted_is_counted() -> None:
    counts, early = Counts(), cell()
    early.serial = counts.serial(early.request)
    counts.end(early, "rolled_back")
    assert early.execution_count == 1
