"""The policies that come with the product."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys

import pytest

from sandbox_kernel.paths import policies_directory
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.model import (
    BACKGROUND,
    BUDGET,
    LIMITS,
    NAME_RULES,
    SANDBOX_LIMITS,
    Audit,
    Budget,
    Isolation,
    Limits,
    Policy,
)
from sandbox_kernel.policy.rules import ALWAYS_DENIED, all_ids
from sandbox_kernel.policy.verdict import DECISIONS

MIB, GIB = 2**20, 2**30
FROM_LOOSE_TO_TIGHT = ["trusted", "default", "strict", "paranoid"]
RULES = [id for id in all_ids() if id not in NAME_RULES]
HARMLESS = ["math", "numpy", "pandas", "sklearn.linear_model", "matplotlib.pyplot", "PIL.Image"]


def test_default_is_what_the_documentation_says() -> None:
    policy = load_policy("default")
    assert policy == Policy(
        name="default",
        sha256=policy.sha256,
        isolation=Isolation(("process",), "process", "python", "runsc"),
        limits=Limits(
            *(600, 600, 2 * GIB, 4 * GIB, 256, GIB, 32 * MIB, 4 * MIB, 10_000, 2),
            background_cpu_seconds=600,
        ),
        budget=Budget(None, None),
        network="none",
        workspace="read-only",
        environment=(),
        code=policy.code,
        outputs="unfiltered",
        stdin="allow",
        audit=Audit(True, True, "text", "normal", (), "none", 600, "none"),
        checkpoint="cell",
        annotate="receipt",
        late_output="label",
    )


def test_strict_is_what_the_documentation_says() -> None:
    amounts = (60, 60, 512 * MIB, GIB, 64, 256 * MIB, 8 * MIB, MIB, 2000, 1)
    expected = Limits(*amounts, background_cpu_seconds=10)
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
    limits = [*LIMITS.values(), *SANDBOX_LIMITS.values(), *BACKGROUND.values()]
    for settings, section in ((limits, Limits), (BUDGET.values(), Budget)):
        names = [field.name for field in dataclasses.fields(section)]
        assert [setting.field for setting in settings] == names


def test_the_model_alone_loads_neither_yaml_nor_difflib() -> None:
    script = (
        "import sys, sandbox_kernel.policy.model\n"
        "sys.exit(bool({'yaml', 'difflib'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# The static check


@pytest.mark.parametrize("name", FROM_LOOSE_TO_TIGHT)
def test_every_rule_is_decided_in_so_many_words(name: str) -> None:
    always = {rule.id for rule in ALWAYS_DENIED}
    assert set(load_policy(name).code.rules) == set(RULES) - always


@pytest.mark.parametrize("name", FROM_LOOSE_TO_TIGHT)
@pytest.mark.parametrize("rule", [rule.id for rule in ALWAYS_DENIED])
def test_no_policy_lets_pass_what_cannot_be_read(name: str, rule: str) -> None:
    assert load_policy(name).code.decide(rule, "") == "deny"


@pytest.mark.parametrize(("looser", "tighter"), list(itertools.pairwise(FROM_LOOSE_TO_TIGHT)))
def test_a_tighter_policy_decides_nothing_more_mildly(looser: str, tighter: str) -> None:
    loose, tight = load_policy(looser).code, load_policy(tighter).code
    names = {
        rule: [*getattr(loose, field).entries, *getattr(tight, field).entries, "zz"]
        for rule, field in NAME_RULES.items()
    }
    asked = [(rule, "") for rule in RULES]
    asked += [(rule, name) for rule, listed in names.items() for name in listed]
    for rule, about in asked:
        decisions = [DECISIONS.index(code.decide(rule, about)) for code in (loose, tight)]
        assert decisions == sorted(decisions), (rule, about)
    assert tight.max_bytes < loose.max_bytes


def test_trusted_has_nothing_to_say() -> None:
    code = load_policy("trusted").code
    assert set(code.rules.values()) == {"allow"}
    for names in (code.imports, code.commands, code.magics):
        assert names == ("allow", {})


def test_paranoid_asks_and_warns_about_nothing() -> None:
    code = load_policy("paranoid").code
    assert set(code.rules.values()) <= {"allow", "deny"}
    for names in (code.imports, code.commands, code.magics):
        assert names.otherwise == "deny"
        assert not names.listed("ask")
        assert not names.listed("warn")
    assert not code.commands.entries


@pytest.mark.parametrize("name", FROM_LOOSE_TO_TIGHT)
@pytest.mark.parametrize("module", HARMLESS)
def test_every_policy_lets_a_notebook_compute_and_plot(name: str, module: str) -> None:
    code = load_policy(name).code
    assert code.decide("python.import", module) == "allow"
    assert code.decide("magic", "matplotlib") == "allow"
    assert code.decide("magic", "undo") == "allow"


@pytest.mark.parametrize(
    "module", ["os", "sys", "subprocess", "importlib", "ctypes", "socket", "pickle", "zz", "."]
)
def test_strict_allows_only_modules_on_its_list(module: str) -> None:
    assert load_policy("strict").code.decide("python.import", module) == "deny"


@pytest.mark.parametrize(
    ("module", "decision"),
    [("os", "allow"), ("os.path", "allow"), ("subprocess", "warn"), ("ctypes.util", "deny")],
)
def test_default_denies_only_modules_that_go_behind_python_s_back(
    module: str, decision: str
) -> None:
    assert load_policy("default").code.decide("python.import", module) == decision


@pytest.mark.parametrize("name", [*FROM_LOOSE_TO_TIGHT, "tour"])
def test_editors_are_told_of_the_schema(name: str) -> None:
    first = (policies_directory() / f"{name}.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=policy.schema.json"
    assert (policies_directory() / "policy.schema.json").is_file()
