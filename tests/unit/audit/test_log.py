"""What has happened is recorded late rather than never; what is to happen is recorded first, or not done."""

from __future__ import annotations

import dataclasses
import os
import pwd
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.audit import log as log_module
from sandbox_kernel.audit.bodies import MAX_CODE_CHARACTERS
from sandbox_kernel.audit.chain import KEY_NAME, Keyed, read_key
from sandbox_kernel.audit.log import MAX_LATE, AuditLog
from sandbox_kernel.audit.proof import is_code_of
from sandbox_kernel.audit.table import audit_directory
from sandbox_kernel.errors import AuditUnavailable
from sandbox_kernel.isolation.base import SandboxFacts
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.verdict import Verdict
from sandbox_kernel.relay.cells import Request, RunningCell
from sandbox_kernel.relay.wire import Author, decode_object
from tests.unit.audit.logs import expect_whole, records


def log_of(home: Path, **changes: Any) -> AuditLog:
    policy = load_policy("default")
    changed = dataclasses.replace(policy, audit=policy.audit._replace(**changes))
    return AuditLog(changed, "kernel-1", home)


def a_cell(code: str = "x = 1", **content: Any) -> RunningCell:
    message = Author("session").message("execute_request", {"code": code, **content})
    return RunningCell(Request("shell", message), audit_id="01a1e5c1-0000-7000-8000-000000000000")


@contextmanager
def in_the_way(home: Path) -> Iterator[None]:
    """A log that cannot be written, for root neither: its name is that of a directory."""
    directory = audit_directory(home)
    directory.mkdir(parents=True, mode=0o700)
    (directory / "log.db").mkdir()
    yield
    (directory / "log.db").rmdir()


def words(home: Path) -> list[str]:
    return [record.word for record in records(audit_directory(home) / "log.db")]


def test_a_cell_that_cannot_be_recorded_is_refused_and_the_log_says_later_that_it_lacks_it(
    tmp_path: Path,
) -> None:
    log = log_of(tmp_path)
    with in_the_way(tmp_path), pytest.raises(AuditUnavailable) as refused:
        log.intent(a_cell(), "allow")
    assert refused.value.hint
    assert log.intent(a_cell(), "allow")
    log.ended("shutdown")
    assert words(tmp_path) == ["gap", "allow", "shutdown"]
    expect_whole(audit_directory(tmp_path) / "log.db", 3)


def test_where_the_log_is_not_required_the_cell_runs_and_its_receipt_says_so(
    tmp_path: Path,
) -> None:
    log = log_of(tmp_path, required=False)
    cell = a_cell()
    with in_the_way(tmp_path):
        cell.recorded = log.intent(cell, "allow")
    assert not cell.recorded
    assert log.lacks(cell) == "missing"


def test_an_answer_that_could_not_be_recorded_does_not_cost_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "BUSY_SECONDS", 0.0)
    log, cell = log_of(tmp_path, required=False), a_cell("import json")
    cell.verdict = Verdict("ask")
    cell.recorded = log.intent(cell, "ask")
    with closing(sqlite3.connect(audit_directory(tmp_path) / "log.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        log.approval(cell, "yes")
    assert cell.recorded
    assert log.lacks(cell) == "missing"
    log.outcome(cell, "ok", None)
    log.ended("shutdown")
    assert words(tmp_path) == ["ask", "ok", "gap", "shutdown"]


def test_the_outcome_of_a_cell_that_is_not_recorded_is_counted_as_missing(tmp_path: Path) -> None:
    log, cell = log_of(tmp_path, required=False), a_cell()
    with in_the_way(tmp_path):
        cell.recorded = log.intent(cell, "allow")
    log.outcome(cell, "ok", None)
    log.ended("shutdown")
    gap, _ = records(audit_directory(tmp_path) / "log.db")
    assert decode_object(gap.body)["records"] == 2
    assert decode_object(gap.body)["why"]


def test_where_the_log_is_off_nothing_is_made_and_every_receipt_says_so(tmp_path: Path) -> None:
    log = log_of(tmp_path, enabled=False)
    log.open()
    cell = a_cell()
    assert not log.intent(cell, "allow")
    log.event("limit", {})
    log.ended("shutdown")
    assert log.lacks(cell) == "off"
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_written_is_written_with_the_next_record_in_order(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    with in_the_way(tmp_path):
        for number in range(3):
            log.event(f"late-{number}", {})
    log.event("now", {})
    log.ended("shutdown")
    assert words(tmp_path) == ["late-0", "late-1", "late-2", "now", "shutdown"]


def test_of_more_than_can_be_kept_the_log_says_how_many_it_lacks(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    with in_the_way(tmp_path):
        for number in range(MAX_LATE + 2):
            log.event(f"late-{number}", {})
    log.event("now", {})
    log.ended("shutdown")
    path = audit_directory(tmp_path) / "log.db"
    (gap,) = [record for record in records(path) if record.word == "gap"]
    assert b'"records":2' in gap.body
    assert len(records(path)) == MAX_LATE + 3
    expect_whole(path)


def test_a_locked_log_is_waited_for_once_however_many_cells_are_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop answers nobody as long as it waits."""
    monkeypatch.setattr(log_module, "BUSY_SECONDS", 0.5)
    log, path = log_of(tmp_path), audit_directory(tmp_path) / "log.db"
    log.event("first", {})
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        with pytest.raises(AuditUnavailable):
            log.intent(a_cell(), "allow")
        assert time.monotonic() - begun >= 0.5
        begun = time.monotonic()
        for _ in range(100):
            log.aborted(a_cell(), None)
        assert time.monotonic() - begun < 5
        # A cell that is to run is worth the wait again.
        begun = time.monotonic()
        with pytest.raises(AuditUnavailable):
            log.intent(a_cell(), "allow")
        assert time.monotonic() - begun >= 0.5
    log.ended("shutdown")
    assert Counter(words(tmp_path)) == {
        "first": 1,
        "none": 100,
        "aborted": 100,
        "gap": 1,
        "shutdown": 1,
    }
    expect_whole(path)


def test_a_secret_in_a_cell_is_not_in_the_file(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    secret = "AKIA" + "ABCDEFGH12345678"
    log.intent(a_cell(f"key = {secret!r}"), "allow")
    log.ended("shutdown")
    (intent, _) = records(audit_directory(tmp_path) / "log.db")
    assert b"[redacted:" in intent.body
    files = audit_directory(tmp_path).iterdir()
    assert not any(secret.encode() in file.read_bytes() for file in files)


def recorded(home: Path, cell: RunningCell, **changes: Any) -> dict[str, Any]:
    """What the intent of a cell says."""
    log = log_of(home, **changes)
    log.intent(cell, "allow")
    log.ended("shutdown")
    intent, _ = records(audit_directory(home) / "log.db")
    return decode_object(intent.body)


def test_the_beginning_of_a_secret_that_was_cut_off_is_not_stored(tmp_path: Path) -> None:
    secret = "AKIA" + "ABCDEFGH12345678"
    code = "#" * (MAX_CODE_CHARACTERS - 8) + f" {secret} and more"
    said = recorded(tmp_path, a_cell(code))
    assert "AKIA" not in said["code"]
    assert len(said["code"]) > MAX_CODE_CHARACTERS - 100


def test_what_a_finding_is_about_tells_no_part_of_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut short before anybody looks for secrets in it."""
    secret = "correct-horse-battery-staple"
    monkeypatch.setenv("SERVICE_TOKEN", secret)
    cell = a_cell(f"!curl -H 'X: {'y' * 60} {secret}' http://example.org; rm -rf /")
    cell.verdict = Judge(load_policy("strict").code).judge(cell.request.code)
    said = recorded(tmp_path, cell)
    assert any(each.about.endswith("…") for each in cell.verdict.findings)  # else it shows nothing
    assert said["findings"]
    assert "correct" not in str(said)
    assert "rm" in str(said["findings"])


def test_a_sandbox_that_differs_from_the_one_it_replaces_is_recorded(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    first = SandboxFacts("container", "docker", "none", "/work", image="sha256:1")
    for facts in (first, first, first._replace(image="sha256:2")):
        log.started(facts, {})
    log.ended("shutdown")
    assert words(tmp_path) == ["container", "sandbox_started", "shutdown"]


@pytest.mark.parametrize("kept", ["text", "hash"])
@pytest.mark.parametrize(
    "code",
    ["x = 1", "token = 'import os; os.system()'; exec(token)", "é" * (MAX_CODE_CHARACTERS + 1)],
    ids=["plain", "redacted", "cut"],
)
def test_what_ran_can_be_proven_by_who_has_it(tmp_path: Path, code: str, kept: str) -> None:
    said = recorded(tmp_path, a_cell(code), code=kept)
    keyed = Keyed(read_key(audit_directory(tmp_path)))
    assert is_code_of(said, code, keyed)
    assert is_code_of(said, f"{code}\n", keyed)
    assert not is_code_of(said, f"{code[:-1]}?", keyed)
    # Who has not the key learns nothing from it.
    assert not is_code_of(said, code, Keyed(bytes(32))) or said.get("code") == code


def test_code_that_is_stored_as_it_is_needs_no_hash(tmp_path: Path) -> None:
    said = recorded(tmp_path, a_cell("x = 1", user_expressions={"a": "x"}))
    assert not {key for key in said if "hmac" in key}


@pytest.mark.parametrize("kept", ["text", "hash"])
def test_each_expression_can_be_proven(tmp_path: Path, kept: str) -> None:
    expressions = {"a": "x", "b": "f(password='hunter22')"}
    said = recorded(tmp_path, a_cell("1", user_expressions=expressions), code=kept)
    keyed = Keyed(read_key(audit_directory(tmp_path)))
    assert said["expressions_hmac"] == [keyed.hash_of(each) for each in expressions.values()]
    assert "hunter22" not in str(said)


def test_a_cell_whose_code_cannot_be_hashed_is_refused(tmp_path: Path) -> None:
    log, cell = log_of(tmp_path, code="hash"), a_cell()
    directory = audit_directory(tmp_path)
    directory.mkdir(parents=True, mode=0o700)
    (directory / KEY_NAME).mkdir()
    with pytest.raises(AuditUnavailable):
        log.intent(cell, "allow")
    log.aborted(cell, None)
    (directory / KEY_NAME).rmdir()
    assert log.intent(cell, "allow")
    log.ended("shutdown")
    gap, *_ = records(directory / "log.db")
    assert decode_object(gap.body)["records"] == 3


def test_names_that_are_no_utf8_are_recorded_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JUPYTERHUB_USER", "JPY_SESSION_NAME"):
        monkeypatch.setitem(os.environ, name, "ad\udce9")
    mirror = tmp_path / "mirror"
    log = log_of(tmp_path, mirror=f"file:{mirror}")
    log.open()
    facts = SandboxFacts("process", "bubblewrap", "none", "/caf\udce9")
    log.started(facts, {})
    log.event("x", {"why": "\udce9"})
    log.ended("shutdown")
    start, *_ = records(audit_directory(tmp_path) / "log.db")
    said = decode_object(start.body)
    assert (start.user, said["notebook"], said["working_directory"]) == ("ad?", "ad?", "/caf?")
    assert len(mirror.read_text().splitlines()) == 3
    expect_whole(audit_directory(tmp_path) / "log.db", 3)


def test_the_start_of_a_kernel_names_the_hubs_user_and_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "JUPYTERHUB_USER", "hub-ada")
    log = log_of(tmp_path)
    log.open()
    log.started(SandboxFacts("process", "bubblewrap", "none", "/"), {})
    log.ended("shutdown")
    start, end = records(audit_directory(tmp_path) / "log.db")
    said = decode_object(start.body)
    assert (said["hub_user"], said["os_user"]) == ("hub-ada", pwd.getpwuid(os.geteuid()).pw_name)
    assert start.user == end.user == "hub-ada"
