from __future__ import annotations

import dataclasses
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.errors import PolicyViolation
from sandbox_kernel.policy.model import (
    BACKGROUND,
    LIMITS,
    LONGEST_NAME,
    SANDBOX_LIMITS,
    Code,
    Limits,
    Names,
    suggestion,
)
from sandbox_kernel.policy.units import COUNT, DURATION, shown

SOME = Limits(
    wall_seconds=600.0,
    cpu_seconds=600.0,
    memory_bytes=2**31,
    sandbox_memory_bytes=2**32,
    processes=256,
    file_bytes=2**30,
    output_bytes=2**25,
    text_bytes=2**22,
    messages=10_000,
    grace_seconds=2.0,
)
NONE = Limits(None, None, None, None, None, None, None, None, None, grace_seconds=5.0)

AMOUNTS = st.integers(0, 2**40) | st.floats(0, 1e9).map(lambda number: round(number, 3))
TEXTS = st.builds(
    "{}{}".format, st.integers(0, 5000), st.sampled_from(["", "ms", "s", "min", "h", "MiB", "GB"])
)
JUNK = st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.lists(st.text())


def limits() -> st.SearchStrategy[Limits]:
    durations = st.floats(0.001, 1e6)
    whole = st.integers(1, 2**40)
    values = {
        setting.field: (durations if setting.kind is DURATION else whole)
        | (st.none() if setting.can_be_none else st.nothing())
        for setting in LIMITS.values()
    }
    return st.builds(Limits, **values)


def test_every_field_has_a_name_in_yaml_and_the_other_way_round() -> None:
    fields = [field.name for field in dataclasses.fields(Limits)]
    settings = [*LIMITS.values(), *SANDBOX_LIMITS.values(), *BACKGROUND.values()]
    assert [setting.field for setting in settings] == fields


def test_what_is_of_the_whole_sandbox_cannot_be_asked_for_with_a_cell() -> None:
    for name in SANDBOX_LIMITS:
        with pytest.raises(PolicyViolation, match=name):
            SOME.tighten({name: 1})


def test_limits_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SOME.wall_seconds = None  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        SOME.wall = 5  # type: ignore[attr-defined]


def test_a_client_can_tighten_in_the_units_of_yaml() -> None:
    override = {"wall": "5s", "memory": "128MiB", "processes": 10, "grace": 0.5}
    expected = dataclasses.replace(
        SOME, wall_seconds=5.0, memory_bytes=2**27, processes=10, grace_seconds=0.5
    )
    assert SOME.tighten(override) == expected


def test_a_number_without_unit_is_seconds_or_bytes() -> None:
    tightened = SOME.tighten({"wall": 5, "memory": 1024})
    assert (tightened.wall_seconds, tightened.memory_bytes) == (5, 1024)


def test_the_policy_s_own_values_and_no_values_change_nothing() -> None:
    assert SOME.tighten({}) == SOME
    same = {name: setting.show(getattr(SOME, setting.field)) for name, setting in LIMITS.items()}
    assert SOME.tighten(same) == SOME


@pytest.mark.parametrize("name", LIMITS)
def test_where_the_policy_has_no_limit_any_is_tighter(name: str) -> None:
    assert getattr(NONE.tighten({name: 1}), LIMITS[name].field) == 1


@pytest.mark.parametrize("name", LIMITS)
def test_a_looser_limit_is_refused_with_both_values(name: str) -> None:
    allowed = getattr(SOME, LIMITS[name].field)
    asked = allowed + 1
    with pytest.raises(PolicyViolation) as caught:
        SOME.tighten({name: asked})
    assert f"'{name}'" in caught.value.what
    assert str(asked) in caught.value.what
    assert LIMITS[name].show(allowed) in caught.value.what
    assert LIMITS[name].show(allowed) in caught.value.hint


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize(
    "asked",
    [
        None,
        True,
        False,
        "none",
        "",
        "yes",
        "-1",
        -1,
        float("nan"),
        float("inf"),
        [],
        {},
        "5 parsecs",
    ],
    ids=repr,
)
@pytest.mark.parametrize("policy", [SOME, NONE], ids=["limited", "unlimited"])
def test_a_malformed_limit_is_refused_and_named(policy: Limits, asked: object, name: str) -> None:
    with pytest.raises(PolicyViolation) as caught:
        policy.tighten({name: asked})
    assert f"'{name}'" in caught.value.what
    assert LIMITS[name].show(getattr(policy, LIMITS[name].field)) in caught.value.what
    assert repr(asked) in caught.value.what
    assert LIMITS[name].kind.examples in caught.value.hint


@pytest.mark.parametrize("zero", [0, 0.0, "0", 1e-9], ids=repr)
@pytest.mark.parametrize("name", ["wall", "cpu", "memory", "sandbox_memory", "processes"])
def test_zero_of_what_every_cell_needs_is_refused(name: str, zero: object) -> None:
    with pytest.raises(PolicyViolation, match=name):
        SOME.tighten({name: zero})


@pytest.mark.parametrize("name", ["file_size", "output", "text", "messages", "grace"])
def test_zero_of_what_a_cell_can_do_without_is_a_limit(name: str) -> None:
    assert getattr(SOME.tighten({name: 0}), LIMITS[name].field) == 0


@pytest.mark.parametrize("override", [None, True, 5, "wall", ["wall"], [("wall", 5)]], ids=repr)
def test_limits_that_are_no_mapping_are_refused(override: object) -> None:
    with pytest.raises(PolicyViolation, match="not a mapping"):
        SOME.tighten(override)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("wal", "wall"),
        ("Memory", "memory"),
        ("memory_bytes", "memory"),
        ("wall_seconds", "wall"),
        ("procs", "processes"),
        ("filesize", "file_size"),
    ],
)
def test_an_unknown_limit_is_refused_with_the_nearest_one(key: str, near: str) -> None:
    with pytest.raises(PolicyViolation) as caught:
        SOME.tighten({key: 1})
    assert repr(key) in caught.value.what
    assert repr(near) in caught.value.hint


@pytest.mark.parametrize(
    "key", ["budget", 5, None, ("wall",), "\x1b[2J", "w" * 10**6, 10**5000], ids=shown
)
def test_a_key_that_resembles_nothing_is_refused_briefly_and_printably(key: object) -> None:
    with pytest.raises(PolicyViolation) as caught:
        SOME.tighten({key: 1})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_one_bad_limit_refuses_them_all() -> None:
    with pytest.raises(PolicyViolation):
        SOME.tighten({"wall": "5s", "memory": "1TiB"})


@given(limits(), st.dictionaries(st.sampled_from([*LIMITS, "wal"]), AMOUNTS | TEXTS | JUNK))
def test_tightening_never_loosens_whatever_is_asked(policy: Limits, override: object) -> None:
    try:
        tightened = policy.tighten(override)
    except PolicyViolation:
        return
    for field in dataclasses.fields(Limits):
        before, after = getattr(policy, field.name), getattr(tightened, field.name)
        assert before == after or after is not None
        assert before is None or after <= before


@given(limits(), st.dictionaries(st.sampled_from(list(LIMITS)), AMOUNTS | TEXTS))
def test_tightening_changes_only_what_was_asked_for(
    policy: Limits, override: dict[str, object]
) -> None:
    try:
        tightened = policy.tighten(override)
    except PolicyViolation:
        return
    for name, setting in LIMITS.items():
        if name not in override:
            assert getattr(tightened, setting.field) == getattr(policy, setting.field)


def test_a_duration_stays_a_float_and_all_else_an_integer() -> None:
    tightened = NONE.tighten({name: 1.0 for name in LIMITS})
    for setting in LIMITS.values():
        kind = float if setting.kind is DURATION else int
        assert type(getattr(tightened, setting.field)) is kind


def test_a_receipt_says_every_limit_and_leaves_out_what_has_none() -> None:
    assert list(SOME.to_json()) == [
        *("wall_seconds", "cpu_seconds", "memory_bytes", "sandbox_memory_bytes", "processes"),
        *("file_bytes", "output_bytes", "text_bytes", "messages", "grace_seconds"),
    ]
    assert NONE.to_json() == {"grace_seconds": 5.0}
    assert dataclasses.replace(NONE, cpus=1.5).to_json() == {"grace_seconds": 5.0, "cpus": 1.5}
    assert json.loads(json.dumps(SOME.to_json())) == {
        name: value for name, value in dataclasses.asdict(SOME).items() if value is not None
    }


def test_a_limit_of_zero_is_in_the_receipt() -> None:
    assert NONE.tighten({"output": 0}).to_json()["output_bytes"] == 0


def test_a_word_that_resembles_nothing_gets_the_whole_list() -> None:
    assert suggestion("zzz", ["cell", "off"]) == "Known here: cell, off."


def test_a_count_is_not_shown_with_a_unit() -> None:
    assert LIMITS["processes"].kind is COUNT
    assert LIMITS["processes"].show(256) == "256"
    assert LIMITS["processes"].show(None) == "none"


# Names and code


NAMES = Names(
    "warn",
    {"os": "deny", "os.path": "allow", "IPython.display": "allow", "mkfs": "deny", "a.b.c": "ask"},
)


@pytest.mark.parametrize(
    ("name", "decision"),
    [
        ("os", "deny"),
        ("os.environ", "deny"),
        ("os.path", "allow"),
        ("os.path.join", "allow"),
        ("osx", "warn"),
        ("os_path", "warn"),
        ("IPython", "warn"),
        ("IPython.display.HTML", "allow"),
        ("IPython.core", "warn"),
        ("mkfs.ext4", "deny"),
        ("a.b", "warn"),
        ("a.b.c.d.e", "ask"),
        ("OS", "warn"),
        ("", "warn"),
        (".", "warn"),
        ("..os", "warn"),
        (".os", "warn"),
        ("os.", "deny"),
        ("os..path", "deny"),
    ],
)
def test_the_most_specific_entry_decides_about_a_name(name: str, decision: str) -> None:
    assert NAMES.decide(name) == decision


def test_a_name_of_a_million_dots_takes_no_time() -> None:
    started = time.monotonic()
    for name in ("a." * 500_000, "." * 10**6, "os." * 300_000, "x" * 10**6):
        NAMES.decide(name)
    assert time.monotonic() - started < 0.5


def test_the_longest_entry_still_decides_about_what_is_below_it() -> None:
    entry = "x" * LONGEST_NAME
    names = Names("allow", {entry: "deny"})
    assert names.decide(entry) == names.decide(f"{entry}.y") == "deny"
    assert names.decide(f"{entry}y") == names.decide(entry[:-1]) == "allow"


@given(st.lists(st.sampled_from(["os", "path", "a", "b", "c", "mkfs", ""]), max_size=6))
def test_an_entry_decides_about_itself_and_all_below(parts: list[str]) -> None:
    covering = [e for e in NAMES.entries if parts[: e.count(".") + 1] == e.split(".")]
    expected = NAMES.entries[max(covering, key=len)] if covering else NAMES.otherwise
    assert NAMES.decide(".".join(parts)) == expected


def test_rules_on_names_are_decided_by_lists_and_others_each_for_itself() -> None:
    code = Code(
        max_bytes=1,
        imports=NAMES,
        commands=Names("ask", {}),
        magics=Names("deny", {"time": "allow"}),
        rules={"python.frames": "warn"},
    )
    assert code.decide("python.import", "os.path") == "allow"
    assert code.decide("shell.command", "ls") == "ask"
    assert code.decide("magic", "time") == "allow"
    assert code.decide("python.frames", "f_back") == "warn"


@pytest.mark.parametrize("rule", ["cell.too_large", "python.frame", "", "cell.unreadable"])
def test_a_rule_that_no_policy_decides_about_is_denied(rule: str) -> None:
    nothing = Names("allow", {})
    assert Code(1, nothing, nothing, nothing, {}).decide(rule, "") == "deny"
