"""An engine that dies or freezes under a kernel: the kernel answers, says why, and recovers."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandbox_kernel.audit.query import AuditReader
from sandbox_kernel.audit.verify import verify
from tests.engines import OwnEngine, own_engine
from tests.kernel import Kernel, eventually, is_running, isolation, running_kernel
from tests.tiers import REPETITION, SEED, rounds

pytestmark = [
    pytest.mark.container,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="an engine of one's own needs root"),
]

ROUNDS = rounds(20, push=2)
ANSWER_SECONDS = 1.0
REFUSAL_SECONDS = 10.0


@pytest.fixture(scope="module")
def engine() -> Iterator[OwnEngine]:
    with own_engine() as running:
        yield running


def supervisor_of(kernel: Kernel) -> int:
    """Of a container whose engine can still be asked."""
    return next(pid for pid, inner in kernel.sandboxed_pids().items() if inner == 1)


def assert_answers(kernel: Kernel) -> None:
    """Questions that need no sandbox are answered, whatever the engine does."""
    started = time.monotonic()
    assert kernel.client.kernel_info(reply=True, timeout=10)["content"]["status"] == "ok"
    assert time.monotonic() - started < ANSWER_SECONDS
    started = time.monotonic()
    request = kernel.client.session.msg("interrupt_request", {})
    kernel.client.control_channel.send(request)
    while True:
        reply = kernel.client.get_control_msg(timeout=10)
        if reply["parent_header"]["msg_id"] == request["header"]["msg_id"]:
            break
    assert time.monotonic() - started < ANSWER_SECONDS


def expect_closed(state_home: Path) -> None:
    """The audit log is whole, and says of every cell how it ended."""
    log = state_home / "audit" / "log.db"
    report = verify(log)
    assert report.good, report.problems
    with AuditReader(log) as reader:
        records = list(reader.records())
    begun, ended = (
        [record.cell for record in records if record.kind == kind] for kind in ("intent", "outcome")
    )
    assert begun, "the control"
    assert sorted(begun) == sorted(ended)


def recovers(kernel: Kernel) -> None:
    eventually(lambda: kernel.run("1 + 1").status == "ok", within=40, what="cells run again")
    outcome = kernel.run("2 + 2")
    assert outcome.result == "4"
    assert outcome.receipt["isolation"]["level"] == "container"


@pytest.mark.parametrize("number", range(ROUNDS), ids=REPETITION)
def test_a_cell_goes_on_without_its_engine_and_the_kernel_recovers_with_it(
    engine: OwnEngine,
    tmp_path: Path,
    state_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    moment = random.Random(SEED + number).uniform(0, 1)
    killed, sandbox_lost = number % 2 == 0, number % 4 >= 2
    with running_kernel(level="container", cwd=tmp_path) as kernel, ExitStack() as stack:
        kernel.run("import time\nkept = 42")
        supervisor = supervisor_of(kernel)
        cell = kernel.client.execute("time.sleep(2)\nkept += 1\nkept")
        time.sleep(moment)
        if killed:
            engine.kill()
            stack.callback(engine.start)
        else:
            stack.enter_context(engine.frozen())
        if sandbox_lost:
            # Whatever had become of it: the witness is that its variables are gone.
            os.kill(supervisor, signal.SIGKILL)
            assert kernel.outcome_of(cell).ename == "SandboxLost"
            request = kernel.client.execute("1 + 1")
            started = time.monotonic()
            if not killed:  # a dead one is known to be so at once
                time.sleep(0.5)
                assert_answers(kernel)
            refused = kernel.outcome_of(request)
            assert refused.ename == "SandboxUnavailable", refused.evalue
            assert engine.address in refused.evalue
            assert time.monotonic() - started < REFUSAL_SECONDS
        else:
            assert kernel.outcome_of(cell).result == "43"
            assert_answers(kernel)
            # Nor do limits and checkpoints need it.
            stopped = kernel.run_within({"wall": "300ms", "grace": "200ms"}, "while True: pass")
            assert stopped.ename == "CellTimeout"
            assert kernel.run("kept").result == "43"
        stack.close()
        recovers(kernel)
        if not killed and not sandbox_lost:
            assert kernel.run("kept").result == "43", "it was the same sandbox all the time"
    eventually(lambda: not engine.containers(), within=30, what=engine.containers)
    assert not is_running(supervisor)
    expect_closed(state_home)


def test_a_kernel_that_starts_with_a_frozen_engine_comes_up_at_once_and_says_why_cells_wait(
    engine: OwnEngine, tmp_path: Path, state_home: Path
) -> None:
    with engine.frozen():
        started = time.monotonic()
        with running_kernel(level="container", cwd=tmp_path, env=dict(engine.env)) as kernel:
            assert time.monotonic() - started < REFUSAL_SECONDS / 2
            banner = kernel.client.kernel_info(reply=True, timeout=10)["content"]["banner"]
            assert "has not answered yet" in banner
            refused = kernel.run("1 + 1")
            assert refused.ename == "SandboxUnavailable"
            assert time.monotonic() - started < REFUSAL_SECONDS + 1
            engine.signal(signal.SIGCONT)
            recovers(kernel)
            banner = kernel.client.kernel_info(reply=True, timeout=10)["content"]["banner"]
            assert "container (docker runc)" in banner
    eventually(lambda: not engine.containers(), within=30, what=engine.containers)
    expect_closed(state_home)


def test_a_kernel_that_starts_with_a_stopped_engine_gets_no_weaker_level_and_recovers(
    engine: OwnEngine, tmp_path: Path, state_home: Path
) -> None:
    # Found by its socket, which it takes along when it is stopped.
    env = {"DOCKER_HOST": "", "XDG_RUNTIME_DIR": str(engine.directory)}
    accepting = isolation("container", "process", require="process")
    with ExitStack() as stack:
        engine.stop()
        stack.callback(engine.start)
        assert not (engine.directory / "docker.sock").exists()
        started = time.monotonic()
        with running_kernel(policy=accepting, cwd=tmp_path, env=env) as kernel:
            for _ in range(2):
                refused = kernel.run("1 + 1")
                assert refused.ename == "SandboxUnavailable"
                assert "does not run" in refused.evalue
            assert time.monotonic() - started < REFUSAL_SECONDS
            assert_answers(kernel)
            stack.close()
            recovers(kernel)
            # And in the middle of its life: it ends its containers when it is stopped.
            engine.stop()
            stack.callback(engine.start)
            assert not (engine.directory / "docker.sock").exists()
            refused = kernel.run("1 + 1")
            assert refused.ename == "SandboxUnavailable", refused.evalue
            stack.close()
            recovers(kernel)
    eventually(lambda: not engine.containers(), within=30, what=engine.containers)
    expect_closed(state_home)


def test_a_wrapper_that_is_killed_while_its_engine_is_dead_leaves_nothing_when_that_is_back(
    engine: OwnEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    with running_kernel(level="container", cwd=tmp_path) as kernel:
        kernel.run("1")
        supervisor = supervisor_of(kernel)
        engine.kill()
        os.kill(kernel.wrapper_pid, signal.SIGKILL)
        eventually(lambda: not is_running(supervisor), what="its processes end without an engine")
    engine.start()
    eventually(lambda: not engine.containers(), within=30, what=engine.containers)


@pytest.mark.gvisor
def test_a_gvisor_that_may_not_open_sockets_is_told_with_what_to_configure(
    engine: OwnEngine, tmp_path: Path
) -> None:
    file = engine.directory / "daemon.json"
    settings = json.loads(file.read_text())
    path = settings["runtimes"]["runsc"]["path"]
    arguments = ["--platform=ptrace", "--network=none"]
    settings["runtimes"]["closed"] = {"path": path, "runtimeArgs": arguments}
    file.write_text(json.dumps(settings))
    os.kill(engine.pids()[0], signal.SIGHUP)  # it reads its configuration anew
    eventually(lambda: "closed" in engine.runtimes(), what="the runtime is known")
    policy = isolation("gvisor", runtime="closed")
    with running_kernel(policy=policy, cwd=tmp_path, env=dict(engine.env)) as kernel:
        refused = kernel.run("1 + 1")
    assert refused.ename == "SandboxUnavailable"
    assert "'closed' does not let a sandbox open the wrapper's sockets" in refused.evalue
    assert "--host-uds=open" in refused.evalue
