"""The catalogue of rules."""

from __future__ import annotations

import re

import pytest

from sandbox_kernel.policy import javascript, magics, python, shell
from sandbox_kernel.policy.model import NAME_RULES
from sandbox_kernel.policy.rules import ALWAYS_DENIED, ON_NAMES, all_ids, rule
from sandbox_kernel.policy.verdict import RISKS


@pytest.mark.parametrize("id", all_ids())
def test_every_rule_says_what_why_and_what_instead(id: str) -> None:
    found = rule(id)
    assert found.id == id
    assert re.fullmatch(r"(python|shell|magic|javascript|cell)\.[a-z_]+|magic", id)
    assert found.risk in RISKS
    for text in (found.reason, found.instead):
        assert text
        assert text == text.strip()
        assert not text.endswith(".")
        assert text.isprintable()


def test_the_rules_on_names_and_those_of_no_language_are_among_them() -> None:
    assert [found.id for found in ON_NAMES] == list(NAME_RULES)
    for id in ("cell.too_large", "cell.unreadable", "cell.too_deep"):
        assert rule(id) in ALWAYS_DENIED


@pytest.mark.parametrize("language", ["python.", "shell.", "magic.", "javascript."])
def test_every_validator_brings_rules(language: str) -> None:
    assert [id for id in all_ids() if id.startswith(language) and id not in NAME_RULES]


def test_no_two_validators_use_the_same_id() -> None:
    brought = [found.id for module in (python, shell, magics, javascript) for found in module.RULES]
    assert len(set(brought)) == len(brought)
    assert set(brought) <= set(all_ids())
    assert not {found.id for found in ALWAYS_DENIED} & set(brought)


def test_an_unknown_id_gets_the_nearest_one() -> None:
    with pytest.raises(KeyError, match=r"python\.frmes.*python\.frames"):
        rule("python.frmes")
