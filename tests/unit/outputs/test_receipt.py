from __future__ import annotations

import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import get_args

import pytest

from sandbox_kernel.isolation.base import SandboxFacts
from sandbox_kernel.outputs import receipt as module
from sandbox_kernel.outputs.receipt import (
    METADATA_KEY,
    RECEIPT_MIME,
    AuditState,
    Exceeded,
    Isolation,
    PolicyName,
    Receipt,
    Usage,
    display_content,
    new_audit_id,
)
from sandbox_kernel.policy.verdict import Finding
from sandbox_kernel.words import Outcome, State

MIB = 1 << 20
RECEIPT = Receipt(
    audit_id="0198c0de-0000-7000-8000-000000000000",
    verdict="allow",
    outcome="ok",
    state="kept",
    isolation=Isolation("process", "bwrap", "none"),
    policy=PolicyName("default", "ab" * 32),
    usage=Usage(0.4200049, 0.4, 87 * MIB, 12 * MIB, 3, 17, "cgroup v1"),
    limits={"wall_seconds": 60, "memory_bytes": 536870912},
)
STOPPED = replace(
    RECEIPT,
    outcome="timeout",
    state="rolled_back",
    exceeded=Exceeded("wall", 5, 5.03, "rolled_back"),
    not_restored=("2 threads",),
)


def test_a_receipt_is_what_the_design_says_in_its_order() -> None:
    expected = {
        "schema": 1,
        "audit_id": "0198c0de-0000-7000-8000-000000000000",
        "verdict": "allow",
        "findings": [],
        "outcome": "ok",
        "state": "kept",
        "isolation": {"level": "process", "engine": "bwrap", "network": "none"},
        "policy": {"name": "default", "sha256": "ab" * 32},
        "usage": {
            "wall_seconds": 0.42,
            "cpu_seconds": 0.4,
            "memory_peak_bytes": 87 * MIB,
            "memory_delta_bytes": 12 * MIB,
            "processes_peak": 3,
            "output_bytes": 17,
            "source": "cgroup v1",
        },
        "limits": {"wall_seconds": 60, "memory_bytes": 536870912},
    }
    assert json.dumps(RECEIPT.to_json()) == json.dumps(expected)


def test_a_limit_and_what_is_not_restored_are_added_at_the_end() -> None:
    stopped = STOPPED.to_json()
    assert list(stopped)[-2:] == ["exceeded", "not_restored"]
    assert stopped["exceeded"] == {
        "limit": "wall",
        "allowed": 5,
        "used": 5.03,
        "action": "rolled_back",
    }
    assert stopped["not_restored"] == ["2 threads"]


def test_a_receipt_does_not_change_with_what_it_was_made_of() -> None:
    made = RECEIPT.to_json()
    made["limits"]["wall_seconds"] = 0
    assert RECEIPT.limits["wall_seconds"] == 60


def test_the_line_of_an_ordinary_cell_is_its_usage() -> None:
    assert RECEIPT.line() == (
        "0.42 s · CPU 0.4 s · memory +12 MiB, peak 87 MiB · 3 processes · process sandbox · "
        "audit 0198c0de-0000-7000-8000-000000000000"
    )


def test_the_line_of_a_stopped_cell_begins_with_the_limit_and_the_variables() -> None:
    assert STOPPED.line().startswith(
        "stopped: wall limit 5 s (used 5.03 s) · variables rolled back (not 2 threads) · 0.42 s · "
    )


def test_one_process_and_unchanged_memory_are_not_worth_a_word() -> None:
    quiet = replace(RECEIPT, usage=Usage(0.01, 0, 60 * MIB, 0, 1, 0, "proc"))
    assert quiet.line().startswith("10 ms · CPU 0 s · memory peak 60 MiB · process sandbox · ")


@pytest.mark.parametrize("outcome", ["denied", "aborted"])
def test_a_cell_that_never_ran_has_no_usage_in_its_line(outcome: Outcome) -> None:
    line = replace(RECEIPT, outcome=outcome, verdict="deny").line()
    assert line.startswith("not run: ")
    assert "CPU" not in line


def test_warnings_approvals_and_a_network_are_mentioned() -> None:
    finding = Finding("python.exec", "warn", "high", "exec", 3, 0, "it runs text", "Do not")
    warned = replace(RECEIPT, verdict="warn", findings=(finding,))
    assert "warning: python.exec in line 3 · " in warned.line()
    two = replace(warned, findings=(finding, finding))
    assert "warning: python.exec in line 3 and 1 more · " in two.line()
    assert two.to_json()["findings"][0]["about"] == "exec"
    assert "approved by you · " in replace(RECEIPT, verdict="approved").line()
    assert "process sandbox, network host" in (
        replace(RECEIPT, isolation=Isolation("process", "bwrap", "host")).line()
    )


def test_what_a_level_lacks_is_said_and_nothing_where_it_lacks_nothing() -> None:
    facts = SandboxFacts("gvisor", "docker runsc", "none", "/", limitations=("it is slow",))
    limited = replace(RECEIPT, isolation=Isolation.of(facts))
    assert limited.to_json()["isolation"]["limitations"] == ["it is slow"]
    assert "weak" not in limited.line(), "it is no less protected"
    weak = replace(RECEIPT, isolation=Isolation.of(facts._replace(not_protected=("signals",))))
    assert weak.to_json()["isolation"]["not_protected"] == ["signals"]
    assert "weak" in weak.line()
    assert RECEIPT.to_json()["isolation"].keys() == {"level", "engine", "network"}


@pytest.mark.parametrize("state", get_args(AuditState))
def test_what_the_audit_log_lacks_is_said_and_nothing_else(state: AuditState) -> None:
    lacking = replace(RECEIPT, audit=state)
    assert lacking.to_json() == {**RECEIPT.to_json(), "audit": state}
    assert lacking.line().startswith(f"{RECEIPT.line()} · ")
    assert "the audit log" in lacking.line()


@pytest.mark.parametrize("outcome", get_args(Outcome))
@pytest.mark.parametrize("state", get_args(State))
def test_every_outcome_and_state_has_one_line_without_gaps(outcome: Outcome, state: State) -> None:
    line = replace(RECEIPT, outcome=outcome, state=state).line()
    assert "\n" not in line
    assert all(part.strip() == part != "" for part in line.split(" · "))
    assert ("variables" in line) == (state != "kept")


@pytest.mark.parametrize("receipt", [RECEIPT, STOPPED])
def test_the_receipt_can_be_saved_in_a_notebook(receipt: Receipt) -> None:
    import nbformat  # seconds, because of a validator's grammar: only where it is needed
    from nbformat.v4 import new_code_cell, new_notebook, output_from_msg

    content = display_content(receipt, receipt.to_json())
    assert content["transient"] == {}
    message = {"header": {"msg_type": "display_data"}, "content": content}
    output = output_from_msg(nbformat.from_dict(message))
    notebook = new_notebook(cells=[new_code_cell("1", outputs=[output])])
    nbformat.validate(notebook)
    saved = json.loads(nbformat.writes(notebook))["cells"][0]["outputs"][0]
    assert saved["data"][RECEIPT_MIME] == receipt.to_json()
    assert "".join(saved["data"]["text/plain"]) == receipt.line()
    assert saved["metadata"] == {METADATA_KEY: {"audit_id": receipt.audit_id}}


def test_an_audit_id_is_a_version_7_uuid_of_now() -> None:
    before, audit_id, after = time.time_ns(), new_audit_id(), time.time_ns()
    parsed = uuid.UUID(audit_id)
    assert str(parsed) == audit_id
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    # Other tests may have run ahead of the clock by counting.
    assert before // 10**6 <= parsed.int >> 80 <= after // 10**6 + 100


def test_audit_ids_sort_as_they_were_made_even_in_one_millisecond() -> None:
    made = [new_audit_id() for _ in range(20_000)]
    assert made == sorted(set(made))


def test_audit_ids_go_on_growing_when_the_clock_stands_still_or_steps_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = module._AuditIds()
    now = 1_700_000_000 * 10**9
    times = [now, now, now, now - 3600 * 10**9, now - 1, *[now] * 5000, now + 10 * 10**9]
    clock = iter(times)
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    made = [ids.new() for _ in times]
    assert made == sorted(set(made))
    assert {uuid.UUID(audit_id).version for audit_id in made} == {7}


def test_audit_ids_of_threads_and_of_other_hosts_differ() -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: new_audit_id(), range(2000)))
    assert len(set(made)) == len(made)
    assert len({module._AuditIds().new()[19:] for _ in range(100)}) == 100
