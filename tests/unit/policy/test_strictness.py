from __future__ import annotations

from pathlib import Path

import pytest

from sandbox_kernel.errors import PolicyError
from sandbox_kernel.policy.find import policy_names
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.strictness import looser_than

RESTRICTED = "isolation:\n  prefer: [restricted]\n  require: restricted\n"


def load(directory: Path, text: str) -> None:
    path = directory / "policy.yaml"
    path.write_text(text)
    path.chmod(0o600)
    load_policy(str(path))


@pytest.mark.parametrize(
    "text",
    [
        f"extends: strict\n{RESTRICTED}",
        f"extends: paranoid\n{RESTRICTED}",
        # Tighter in one place, and a stronger level first.
        "extends: strict\nisolation:\n  prefer: [process, restricted]\n  require: restricted\n"
        "code:\n  python:\n    rules:\n      python.write_file: deny\n",
    ],
)
def test_restricted_can_be_had_with_a_check_as_strict_as_strict(tmp_path: Path, text: str) -> None:
    load(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (RESTRICTED, 2, "more"),
        (f"extends: trusted\n{RESTRICTED}", 3, "more"),
        (
            f"extends: strict\n{RESTRICTED}code:\n  python:\n    imports:\n      allow: [os]\n",
            3,
            "os (imports) is allow (there: deny)",
        ),
        (
            f"extends: strict\n{RESTRICTED}code:\n  magics:\n    otherwise: warn\n",
            3,
            "magics.otherwise is warn (there: deny)",
        ),
        (
            f"extends: strict\n{RESTRICTED}code:\n  python:\n    rules:\n      python.eval: ask\n",
            3,
            "python.eval is ask (there: deny)",
        ),
        # A member of what is denied as a whole.
        (
            f"extends: strict\n{RESTRICTED}code:\n  python:\n    imports:\n      warn: [os.path]\n",
            3,
            "os.path (imports) is warn (there: deny)",
        ),
    ],
)
def test_restricted_with_a_looser_check_is_refused_with_the_line_and_what_is_looser(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        load(tmp_path, text)
    assert f"policy.yaml, line {line}: isolation: the level 'restricted'" in caught.value.what
    assert said in caught.value.what
    assert "`extends: strict`" in caught.value.hint


def test_a_looser_check_is_no_matter_where_a_stronger_level_is_required(tmp_path: Path) -> None:
    load(tmp_path, "isolation:\n  prefer: [restricted, process]\n  require: process\n")


def test_no_shipped_policy_names_the_level() -> None:
    for name in policy_names():
        isolation = load_policy(name).isolation
        assert "restricted" not in (*isolation.prefer, isolation.require)


def test_paranoid_is_no_looser_than_strict_and_default_is() -> None:
    strict = load_policy("strict").code
    assert looser_than(strict, load_policy("paranoid").code) == []
    assert looser_than(strict, strict) == []
    assert looser_than(strict, load_policy("default").code)
