"""What a policy file may say, and what is said back when it says something else."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox_kernel.errors import PolicyError
from sandbox_kernel.paths import policies_directory
from sandbox_kernel.policy import document
from sandbox_kernel.policy.audit_section import KEYS as AUDIT_KEYS
from sandbox_kernel.policy.find import MAX_BYTES
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.model import LIMITS, Policy
from tests.unit.policy.files import WHOLE, loaded, refusal, write


@pytest.fixture(params=["C", "Python"])
def either_loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML is also installed without libyaml."""
    if request.param == "Python":
        monkeypatch.setattr(document, "_LOADER", yaml.SafeLoader)


# What it sets


def test_what_a_policy_says_wins_key_by_key_over_what_it_extends(user: Path) -> None:
    policy = loaded(user, "extends: strict\nlimits: {wall: 5s}\nbudget: {cpu: 1h}\n")
    strict = load_policy("strict")
    assert policy.limits.wall_seconds == 5
    assert policy.limits.cpu_seconds == strict.limits.cpu_seconds == 60
    assert policy.budget.cpu_seconds == 3600
    assert policy.budget.wall_seconds is None
    assert policy.checkpoint == "cell"


def test_a_policy_that_extends_nothing_extends_default(user: Path) -> None:
    assert loaded(user, "limits: {wall: 5s}").limits.processes == 256


def test_a_policy_can_extend_a_user_s_own_policy(user: Path) -> None:
    write(user, "limits: {wall: 7s}", "base")
    assert loaded(user, "extends: base\nlimits: {cpu: 6s}").limits.wall_seconds == 7


def test_none_is_no_limit(user: Path) -> None:
    assert loaded(user, "limits: {wall: none}").limits.wall_seconds is None


@pytest.mark.parametrize("spelling", ["off", "'off'", '"off"'])
def test_checkpoint_off_is_the_word_although_yaml_takes_it_for_no(
    user: Path, spelling: str
) -> None:
    assert loaded(user, f"checkpoint: {spelling}").checkpoint == "off"


def test_a_number_alone_is_seconds_or_bytes(user: Path) -> None:
    limits = loaded(user, "limits: {wall: 90, memory: 1048576}").limits
    assert (limits.wall_seconds, limits.memory_bytes) == (90, 2**20)


def test_names_are_the_policy_s_and_for_a_path_the_file_s(user: Path) -> None:
    path = write(user, "annotate: metadata")
    assert load_policy("mine").name == "mine"
    assert load_policy(str(path)).name == "mine.yaml"


def test_the_hash_is_over_the_files_in_order_the_base_first(user: Path) -> None:
    own = write(user, "extends: strict").read_bytes()
    files = [policies_directory() / name for name in ("default.yaml", "strict.yaml")]
    base = b"".join(file.read_bytes() for file in files)
    assert load_policy("mine").sha256 == hashlib.sha256(base + own).hexdigest()
    assert load_policy("default").sha256 == hashlib.sha256(WHOLE.encode()).hexdigest()


# What is refused, with the line


@pytest.mark.usefixtures("either_loader")
@pytest.mark.parametrize(
    ("text", "line", "word", "hint"),
    [
        ("limits:\n  wal: 5s", 2, "'wal'", "'wall'"),
        ("limit:\n  wall: 5s", 1, "'limit'", "'limits'"),
        ("budget:\n  memory: 5s", 2, "'memory'", "wall, cpu"),
        ("# a comment\nisolations: none", 2, "'isolations'", "'isolation'"),
        ("<<: {wall: 5s}", 1, "'<<'", "limits"),
        ("limits:\n  True: 5s", 2, "'True'", "wall"),
        ("limits:\n  wall: 5s\n  cpu: 5s\n  wall: 6s", 4, "'wall'", "Remove"),
        ("checkpoint: cell\n\ncheckpoint: off", 3, "'checkpoint'", "Remove"),
        ("limits:\n  wall: &fast 5s\n", 2, "anchors", "out"),
        ("limits:\n  wall: 5s\n  cpu: *fast", 3, "aliases", "out"),
        ("limits:\n  wall: !!str 5s", 2, "tags", "!"),
        ("limits:\n  wall: ! 5s", 2, "tags", "!"),
        ("x: 1\nlimits: !!python/object/apply:os.system [id]", 2, "tags", "!"),
        ("limits:\n  wall: yes", 2, "'yes' is not a duration", "10min"),
        ("limits:\n  processes: no", 2, "'no' is not a whole number", "256"),
        ("limits:\n  memory: true", 2, "'true' is not a size", "512MiB"),
        ("limits:\n  wall:\n", 2, "limits.wall", "10min"),
        ("limits:\n  wall: null", 2, "'null'", "none for no limit"),
        ("limits:\n  wall: None", 2, "'None'", "none for no limit"),
        ("limits:\n  wall: 0", 2, "limits.wall", "10min"),
        ("limits:\n  wall: -5s", 2, "'-5s'", "10min"),
        ("limits:\n  wall: .inf", 2, "'.inf'", "10min"),
        ("limits:\n  wall: 1:30", 2, "'1:30'", "10min"),
        ("limits:\n  wall: 10 minutes", 2, "minutes", "10min"),
        ("limits:\n  wall: [5s]", 2, "wall", "one word"),
        ("limits:\n  processes: 0x10", 2, "'0x10'", "256"),
        ("limits:\n  processes: 010", 2, "'010'", "256"),
        ("limits:\n  grace: none", 2, "'none'", "500ms"),
        ("budget:\n  cpu: 10MiB", 2, "budget.cpu", "10min"),
        ("limits:", 1, "limits is not a mapping", "wall"),
        ("limits: 5s", 1, "limits is not a mapping", "wall"),
        ("- limits", 1, "not a mapping", "limits"),
        ("none", 1, "not a mapping", "limits"),
        ("? [limits]\n: 5", 1, "key", "word"),
        ("checkpoint: false", 1, "'false'", "cell, off"),
        ("checkpoint: Off", 1, "'Off'", "off"),
        ("annotate: no", 1, "'no'", "receipt, metadata"),
        ("annotate: reciept", 1, "'reciept'", "'receipt'"),
        ("\nextends: strct", 2, "'strct'", "'strict'"),
        ("extends: ../mine", 1, "'../mine'", "letters"),
        ("extends: /etc/passwd", 1, "'/etc/passwd'", "letters"),
        ("extends: [strict, trusted]", 1, "extends", "one word"),
        ("extends: mine", 1, "'mine'", "default"),
        ("limits: {}\n---\nlimits: {}", 2, "another document", ""),
        ("limits:\n\twall: 5s", 2, "not YAML", "ndentation"),
        ("limits: " + "[" * 9999, 1, "deep", ""),
        ("limits: " + "{a: " * 9999, 1, "deep", ""),
    ],
)
def test_a_mistake_is_refused_with_its_line_the_word_and_what_to_write(
    user: Path, text: str, line: int, word: str, hint: str
) -> None:
    error = refusal(user, text)
    assert error.what.startswith(f"{user / 'mine.yaml'}, line {line}: ")
    assert word in error.what
    assert hint in error.hint


def test_a_duplicate_key_is_refused_with_both_lines(user: Path) -> None:
    error = refusal(user, "limits:\n  wall: 5s\n  wall: none\n")
    assert "line 3:" in error.what
    assert "first in line 2" in error.what


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing but a comment\n", "---\n"])
def test_an_empty_file_is_not_taken_for_default(user: Path, text: str) -> None:
    error = refusal(user, text)
    assert "empty" in error.what or "not a mapping" in error.what


def test_an_alias_bomb_costs_no_time(user: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    started = time.monotonic()
    assert "aliases" in refusal(user, "\n".join(lines)).what
    assert time.monotonic() - started < 1


@pytest.mark.usefixtures("either_loader")
@pytest.mark.parametrize("data", [b"\xff\xfe", b"limits: \xff", b"limits: \0", b"a: \x07"])
def test_bytes_that_are_no_text_are_refused(user: Path, data: bytes) -> None:
    path = write(user, "")
    path.write_bytes(data)
    with pytest.raises(PolicyError, match=r"mine\.yaml"):
        load_policy("mine")


def test_a_file_of_the_largest_size_is_read_and_one_byte_more_is_not(user: Path) -> None:
    text = "limits: {wall: 5s}\n#".ljust(MAX_BYTES, "x")
    assert loaded(user, text).limits.wall_seconds == 5
    assert "64 KiB" in refusal(user, text + "x").what


def test_policies_that_extend_each_other_are_refused(user: Path) -> None:
    write(user, "extends: mine", "other")
    error = refusal(user, "extends: other")
    assert "other.yaml, line 1" in error.what
    assert "back to itself" in error.what


def test_default_extends_nothing(system: Path) -> None:
    write(system, WHOLE + "extends: strict\n", "default")
    with pytest.raises(PolicyError, match="back to itself"):
        load_policy("default")


@pytest.mark.parametrize(
    "key",
    [
        *("limits", "budget", "checkpoint", "annotate", "budget.wall", "budget.cpu"),
        *("isolation", "isolation.prefer", "isolation.require", "network", "environment"),
        *("workspace", "workspace.mount", "environment.pass", "code", "outputs", "audit"),
        *(f"audit.{name}" for name in AUDIT_KEYS),
        *(f"limits.{name}" for name in LIMITS),
        *("limits.background", "limits.background.cpu"),
    ],
)
@pytest.mark.parametrize("chosen", ["default", "strict"])
def test_a_default_that_leaves_anything_out_is_refused(system: Path, chosen: str, key: str) -> None:
    document = yaml.safe_load(WHOLE)
    *sections, name = key.split(".")
    within = document
    for section in sections:
        within = within[section]
    del within[name]
    write(system, yaml.safe_dump(document), "default")
    with pytest.raises(PolicyError) as caught:
        load_policy(chosen)
    assert key in caught.value.what


@given(
    st.text(max_size=60) | st.from_regex(r"(limits|budget): ?\{?\w+: \S{0,6}\}?", fullmatch=True)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_whatever_raises_anything_but_a_policy_error(user: Path, text: str) -> None:
    path = write(user, "")
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert isinstance(load_policy("mine"), Policy)
    except PolicyError:
        return


def test_a_policy_that_requires_more_than_it_prefers_is_refused(user: Path) -> None:
    error = refusal(user, "isolation: {prefer: [process, container], require: gvisor}")
    assert "'gvisor'" in error.what
    assert "process, container" in error.what
    assert "prefer: [gvisor]" in error.hint
    assert loaded(
        user, "isolation: {prefer: [process, gvisor], require: gvisor}"
    ).isolation.accepted == ["gvisor"]
