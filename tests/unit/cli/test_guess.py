"""What is started on trial is guessed at from the policy's file, which may be anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox_kernel.cli.guess import policy_named, prefers_engine


@pytest.mark.parametrize(
    "text",
    [
        "isolation: {prefer: [container, process]}",
        "isolation:\n  prefer: [ gvisor ]",
        "isolation:\n  prefer:\n    - container\n",
        'isolation:\n  prefer: ["gvisor"]',
        "isolation: {prefer: container}",
    ],
)
def test_a_policy_that_prefers_an_engine_is_seen_to(tmp_path: Path, text: str) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text(text)
    assert prefers_engine(str(policy))


@pytest.mark.parametrize(
    "text", ["", "isolation: {prefer: [process, container]}", "extends: default", "\0\xff"]
)
def test_a_policy_that_does_not_is_left_alone(tmp_path: Path, text: str) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text(text)
    assert not prefers_engine(str(policy))


def test_a_policy_by_name_is_looked_for_where_policies_are(
    config_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = config_home / "sandbox-kernel" / "policies" / f"engine-{os.getpid()}.yaml"
    policy.write_text("isolation: {prefer: [container]}")
    try:
        assert prefers_engine(policy.stem)
        monkeypatch.setenv("SANDBOX_KERNEL_POLICY", policy.stem)
        assert policy_named(None) == policy.stem
        assert policy_named("another") == "another"
    finally:
        policy.unlink()
    assert not prefers_engine(policy.stem)


@pytest.mark.parametrize("name", ["no-such-policy", "/nowhere/p.yaml", "a\0b/c", "/"])
def test_a_policy_that_cannot_be_read_is_for_others_to_complain_of(name: str) -> None:
    assert not prefers_engine(name)


def test_a_fifo_does_not_hang_the_start(tmp_path: Path) -> None:
    fifo = tmp_path / "p.yaml"
    os.mkfifo(fifo)
    assert not prefers_engine(str(fifo))
