"""The policies that come with the product."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from sandbox_kernel.paths import policies_directory
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.model import BUDGET, LIMITS, Budget, Limits, Policy

MIB, GIB = 2**20, 2**30


def test_default_is_what_the_documentation_says() -> None:
    policy = load_policy("default")
    assert policy == Policy(
        name="default",
        sha256=policy.sha256,
        limits=Limits(600, 600, 2 * GIB, 4 * GIB, 256, GIB, 32 * MIB, 4 * MIB, 10_000, 2),
        budget=Budget(None, None),
        checkpoint="cell",
        annotate="receipt",
    )


def test_strict_is_what_the_documentation_says() -> None:
    expected = Limits(60, 60, 512 * MIB, GIB, 64, 256 * MIB, 8 * MIB, MIB, 2000, 1)
    assert load_policy("strict").limits == expected


def test_trusted_is_what_the_documentation_says() -> None:
    expected = Limits(None, None, None, None, 4096, None, GIB, GIB, 1_000_000, 5)
    assert load_policy("trusted").limits == expected


def test_paranoid_has_a_budget() -> None:
    assert load_policy("paranoid").budget == Budget(900, 600)


@pytest.mark.parametrize(
    ("tighter", "looser"),
    [("paranoid", "strict"), ("strict", "default"), ("default", "trusted")],
)
def test_each_policy_is_tighter_in_every_limit_than_the_next(tighter: str, looser: str) -> None:
    tight, loose = load_policy(tighter), load_policy(looser)
    for field in dataclasses.fields(Limits):
        more = getattr(loose.limits, field.name)
        assert more is None or getattr(tight.limits, field.name) < more, field.name
    for field in dataclasses.fields(Budget):
        more = getattr(loose.budget, field.name)
        assert more is None or getattr(tight.budget, field.name) < more, field.name


@pytest.mark.parametrize("name", ["default", "strict", "trusted", "paranoid"])
def test_every_line_says_what_it_means(name: str) -> None:
    for line in (policies_directory() / f"{name}.yaml").read_text().splitlines():
        assert not line.strip() or "# " in line or line == "#", line


def test_every_hash_is_different() -> None:
    names = ["default", "strict", "trusted", "paranoid"]
    assert len({load_policy(name).sha256 for name in names}) == len(names)


def test_the_tables_and_the_dataclasses_have_the_same_fields() -> None:
    for table, section in ((LIMITS, Limits), (BUDGET, Budget)):
        names = [field.name for field in dataclasses.fields(section)]
        assert [setting.field for setting in table.values()] == names


def test_the_model_alone_loads_neither_yaml_nor_difflib() -> None:
    script = (
        "import sys, sandbox_kernel.policy.model\n"
        "sys.exit(bool({'yaml', 'difflib'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
