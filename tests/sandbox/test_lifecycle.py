"""A sandbox lives exactly as long as its wrapper, and the wrapper survives its sandbox."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox_kernel.isolation.guardian import MARK
from sandbox_kernel.limits.meter import process_tree
from tests.kernel import Kernel, containers_of, eventually, is_running, running_kernel
from tests.ports import connection_file
from tests.tiers import REPETITION, SEED, rounds

pytestmark = pytest.mark.process

Listing = Callable[[], list[Path]]


def processes_about(path: Path) -> list[int]:
    """Host processes whose command line names ``path``: wrappers, bwraps, guardians."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(path) in command and is_running(int(entry.name)):
                found.append(int(entry.name))
    return found


def processes_of(kernel: Kernel) -> list[int]:
    """The host's pids of all that belongs to a sandbox: under gVisor, those of its second kernel."""
    roots = [kernel.wrapper_pid]
    if kernel.level != "process":
        roots += [about["State"]["Pid"] for about in containers_of(kernel.wrapper_pid)]
    pids = {pid for root in roots for pid in process_tree(root)}
    return sorted(pids - {kernel.wrapper_pid})


def sandbox_of(kernel: Kernel) -> int | str | None:
    """What names a sandbox until its end: the host's pid of its supervisor, or its container's id."""
    if kernel.level == "process":
        return next((pid for pid, inner in kernel.sandboxed_pids().items() if inner == 1), None)
    running = [each for each in containers_of(kernel.wrapper_pid) if each["State"]["Running"]]
    return running[0]["Id"] if running else None


def mounts_about(*paths: Path) -> list[str]:
    """The host's mounts of these folders, or on them; other tests' come and go."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if any(str(path) in line for path in paths)]


@pytest.mark.parametrize(
    "how",
    [
        "import os; os._exit(3)",
        "import os; os._exit(0)",
        "import ctypes; ctypes.CDLL(None).exit(0)",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.kill(os.getpid(), 9)",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.abort()",
        "import os; os.kill(os.getpid(), 40)",
    ],
    ids=[
        *("exits", "exits_without_an_error", "exits_past_python", "becomes_another_program"),
        *("kills_itself", "segfaults", "aborts", "gets_a_real_time_signal"),
    ],
)
@pytest.mark.every_level
def test_a_cell_that_ends_its_kernel_gets_an_error_and_the_variables_stay(
    kernel: Kernel, how: str
) -> None:
    assert kernel.run("precious = 1").status == "ok"
    wrapper = kernel.wrapper_pid
    lost = kernel.run(f"precious = 2; {how}")
    assert lost.ename == "SandboxLost"
    assert "all variables of earlier cells are kept" in lost.evalue
    assert [m["content"]["ename"] for m in lost.messages if m["msg_type"] == "error"] == [
        "SandboxLost"
    ]
    assert kernel.run("precious").result == "1"
    assert kernel.wrapper_pid == wrapper
    assert kernel.manager.is_alive()


@pytest.mark.every_level
def test_a_cell_that_kills_the_checkpoint_too_loses_the_variables_and_is_told(
    kernel: Kernel,
) -> None:
    kernel.run("precious = 1")
    lost = kernel.run("import os; os.kill(-1, 9); os.kill(os.getpid(), 9)")
    assert lost.ename == "SandboxLost"
    assert "variables of this notebook are gone" in lost.evalue
    assert kernel.run("'precious' in globals()").result == "False"


@pytest.mark.every_level
def test_a_kernel_killed_from_outside_in_mid_cell_aborts_the_queue(kernel: Kernel) -> None:
    client = kernel.client
    running = client.execute("print('started', flush=True); import time; time.sleep(600)")
    queued = [client.execute(f"print({n})") for n in range(3)]
    while client.get_iopub_msg(timeout=30)["msg_type"] != "stream":
        pass
    kernel.kill(kernel.kernel_process)
    replies = [kernel.reply_to(msg_id) for msg_id in (running, *queued)]
    assert [reply["content"]["status"] for reply in replies] == ["error", *["aborted"] * 3]
    assert kernel.run("40 + 2").result == "42"


@pytest.mark.every_level(fresh=True)
def test_cells_behind_a_lost_one_run_if_it_was_not_to_stop_them(kernel: Kernel) -> None:
    """As with a cell tagged raises-exception in a "Run all"."""
    lost = kernel.client.execute("import os; os._exit(1)", stop_on_error=False)
    behind = kernel.client.execute("41 + 1")
    reply = kernel.reply_to(lost)["content"]
    assert (reply["ename"], reply["execution_count"]) == ("SandboxLost", 1)
    assert kernel.reply_to(behind)["content"]["status"] == "ok"


@pytest.mark.every_level
def test_a_replacement_is_not_announced_as_a_start(kernel: Kernel) -> None:
    """JupyterLab sends nothing more to a kernel that says it is starting."""
    client = kernel.client
    states = []
    for code in ("import os; os._exit(1)", "1 + 1"):
        outcome = kernel.run(code)
        states += [m["content"] for m in outcome.messages if m["msg_type"] == "status"]
    message = client.session.msg("comm_info_request", {})
    client.shell_channel.send(message)
    while True:
        heard = client.get_iopub_msg(timeout=30)
        if heard["msg_type"] == "status":
            states.append(heard["content"])
            if heard["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                break
    assert {"execution_state": "starting"} not in states


@pytest.mark.every_level
def test_exit_between_cells_is_told_with_the_next_one(kernel: Kernel) -> None:
    before = sandbox_of(kernel)
    assert kernel.run("exit()").status == "ok"
    eventually(lambda: sandbox_of(kernel) not in (before, None), what="a new sandbox")
    after = kernel.run("1 + 1")
    assert after.result == "2"
    assert "variables of this notebook are gone" in after.text("stderr")
    assert kernel.run("2 + 2").text("stderr") == ""


@pytest.mark.every_level
def test_requests_outstanding_when_the_kernel_dies_are_answered_by_the_next(kernel: Kernel) -> None:
    client = kernel.client
    cell = client.execute("import os, time; time.sleep(0.5); os._exit(1)")
    asked = client.is_complete("1 + 1")
    assert kernel.reply_to(cell)["content"]["ename"] == "SandboxLost"
    assert kernel.reply_to(asked)["msg_type"] == "is_complete_reply"


@pytest.mark.every_level
def test_a_busy_kernel_says_at_once_what_it_is(kernel: Kernel) -> None:
    client = kernel.client
    cell = client.execute("input()", allow_stdin=True)
    client.get_stdin_msg(timeout=30)
    assert kernel.reply_to(client.kernel_info())["msg_type"] == "kernel_info_reply"
    client.input("go on")
    assert kernel.reply_to(cell)["content"]["status"] == "ok"


@pytest.mark.every_level
def test_a_question_that_ends_every_kernel_is_not_asked_for_ever(kernel: Kernel) -> None:
    (kernel.folder / "evil.py").write_text("import os; os._exit(1)")
    code = "from evil import "
    reply = kernel.client.complete(code, len(code), reply=True, timeout=60)
    assert reply["content"]["ename"] == "SandboxLost"
    assert kernel.run("1 + 1").result == "2"


def test_a_folder_that_is_deleted_does_not_end_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with running_kernel(cwd=folder) as kernel:
        folder.rmdir()
        assert kernel.run("import os; os._exit(1)").ename == "SandboxLost"
        refused = kernel.run("1 + 1")
        assert refused.status == "ok" or refused.ename == "SandboxUnavailable"
        assert kernel.manager.is_alive()


def test_a_strict_umask_is_no_obstacle(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with running_kernel(cwd=tmp_path) as kernel:
            assert kernel.run("1 + 1").result == "2"
    finally:
        os.umask(before)


@pytest.mark.every_level(fresh=True)
def test_replacements_leave_nothing_in_the_wrapper(
    kernel: Kernel, run_directories: Listing
) -> None:
    def descriptors() -> int:
        return len(list(Path(f"/proc/{kernel.wrapper_pid}/fd").iterdir()))

    kernel.run("import os; os._exit(1)")
    kernel.run("1 + 1")
    before = descriptors()
    for _ in range(10):
        kernel.run("import os; os._exit(1)")
        assert kernel.run("1 + 1").result == "2"
    # libzmq closes sockets in a thread of its own.
    eventually(lambda: descriptors() <= before, what="no more descriptors than before")
    assert {path.name for path in run_directories()[0].iterdir()} == {"lock", "1"}


@pytest.mark.every_level(fresh=True)
def test_restart_gives_a_fresh_sandbox(kernel: Kernel, run_directories: Listing) -> None:
    kernel.run("stale = 1")
    old = processes_of(kernel)
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=60)
    assert kernel.run("'stale' in globals()").result == "False"
    eventually(lambda: not any(map(is_running, old)), what=f"old sandbox {old}")
    assert len(run_directories()) == 1


@pytest.mark.every_level(fresh=True)
def test_sigterm_ends_wrapper_and_sandbox_and_leaves_nothing(
    kernel: Kernel, run_directories: Listing, state_home: Path
) -> None:
    pids = [kernel.wrapper_pid, *processes_of(kernel)]
    kernel.manager.provisioner.process.terminate()
    assert kernel.manager.provisioner.process.wait(timeout=10) == 0
    eventually(lambda: not any(map(is_running, pids)), what=f"{pids}")
    assert run_directories() == []
    assert processes_about(state_home) == []


@pytest.mark.every_level
def test_sigint_to_the_wrapper_interrupts_the_cell(kernel: Kernel) -> None:
    client = kernel.client
    cell = client.execute("print('started', flush=True); import time; time.sleep(600)")
    while client.get_iopub_msg(timeout=30)["msg_type"] != "stream":
        pass
    os.kill(kernel.wrapper_pid, signal.SIGINT)
    assert kernel.reply_to(cell)["content"]["ename"] == "KeyboardInterrupt"
    assert kernel.run("1 + 1").result == "2"


def test_shutdown_runs_the_users_atexit_but_does_not_wait_for_a_hung_kernel(tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path) as kernel:
        client = kernel.client
        client.execute("print('started', flush=True)\nwhile True: pass")
        while client.get_iopub_msg(timeout=30)["msg_type"] != "stream":
            pass
        started = time.monotonic()
        client.shutdown()
        assert client.get_control_msg(timeout=5)["content"] == {"status": "ok", "restart": False}
        assert kernel.manager.provisioner.process.wait(timeout=10) == 0
        assert time.monotonic() - started < 5


def test_the_wrapper_dies_with_its_parent(tmp_path: Path, state_home: Path) -> None:
    script = (
        "import sys, time\n"
        "from jupyter_client.manager import start_new_kernel\n"
        "manager, client = start_new_kernel(kernel_name='sandboxed-python')\n"
        "print(manager.provisioner.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        wrapper = int(parent.stdout.readline())
        pids = list(process_tree(wrapper))
        assert len(pids) > 3
        parent.kill()
    eventually(lambda: not any(map(is_running, pids)), what=f"{pids}")
    eventually(lambda: processes_about(state_home) == [], what="processes about the state home")
    assert list((state_home / "run").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(rounds(5, push=1)), ids=REPETITION)
def test_starts_and_stops_leave_nothing_behind(
    tmp_path: Path, state_home: Path, run_directories: Listing, part: int
) -> None:
    for _ in range(rounds(20, push=5)):
        with running_kernel(cwd=tmp_path) as kernel:
            assert kernel.run("1 + 1").result == "2"
            pids = list(process_tree(kernel.wrapper_pid))
        assert run_directories() == []
        eventually(lambda pids=pids: not any(map(is_running, pids)), what=f"{pids}")
    assert processes_about(state_home) == []
    assert mounts_about(tmp_path, state_home) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(rounds(5, push=1)), ids=REPETITION)
def test_a_wrapper_killed_at_any_moment_leaves_nothing_behind(
    tmp_path: Path, state_home: Path, run_directories: Listing, part: int
) -> None:
    moments = random.Random(SEED + part)
    for number in range(10):
        file = tmp_path / f"kernel-{number}.json"
        connection_file(file, key=b"k")
        with subprocess.Popen(
            [sys.executable, "-m", "sandbox_kernel", "launch", "-f", str(file)],
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        ) as wrapper:
            # The moment itself is what varies: from the first imports to a running kernel.
            time.sleep(moments.uniform(0, 1.2))
            pids = list(process_tree(wrapper.pid))
            wrapper.kill()
        eventually(
            lambda pids=pids: not any(map(is_running, pids)), what=f"seed {SEED} + {part}: {pids}"
        )
    eventually(lambda: processes_about(state_home) == [], what="processes about the state home")
    eventually(lambda: run_directories() == [], what="run directories")
    assert mounts_about(tmp_path, state_home) == []


def test_what_a_power_cut_left_is_cleared_at_the_next_start(
    tmp_path: Path, state_home: Path, run_directories: Listing
) -> None:
    run = state_home / "run"
    abandoned, sibling = run / "1-00000bad", run / "999999999-000a11fe"
    for directory in (abandoned, sibling):
        directory.mkdir(parents=True)
        (directory / "lock").write_text(f"{MARK}\n")
    # A wrapper of another host or pid namespace: its pid says nothing here, its lock does.
    lock = os.open(sibling / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with running_kernel(cwd=tmp_path):
        assert abandoned not in run_directories()
        assert sibling in run_directories()
    os.close(lock)


def test_a_state_directory_with_a_long_name_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_KERNEL_HOME", str(tmp_path / ("x" * 100) / ("y" * 100)))
    with running_kernel(cwd=tmp_path) as kernel:
        assert kernel.run("1 + 1").result == "2"


@pytest.mark.every_level(fresh=True)
def test_usage_is_measured_from_outside(kernel: Kernel) -> None:
    def usage() -> dict[str, object]:
        message = kernel.client.session.msg("usage_request", {})
        kernel.client.control_channel.send(message)
        while True:
            reply = kernel.client.get_control_msg(timeout=10)
            if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
                return reply["content"]

    before = usage()
    kernel.run("ballast = bytearray(200 << 20)\nsum(range(10**7))")
    after = usage()
    assert 180 << 20 < after["kernel_memory"] - before["kernel_memory"] < 260 << 20
    assert after["kernel_cpu"] > 0
    assert after["pid"] == kernel.wrapper_pid
    assert after["host_virtual_memory"]["active"] > 0
    json.dumps(after)
