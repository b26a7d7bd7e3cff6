"""`sandbox-kernel image` where there is no engine: what it prints, and how it exits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandbox_kernel.cli import main
from sandbox_kernel.isolation.images import record
from tests.unit.isolation.test_images import MINIMAL


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str) -> int:
    try:
        return main(["image", *arguments])
    except SystemExit as error:  # argparse
        return int(error.code or 0)


def test_a_list_of_nothing_says_how_to_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    assert "sandbox-kernel image build" in capsys.readouterr().out
    assert run("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"images": []}


def test_images_are_listed_without_an_engine_and_not_said_to_be_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record(MINIMAL)
    assert run("list", "--json") == 0
    (image,) = json.loads(capsys.readouterr().out)["images"]
    assert image["id"] == MINIMAL.id
    assert image["python"] == "3.11.2"
    assert image["present"] is None
    assert run("list") == 0
    shown = capsys.readouterr().out
    assert "sandbox-kernel-python-minimal " in shown
    assert "no engine answers" in shown


def test_a_build_without_an_engine_is_refused_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("build") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "none.sock does not run" in said.err
    assert "DOCKER_HOST" in said.err


def test_a_list_that_is_broken_is_said_so(
    state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state_home / "images.json").write_text("?")
    assert run("list") == 2
    assert "images.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["build", "--flavor", "ruby"], ["lst"]])
def test_bad_usage_is_said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert "usage: sandbox-kernel image" in capsys.readouterr().err
