from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path

import pytest

from sandbox_kernel.isolation.checks import check_host
from sandbox_kernel.isolation.checks.base import Check, Host, run, together
from tests.unit.isolation.checks.hosts import made_up, program


def test_a_program_that_never_ends_is_ended_with_all_it_started(tmp_path: Path) -> None:
    witness = tmp_path / "pid"
    # Its child holds the pipe: who waits for that to close waits for ever.
    path = program(tmp_path, "hang", f"sleep 1000 & echo $! > {witness}; wait")
    started = time.monotonic()
    ran = run([str(path)], made_up(tmp_path, timeout_seconds=1.0))
    assert ran.code is None
    assert time.monotonic() - started < 10
    child = int(witness.read_text())
    try:
        descriptor = os.pidfd_open(child)
    except ProcessLookupError:
        return  # gone already
    ended, _, _ = select.select([descriptor], [], [], 10)
    os.close(descriptor)
    assert ended


def test_what_a_program_says_and_how_it_ends_is_told(tmp_path: Path) -> None:
    path = program(tmp_path, "say", "echo out; echo err >&2; exit 3")
    assert run([str(path)], made_up(tmp_path)) == (3, "out\nerr")


def test_a_program_that_is_not_there_is_told_too(tmp_path: Path) -> None:
    ran = run([str(tmp_path / "none")], made_up(tmp_path))
    assert ran.code == 127
    assert "No such file" in ran.said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as somebody else")
def test_root_runs_a_program_as_another_user_without_roots_groups(tmp_path: Path) -> None:
    ran = run(["sh", "-c", "id -u; id -g; id -G"], made_up(tmp_path), uid=54_321)
    assert ran.said.split() == ["54321"] * 3


def test_one_that_hangs_does_not_keep_the_others_from_answering() -> None:
    never = threading.Event()
    started = time.monotonic()
    hung, answered, failed = together([never.wait, lambda: True, lambda: bool(1 // 0)], 0.5)
    never.set()
    assert (hung, answered) == (None, True)
    assert isinstance(failed, ZeroDivisionError)
    assert time.monotonic() - started < 5


def test_a_check_that_raises_or_hangs_is_a_check_that_says_so(tmp_path: Path) -> None:
    never = threading.Event()

    def broken(host: Host) -> list[Check]:
        raise RuntimeError(host.home.name)

    def hanging(host: Host) -> list[Check]:
        never.wait()
        return []

    def sound(host: Host) -> list[Check]:
        return [Check("sound", "ok", "as it should be")]

    host = made_up(tmp_path, timeout_seconds=0.1)
    subjects = {"broken": broken, "hanging": hanging, "sound": sound}
    first, second, third = check_host(host, subjects)
    never.set()
    assert (first.name, first.status) == ("broken", "unknown")
    assert "RuntimeError: home" in first.found
    assert first.fix is not None
    assert (second.name, second.status) == ("hanging", "unknown")
    assert third == Check("sound", "ok", "as it should be")
