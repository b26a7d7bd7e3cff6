"""How `sandbox-kernel launch` is told of a policy: no spelling of it may come to mean `default`."""

from __future__ import annotations

import pytest

from sandbox_kernel.cli.launch import _take_option, main


@pytest.mark.parametrize(
    ("arguments", "value", "rest"),
    [
        (["-f", "x", "--trust", "untrusted"], "untrusted", ["-f", "x"]),
        (["--trust=untrusted", "-f", "x"], "untrusted", ["-f", "x"]),
        (["-f", "x", "--trust"], "", ["-f", "x"]),
        (["-f", "x", "--trust="], "", ["-f", "x"]),
        (["-f", "x"], None, ["-f", "x"]),
        (["-f", "x", "--trusted"], None, ["-f", "x", "--trusted"]),
    ],
)
def test_an_option_is_taken_however_it_is_spelt(
    arguments: list[str], value: str | None, rest: list[str]
) -> None:
    assert _take_option(arguments, "--trust") == value
    assert arguments == rest


@pytest.mark.parametrize("arguments", [[], ["-f"], ["--trust", "trusted"], ["--policy", "strict"]])
def test_without_a_connection_file_the_usage_is_shown(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "--trust LEVEL" in capsys.readouterr().err
