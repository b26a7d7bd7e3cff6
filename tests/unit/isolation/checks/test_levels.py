from __future__ import annotations

from collections.abc import Iterable

import pytest

from sandbox_kernel.isolation.checks.base import Check, Status
from sandbox_kernel.isolation.checks.levels import (
    NEEDS,
    LevelHere,
    level_for,
    levels_here,
    policies_here,
)

ALL = tuple(NEEDS)


def checks(**bad: Status) -> list[Check]:
    """Every check passed, but for these (``_`` for a space)."""
    statuses: dict[str, Status] = {name: "ok" for needs in NEEDS.values() for name in needs}
    statuses |= {name.replace("_", " "): status for name, status in bad.items()}
    return [Check(name, status, "") for name, status in statuses.items()]


def available(levels: Iterable[LevelHere]) -> list[str]:
    return [here.level for here in levels if here.available]


def test_a_host_with_everything_has_all_levels() -> None:
    assert available(levels_here(checks(), ALL)) == list(ALL)


@pytest.mark.parametrize("level", ALL)
def test_a_level_does_without_none_of_what_it_needs(level: str) -> None:
    for name in NEEDS[level]:
        for status in ("missing", "refused", "unknown"):
            found = [
                Check(check.name, status if check.name == name else "ok", "")  # type: ignore[arg-type]
                for check in checks()
            ]
            (here,) = [here for here in levels_here(found, ALL) if here.level == level]
            assert not here.available
            assert name in here.why


def test_one_engine_that_works_is_enough() -> None:
    found = [*checks(), Check("engine", "unknown", "hangs")]
    assert "container" in available(levels_here(found, ALL))


def test_what_was_never_checked_is_not_there() -> None:
    assert available(levels_here([], ALL)) == []


def test_a_level_that_this_build_does_not_have_is_not_there() -> None:
    levels = levels_here(checks(), ["process"])
    assert available(levels) == ["process"]
    assert {here.why for here in levels if not here.available} == {"not in this build"}


def test_the_first_preferred_level_that_can_run_is_taken() -> None:
    levels = levels_here(checks(gVisor="missing"), ALL)
    assert level_for(["gvisor", "container", "process"], "process", levels) == ("container", "")
    assert level_for(["process", "container"], "process", levels) == ("process", "")


def test_nothing_weaker_than_required_is_taken() -> None:
    levels = levels_here(checks(engine="missing"), ALL)
    level, why = level_for(["container", "process"], "container", levels)
    assert level is None
    assert "engine" in why
    assert "process is weaker than container" in why


def test_the_shipped_policies_get_process_or_nothing() -> None:
    works = {here.policy: here.level for here in policies_here(levels_here(checks()))}
    assert works["default"] == "process"
    broken = {here.policy: here for here in policies_here(levels_here(checks(bwrap="missing")))}
    assert broken["default"].level is None
    assert "bwrap" in broken["default"].why
