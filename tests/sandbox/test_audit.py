"""The audit log of real kernels: what runs is recorded before, and what cannot be recorded does not run."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import queue
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.audit.query import AuditReader, CellDetail, Wanted
from sandbox_kernel.audit.records import Record
from sandbox_kernel.audit.verify import verify
from sandbox_kernel.relay.wire import decode_object
from tests.kernel import TIMEOUT, eventually, running_kernel
from tests.tiers import SEED, rounds

pytestmark = pytest.mark.process

SLEEP = "import time; time.sleep(60)"
ASLEEP = f"print('asleep', flush=True); {SLEEP}"
STUBBORN = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {ASLEEP}"


@pytest.fixture
def log(state_home: Path) -> Path:
    return state_home / "audit" / "log.db"


def records(log: Path) -> list[Record]:
    with AuditReader(log) as reader:
        return list(reader.records())


def shown(log: Path, receipt: dict[str, Any]) -> CellDetail:
    with AuditReader(log) as reader:
        return reader.show(receipt["audit_id"])


def words(log: Path) -> list[str]:
    return [f"{record.kind} {record.word}" for record in records(log)]


@contextmanager
def locked(log: Path) -> Iterator[None]:
    """Somebody else writes to the log, and does not come to an end."""
    connection = sqlite3.connect(log, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


def test_every_step_of_a_cell_is_recorded(log: Path, tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path) as kernel:
        outcome = kernel.run("print('hello')\n1+1")
        assert "audit" not in outcome.receipt
        failed = kernel.run("1/0")
    assert words(log) == [
        *("start process", "intent allow", "outcome ok", "intent allow", "outcome error"),
        "end shutdown",
    ]
    start, intent = (decode_object(record.body) for record in records(log)[:2])
    assert intent["code"] == "print('hello')\n1+1"
    assert start["isolation"] == outcome.receipt["isolation"]
    assert start["policy"] == outcome.receipt["policy"]
    assert len(start["seccomp"]) == 64
    detail = shown(log, outcome.receipt)
    # The same receipt, though what all have in common is kept once.
    assert {**detail.receipt, "findings": []} == outcome.receipt
    assert detail.after is not None
    assert detail.after.id == failed.receipt["audit_id"]
    outputs = decode_object(detail.records[-1].body)["outputs"]
    assert outputs["messages"] == 2
    assert verify(log).good


def test_the_hash_of_outputs_is_that_of_what_the_frontend_got(log: Path, tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path) as kernel:
        outcomes = [kernel.run(f"print({text!r})") for text in ("a", "b")]
    for outcome in outcomes:
        hashes = []
        for separators in ((", ", ": "), (",", ":")):  # as some writer of JSON has it
            digest = hashlib.sha256()
            for message in outcome.messages:
                if message["msg_type"] == "stream":
                    content = json.dumps(message["content"], separators=separators).encode()
                    digest.update(b"stream %d\n" % len(content) + content)
            hashes.append(digest.hexdigest())
        outputs = decode_object(shown(log, outcome.receipt).records[-1].body)["outputs"]
        assert outputs["sha256"] in hashes


def test_denied_asked_and_aborted_cells_are_recorded(log: Path, tmp_path: Path) -> None:
    policy = "code: {python: {imports: {ask: [json], deny: [ctypes]}}}"
    with running_kernel(cwd=tmp_path, policy=policy) as kernel:
        denied = kernel.run("import ctypes")
        approved = kernel.run(
            "import json",
            allow_stdin=True,
            stdin_hook=lambda _: kernel.client.input("y"),
        )
        refused = kernel.run(
            "import json as j",
            allow_stdin=True,
            stdin_hook=lambda _: kernel.client.input("no"),
        )
        nobody = kernel.run("import json as k", allow_stdin=False)
        first = kernel.client.execute("1/0")
        second = kernel.client.execute("2+2")
        kernel.reply_to(first)
        aborted = kernel.reply_to(second)
    assert [each.status for each in (denied, approved, refused, nobody)] == [
        *("error", "ok", "error", "error")
    ]
    assert words(log)[1:-1] == [
        *("intent deny", "outcome denied"),
        *("intent ask", "approval yes", "outcome ok"),
        *("intent ask", "approval no", "outcome denied"),
        *("intent ask", "approval nobody", "outcome denied"),
        *("intent allow", "outcome error", "intent none", "outcome aborted"),
    ]
    assert shown(log, denied.receipt).findings[0]["about"] == "ctypes"
    assert shown(log, approved.receipt).entry.verdict == "approved"
    assert shown(log, aborted["metadata"]["sandbox"]).entry.code == "2+2"
    with AuditReader(log) as reader:
        assert len(reader.cells(Wanted(verdict="approved"))) == 1
        assert len(reader.cells(Wanted(outcome="denied"))) == 3


def test_always_earlier_and_withdrawn_answers_are_recorded(log: Path, tmp_path: Path) -> None:
    policy = "code: {python: {imports: {ask: [json, csv]}}}"
    with running_kernel(cwd=tmp_path, policy=policy) as kernel:
        withdrawn = kernel.run(
            "import json",
            allow_stdin=True,
            stdin_hook=lambda _: kernel.manager.interrupt_kernel(),
        )
        always = kernel.run(
            "import json", allow_stdin=True, stdin_hook=lambda _: kernel.client.input("always")
        )
        earlier = kernel.run("import json as j", allow_stdin=False)
    assert [each.status for each in (withdrawn, always, earlier)] == ["error", "ok", "ok"]
    assert words(log)[1:-1] == [
        *("intent ask", "approval withdrawn", "outcome denied"),
        *("intent ask", "approval always", "outcome ok"),
        *("intent ask", "approval earlier", "outcome ok"),
    ]


def test_an_always_that_cannot_be_recorded_allows_nothing_later(log: Path, tmp_path: Path) -> None:
    policy = "code: {python: {imports: {ask: [json]}}}"
    with running_kernel(cwd=tmp_path, policy=policy) as kernel, ExitStack() as stack:

        def answer(_: object) -> None:
            stack.enter_context(locked(log))
            kernel.client.input("always")

        refused = kernel.run("import json", allow_stdin=True, stdin_hook=answer)
        stack.close()
        nobody = kernel.run("import json", allow_stdin=False)
    assert (refused.ename, nobody.ename) == ("AuditUnavailable", "PolicyViolation")
    assert "approval nobody" in words(log)


def test_the_start_says_who_runs_the_kernel(log: Path, tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, env={"JUPYTERHUB_USER": "hub-ada"}) as kernel:
        kernel.run("1")
    start = decode_object(records(log)[0].body)
    assert (start["hub_user"], start["os_user"]) == ("hub-ada", getpass.getuser())
    assert {record.user for record in records(log)} == {"hub-ada"}


def test_how_a_kernel_ended_is_recorded(log: Path, tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path) as kernel:
        kernel.manager.restart_kernel()
        kernel.client.wait_for_ready(timeout=TIMEOUT)
        kernel.run("1")
        assert words(log)[:3] == ["start process", "end restart", "start process"]
        os.kill(kernel.wrapper_pid, signal.SIGTERM)
        eventually(lambda: not kernel.manager.is_alive(), what="its end")
    assert words(log)[-1] == "end signal"
    assert verify(log).good


@pytest.mark.parametrize("who", ["the client", "the manager, which interrupts it first"])
def test_a_cell_that_runs_when_its_kernel_is_restarted_has_an_outcome(
    log: Path, tmp_path: Path, who: str
) -> None:
    with running_kernel(cwd=tmp_path) as kernel:
        kernel.client.execute(ASLEEP if who == "the client" else STUBBORN)
        while kernel.client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
            pass
        if who == "the client":
            kernel.client.shutdown(restart=True)
            eventually(lambda: not kernel.manager.is_alive(), what="its end")
        else:
            kernel.manager.restart_kernel()
        assert words(log)[:4] == ["start process", "intent allow", "outcome lost", "end restart"]
        with AuditReader(log) as reader:
            (total,) = reader.totals("user")
            (cell,) = reader.cells(Wanted())
            receipt = reader.show(cell.id).receipt
    assert (total.cells, total.failed) == (1, 1)
    assert total.wall_seconds > 0
    assert (receipt["outcome"], receipt["state"]) == ("lost", "lost")
    assert receipt["usage"]["wall_seconds"] == pytest.approx(total.wall_seconds, abs=0.01)
    assert verify(log).good


def test_cells_that_run_or_wait_for_an_answer_at_a_signal_have_an_outcome(
    log: Path, tmp_path: Path
) -> None:
    policy = "code: {python: {imports: {ask: [json]}}}"
    with running_kernel(cwd=tmp_path, policy=policy) as kernel:
        kernel.client.execute("import json", allow_stdin=True)
        eventually(lambda: log.exists() and "intent ask" in words(log), what="the intent")
        os.kill(kernel.wrapper_pid, signal.SIGTERM)
        eventually(lambda: not kernel.manager.is_alive(), what="its end")
    assert words(log) == ["start process", "intent ask", "outcome lost", "end signal"]
    assert records(log)[2].wall_us == 0  # it never ran


def test_a_denied_cell_whose_kernel_ends_before_it_is_answered_is_not_said_to_have_run(
    log: Path, tmp_path: Path
) -> None:
    """What is denied is answered a little later, with the cells that come with it."""
    policy = "code: {python: {imports: {deny: [ctypes]}}}"
    with running_kernel(cwd=tmp_path, policy=policy) as kernel:
        kernel.client.execute("import ctypes")
        eventually(lambda: log.exists() and "intent deny" in words(log), what="the intent")
        os.kill(kernel.wrapper_pid, signal.SIGTERM)
        eventually(lambda: not kernel.manager.is_alive(), what="its end")
    assert words(log) == ["start process", "intent deny", "outcome denied", "end signal"]


def test_an_answer_that_cannot_be_recorded_and_need_not_be_is_said_to_be_missing(
    log: Path, tmp_path: Path
) -> None:
    policy = "code: {python: {imports: {ask: [json]}}}\naudit: {required: false}"
    with running_kernel(cwd=tmp_path, policy=policy) as kernel, ExitStack() as stack:

        def answer(_: object) -> None:
            stack.enter_context(locked(log))
            kernel.client.input("yes")

        outcome = kernel.run("import json", allow_stdin=True, stdin_hook=answer)
        stack.close()
    assert (outcome.status, outcome.receipt["audit"]) == ("ok", "missing")
    assert words(log)[1:-1] == ["intent ask", "outcome ok", "event gap"]


def test_a_kernel_without_a_sandbox_is_recorded(log: Path, tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, env={"PATH": "/nonexistent"}) as kernel:
        assert kernel.run("1").ename == "SandboxUnavailable"
    found = [record for record in records(log) if record.word == "unavailable"]
    assert decode_object(found[0].body)["error"] == "SandboxUnavailable"


LEAVE_A_PROCESS = "import subprocess; left = subprocess.Popen(['sleep', '1000'])"


@contextmanager
def full(log: Path) -> Iterator[None]:
    """No byte more fits on the file system that the log is on."""
    ballast = log.parent / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1024))
    try:
        yield
    finally:
        ballast.unlink()


@pytest.fixture
def small_disk(log: Path) -> Iterator[None]:
    """The log has a file system of its own, of half a MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    log.parent.mkdir(mode=0o700)
    options = "size=512k,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", log.parent], check=True)
    yield
    subprocess.run(["umount", log.parent], check=True)


@pytest.mark.usefixtures("small_disk")
def test_on_a_full_disk_no_cell_runs_and_all_is_well_when_there_is_room(
    log: Path, tmp_path: Path
) -> None:
    with running_kernel(cwd=tmp_path) as kernel:
        kernel.run("ran = []")
        with full(log):
            for _ in range(2):
                refused = kernel.run(LEAVE_A_PROCESS)
                assert refused.ename == "AuditUnavailable"
                assert "the disk is full" in refused.evalue
            # Nothing of it has run, as the host sees it.
            assert kernel.cell_pids() == set()
        assert kernel.run(LEAVE_A_PROCESS).status == "ok"
        assert len(kernel.cell_pids()) == 1
        assert kernel.run("left.kill(); left.wait(); ran").result == "[]"
    assert verify(log).good
    assert "event gap" in words(log)


def test_limits_rollbacks_undo_and_lost_sandboxes_are_recorded(log: Path, tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, policy="limits: {grace: 500ms}") as kernel:
        timeout = kernel.run_within({"wall": "300ms"}, SLEEP)
        kernel.run("x = 1")
        kernel.run("import os; os.kill(os.getpid(), 9)")
        kernel.run("x = 2")
        eventually(lambda: len(kernel.checkpoints()) == 2, what="checkpoints")
        assert kernel.run("%undo").status == "ok"
        lost = kernel.run("import os; os.kill(-1, 9); os.kill(os.getpid(), 9)")
        assert (lost.ename, lost.receipt["state"]) == ("SandboxLost", "lost")
        assert kernel.run("'still here'").status == "ok"
    found = words(log)
    limit = shown(log, timeout.receipt).records
    assert [record.word for record in limit] == ["allow", "limit", "timeout"]
    assert decode_object(limit[1].body)["limit"] == "wall"
    for word in ("process_ended", "rollback", "undo", "sandbox_replaced", "state_lost"):
        assert f"event {word}" in found
    assert verify(log).good


def test_a_cell_that_cannot_be_recorded_does_not_run_and_the_kernel_lives_on(
    log: Path, tmp_path: Path
) -> None:
    with running_kernel(cwd=tmp_path) as kernel:
        kernel.run("ran = []")
        pid = kernel.kernel_pid
        with locked(log):
            refused = kernel.run("ran.append(1)")
            assert refused.ename == "AuditUnavailable"
            assert "another process has locked it" in refused.evalue
            assert refused.receipt["audit"] == "missing"
            assert refused.receipt["outcome"] == "denied"
        assert kernel.kernel_pid == pid
        # The same cell runs once it can be recorded, and the one before it has not.
        assert kernel.run("ran.append(1); ran").result == "[1]"
    codes = [decode_object(each.body).get("code") for each in records(log) if each.kind == "intent"]
    assert codes == ["ran = []", "ran.append(1); ran"]
    assert "event gap" in words(log)


def test_a_log_that_is_not_required_lets_cells_run_and_receipts_say_so(
    log: Path, tmp_path: Path
) -> None:
    with running_kernel(cwd=tmp_path, policy="audit: {required: false}") as kernel:
        kernel.run("ran = []")
        with locked(log):
            outcome = kernel.run("ran.append(1)")
            assert outcome.status == "ok"
            assert outcome.receipt["audit"] == "missing"
            (line,) = (
                message["content"]["data"]["text/plain"]
                for message in outcome.messages
                if message["msg_type"] == "display_data"
            )
            assert "NOT in the audit log" in line
        assert "audit" not in kernel.run("ran").receipt
    gap = next(record for record in records(log) if record.word == "gap")
    assert decode_object(gap.body)["records"] == 2  # its intent and its outcome


def test_an_outcome_that_cannot_be_written_is_written_later(log: Path, tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path) as kernel:
        kernel.run("import time")
        sent = kernel.client.execute("time.sleep(1); 7")
        eventually(lambda: words(log).count("intent allow") == 2, what="the intent")
        with locked(log):
            outcome = kernel.outcome_of(sent)
            eventually(lambda: b"AuditUnavailable" in kernel.logged(), what="the wrapper gives up")
        assert outcome.status == "ok"
        assert "could not be written to the audit log" in kernel.run("8").text("stderr")
    assert shown(log, outcome.receipt).entry.outcome == "ok"
    assert verify(log).good


def test_a_kernel_that_keeps_no_log_says_so_in_every_receipt(log: Path, tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, policy="audit: {enabled: false}") as kernel:
        assert kernel.run("1").receipt["audit"] == "off"
    assert not log.exists()


def test_nothing_secret_reaches_the_store(log: Path, tmp_path: Path) -> None:
    secrets = {"MY_API_TOKEN": "zq-in-the-environment"}
    policy = "audit: {redact: ['acme-[0-9]{4}']}"
    with running_kernel(cwd=tmp_path, policy=policy, env=secrets) as kernel:
        kernel.run("a = 'zq-in-the-environment'; password = 'zq-assigned'; b = 'acme-1234'")
        given = kernel.run(
            "import getpass; len(getpass.getpass())",
            allow_stdin=True,
            stdin_hook=lambda _: kernel.client.input("zq-typed-in"),
        )
        kernel.run("'harmless-control'")
    assert given.result == str(len("zq-typed-in"))
    stored = b"".join(path.read_bytes() for path in log.parent.glob("log.db*"))
    assert b"harmless-control" in stored
    assert b"[redacted:MY_API_TOKEN]" in stored
    assert b"zq-" not in stored
    assert b"acme-1234" not in stored


def test_a_policy_can_keep_hashes_of_code_only(log: Path, tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, policy="audit: {code: hash}") as kernel:
        kernel.run("'unheard-of'", user_expressions={"e": "'unheard-of'"})
    stored = b"".join(path.read_bytes() for path in log.parent.glob("log.db*"))
    assert b"unheard-of" not in stored
    assert len(decode_object(records(log)[1].body)["sha256"]) == 64


def test_no_cell_can_see_the_log(log: Path, state_home: Path) -> None:
    """Not even one whose notebook lies beside it."""
    with running_kernel(cwd=state_home) as kernel:
        kernel.run("1")
        assert log.exists()
        assert kernel.value(f"__import__('os').path.exists({str(log)!r})") is False


def test_a_killed_kernel_leaves_an_intent_without_an_end(log: Path, tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path) as kernel:
        kernel.client.execute(SLEEP)
        eventually(lambda: log.exists() and "intent allow" in words(log), what="the intent")
        os.kill(kernel.wrapper_pid, signal.SIGKILL)
        eventually(lambda: not kernel.manager.is_alive(), what="its end")
    assert words(log) == ["start process", "intent allow"]
    assert verify(log).good


def test_signed_heads_are_written_while_a_kernel_runs_and_when_it_ends(
    log: Path, tmp_path: Path
) -> None:
    anchors = tmp_path / "anchors"
    policy = f"audit: {{anchor: 'file:{anchors}', anchor_every: 500ms}}"
    with running_kernel(cwd=tmp_path, policy=policy) as kernel:
        kernel.run("1")
        eventually(anchors.exists, what="the first anchor")
        kernel.run("2")
    last = records(log)[-1].seq

    def newest() -> int:
        return max(json.loads(line)["seq"] for line in anchors.read_text().splitlines())

    eventually(lambda: newest() == last, what="the last anchor")
    command = [sys.executable, "-m", "sandbox_kernel", "audit", "verify", "--anchor", str(anchors)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    connection = sqlite3.connect(log)
    connection.execute("DELETE FROM record WHERE seq = ?", (last,))
    connection.commit()
    connection.close()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"record {last}: the log was cut" in done.stdout


def test_a_mirror_has_every_record_as_a_line(log: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror.jsonl"
    with running_kernel(cwd=tmp_path, policy=f"audit: {{mirror: 'file:{mirror}'}}") as kernel:
        kernel.run("1")
    lines = [json.loads(line) for line in mirror.read_text().splitlines()]
    assert [line["seq"] for line in lines] == [record.seq for record in records(log)]
    assert lines[1]["body"]["code"] == "1"
    assert mirror.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kernels_at_once_make_one_chain(log: Path, tmp_path: Path) -> None:
    kernels, cells = rounds(20, push=5), rounds(200, push=40)

    with ExitStack() as stack:
        running = [
            stack.enter_context(running_kernel(cwd=tmp_path, policy="checkpoint: 'off'"))
            for _ in range(kernels)
        ]
        # All have all they are to do before the first answer is read.
        sent = [[kernel.client.execute(f"{n}") for n in range(cells)] for kernel in running]
        for kernel, msg_ids in zip(running, sent, strict=True):
            for msg_id in msg_ids:
                assert kernel.reply_to(msg_id)["content"]["status"] == "ok"
    found = records(log)
    for kind in ("intent", "outcome"):
        assert sum(record.kind == kind for record in found) == kernels * cells
    assert len({record.kernel for record in found}) == kernels
    report = verify(log)
    assert report.good
    assert report.records == kernels * (2 * cells + 2)


def test_no_cell_runs_without_an_intent_whenever_its_wrapper_is_killed(log: Path) -> None:
    """What a cell printed is the witness that it ran; the moment of the kill is drawn."""
    draw, ran = random.Random(SEED), set()
    for number in range(rounds(60, push=3)):
        with running_kernel(env={"SANDBOX_KERNEL_POLICY": "trusted"}) as kernel:
            for cell in range(40):
                kernel.client.execute(f"print('ran-{number}-{cell}')")
            deadline = time.monotonic() + draw.uniform(0.05, 0.4)
            with suppress(queue.Empty):  # the kernel is dead, and all it had said was read
                while message := kernel.client.get_iopub_msg(timeout=1):
                    if message["msg_type"] == "stream":
                        ran |= set(message["content"]["text"].split())
                    if time.monotonic() > deadline:
                        with suppress(ProcessLookupError):
                            os.kill(kernel.wrapper_pid, signal.SIGKILL)
    assert len(ran) > 3, "the control"
    intents = [decode_object(each.body)["code"] for each in records(log) if each.kind == "intent"]
    assert ran <= {code.split("'")[1] for code in intents}
    assert verify(log).good
