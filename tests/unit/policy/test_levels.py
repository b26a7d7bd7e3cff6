"""Who says which policy a kernel gets, and how far a notebook is trusted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from sandbox_kernel.errors import PolicyError
from sandbox_kernel.policy import levels
from sandbox_kernel.policy.levels import CONFIG_NAME, TRUST, choose, choose_policy
from sandbox_kernel.policy.load import load_policy

POLICY, TRUSTED = "SANDBOX_KERNEL_POLICY", "SANDBOX_KERNEL_TRUST"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The notebook's."""
    directory = tmp_path / "notebooks"
    directory.mkdir(mode=0o755)
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def home(user: Path) -> Path:
    """``~/.jupyter``."""
    directory = user.parents[2] / ".jupyter"
    directory.mkdir(mode=0o755)
    return directory


def configure(directory: Path, settings: object, mode: int = 0o644) -> Path:
    directory.mkdir(mode=0o755, exist_ok=True)
    path = directory / CONFIG_NAME
    path.write_text(settings if isinstance(settings, str) else json.dumps(settings))
    path.chmod(mode)
    return path


def kernel(**settings: object) -> dict[str, object]:
    return {"SandboxKernel": settings}


def refusal(environ: dict[str, str] | None = None, **arguments: str) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        choose_policy(arguments.get("policy"), environ or {}, arguments.get("trust"))
    return caught.value


# Order


@pytest.mark.parametrize(
    ("argument", "trust", "environ", "chosen"),
    [
        ("strict", None, {POLICY: "trusted"}, "strict"),
        (None, "untrusted", {POLICY: "trusted"}, "strict"),
        (None, "untrusted", {TRUSTED: "trusted"}, "strict"),
        ("paranoid", None, {TRUSTED: "trusted"}, "paranoid"),
        (None, None, {POLICY: "trusted"}, "trusted"),
        (None, None, {TRUSTED: "untrusted"}, "strict"),
        (None, None, {TRUSTED: "unknown"}, "default"),
        (None, None, {POLICY: "", TRUSTED: "trusted"}, "trusted"),
        (None, None, {POLICY: ""}, "default"),
        (None, None, {}, "default"),
    ],
)
def test_the_command_line_wins_then_the_environment_then_default(
    argument: str | None, trust: str | None, environ: dict[str, str], chosen: str
) -> None:
    assert choose_policy(argument, environ, trust) == chosen


def test_the_configuration_counts_only_where_nobody_else_says_anything(home: Path) -> None:
    path = configure(home, kernel(trust="untrusted"))
    assert choose(None, {}) == ("strict", f"trust of {path}")
    assert choose_policy(None, {TRUSTED: "trusted"}) == "trusted"
    assert choose_policy("paranoid", {}) == "paranoid"


@pytest.mark.parametrize("level", TRUST)
def test_every_level_of_trust_stands_for_a_shipped_policy(level: str) -> None:
    assert load_policy(choose_policy(None, {}, level)).name == TRUST[level]


def test_less_trust_is_never_more_freedom() -> None:
    walls = [load_policy(TRUST[level]).limits.wall_seconds for level in TRUST]
    assert walls == [60, 600, None]


# Mistakes


def test_an_empty_argument_is_a_mistake_and_not_default() -> None:
    with pytest.raises(PolicyError):
        load_policy(choose_policy("", {POLICY: "trusted"}))
    assert "--trust" in refusal(trust="").what


@pytest.mark.parametrize(
    ("environ", "arguments", "words"),
    [
        ({}, {"policy": "strict", "trust": "trusted"}, ("--policy", "--trust")),
        ({POLICY: "strict", TRUSTED: "trusted"}, {}, (POLICY, TRUSTED)),
        ({POLICY: "strict", TRUSTED: "untrusted"}, {}, (POLICY, TRUSTED)),
    ],
)
def test_policy_and_trust_from_the_same_place_are_refused(
    environ: dict[str, str], arguments: dict[str, str], words: tuple[str, str]
) -> None:
    error = refusal(environ, **arguments)
    assert all(word in error.what for word in words)
    assert "one of them" in error.hint


@pytest.mark.parametrize(
    ("level", "hint"),
    [("trust", "'trusted'"), ("Trusted", "'trusted'"), ("strict", "trust"), ("yes", "untrusted")],
)
def test_a_level_that_does_not_exist_is_refused_with_the_nearest(level: str, hint: str) -> None:
    for error in (refusal(trust=level), refusal({TRUSTED: level})):
        assert repr(level) in error.what
        assert hint in error.hint


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 60_000, "not JSON"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"SandboxKernel": {"trust": "trusted", "trust": "untrusted"}}', "twice"),
        ("[]", "not an object"),
        ('{"SandboxKernel": "strict"}', "not an object"),
        ('{"SandboxKernl": {"trust": "untrusted"}}', "'SandboxKernl'"),
        ('{"SandboxKernel": {"trsut": "untrusted"}}', "'trsut'"),
        ('{"SandboxKernel": {"trust": true}}', "True"),
        ('{"SandboxKernel": {"trust": ""}}', "''"),
        ('{"SandboxKernel": {"policy": null}}', "None"),
        ('{"SandboxKernel": {"trust": "maybe"}}', "'maybe'"),
        ('{"SandboxKernel": {"trust": "trusted", "policy": "strict"}}', "Both"),
    ],
)
def test_a_configuration_that_means_nothing_is_refused_with_its_path(
    home: Path, text: str, word: str
) -> None:
    path = configure(home, text)
    error = refusal()
    assert str(path) in error.what
    assert word in error.what
    assert error.hint


def test_bytes_that_are_no_text_are_refused(home: Path) -> None:
    configure(home, "").write_bytes(b'{"SandboxKernel": "\xff"}')
    assert "not JSON" in refusal().what


# Where the configuration is


def test_a_configuration_that_says_nothing_leaves_it_to_the_next(home: Path) -> None:
    configure(home, kernel())
    (system,) = levels.SYSTEM_CONFIG
    configure(system, kernel(policy="paranoid"))
    assert choose_policy(None, {}) == "paranoid"


def test_the_user_s_configuration_wins_over_the_system_s(home: Path) -> None:
    (system,) = levels.SYSTEM_CONFIG
    configure(system, kernel(trust="trusted"))
    configure(home, kernel(trust="untrusted"))
    assert choose_policy(None, {}) == "strict"


def test_jupyter_s_variables_say_where_it_is(tmp_path: Path, home: Path) -> None:
    configure(home, kernel(trust="trusted"))
    configure(tmp_path / "own", kernel(trust="untrusted"))
    configure(tmp_path / "more", kernel(policy="paranoid"))
    own = {"JUPYTER_CONFIG_DIR": str(tmp_path / "own")}
    assert choose_policy(None, own) == "strict"
    both = {**own, "JUPYTER_CONFIG_PATH": f"/nonexistent:{tmp_path / 'more'}"}
    assert choose_policy(None, both) == "paranoid"
    assert choose_policy(None, {"JUPYTER_NO_CONFIG": "1"}) == "default"


@pytest.mark.parametrize("variable", ["JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH"])
@pytest.mark.parametrize("value", ["", ".jupyter", "../notebooks/.jupyter", "../link"])
def test_a_configuration_in_the_notebook_s_folder_is_refused_and_not_passed_over(
    folder: Path, variable: str, value: str
) -> None:
    configure(folder / ".jupyter", kernel(trust="trusted"))
    (folder.parent / "link").symlink_to(folder / ".jupyter")
    places = [value] if value else [str(folder / ".jupyter"), str(folder.parent / "link")]
    for place in places:
        assert "notebook's folder" in refusal({variable: place}).what


def test_a_configuration_beside_the_notebook_is_not_found_unless_a_variable_names_it(
    folder: Path,
) -> None:
    configure(folder, kernel(trust="trusted"))
    configure(folder / ".jupyter", kernel(trust="trusted"))
    assert choose_policy(None, {}) == "default"


def test_the_user_s_configuration_holds_for_a_notebook_in_the_home_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(home, kernel(trust="untrusted"))
    monkeypatch.chdir(home.parent)
    assert choose_policy(None, {}) == "strict"


def test_a_relative_home_does_not_lead_into_the_notebook_s_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(folder / ".jupyter", kernel(trust="trusted"))
    monkeypatch.setenv("HOME", ".")
    assert choose_policy(None, {}) == "default"


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_configuration_that_others_can_write_is_refused(home: Path, mode: int) -> None:
    path = configure(home, kernel(trust="untrusted"), mode)
    error = refusal()
    assert f"{path} can be written" in error.what
    assert "configuration" in error.what


def test_a_configuration_of_another_user_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configure(home, kernel(trust="trusted"))
    if os.geteuid() == 0:
        os.chown(path, 54321, 54321)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert "another user" in refusal().what


def test_the_directories_are_jupyter_s_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = pytest.importorskip("jupyter_core.paths")
    monkeypatch.undo()  # the machine's own
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH", "JUPYTER_NO_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    ours = [str(path) for path, _ in levels._config_directories(os.environ)]
    assert sorted(ours) == sorted(set(paths.jupyter_config_path()))


def test_choosing_loads_neither_yaml_nor_jupyter(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    script = (
        "import sys; from sandbox_kernel.policy.levels import choose; choose(None, {})\n"
        "sys.exit(bool({'yaml', 'json', 'jupyter_core', 'difflib'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
