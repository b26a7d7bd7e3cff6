"""The section ``audit``: what it may say, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sandbox_kernel.policy.effective import as_document
from sandbox_kernel.policy.load import load_policy
from tests.unit.policy.files import loaded, refusal, write


def test_every_shipped_policy_keeps_a_log_that_is_required() -> None:
    for name in ("default", "strict", "trusted", "paranoid", "tour"):
        audit = load_policy(name).audit
        assert audit.enabled, name
        assert audit.required, name


def test_a_policy_changes_what_it_names_and_nothing_else(user: Path) -> None:
    base = load_policy("default").audit
    audit = loaded(user, "audit: {code: hash, anchor: 'file:/mnt/a', anchor_every: 1h}").audit
    assert audit == base._replace(code="hash", anchor="file:/mnt/a", anchor_seconds=3600)


def test_patterns_of_secrets_add_to_those_of_the_policy_that_is_extended(user: Path) -> None:
    write(user, "audit: {redact: ['acme_[a-z]{9}']}", "house")
    audit = loaded(user, "extends: house\naudit: {redact: ['team_[a-z]{9}']}").audit
    assert audit.redact == ("acme_[a-z]{9}", "team_[a-z]{9}")
    assert loaded(user, "extends: house\naudit: {redact: []}").audit.redact == ()


def test_what_is_shown_as_effective_reads_back(user: Path) -> None:
    text = "audit: {enabled: false, redact: ['acme_[a-z]{9}', 'b+'], anchor: 'command:/bin/x y'}"
    policy = loaded(user, text)
    again = loaded(user, yaml.safe_dump(as_document(policy), sort_keys=False))
    assert again.audit == policy.audit
    assert not again.audit.enabled


@pytest.mark.parametrize(
    ("text", "line", "word", "hint"),
    [
        ("audit: none", 1, "audit is not a mapping", "enabled"),
        ("audit:\n  enable: true", 2, "'enable'", "'enabled'"),
        ("audit:\n  enabled: yes", 2, "'yes' is none of", "true"),
        ("audit:\n  required: maybe", 2, "audit.required", "true"),
        ("audit:\n  code: texts", 2, "'texts'", "'text'"),
        ("audit:\n  durability: fast", 2, "'fast'", "normal"),
        ("audit:\n  redact: acme", 2, "audit.redact is not a list", "["),
        ("audit:\n  redact: ['(']", 2, "is not a regular expression", "quotes"),
        ("audit:\n  redact: ['x*']", 2, "matches the empty text", "begins with"),
        ("audit:\n  redact: ['(a+)+b']", 2, "repeats what is repeated", "single characters"),
        ("audit:\n  redact: ['(a|b*c)*d']", 2, "repeats what is repeated", "single characters"),
        ("audit:\n  redact: ['(x{2,}y){3,}']", 2, "repeats what is repeated", "single"),
        ("audit:\n  anchor: file:anchors", 2, "no place", "file:/PATH"),
        ("audit:\n  anchor: {to: syslog}", 2, "not a single value", "one word"),
        ("audit:\n  mirror: command:/bin/x", 2, "no place", "syslog"),
        ("audit:\n  anchor_every: 0", 2, "audit.anchor_every", "10min"),
        ("audit:\n  anchor_every: none", 2, "is not a duration", "10min"),
    ],
)
def test_a_mistake_is_refused_with_its_line(
    user: Path, text: str, line: int, word: str, hint: str
) -> None:
    error = refusal(user, text)
    assert error.what.startswith(f"{user / 'mine.yaml'}, line {line}: ")
    assert word in error.what
    assert hint in error.hint


def test_an_ordinary_pattern_is_no_repetition_of_repetitions(user: Path) -> None:
    patterns = ["acme_[a-z0-9]{20,40}", "(?:key|token)-[0-9]+", "(ab+c)", "[a+]+"]
    text = yaml.safe_dump({"audit": {"redact": patterns}})
    assert loaded(user, text).audit.redact == tuple(patterns)
