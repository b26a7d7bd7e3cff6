from __future__ import annotations

from typing import Any, get_args

import pytest

from sandbox_kernel.errors import (
    LIMIT_ERRORS,
    CellLimitExceeded,
    CellMemoryExceeded,
    CellTimeout,
    SandboxError,
)
from sandbox_kernel.words import Action, Limit, State


def exceeded(limit: Limit = "wall", **changes: Any) -> CellLimitExceeded:
    facts: dict[str, Any] = {
        "allowed": 5,
        "used": 5.1,
        "action": "interrupted",
        "state": "kept",
        "policy": "default",
    }
    return LIMIT_ERRORS[limit](limit, **facts | changes)


def test_an_interrupted_cell_keeps_everything_and_is_told_so() -> None:
    assert exceeded().what == (
        "The cell ran for 5.1 s; policy `default` allows 5 s. It was interrupted; all variables are "
        "kept, including what the cell had set before it stopped."
    )


@pytest.mark.parametrize(
    ("own", "where"), [(False, "the 5 s limit of policy `default`"), (True, "its own 5 s limit")]
)
def test_a_cell_stopped_right_at_the_limit_is_told_the_limit_once(own: bool, where: str) -> None:
    error = exceeded(used=5.0004, own=own)
    assert error.what.startswith(f"The cell was stopped at {where}. It was interrupted; all")


def test_a_cell_rolled_back_is_told_what_is_kept_what_is_undone_and_what_is_not() -> None:
    error = exceeded(
        action="rolled_back",
        state="rolled_back",
        why="did not stop when interrupted (2 s grace)",
        not_restored=("2 threads", "files the cell wrote"),
    )
    assert error.what == (
        "The cell ran for 5.1 s; policy `default` allows 5 s. It did not stop when interrupted "
        "(2 s grace), so it was killed and the kernel went back to the state before it: all "
        "variables of earlier cells are kept, what this cell changed is undone (not restored: "
        "2 threads, files the cell wrote)."
    )


def test_a_cell_that_cost_the_sandbox_is_told_that_the_variables_are_gone() -> None:
    error = exceeded(action="replaced", state="lost", why="left 1 thread running")
    assert (
        "It left 1 thread running, so it was killed with its sandbox and a new sandbox started"
        in error.what
    )
    assert error.what.endswith("the variables of this notebook are gone.")
    assert error.hint.startswith("Run the earlier cells again.")


def test_a_cell_killed_at_once_is_not_said_to_have_ignored_an_interrupt() -> None:
    facts = {"allowed": 512 << 20, "used": 600 << 20, "state": "rolled_back"}
    error = exceeded("memory", action="rolled_back", **facts)
    assert isinstance(error, CellMemoryExceeded)
    assert error.what.startswith(
        "The cell took 600 MiB of memory on top of what was there; policy `default` allows 512 MiB. "
        "It was killed and"
    )


def test_it_is_clear_who_was_stopped_when_the_limit_is_not_the_cells_own() -> None:
    assert "allows 5 s. The cell was interrupted;" in exceeded("budget_wall").what


@pytest.mark.parametrize("limit", get_args(Limit))
def test_every_limit_has_its_error_its_words_and_the_key_to_raise_it(limit: Limit) -> None:
    for action in get_args(Action):
        for state in get_args(State):
            error = exceeded(limit, allowed=1000, used=4096, action=action, state=state)
            assert error.ename == LIMIT_ERRORS[limit].__name__
            key = limit.replace("budget_", "budget.")
            named = f"`{key}`" in error.hint or f"`limits.{key}`" in error.hint
            assert named == (limit not in ("pipes", "terminals"))  # which no policy sets
            assert str(error) == f"{error.what} {error.hint}"
            assert not set("{}") & set(str(error))


def test_the_names_users_see_are_those_of_the_design() -> None:
    assert {limit: (error.__name__, error.outcome) for limit, error in LIMIT_ERRORS.items()} == {
        "wall": ("CellTimeout", "timeout"),
        "cpu": ("CellCpuExceeded", "cpu"),
        "memory": ("CellMemoryExceeded", "memory"),
        "sandbox_memory": ("CellMemoryExceeded", "memory"),
        "processes": ("CellLimitExceeded", "error"),
        "pipes": ("CellLimitExceeded", "error"),
        "terminals": ("CellLimitExceeded", "error"),
        "output": ("CellOutputExceeded", "output"),
        "text": ("CellOutputExceeded", "output"),
        "messages": ("CellOutputExceeded", "output"),
        "budget_wall": ("CellTimeout", "timeout"),
        "budget_cpu": ("CellCpuExceeded", "cpu"),
    }


def test_where_the_cell_was_stands_above_why_it_was_stopped() -> None:
    error = exceeded()
    assert isinstance(error, CellTimeout)
    lines = error.traceback(["\x1b[32mKeyboardInterrupt", "at line 3"])
    assert lines[:2] == ["\x1b[32mKeyboardInterrupt", "at line 3"]
    assert lines[2].startswith("\x1b[0m")
    assert "CellTimeout" in lines[2]
    assert error.what in lines[2]
    assert error.hint in lines[3]


def test_an_error_with_nothing_from_inside_says_what_and_what_to_do() -> None:
    error = SandboxError("It broke.", hint="Mend it.")
    assert error.ename == "SandboxError"
    what, hint = error.traceback()
    assert what.endswith(": It broke.")
    assert hint.endswith("Mend it.")
