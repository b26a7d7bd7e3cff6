"""What a policy may say of isolation and of code, and what this build cannot enforce."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox_kernel.errors import PolicyError
from sandbox_kernel.policy.code_section import PARTS, rules_of
from sandbox_kernel.policy.effective import as_document
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.model import Names, Policy
from sandbox_kernel.policy.rules import all_ids
from tests.unit.policy.files import WHOLE, loaded, refusal, write

RULE = rules_of("python")[0]
SHELL_RULE = rules_of("shell")[0]


# What it sets


def test_a_list_adds_to_the_list_of_the_same_key_and_no_other(user: Path) -> None:
    strict = load_policy("strict").code.imports
    imports = loaded(
        user, "extends: strict\ncode: {python: {imports: {allow: [duckdb, numpy]}}}"
    ).code.imports
    assert imports.otherwise == "deny"
    assert set(imports.listed("allow")) == {*strict.listed("allow"), "duckdb"}
    assert imports.listed("deny") == strict.listed("deny")


def test_to_deny_one_name_more_allows_no_other(user: Path) -> None:
    imports = loaded(user, "code: {python: {imports: {deny: [requests]}}}").code.imports
    default = load_policy("default").code.imports
    assert dict(imports.entries) == {**default.entries, "requests": "deny"}


def test_an_empty_list_empties_the_one_it_extends(user: Path) -> None:
    imports = loaded(user, "code: {python: {imports: {deny: []}}}").code.imports
    assert imports.listed("deny") == []
    assert imports.listed("warn") == load_policy("default").code.imports.listed("warn")


@pytest.mark.parametrize("more", ["", ", allow: [duckdb]", ", ask: [], warn: [duckdb]"])
def test_to_say_again_what_holds_otherwise_loosens_nothing(user: Path, more: str) -> None:
    table = f"{{otherwise: deny, deny: [requests]{more}}}"
    mine = loaded(user, f"extends: strict\ncode: {{python: {{imports: {table}}}}}").code.imports
    strict = load_policy("strict").code.imports
    assert mine.listed("deny") == [*strict.listed("deny"), "requests"]
    assert {name for name in mine.entries if name not in strict.entries} <= {"requests", "duckdb"}


def test_a_file_that_states_all_of_a_table_has_lists_of_its_own(user: Path) -> None:
    table = "{otherwise: deny, allow: [math], warn: [], ask: [], deny: []}"
    imports = loaded(user, f"extends: strict\ncode: {{python: {{imports: {table}}}}}").code.imports
    assert imports == Names("deny", {"math": "allow"})


@pytest.mark.parametrize(
    ("table", "name", "decision"),
    [
        ("{deny: [numpy]}", "numpy.testing.assert_equal", "deny"),
        ("{ask: [numpy]}", "numpy.linalg", "ask"),
        ("{ask: [numpy]}", "numpy.f2py", "deny"),
        ("{allow: [numpy]}", "numpy.f2py", "deny"),
        ("{deny: [numpy], allow: [numpy.testing]}", "numpy.testing.assert_equal", "allow"),
        ("{deny: [num]}", "numpy.testing.assert_equal", "allow"),
    ],
)
def test_a_name_takes_what_is_milder_below_it_along(
    user: Path, table: str, name: str, decision: str
) -> None:
    imports = loaded(user, f"extends: strict\ncode: {{python: {{imports: {table}}}}}").code.imports
    assert imports.decide(name) == decision


def test_a_name_in_a_list_leaves_the_lists_of_the_policy_that_is_extended(user: Path) -> None:
    write(user, "code: {shell: {commands: {allow: [ls, cat], deny: [rm]}}}", "base")
    commands = loaded(user, "extends: base\ncode: {shell: {commands: {deny: [cat]}}}").code.commands
    assert commands.listed("allow") == ["ls"]
    assert commands.listed("deny")[-2:] == ["rm", "cat"]


def test_rules_that_are_not_named_are_decided_as_in_the_base(user: Path) -> None:
    strict = load_policy("strict").code.rules
    changed = "allow" if strict[RULE] == "ask" else "ask"
    rules = loaded(
        user, f"extends: strict\ncode: {{python: {{rules: {{{RULE}: {changed}}}}}}}"
    ).code.rules
    assert rules == {**strict, RULE: changed}


def test_size_and_otherwise_can_be_set_alone(user: Path) -> None:
    code = loaded(user, "code:\n  max_size: 2KiB\n  magics: {otherwise: ask}").code
    assert code.max_bytes == 2048
    assert code.magics.otherwise == "ask"
    assert code.magics.entries == load_policy("default").code.magics.entries


def test_words_that_yaml_takes_for_booleans_are_names_in_a_list(user: Path) -> None:
    commands = loaded(user, "code: {shell: {commands: {deny: [yes, on, true, 'null']}}}").code
    assert commands.commands.listed("deny")[-4:] == ["yes", "on", "true", "null"]


@pytest.mark.parametrize("name", ["default", "strict", "paranoid", "trusted", "tour"])
def test_what_is_shown_as_effective_reads_back_as_the_same_policy(user: Path, name: str) -> None:
    policy = load_policy(name)
    again = loaded(user, yaml.safe_dump(as_document(policy), sort_keys=False))
    for field in ("isolation", "limits", "budget", "network", "workspace", "environment"):
        assert getattr(again, field) == getattr(policy, field)
    assert again.code == policy.code
    assert (again.checkpoint, again.annotate) == (policy.checkpoint, policy.annotate)


# What is refused


@pytest.mark.parametrize(
    ("text", "line", "word", "hint"),
    [
        ("isolation:\n  image: Up/Per", 2, "no name that an engine could have", "python"),
        ("isolation:\n  runtime: 1x", 2, "no name that an engine could have", "runsc"),
        ("isolation:\n  runtime: runc", 2, "'runc' runs cells on the host's own kernel", "runsc"),
        ("isolation:\n  runtime: crun", 2, "no more than `container`", "`container`"),
        ("isolation:\n  runtime: youki", 2, "no more than `container`", "runsc"),
        ("isolation:\n  runtime: io.containerd.runc.v2", 2, "the host's own kernel", "runsc"),
        ("isolation:\n  require: none", 2, "'none' is not a level", "container"),
        ("isolation:\n  require: proces", 2, "'proces'", "'process'"),
        ("isolation:\n  prefer:\n  - restrained\n  - process", 3, "'restrained'", "'restricted'"),
        ("isolation:\n  prefer: process", 2, "isolation.prefer is not a list", "["),
        ("isolation:\n  prefer: []", 2, "isolation.prefer is empty", "process"),
        ("isolation:\n  prefer: [process, process]", 2, "twice", "Remove"),
        ("isolation: process", 1, "isolation is not a mapping", "prefer, require"),
        ("network: allow", 1, "'allow' is not possible in this build", "none"),
        ("network: [a.org]", 1, "network", "one word"),
        ("network: off", 1, "'off'", "network: none"),
        ("workspace:\n  mount: read-write", 2, "'read-write' is not possible", "read-only"),
        ("workspace: read-only", 1, "not a mapping", "mount"),
        ("environment:\n  pass: [TZ, HOME]", 2, "'HOME' decides how", "Leave it out"),
        ("environment:\n  pass: [LD_PRELOAD]", 2, "'LD_PRELOAD' decides how", "Leave it out"),
        ("environment:\n  pass: ['A=1']", 2, "'A=1' is not the name", "without values"),
        ("environment:\n  pass: API_KEY", 2, "environment.pass is not a list", "["),
        ("environment:\n  pas: []", 2, "'pas'", "'pass'"),
        ("outputs: {}", 1, "outputs is not a single value", "one word"),
        ("outputs: filtered", 1, "'filtered' is not possible in this build", "unfiltered"),
        ("output: {}", 1, "'output' is not a key of the policy", ""),
    ],
)
def test_what_this_build_cannot_enforce_is_refused_and_never_ignored(
    user: Path, text: str, line: int, word: str, hint: str
) -> None:
    error = refusal(user, text)
    assert error.what.startswith(f"{user / 'mine.yaml'}, line {line}: ")
    assert word in error.what
    assert hint in error.hint


@pytest.mark.parametrize(
    ("text", "line", "word", "hint"),
    [
        ("  max_size: none", 2, "'none' is not a size", "64KiB"),
        ("  max_size: 0", 2, "code.max_size", "64KiB"),
        ("  max_sise: 1MiB", 2, "'max_sise'", "'max_size'"),
        ("  phyton: {}", 2, "'phyton'", "'python'"),
        ("  python:\n    import: {}", 3, "'import'", "'imports'"),
        ("  python:\n    otherwise: deny", 3, "'otherwise'", "imports, rules"),
        ("  javascript:\n    otherwise: deny", 3, "'otherwise'", "rules"),
        ("  python:\n    imports: deny", 3, "code.python.imports is not a mapping", "otherwise"),
        ("  python:\n    imports:\n      otherwise: no", 4, "'no' is none of", "allow"),
        ("  python:\n    imports:\n      otherwise: denied", 4, "'denied'", "'deny'"),
        ("  python:\n    imports:\n      block: [os]", 4, "'block'", "otherwise"),
        ("  python:\n    imports:\n      deny: os", 4, "deny is not a list", "[]"),
        ("  python:\n    imports:\n      deny:", 4, "deny is not a list", "[]"),
        ("  python:\n    imports:\n      deny: [[os]]", 4, "an entry of", "one word"),
        ("  python:\n    imports:\n      deny: [os.*]", 4, "'os.*' is not a name", "os.path"),
        ("  python:\n    imports:\n      deny: [os.]", 4, "'os.'", "os.path"),
        ("  python:\n    imports:\n      deny: [.os]", 4, "'.os'", "os.path"),
        ("  python:\n    imports:\n      deny: ['os ']", 4, "'os '", "os.path"),
        ('  python:\n    imports:\n      deny: ["os\\n"]', 4, "'os\\n'", "os.path"),
        ("  python:\n    imports:\n      deny: ['']", 4, "''", "os.path"),
        ("  python:\n    imports:\n      deny: [3d]", 4, "'3d'", "os.path"),
        (f"  python:\n    imports:\n      deny: [{'x' * 101}]", 4, "is not a name", "os.path"),
        ("  shell:\n    commands:\n      deny: [/bin/rm]", 4, "'/bin/rm'", "without its folder"),
        ("  shell:\n    commands:\n      deny: [rm -rf]", 4, "'rm -rf'", "arguments"),
        ("  shell:\n    commands:\n      deny: [-x]", 4, "'-x'", "curl"),
        ("  shell:\n    imports: {}", 3, "'imports'", "commands"),
        ("  magics:\n    deny: ['%timeit']", 3, "'%timeit'", "without %"),
        ("  magics:\n    commands: {}", 3, "'commands'", "otherwise"),
        ("  python:\n    imports:\n      allow: [os]\n      deny: [re, os]", 5, "line 4", "Remove"),
        ("  magics:\n    allow: [time, time]", 3, "'time' is in allow, but already", "Remove"),
        ("  python:\n    rules: deny", 3, "code.python.rules is not a mapping", "python."),
        ("  python:\n    rules:\n      python.frmes: deny", 4, "'python.frmes'", "python.frames"),
        ("  python:\n    rules:\n      frames: deny", 4, "'frames'", "python.frames"),
        (f"  python:\n    rules:\n      {RULE}: forbid", 4, "'forbid'", "allow"),
        (f"  python:\n    rules:\n      {RULE}: off", 4, "'off'", "allow"),
        (f"  python:\n    rules:\n      {RULE}: [deny]", 4, RULE, "one word"),
        (f"  python:\n    rules:\n      {RULE}: ask\n      {RULE}: deny", 5, "twice", "Remove"),
        (f"  python:\n    rules:\n      {SHELL_RULE}: deny", 4, SHELL_RULE, "code.shell.rules"),
        ("  python:\n    rules:\n      python.import: deny", 4, "import'", "code.python.imports"),
        ("  shell:\n    rules:\n      shell.command: deny", 4, "command'", "code.shell.commands"),
        ("  magics:\n    rules:\n      magic: deny", 4, "'magic'", "lists of code.magics"),
        ("  python:\n    rules:\n      cell.too_large: allow", 4, "cell.too", "always denied"),
    ],
)
def test_a_mistake_in_the_code_section_is_refused_with_its_line(
    user: Path, text: str, line: int, word: str, hint: str
) -> None:
    error = refusal(user, f"code:\n{text}\n")
    assert error.what.startswith(f"{user / 'mine.yaml'}, line {line}: ")
    assert word in error.what
    assert hint in error.hint


# The base must be complete


def _keys() -> list[str]:
    keys = ["max_size"]
    for name, part in PARTS.items():
        lists = ["otherwise", "allow", "warn", "ask", "deny"] if part.name_rule else []
        keys += [f"{name}/{part.key}/{key}" if part.key else f"{name}/{key}" for key in lists]
        keys += [f"{name}/rules/{rule}" for rule in rules_of(name)]
    return keys


@pytest.mark.parametrize("key", _keys())
def test_a_default_that_leaves_anything_about_code_out_is_refused(system: Path, key: str) -> None:
    document = yaml.load(WHOLE, yaml.BaseLoader)
    *above, last = key.split("/")
    place = document["code"]
    for step in above:
        place = place[step]
    del place[last]
    write(system, yaml.safe_dump(document), "default")
    with pytest.raises(PolicyError) as caught:
        load_policy("strict")
    assert f"code.{key.replace('/', '.')}" in caught.value.what


def test_a_default_from_before_a_section_existed_says_which_one_is_missing(system: Path) -> None:
    write(
        system,
        WHOLE.split("\ncode:")[0]
        + "\noutputs: unfiltered\nstdin: allow\naudit:"
        + WHOLE.split("\naudit:")[1],
        "default",
    )
    with pytest.raises(PolicyError, match=r"does not say code\."):
        load_policy("default")


def test_every_rule_can_stand_in_exactly_one_place_or_none() -> None:
    placed = [rule for part in PARTS for rule in rules_of(part)]
    assert len(placed) == len(set(placed))
    unplaced = set(all_ids()) - set(placed)
    assert {rule for rule in unplaced if not rule.startswith("cell.")} == {
        *("python.import", "shell.command", "magic")
    }


SOMETHING = st.recursive(
    st.sampled_from(["allow", "deny", "os", "1MiB", "off", "", "%x", RULE, SHELL_RULE]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["python", "shell", "magics", "imports", "rules", "deny", RULE]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(SOMETHING)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_no_code_section_whatever_raises_anything_but_a_policy_error(
    user: Path, section: object
) -> None:
    write(user, yaml.safe_dump({"code": section}))
    try:
        assert isinstance(load_policy("mine"), Policy)
    except PolicyError:
        return
