from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_kernel.isolation.checks.base import Check, Status
from sandbox_kernel.isolation.checks.engines import OTHER_ENGINE
from sandbox_kernel.isolation.checks.levels import (
    NEEDS,
    LevelHere,
    levels_here,
    policies_here,
    policy_here,
)
from sandbox_kernel.isolation.checks.offers import Lack, Offers
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.model import Level, Policy
from tests.unit.isolation.checks.hosts import engine_at, listening, made_up, program

ALL = tuple(NEEDS)


def checks(**bad: Status) -> list[Check]:
    """Every check passed, but for these (``_`` for a space)."""
    statuses: dict[str, Status] = {name: "ok" for needs in NEEDS.values() for name in needs}
    statuses |= {name.replace("_", " "): status for name, status in bad.items()}
    return [Check(name, status, "") for name, status in statuses.items()]


def available(levels: Iterable[LevelHere]) -> list[str]:
    return [here.level for here in levels if here.available]


def test_a_host_with_everything_has_all_levels() -> None:
    assert available(levels_here(checks())) == list(ALL)


@pytest.mark.parametrize("which", ALL)
def test_a_level_does_without_none_of_what_it_needs(which: str) -> None:
    for name in NEEDS[which]:
        for status in ("missing", "refused", "unknown"):
            found = [
                Check(check.name, status if check.name == name else "ok", "")  # type: ignore[arg-type]
                for check in checks()
            ]
            (here,) = [here for here in levels_here(found) if here.level == which]
            assert not here.available
            assert name in here.why


@pytest.mark.parametrize("lacking", ["seccomp", "system_call_filter"])
def test_no_level_does_without_system_call_filters(lacking: str) -> None:
    """One confines what reads commands: without it each cell with a command is denied."""
    assert available(levels_here(checks(**{lacking: "missing"}))) == []


def test_an_engine_that_a_start_would_not_use_is_not_enough() -> None:
    found = [*checks(engine="unknown"), Check(OTHER_ENGINE, "ok", "")]
    assert available(levels_here(found)) == ["restricted", "process"]


def test_what_was_never_checked_is_not_there() -> None:
    assert available(levels_here([])) == []


# policies


class Offering(Offers):
    """An engine that has all but this."""

    def __init__(self, **lacks: Lack) -> None:
        self._lacks = lacks

    def lack(self, policy: Policy, level: Level) -> Lack | None:
        return self._lacks.get(level)


def asking(*prefer: Level, require: Level = "process", **more: str) -> Policy:
    policy = load_policy("default")
    isolation = policy.isolation._replace(prefer=prefer, require=require, **more)
    return replace(policy, isolation=isolation)


def test_the_first_preferred_level_that_can_run_is_taken() -> None:
    without = Offering(gvisor=Lack("cannot be had: no runsc.", "Install it."))
    here = policy_here(asking("gvisor", "container", "process"), checks(), without)
    assert (here.level, here.why, here.fix) == ("container", "", "Install it.")
    here = policy_here(asking("process", "container"), checks(), without)
    assert (here.level, here.fix) == ("process", None)


def test_nothing_weaker_than_required_is_taken() -> None:
    asked = asking("container", "process", require="container")
    here = policy_here(asked, checks(engine="missing"), Offering())
    assert here.level is None
    assert here.why == "container needs engine; process is weaker than container"


def test_what_a_start_would_fail_with_is_not_passed_over() -> None:
    closed = Offering(gvisor=Lack("would not come up", is_final=True))
    here = policy_here(asking("gvisor", "container"), checks(), closed)
    assert (here.level, here.why) == (None, "gvisor would not come up")


def test_what_turns_out_only_at_a_start_is_not_passed_over() -> None:
    for lacking in ({"user_namespaces": "refused"}, {"bwrap": "refused"}, {"seccomp": "missing"}):
        here = policy_here(asking("process", "container"), checks(**lacking), Offering())  # type: ignore[arg-type]
        assert here.level is None, lacking
    here = policy_here(asking("process", "container"), checks(bwrap="missing"), Offering())
    assert here.level == "container", "the control: a start knows that"


def test_an_image_of_the_policy_s_own_will_do_where_no_other_was_built() -> None:
    bare = checks(image="missing", gVisor="missing")
    assert policy_here(asking("gvisor"), bare, Offering()).level == "gvisor"


def test_the_shipped_policies_get_process_or_nothing(tmp_path: Path) -> None:
    host = made_up(tmp_path)
    works = {here.policy: here.level for here in policies_here(checks(), host)}
    assert works["default"] == "process"
    broken = {here.policy: here for here in policies_here(checks(bwrap="missing"), host)}
    assert broken["default"].level is None
    assert "bwrap" in broken["default"].why


# what a policy would get of an engine


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A name that is short enough for a socket."""
    return tmp_path_factory.mktemp("e") / "s"


ID = f"sha256:{'a' * 64}"
DOCKER = {
    "/version": {"ApiVersion": "1.41", "Components": [{"Name": "Engine"}]},
    "/info": {
        "Runtimes": {
            "runc": {"path": "runc"},
            "runsc": {"path": "runsc", "runtimeArgs": ["--network=none"]},
            "careful": {"path": "runsc", "runtimeArgs": ["--host-uds=open"]},
        }
    },
    "/images/sandbox-kernel-python-minimal:latest/json": {"Id": ID},
}


@pytest.mark.parametrize(
    ("asked", "changes", "why"),
    [
        ("container", {"image": "python-minimal"}, None),
        ("container", {"image": "python"}, "no image for 'python'"),
        ("container", {"image": f"python-minimal@sha256:{'b' * 64}"}, "pins"),
        ("gvisor", {"image": "python-minimal", "runtime": "careful"}, None),
        ("gvisor", {"image": "python-minimal", "runtime": "runsc"}, "without --host-uds"),
        ("gvisor", {"image": "python-minimal", "runtime": "kata"}, "no runtime 'kata'"),
    ],
)
def test_the_first_engine_is_asked_as_a_start_would_ask_it(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    asked: Level,
    changes: dict[str, str],
    why: str | None,
) -> None:
    program(tmp_path, "runsc", "echo ' -host-uds value'")
    with engine_at(tmp_path_factory.mktemp("e") / "s", DOCKER) as address:
        host = made_up(tmp_path, engines=(address, "unix:///nowhere"))
        lack = Offers(host).lack(asking(asked, **changes), asked)
    if why is None:
        assert lack is None
    else:
        assert lack is not None
        assert why in lack.why
        assert lack.fix


def test_an_engine_that_does_not_say_what_it_has_ends_the_search(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    silent = {name: said for name, said in DOCKER.items() if name != "/info"}
    with engine_at(tmp_path_factory.mktemp("e") / "s", silent) as address:
        offers = Offers(made_up(tmp_path, engines=(address,)))
        here = policy_here(asking("container", "process"), checks(), offers)
    assert here.level is None
    assert "refuses to tell of itself" in here.why


def test_an_engine_that_does_not_answer_ends_the_search_too(tmp_path: Path, place: Path) -> None:
    policy = asking("container", "process")
    with listening(place, lambda connection: None) as address:
        offers = Offers(made_up(tmp_path, engines=(address,), timeout_seconds=0.5))
        here = policy_here(policy, checks(engine="unknown"), offers)
    assert (here.level, here.why) == (None, "container needs engine")
    without = Offers(made_up(tmp_path))
    assert policy_here(policy, checks(engine="missing"), without).level == "process", "the control"


def test_a_list_of_images_that_cannot_be_read_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_KERNEL_HOME", str(tmp_path))
    (tmp_path / "images.json").write_text("torn")
    offers = Offers(made_up(tmp_path, engines=("unix:///nowhere",)))
    here = policy_here(asking("container", "process"), checks(), offers)
    assert (here.level, "cannot be read" in here.why) == (None, True)
