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


SCHEMA = exactly(
    schema={"const": 1},
    host=exactly(version=TEXT, python=TEXT, kernel=TEXT, machine=TEXT, uid={"type": "integer"}),
    default_can_run={"type": "boolean"},
    chosen=TEXT_OR_NONE,
    checks={
        "type": "array",
        "minItems": 15,
        "items": exactly(
            name=TEXT,
            status={"enum": ["ok", "missing", "refused", "unknown"]},
            found={"type": "string", "minLength": 1},
            fix=TEXT_OR_NONE,
        ),
    },
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
    found = checks(report)
    for name in NEEDS["process"]:
        assert found[name]["status"] == "ok", found[name]


def test_without_bwrap_default_cannot_run_and_it_says_what_to_install(
    no_bwrap: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = examined(capsys)
    jsonschema.validate(report, SCHEMA)
    assert (code, report["default_can_run"], level_of(report, "default")) == (1, False, None)
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


def test_the_table_fits_a_terminal_and_the_fix_can_be_copied(
    no_bwrap: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    lines = text.splitlines()
    # As it is typed, in a line of its own; dnf, which is not here, only in the sentence above it.
    assert "apt-get install bubblewrap" in lines
    assert "dnf install bubblewrap" not in lines
    assert f"# bwrap (missing): {probe.bwrap_missing().hint}" in lines
    assert lines[-1].startswith("✘ Policy default cannot run here: process needs bwrap")
    assert max(len(line) for line in lines if line[:1] in "┏┃┡│└") <= 80
    assert "\x1b" not in text


@pytest.mark.process
def test_the_table_says_what_default_gets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "✔ Policy default can run here, at level process." in text
    for word in ("This host", "Levels", "Policies", "bwrap", "gvisor", "paranoid"):
        assert word in text


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
    monkeypatch.setenv("SANDBOX_KERNEL_TRUST", "much")
    _, report = examined(capsys)
    assert report["chosen"] is None
    assert checks(report)["policies"]["status"] == "refused"


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
        main(["doctor"])
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
