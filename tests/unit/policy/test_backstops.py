"""Every rule says what holds if it is bypassed, and what it says is tested."""

from __future__ import annotations

import pytest

from sandbox_kernel.paths import policies_directory
from sandbox_kernel.policy.backstops import (
    CONTROLS,
    NOT_ENFORCED,
    TEST,
    document,
    document_path,
    in_words,
)
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.model import Code, Names
from sandbox_kernel.policy.rules import all_ids, rule
from tests.hostile.bypasses import BYPASSES, filled_in

ROOT = policies_directory().parent
BACKED = [id for id in all_ids() if rule(id).backstop is not None]
WORDS = {
    "folder": "/tmp/work/notebooks",
    "home": "/tmp/work/home",
    "connection": "/tmp/work/notebooks/kernel.json",
    "secret": "5ec2e7",
    "token": "t0ken",
    "port": "8765",
    "pid": "4321",
    "everyone": "-1",
    "first": "1",
}
# Nothing that this Python can read is new to the check.
NOT_TO_BE_WRITTEN = "python.unknown_syntax"


@pytest.mark.parametrize("id", all_ids())
def test_a_rule_names_a_control_that_exists_or_none(id: str) -> None:
    assert rule(id).backstop in (None, *CONTROLS)


@pytest.mark.parametrize("id", all_ids())
def test_a_rule_is_worded_like_all_others(id: str) -> None:
    found = rule(id)
    assert found.reason.startswith("it ")
    assert found.instead[0].isupper()


def test_only_what_runs_in_the_browser_has_nothing_behind_it() -> None:
    without = {id for id in all_ids() if id not in BACKED}
    assert without == {"magic.html", *(id for id in all_ids() if id.startswith("javascript."))}
    assert in_words(None).lower() == f"{NOT_ENFORCED}."


@pytest.mark.parametrize("key", CONTROLS)
def test_every_control_is_used_and_tested(key: str) -> None:
    assert CONTROLS[key].key == key
    assert key in {rule(id).backstop for id in BACKED}
    assert BYPASSES[key]
    for place in CONTROLS[key].made_by:
        assert (ROOT / place).exists() or (ROOT / "sandbox_kernel" / place).exists()


@pytest.mark.parametrize("id", BACKED)
def test_there_is_a_bypass_for_the_rule_by_the_control_that_holds(id: str) -> None:
    assert [key for key, cells in BYPASSES.items() if id in cells] == [rule(id).backstop]


def test_there_is_no_bypass_for_a_rule_that_does_not_exist() -> None:
    assert {id for cells in BYPASSES.values() for id in cells} == set(BACKED)


@pytest.mark.parametrize("id", [id for id in BACKED if id != NOT_TO_BE_WRITTEN])
def test_a_bypass_is_about_its_rule(id: str) -> None:
    """With the check on, the rule is reported."""
    warned = Names("warn", {})
    rules = dict.fromkeys(load_policy("default").code.rules, "warn")
    code = Code(1 << 20, imports=warned, commands=warned, magics=warned, rules=rules)
    verdict = Judge(code).judge(filled_in(BYPASSES[rule(id).backstop or ""][id], WORDS))
    assert id in {finding.rule for finding in verdict.findings}


def test_the_document_is_current() -> None:
    """If not: ``python -m sandbox_kernel.policy.backstops``."""
    assert document_path().read_text() == document()


def test_the_document_names_every_rule_and_a_test_that_exists() -> None:
    text = document()
    assert all(f"| `{id}` |" in text for id in all_ids())
    assert (ROOT / TEST).is_file()
