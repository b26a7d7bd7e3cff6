from __future__ import annotations

import pytest

from sandbox_kernel.limits.shortage import Shortage

ALLOWED = 1000


class Sandbox:
    """Has as much as a test says, and notes what is done about it."""

    def __init__(self, allowed: int | None = ALLOWED) -> None:
        self.forgotten = 0
        self.shortage = Shortage(allowed, self._forget)

    def _forget(self) -> None:
        self.forgotten += 1

    def looked_at(self, *used: int) -> list[str]:
        return [self.shortage.between_cells(each) for each in used]


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox()


def test_what_is_given_up_first_is_the_checkpoint_for_undo(sandbox: Sandbox) -> None:
    assert sandbox.looked_at(1001, 900) == ["nothing", "nothing"]
    assert sandbox.forgotten == 1


def test_a_rollback_that_does_not_help_is_not_made_again_and_is_told_once(sandbox: Sandbox) -> None:
    steps = sandbox.looked_at(*[1050] * 10)
    assert steps == ["nothing", "roll back", "tell", *["nothing"] * 7]
    assert sandbox.forgotten == 1


def test_cells_that_change_nothing_do_not_bring_it_back(sandbox: Sandbox) -> None:
    sandbox.looked_at(1050, 1050, 1050)
    for _ in range(3):
        sandbox.shortage.renew()
        assert sandbox.looked_at(1050, 1050) == ["nothing", "nothing"]
    assert sandbox.forgotten == 1


def test_what_grows_on_is_another_excess(sandbox: Sandbox) -> None:
    sandbox.looked_at(1050, 1050, 1050)
    assert sandbox.looked_at(1050 + ALLOWED // 16 + 1) == ["roll back"]


def test_after_a_rollback_that_helped_there_is_another_for_the_next(sandbox: Sandbox) -> None:
    assert sandbox.looked_at(1050, 1050, 500) == ["nothing", "roll back", "nothing"]
    sandbox.shortage.renew()
    assert sandbox.looked_at(1050, 1050) == ["nothing", "roll back"]


def test_a_cell_that_begins_with_too_much_is_known(sandbox: Sandbox) -> None:
    assert sandbox.shortage.before_cell(1001)
    assert not sandbox.shortage.before_cell(1000)
    # The estimate before a cell is a rough one: what was seen between cells counts too.
    sandbox.looked_at(1001)
    assert sandbox.shortage.before_cell(900)
    sandbox.looked_at(1000)
    assert not sandbox.shortage.before_cell(900)


def test_without_a_limit_nothing_is_too_much() -> None:
    sandbox = Sandbox(None)
    assert sandbox.looked_at(1 << 60) == ["nothing"]
    assert not sandbox.shortage.before_cell(1 << 60)
