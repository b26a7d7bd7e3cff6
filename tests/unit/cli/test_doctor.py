"""`sandbox-kernel doctor`: what it prints, and how it exits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sandbox_kernel.cli import main
from sandbox_kernel.isolation import probe
from sandbox_kernel.isolation.checks.levels import NEEDS
from tests.kernel import UNCHECKED
from tests.unit.isolation.checks.hosts import engine_at, listening, program

TEXT = {"type": "string"}
TEXT_OR_NONE = {"type": ["string", "null"]}
LEVEL = {"enum": list(NEEDS)}


def exactly(**properties: object) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


CHECK = exactly(
    name=TEXT,
    status={"enum": ["ok", "missing", "refused", "unknown"]},
    found={"type": "string", "minLength": 1},
    fix=TEXT_OR_NONE,
)
SCHEMA = exactly(
    schema={"const": 1},
    host=exactly(version=TEXT, python=TEXT, kernel=TEXT, machine=TEXT, uid={"type": "integer"}),
    can_run={"type": "boolean"},
    why_not=TEXT,
    level={"anyOf": [LEVEL, {"type": "null"}]},
    trial={"anyOf": [CHECK, {"type": "null"}]},
    default_can_run={"type": "boolean"},
    chosen=TEXT_OR_NONE,
    checks={"type": "array", "minItems": 15, "items": CHECK},
    levels={
        "type": "array",
        "minItems": 4,
        "maxItems": 4,
        "items": exactly(level=LEVEL, available={"type": "boolean"}, why=TEXT, about=TEXT),
    },
    policies={
        "type": "array",
        "items": exactly(
            policy=TEXT,
            prefer={"type": "array", "items": LEVEL},
            require={"anyOf": [LEVEL, {"type": "null"}]},
            level={"anyOf": [LEVEL, {"type": "null"}]},
            why=TEXT,
            fix=TEXT_OR_NONE,
        ),
    },
)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine, and a terminal as narrow as they come."""
    for name in ("DOCKER_HOST", "CONTAINER_HOST", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def no_bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Debian without bubblewrap."""
    program(tmp_path, "apt-get", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def examined(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json"])
    return code, json.loads(capsys.readouterr().out)


def checks(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in report["checks"]}


def level_of(report: dict[str, Any], policy: str) -> str | None:
    (level,) = [found["level"] for found in report["policies"] if found["policy"] == policy]
    return None if level is None else str(level)


@pytest.mark.process
def test_on_this_machine_default_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = examined(capsys)
    jsonschema.validate(report, SCHEMA)
    assert (code, report["default_can_run"], level_of(report, "default")) == (0, True, "process")
    assert (report["can_run"], report["level"], report["why_not"]) == (True, "process", "")
    assert report["trial"]["found"].startswith("ran in a new sandbox, in ")
    found = checks(report)
    for name in NEEDS["process"]:
        assert found[name]["status"] == "ok", found[name]


def test_without_bwrap_default_cannot_run_and_it_says_what_to_install(
    no_bwrap: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = examined(capsys)
    jsonschema.validate(report, SCHEMA)
    assert (code, report["default_can_run"], level_of(report, "default")) == (1, False, None)
    assert (report["can_run"], report["level"], report["trial"]) == (False, None, None)
    assert report["why_not"] == "process needs bwrap"
    assert checks(report)["bwrap"]["fix"] == probe.bwrap_missing().hint
    (process,) = [level for level in report["levels"] if level["level"] == "process"]
    assert "bwrap" in process["why"]


def test_every_failure_of_what_a_level_needs_says_what_to_do(
    no_bwrap: None, capsys: pytest.CaptureFixture[str]
) -> None:
    _, report = examined(capsys)
    for check in report["checks"]:
        if check["status"] in ("missing", "refused") and check["name"] in NEEDS["process"]:
            assert check["fix"], check


def test_the_verdict_comes_first_and_then_what_to_type(
    no_bwrap: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    lines = text.splitlines()
    verdict = f"✘ Sandboxed Python cannot run here (policy {UNCHECKED}): process needs bwrap."
    assert lines[0] == verdict
    assert "What to do" in lines[:3]
    assert f"# bwrap (missing): {probe.bwrap_missing().hint}" in lines
    # As it is typed, in a line of its own; dnf, which is not here, only in the sentence above it.
    assert "apt-get install bubblewrap" in lines
    assert "dnf install bubblewrap" not in lines
    assert "docker" not in text, "advice for a level that nobody asked for"
    assert "\x1b" not in text


@pytest.mark.process
def test_on_a_healthy_host_the_verdict_is_most_of_what_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0] == f"✔ Sandboxed Python can run here, at level process (policy {UNCHECKED})."
    assert lines[1].startswith("  A cell ran in a new sandbox, in ")
    assert len(lines) < 24, "a screen"
    main_part, _, optional = text.partition("Optional")
    for word in ("docker", "restricted", "gvisor", "What to do", "chmod"):
        assert word not in main_part
    assert "gvisor" in optional


@pytest.mark.process
def test_no_advice_opens_a_home_folder(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--all"])
    text = capsys.readouterr().out
    assert "o+rx" not in text
    assert "chmod" not in text.partition("This host")[0]


@pytest.mark.process
def test_all_of_it_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--all"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("✔ Sandboxed Python can run here")
    for word in ("This host", "Levels", "Policies", "bwrap", "gvisor", "paranoid", "Optional"):
        assert word in text
    tables = [line for line in text.splitlines() if line[:1] in "┏┃┡│└" and line]
    assert max(map(len, tables)) <= 80


@pytest.mark.process
def test_a_policy_that_is_chosen_by_its_path_is_the_one_that_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: strict\n")
    path.chmod(0o600)
    monkeypatch.setenv("SANDBOX_KERNEL_POLICY", str(path))
    code, report = examined(capsys)
    assert (code, report["can_run"], report["level"]) == (0, True, "process")
    path.write_text("extends: strict\nisolation: {prefer: [gvisor], require: gvisor}\n")
    code, report = examined(capsys)
    assert (code, report["can_run"], report["trial"]) == (1, False, None)
    assert report["default_can_run"]
    assert "gvisor" in report["why_not"]


def test_a_policy_that_cannot_be_used_is_shown_and_others_are_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "sandbox-kernel" / "policies"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("isolation: {require: proces}")
    (own / "mine.yaml").chmod(0o644)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SANDBOX_KERNEL_POLICY", "mine")
    _, report = examined(capsys)
    jsonschema.validate(report, SCHEMA)
    (mine,) = [policy for policy in report["policies"] if policy["policy"] == "mine"]
    assert mine["level"] is None
    assert "proces" in mine["why"]
    assert checks(report)["policies"]["status"] == "refused"
    assert {"default", "strict", "trusted", "paranoid"} < {p["policy"] for p in report["policies"]}


def test_what_chooses_the_policy_may_be_broken_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SANDBOX_KERNEL_POLICY")
    monkeypatch.setenv("SANDBOX_KERNEL_TRUST", "much")
    _, report = examined(capsys)
    assert report["chosen"] is None
    assert checks(report)["policies"]["status"] == "refused"
    assert main(["doctor"]) == 1
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("✘ Sandboxed Python cannot run here: SANDBOX_KERNEL_TRUST")
    assert "What to do" in rest


def test_an_engine_cannot_paint_on_the_terminal(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    documents = {
        "/version": {"Version": "\x1b[2J[red]1.0\u202e", "ApiVersion": "1.41"},
        "/info": {},
    }
    with engine_at(tmp_path_factory.mktemp("e") / "s", documents) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        main(["doctor", "--all"])
        text = capsys.readouterr().out
    assert "[red]1.0" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.slow
@pytest.mark.process
def test_an_engine_that_never_answers_costs_ten_seconds_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(tmp_path_factory.mktemp("e") / "s", lambda connection: None) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        started = time.monotonic()
        # As a process of its own: its end must not wait for the engine either.
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sandbox_kernel", "doctor", "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        taken = time.monotonic() - started
    assert taken < 20
    assert done.returncode == 0, done.stderr
    engines = [c for c in json.loads(done.stdout)["checks"] if c["name"] == "engine"]
    assert [engine["status"] for engine in engines if address in engine["found"]] == ["unknown"]


def test_bad_usage_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["doctor", "--jsn"])
    assert caught.value.code == 2
    assert "usage: sandbox-kernel doctor" in capsys.readouterr().err
