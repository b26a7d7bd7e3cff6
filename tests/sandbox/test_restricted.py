"""The weakest level: what it holds, what it says that it does not, and that nobody gets it unasked.

Most cells here have got past the check of their code, which is what the level is otherwise held by.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sandbox_kernel.isolation import landlock
from sandbox_kernel.isolation.restricted import closed_to_others, python_paths
from sandbox_kernel.limits.meter import process_tree
from sandbox_kernel.policy.effective import as_document
from sandbox_kernel.policy.load import load_policy
from tests.kernel import UNCHECKED, Kernel, eventually, inside, is_running, outside, running_kernel

RESTRICTED = "isolation:\n  prefer: [restricted]\n  require: restricted\n"
STRICT = f"extends: strict\n{RESTRICTED}"
# Every cell is asked the same things at `process`, as a control.
LOOSE = f"extends: {UNCHECKED}\n"
# In the wrapper alone: what the level's policies must not be looser than.
PAST_THE_CHECK = f"""
import sys
if "launch" in sys.orig_argv:
    from sandbox_kernel.policy import load
    load.STRICT = {UNCHECKED!r}
"""

closed = closed_to_others(python_paths()) if os.geteuid() == 0 else None
pytestmark = [
    pytest.mark.skipif(
        closed is not None, reason=f"{closed} is closed to others: test_ordinary_user opens it"
    ),
]
needs_landlock = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A notebook's folder that every user may read."""
    path = Path(tempfile.mkdtemp(prefix="restricted-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def past_the_check(folder: Path) -> dict[str, str]:
    """An environment in which `restricted` takes policies that check nothing."""
    hooks = folder / "hooks"
    hooks.mkdir(mode=0o755)
    (hooks / "sitecustomize.py").write_text(PAST_THE_CHECK)
    return {"PYTHONPATH": str(hooks)}


@pytest.fixture
def kernel(folder: Path, past_the_check: dict[str, str]) -> Iterator[Kernel]:
    """One whose cells are not checked: what holds is what the operating system holds."""
    with running_kernel(cwd=folder, policy=LOOSE + RESTRICTED, env=past_the_check) as running:
        assert running.run("1").receipt["isolation"]["level"] == "restricted"
        yield running


@pytest.fixture
def strict_kernel(folder: Path) -> Iterator[Kernel]:
    with running_kernel(cwd=folder, policy=STRICT) as running:
        yield running


# -- it is a kernel ----------------------------------------------------------------------------------


def test_cells_run_and_share_variables(strict_kernel: Kernel) -> None:
    assert strict_kernel.run("import math\nx = math.sqrt(16)").status == "ok"
    assert strict_kernel.run("x + len('ab')").result == "6.0"
    assert strict_kernel.run("input").status == "ok"


def test_commands_run_without_a_terminal(strict_kernel: Kernel) -> None:
    strict_kernel.run("word = 'hello'")
    for _ in range(5):
        assert strict_kernel.run("!echo hello; ls /nowhere").text().count("nowhere") == 1
    assert strict_kernel.run("_exit_code").result == "2"
    assert strict_kernel.run("lines = !echo hello\nlines[0]").result == "'hello'"
    assert strict_kernel.run("%%bash\necho hello").text() == "hello\n"


def test_the_debugger_is_refused_and_costs_nothing(strict_kernel: Kernel) -> None:
    strict_kernel.run("x = 1")
    arguments = {"clientID": "test", "adapterID": "", "pathFormat": "path"}
    content = {"type": "request", "seq": 1, "command": "initialize", "arguments": arguments}
    client = strict_kernel.client
    client.control_channel.send(client.session.msg("debug_request", content))
    reply = client.get_control_msg(timeout=30)["content"]
    assert (reply["success"], "no loopback" in reply["message"]) == (False, True)
    assert strict_kernel.run("x").result == "1"


def test_libraries_that_are_allowed_can_be_used(strict_kernel: Kernel) -> None:
    code = """
        import numpy as np
        import pandas as pd
        import datetime
        frame = pd.DataFrame({"a": np.arange(3), "day": pd.date_range("2020-01-01", periods=3)})
        print(frame.a.sum(), datetime.datetime.strptime("2021", "%Y").year, frame.day.dt.year.max())
    """
    assert inside(strict_kernel, textwrap.dedent(code)) == "3 2021 2020\n"


@needs_landlock
def test_the_banner_says_of_credentials_only_that_they_cannot_be_hidden(folder: Path) -> None:
    for name in (".netrc", ".pgpass"):
        (folder / name).touch()
    with running_kernel(cwd=folder, policy=STRICT) as kernel:
        banner = kernel.client.kernel_info(reply=True, timeout=20)["content"]["banner"]
        assert "hidden, as they look like credentials" not in banner
        (said,) = [line for line in banner.splitlines() if ".netrc" in line]
        assert "cannot be hidden at this level" in said
        assert ".pgpass" in said


def test_what_is_not_protected_is_in_the_banner_and_in_every_receipt(strict_kernel: Kernel) -> None:
    info = strict_kernel.client.kernel_info(reply=True, timeout=20)["content"]
    assert "restricted (seccomp" in info["banner"]
    for code in ("1 + 1", "1 / 0", "import os"):
        outcome = strict_kernel.run(code)
        isolation = outcome.receipt["isolation"]
        assert isolation["level"] == "restricted"
        assert isolation["network"] == "none"
        assert isolation["not_protected"]
        for each in isolation["not_protected"]:
            assert f"NOT protected against: {each}" in info["banner"]
        shown = [m for m in outcome.messages if m["msg_type"] == "display_data"]
        assert "restricted sandbox (weak" in shown[-1]["content"]["data"]["text/plain"]


def test_a_cell_that_hangs_is_rolled_back(kernel: Kernel) -> None:
    kernel.run("x = 'kept'")
    stubborn = "import signal\nsignal.signal(2, signal.SIG_IGN)\nx = 'lost'\nwhile True: pass"
    outcome = kernel.run_within({"wall": "500ms", "grace": "200ms"}, stubborn)
    assert (outcome.ename, outcome.receipt["state"]) == ("CellTimeout", "rolled_back")
    assert "not_restored" not in outcome.receipt  # such as processes of the host
    assert kernel.value("x") == "kept"


def test_a_cell_that_ends_its_process_is_rolled_back(kernel: Kernel) -> None:
    kernel.run("x = 'kept'")
    outcome = kernel.run("import os\nos.abort()")
    assert (outcome.ename, outcome.receipt["state"]) == ("SandboxLost", "rolled_back")
    assert kernel.value("x") == "kept"
    assert kernel.run("import os\nos.kill(os.getpid(), 9)").receipt["state"] == "rolled_back"
    assert kernel.value("x") == "kept"


def test_a_cell_can_be_undone(strict_kernel: Kernel) -> None:
    strict_kernel.run("x = 1")
    strict_kernel.run("x = 2")
    assert "Undone" in strict_kernel.run("%undo").text()
    assert strict_kernel.run("x").result == "1"


def test_memory_is_limited(kernel: Kernel) -> None:
    kernel.run("x = 'kept'")
    hoard = "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))"
    outcome = kernel.run_within({"memory": "64MiB"}, hoard)
    assert outcome.met_memory_limit, outcome.evalue
    assert kernel.value("x") == "kept"
    forks = (
        # It has that for a while: without a cgroup, what comes and goes between two looks is not seen.
        "import os, time\nif os.fork() == 0:\n    b = bytearray(200 << 20)\n    time.sleep(1)\n"
        "    os._exit(0)\nos.wait()"
    )
    assert kernel.run(forks).receipt["usage"]["memory_peak_bytes"] > 150 << 20


def test_what_a_cell_leaves_is_ended_when_it_is_stopped_and_nothing_else(kernel: Kernel) -> None:
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            code = "import subprocess\nsubprocess.Popen(['sleep', '{0}'])\nwhile True: pass"
            duration = str(10_000 + secrets.randbelow(10**9))
            kernel.run_within({"wall": "500ms", "grace": "200ms"}, code.format(duration))
            eventually(lambda: not processes_with(duration), what="the cell's process ended")
            assert bystander.poll() is None
            assert kernel.run("1 + 1").result == "2"
        finally:
            bystander.kill()


# -- nobody gets it unasked --------------------------------------------------------------------------


def test_default_is_refused_rather_than_restricted(folder: Path, state_home: Path) -> None:
    witness = folder / "witness"
    directory = folder / "bin"
    directory.mkdir()
    for name in ("sh", "rm"):
        found = shutil.which(name)
        assert found is not None
        (directory / name).symlink_to(found)
    path = {"PATH": str(directory)}
    with running_kernel(cwd=folder, env={**path, "SANDBOX_KERNEL_POLICY": "default"}) as kernel:
        refused = kernel.run(f"open({str(witness)!r}, 'w').write('ran')")
        assert refused.ename == "SandboxUnavailable"
        assert "apt-get install bubblewrap" in refused.evalue
    assert not witness.exists()
    # The same host, asked for by name.
    with running_kernel(cwd=folder, env=path, policy=STRICT) as kernel:
        assert kernel.run("1 + 1").result == "2"


def test_a_policy_with_a_looser_check_runs_nothing(folder: Path) -> None:
    with running_kernel(cwd=folder, policy=LOOSE + RESTRICTED) as kernel:
        refused = kernel.run("1 + 1")
        assert refused.ename == "PolicyError"
        assert "no looser than in policy `strict`" in refused.evalue


# -- what Python refuses -----------------------------------------------------------------------------


@pytest.fixture
def listed() -> str:
    """A policy whose lists of modules are those of `strict`, and that denies no form of code."""
    document = as_document(load_policy(UNCHECKED))
    strict = as_document(load_policy("strict"))
    document["code"]["python"]["imports"] = strict["code"]["python"]["imports"]
    del document["isolation"]
    return yaml.safe_dump(document)


@pytest.mark.process
def test_a_module_is_refused_by_whatever_name_a_cell_asks_for_it(
    folder: Path, past_the_check: dict[str, str], listed: str
) -> None:
    (folder / "name").write_text("os")
    code = "print(__import__(open('name').read()).getpid() > 0)"
    rebind = "globals()[''.join(reversed('__snitliub__'))]['len'] = print\nprint('rebound')"
    with running_kernel(cwd=folder, env=past_the_check, policy=listed) as kernel:
        assert inside(kernel, code) == "True\n"
    with running_kernel(cwd=folder, env=past_the_check, policy=listed + RESTRICTED) as kernel:
        refused = kernel.run(code)
        assert refused.ename == "ImportError"
        assert "cells may not import 'os'" in refused.evalue
        rebound = kernel.run(rebind)
        assert (rebound.ename, "cannot be changed" in rebound.evalue) == ("TypeError", True)
        assert kernel.value("len('four')") == 4
        # Also in what took over after a rollback.
        kernel.run_within(
            {"wall": "300ms", "grace": "0s"},
            "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        )
        assert kernel.run(code).ename == "ImportError"


# -- what the operating system refuses ---------------------------------------------------------------


def test_cells_are_not_root(kernel: Kernel) -> None:
    uid = kernel.value("__import__('os').getuid()")
    assert uid != 0
    assert (uid == os.getuid()) == (os.getuid() != 0)
    status = kernel.value("open('/proc/self/status').read()")
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status


def test_no_connection_can_be_made(kernel: Kernel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        code = textwrap.dedent(f"""
            import socket
            try:
                socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), timeout=5).close()
                print("connected")
            except OSError:
                print("refused")
        """)
        assert outside(code) == "connected\n"
        server.accept()[0].close()
        assert inside(kernel, code) == "refused\n"
        with pytest.raises(TimeoutError):
            server.accept()
    families = "AF_INET AF_INET6 AF_NETLINK AF_PACKET AF_VSOCK"
    code = f"""
        import socket
        for name in {families!r}.split():
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
                try:
                    socket.socket(getattr(socket, name), kind)
                    print(name)
                except OSError:
                    pass
    """
    assert inside(kernel, textwrap.dedent(code)) == ""
    assert "AF_INET" in outside(textwrap.dedent(code))
    assert kernel.run("1").receipt["isolation"]["network"] == "none"


@needs_landlock
def test_files_that_are_not_the_notebooks_cannot_be_opened(kernel: Kernel, folder: Path) -> None:
    secret = Path(tempfile.mkdtemp(prefix="restricted-secret-"))
    shared = [Path(place, f"restricted-{secrets.token_hex(8)}") for place in ("/dev/shm", "/tmp")]
    try:
        secret.chmod(0o777)
        (secret / "key").write_text("secret")
        (secret / "key").chmod(0o666)
        (folder / "data").write_text("data")
        read = "print(open({!r}).read())"
        assert outside(read.format(str(secret / "key"))) == "secret\n"
        assert inside(kernel, read.format(str(folder / "data"))) == "data\n"
        for refused in (
            read.format(str(secret / "key")),
            f"open({str(secret / 'key')!r}, 'w')",
            f"open({str(secret / 'new')!r}, 'w')",
            f"__import__('os').listdir({str(secret)!r})",
            f"__import__('os').remove({str(secret / 'key')!r})",
            f"__import__('os').truncate({str(secret / 'key')!r}, 0)",
            f"__import__('os').chmod({str(secret / 'key')!r}, 0)",
            f"__import__('os').rename({str(secret / 'key')!r}, __import__('os').environ['HOME'] + '/k')",
            f"open({str(folder / 'new')!r}, 'w')",
            "open('/etc/passwd')",
            f"open('/proc/{kernel.wrapper_pid}/environ')",
            "open('/proc/sys/kernel/core_pattern', 'w')",
            *(f"open({str(path)!r}, 'w')" for path in shared),
        ):
            assert kernel.run(refused).ename == "PermissionError", refused
        assert (secret / "key").read_text() == "secret"
        assert (secret / "key").stat().st_mode & 0o777 == 0o666
        assert not (secret / "new").exists()
        for path in shared:
            assert not path.exists()
            assert outside(f"open({str(path)!r}, 'w')") == "", "the control"
    finally:
        shutil.rmtree(secret)
        for path in shared:
            path.unlink(missing_ok=True)


def test_the_home_folder_can_be_written_and_is_the_sandboxs_own(
    kernel: Kernel, state_home: Path
) -> None:
    code = """
        import os, pathlib, tempfile
        (pathlib.Path.home() / "file").write_text("mine")
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
        print((pathlib.Path.home() / "file").read_text(), oct(os.umask(0)))
    """
    assert inside(kernel, textwrap.dedent(code)) == "mine 0o77\n"
    (found,) = state_home.glob("run/*/*/home/file")
    assert found.read_text() == "mine"


def test_the_environment_is_an_allow_list(folder: Path, past_the_check: dict[str, str]) -> None:
    env = {**past_the_check, "SECRET_TOKEN": "canary"}
    with running_kernel(cwd=folder, policy=LOOSE + RESTRICTED, env=env) as kernel:
        assert "canary" not in repr(kernel.value("dict(__import__('os').environ)"))


def test_neither_the_wrapper_nor_the_supervisor_can_be_signalled(kernel: Kernel) -> None:
    supervisor = supervisor_of(kernel)
    targets = [supervisor, -supervisor, -1]
    if landlock.version() >= landlock.SIGNALS or os.geteuid() == 0:
        targets.append(kernel.wrapper_pid)
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        for target in targets:
            assert kernel.run(f"__import__('os').kill({target}, {int(number)})").ename in (
                "PermissionError",
                "ProcessLookupError",
            )
    own = f"__import__('resource').prlimit({supervisor}, 0, (1, 1))"
    assert kernel.run(own).ename == "PermissionError"
    assert is_running(supervisor)
    # The control: its own children a cell can end.
    child = "import subprocess\np = subprocess.Popen(['sleep', '60'])\np.kill()\nprint(p.wait())"
    assert inside(kernel, child) == "-9\n"


@pytest.mark.skipif(landlock.version() < landlock.SIGNALS, reason="since Linux 6.12")
def test_abstract_sockets_of_the_host_are_out_of_reach(kernel: Kernel) -> None:
    name = f"\0restricted-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        server.settimeout(0.5)
        code = f"import socket\nsocket.socket(socket.AF_UNIX).connect({name!r})"
        outside(code)
        server.accept()[0].close()
        assert kernel.run(code).ename == "PermissionError"
        with pytest.raises(TimeoutError):
            server.accept()


# -- its end -----------------------------------------------------------------------------------------

RUNAWAYS = """
import os, subprocess, sys
for program in ({sleep!r}, None):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            if program:
                os.execvp("sleep", ["sleep", program])
            while True:
                __import__("time").sleep(1)
        os._exit(0)
    os.wait()
subprocess.Popen(["sleep", {sleep!r}], start_new_session=True)
"""


@pytest.mark.parametrize("end", ["kill -9", "shutdown", "restart"])
def test_nothing_outlives_the_wrapper(kernel: Kernel, state_home: Path, end: str) -> None:
    sleep = str(10_000 + secrets.randbelow(10**9))
    assert kernel.run(RUNAWAYS.format(sleep=sleep)).status == "ok"
    below = {*process_tree(supervisor_of(kernel))}
    eventually(lambda: len(processes_with(sleep)) == 2, what="both programs run")
    assert len(below) >= 6  # and so does a fork; the supervisor, the kernel, a checkpoint
    if end == "kill -9":
        os.kill(kernel.wrapper_pid, signal.SIGKILL)
    elif end == "shutdown":
        kernel.manager.shutdown_kernel()
    else:
        kernel.manager.restart_kernel()
    eventually(lambda: not any(map(is_running, below)), what=f"{below} ended")
    assert processes_with(sleep) == []
    if end != "restart":
        eventually(lambda: not [*state_home.glob("run/*")], what="the run directory is removed")


def test_nothing_outlives_a_supervisor_that_is_killed(kernel: Kernel) -> None:
    """As an administrator could do it, or Linux for want of memory."""
    sleep = str(10_000 + secrets.randbelow(10**9))
    kernel.run(RUNAWAYS.format(sleep=sleep))
    eventually(lambda: len(processes_with(sleep)) == 2, what="both programs run")
    below = {*process_tree(supervisor_of(kernel))}
    os.kill(supervisor_of(kernel), signal.SIGKILL)
    eventually(lambda: kernel.run("1 + 1").status == "ok", within=30)
    eventually(lambda: not any(map(is_running, below)), what=f"{below} ended")
    assert processes_with(sleep) == []


def test_the_last_anchor_of_the_audit_log_outlives_the_sandbox(folder: Path) -> None:
    """At this level both are processes below the wrapper."""
    with tempfile.TemporaryDirectory() as elsewhere:
        # Slow on purpose: it is still at it when the sandbox is ended.
        program, anchors = Path(elsewhere, "send"), Path(elsewhere, "anchors")
        program.write_text(f"#!/bin/sh\nsleep 1\ncat >> {anchors}\n")
        program.chmod(0o755)
        audit = f"audit:\n  anchor: command:{program}\n"
        with running_kernel(cwd=folder, policy=f"{STRICT}{audit}") as kernel:
            assert kernel.run("1").receipt["isolation"]["level"] == "restricted"
        eventually(lambda: anchors.exists() and anchors.read_text(), what="an anchor is made")


def supervisor_of(kernel: Kernel) -> int:
    (found,) = [
        pid
        for pid in process_tree(kernel.wrapper_pid)
        if parent_of(pid) == kernel.wrapper_pid and b"boot.py" in command_of(pid)
    ]
    return found


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def processes_with(word: str) -> list[int]:
    """Those that run and have ``word`` as an argument: the host's look."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [
        pid for pid in pids if word.encode() in command_of(pid).split(b"\0") and is_running(pid)
    ]
