"""The container levels: the same kernel, checkpoints and limits, in an engine's container."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError

from sandbox_kernel.isolation.engine import connect
from tests.kernel import (
    IMAGE,
    UNCHECKED,
    Kernel,
    Outcome,
    containers_of,
    eventually,
    is_running,
    isolation,
    running_kernel,
)

pytestmark = [pytest.mark.container, pytest.mark.slow]


@pytest.fixture(params=["container", pytest.param("gvisor", marks=pytest.mark.gvisor)])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def contained(level: str, tmp_path: Path) -> Iterator[Kernel]:
    with running_kernel(level=level, cwd=tmp_path) as kernel:
        yield kernel


def container_ids(pid: int) -> set[str]:
    return {about["Id"] for about in containers_of(pid)}


def exists(container: str) -> bool:
    client = connect()
    try:
        return bool(client.containers(all=True, quiet=True, filters={"id": container}))
    finally:
        client.close()


# A kernel like any other --------------------------------------------------------------------------


def test_cells_run_and_the_receipt_says_where(contained: Kernel, level: str) -> None:
    outcome = contained.run("x = 41\nx + 1")
    assert outcome.result == "42"
    isolation = outcome.receipt["isolation"]
    assert isolation["level"] == level
    assert isolation["network"] == "none"
    assert ("runsc" in isolation["engine"]) == (level == "gvisor")
    assert outcome.receipt["usage"]["source"].startswith("cgroup")
    (about,) = containers_of(contained.wrapper_pid)
    assert about["HostConfig"]["Runtime"] == {"container": "runc", "gvisor": "runsc"}[level]


def test_a_cell_that_hangs_is_killed_and_the_variables_are_kept(contained: Kernel) -> None:
    contained.run("kept = {'a': [1, 2]}")
    (before,) = container_ids(contained.wrapper_pid)
    stubborn = "import time\nkept = None\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass"
    outcome = contained.run_within({"wall": "500ms", "grace": "200ms"}, stubborn)
    assert outcome.ename == "CellTimeout"
    assert outcome.receipt["state"] == "rolled_back"
    assert contained.run("kept").result == "{'a': [1, 2]}"
    assert container_ids(contained.wrapper_pid) == {before}, "in the same container"


def test_a_cell_that_fills_the_memory_is_stopped_and_the_variables_are_kept(
    contained: Kernel,
) -> None:
    contained.run("kept = 42")
    hungry = "hoard = []\nwhile True: hoard.append(bytearray(b'x') * (1 << 20))"
    outcome = contained.run_within({"memory": "96MiB", "wall": "60s"}, hungry)
    assert outcome.met_memory_limit, outcome.evalue
    assert contained.run("kept").result == "42"


def test_the_last_cell_can_be_undone(contained: Kernel) -> None:
    contained.run("n = 1")
    contained.run("n = 2")
    assert "Undone" in contained.run("%undo").text()
    assert contained.run("n").result == "1"


def test_what_a_stopped_cell_started_is_ended(contained: Kernel) -> None:
    start = "import subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\ntime.sleep(60)"
    outcome = contained.run_within({"wall": "500ms"}, start)
    assert outcome.ename == "CellTimeout"
    running = "[p for p in __import__('os').listdir('/proc') if p.isdecimal() and p != '1' and b'sleep\\x00600' in open(f'/proc/{p}/cmdline', 'rb').read()]"
    assert contained.run(running).result == "[]"
    # The control: one that a cell leaves of its own accord goes on.
    contained.run("child = subprocess.Popen(['sleep', '600'])")
    assert contained.run(running).result != "[]"


def test_an_interrupt_and_input_work(contained: Kernel) -> None:
    cell = contained.client.execute("import time\nprint('on', flush=True)\ntime.sleep(60)")
    while contained.client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
        pass
    contained.manager.interrupt_kernel()
    assert contained.outcome_of(cell).ename == "KeyboardInterrupt"
    answered = contained.run(
        "input('name? ')", allow_stdin=True, stdin_hook=lambda _: contained.client.input("Ada")
    )
    assert answered.result == "'Ada'"


# What it can reach --------------------------------------------------------------------------------


INSIDE: dict[str, tuple[str, str]] = {
    "no network but its own": (
        "[line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]]",
        "['lo']",
    ),
    "no capability": (
        "{line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')}",
        "{'0000000000000000'}",
    ),
    "no engine": (
        "[p for p in ('/run/docker.sock', '/var/run/docker.sock') if os.path.exists(p)]",
        "[]",
    ),
    "no other groups": ("os.getgroups() in ([], [os.getgid()])", "True"),
}


@pytest.mark.parametrize("what", INSIDE)
def test_a_container_has(contained: Kernel, what: str) -> None:
    code, expected = INSIDE[what]
    assert contained.run(f"import os\n{code}\n").result == expected


def test_only_its_own_memory_can_be_written_to(contained: Kernel, level: str) -> None:
    attempt = (
        "import errno\n"
        "def write(place):\n"
        "    try: open(f'{place}/x', 'w').close()\n"
        "    except OSError as error: return errno.errorcode[error.errno]\n"
        "    return 'written'"
    )
    assert contained.run(attempt).status == "ok"
    roots = "{write(place) for place in ('', '/usr', '/etc', '/opt', '/run/sandbox')}"
    # Root could not either: it is the file system that refuses. gVisor asks for permission first.
    refusal = {"container": "EROFS", "gvisor": "EACCES"}[level]
    assert contained.run(roots).result == f"{{'{refusal}'}}"
    own = "{write(place) for place in ('/tmp', '/var/tmp', '/dev/shm', '/home/sandbox')}"
    assert contained.run(own).result == "{'written'}"


def test_its_supervisor_cannot_be_ended_from_inside_but_under_gvisor(
    contained: Kernel, level: str
) -> None:
    contained.run("kept = 1")
    outcome = contained.run("import os; os.kill(1, 9)")
    if level == "gvisor":
        assert outcome.ename == "SandboxLost", "gVisor protects no first process: a note says so"
        assert contained.run("1 + 1").result == "2"
        info = contained.client.kernel_info(reply=True, timeout=10)["content"]
        assert "a cell can end its own sandbox" in info["banner"]
        limitations = contained.run("1").receipt["isolation"]["limitations"]
        assert all(each in info["banner"] for each in limitations)
    else:
        assert outcome.status == "ok"
        assert contained.run("kept").result == "1"


def test_no_connection_can_be_made(contained: Kernel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        attempt = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)"
        assert contained.run(attempt).status == "error"
        # The control, and the witness: the server was there to be reached, and nobody came.
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            server.accept()[0].close()


def test_it_runs_as_a_user_that_the_host_does_not_have(contained: Kernel) -> None:
    uid = int(contained.run("import os; os.getuid()").result or 0)
    assert uid >= 1_900_000_000
    (about,) = containers_of(contained.wrapper_pid)
    assert about["Config"]["User"] == f"{uid}:{uid}"
    with pytest.raises(KeyError):
        __import__("pwd").getpwuid(uid)


def test_the_notebooks_folder_can_be_read_and_not_written(level: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with running_kernel(level=level, cwd=tmp_path) as kernel:
        (tmp_path / "data.csv").write_text("a,b\n")
        assert kernel.run("open('data.csv').read()").result == repr("a,b\n")
        assert kernel.run("open('new', 'w')").ename in ("OSError", "PermissionError")
        assert not (tmp_path / "new").exists()
        assert kernel.run("import os; os.getcwd()").result == repr(str(tmp_path))


def test_a_folder_that_its_user_may_not_enter_is_told_of(contained: Kernel, tmp_path: Path) -> None:
    assert tmp_path.stat().st_mode & 0o005 == 0
    info = contained.client.kernel_info(reply=True, timeout=10)["content"]
    assert f"chmod o+rx {tmp_path}" in info["banner"]
    # Where nothing can be saved that would end with the kernel.
    assert contained.run("import os; os.getcwd()").result == "'/'"
    assert contained.run("open('lost.txt', 'w')").ename in ("OSError", "PermissionError")


def test_a_folder_that_is_renamed_or_removed_costs_no_variable(level: str, tmp_path: Path) -> None:
    folder, renamed = tmp_path / "notebooks", tmp_path / "renamed"
    folder.mkdir()
    with running_kernel(level=level, cwd=folder) as kernel:
        kernel.run("kept = [1, 2]")
        wrapper = kernel.wrapper_pid
        folder.rename(renamed)
        outcome = kernel.run("kept.append(3)\nkept")
        assert outcome.result == "[1, 2, 3]"
        assert outcome.receipt["isolation"]["level"] == level
        renamed.rmdir()
        assert kernel.run("kept").result == "[1, 2, 3]"
        assert is_running(wrapper)


def confined_by() -> set[str]:
    """What the engine confines containers with: `apparmor`, `selinux`, where the host has it."""
    client = connect()
    try:
        options = client.info()["SecurityOptions"]
    finally:
        client.close()
    return {option.removeprefix("name=").split(",")[0] for option in options}


def test_what_is_asked_for_is_what_the_engine_has(
    level: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The items of the CIS benchmark's section 5 that apply to a single container."""
    with running_kernel(policy="limits: {cpus: 1}", level=level, cwd=tmp_path) as kernel:
        kernel.run("1")
        (about,) = containers_of(kernel.wrapper_pid)
    host, config = about["HostConfig"], about["Config"]
    confined = confined_by()
    reasons = {
        "5.26 health": "the wrapper sees its sandbox by lifeline and meter; a health check would be "
        "one more process inside",
        "5.27 latest image": "the image is pinned by its digest; `image build --no-cache` renews it",
    }
    if "apparmor" not in confined:
        reasons["5.1 AppArmor"] = "the host has none"
    if "selinux" not in confined:
        reasons["5.2 SELinux"] = "the host has none"
    checks = {
        "5.1 AppArmor": (about["AppArmorProfile"] not in ("", "unconfined"))
        == ("apparmor" in confined),
        "5.2 SELinux": bool(about["ProcessLabel"]) == ("selinux" in confined)
        and not any(option.startswith("label") for option in host["SecurityOpt"]),
        "5.3 capabilities": host["CapDrop"] == ["ALL"] and not host["CapAdd"],
        "5.4 privileged": host["Privileged"] is False,
        "5.5 host directories": not any(mount["RW"] for mount in about["Mounts"]),
        "5.7 ports": not host["PortBindings"] and not about["NetworkSettings"]["Ports"],
        "5.9 host network": host["NetworkMode"] == "none",
        "5.10 memory": host["Memory"] > 0 and host["MemorySwap"] == host["Memory"],
        "5.11 processors": host["NanoCpus"] == 1_000_000_000,
        "5.12 root filesystem": host["ReadonlyRootfs"] is True,
        "5.14 restarts": host["RestartPolicy"]["Name"] in ("", "no"),
        "5.15 host processes": host["PidMode"] == "",
        "5.16 host ipc": host["IpcMode"] == "private",
        "5.17 devices": not host["Devices"] and not host["DeviceRequests"],
        "5.18 ulimits": {u["Name"] for u in host["Ulimits"]} >= {"core", "nofile"},
        "5.19 propagation": {mount["Propagation"] for mount in about["Mounts"]} <= {"rprivate", ""},
        "5.20 host uts": host["UTSMode"] == "",
        "5.21 seccomp": any(o.startswith("seccomp={") for o in host["SecurityOpt"]),
        "5.24 cgroup": host["CgroupParent"] == "",
        "5.25 no new privileges": "no-new-privileges:true" in host["SecurityOpt"],
        "5.26 health": config["Healthcheck"]["Test"] == ["NONE"],
        "5.27 latest image": config["Image"].startswith("sha256:"),
        "5.28 processes": 0 < host["PidsLimit"] < 10_000,
        "5.29 bridge": not about["NetworkSettings"]["IPAddress"],
        "5.30 user namespaces of the host": host["UsernsMode"] == "",
        "5.31 engine's socket": not any("docker.sock" in m["Source"] for m in about["Mounts"]),
    }
    assert {name for name, held in checks.items() if not held} == set()
    said = "\n".join(f"{name} does not apply: {why}" for name, why in sorted(reasons.items()))
    record_property("figures", said)


def nothing_logged(container: str) -> bool:
    """Whether the engine keeps nothing of what a container prints."""
    client = connect()
    try:
        client.logs(container)
    except APIError as error:
        return "does not support reading" in str(error.explanation)
    finally:
        client.close()
    return False


def test_secrets_of_the_wrappers_environment_are_nowhere_to_be_found(
    level: str, tmp_path: Path, state_home: Path
) -> None:
    canaries = {
        f"SECRET_{number}_TOKEN": f"canary-{number:04}-{os.urandom(8).hex()}"
        for number in range(200)
    }
    options = {"cwd": tmp_path, "env": canaries, "arguments": ["--no-such-option"]}
    with running_kernel(level=level, **options) as kernel:
        wrapper = Path(f"/proc/{kernel.wrapper_pid}/environ").read_bytes()
        assert all(value.encode() in wrapper for value in canaries.values()), "the control"
        find = (
            "import os, glob\n"
            "seen = repr(dict(os.environ)) + ''.join(\n"
            "    open(path, errors='replace').read() for path in glob.glob('/proc/*/environ') if os.access(path, os.R_OK))\n"
            "'canary-' in seen"
        )
        assert kernel.run(find).result == "False"
        messages = kernel.run("1 / 0").messages
        about = containers_of(kernel.wrapper_pid)
        logged = kernel.logged()
        assert nothing_logged(about[0]["Id"])
    assert b"ignored '--no-such-option'" in logged, "the control"
    kept = {path: path.read_bytes() for path in state_home.rglob("*") if path.is_file()}
    assert any(b"1 / 0" in data for data in kept.values()), (
        "the control: cells are in the audit log"
    )
    places = {"messages": repr(messages).encode(), "engine": repr(about).encode(), "log": logged}
    engine_log = Path(os.environ["DOCKER_HOST"].removeprefix("unix://")).with_name("dockerd.log")
    if engine_log.exists():  # that of `scripts/ensure-engine`
        places["engine's log"] = engine_log.read_bytes()
        assert b"API listen on" in places["engine's log"], "the control"
    for where, data in {**places, **kept}.items():
        assert [name for name, value in canaries.items() if value.encode() in data] == [], where


# It ends with its wrapper -------------------------------------------------------------------------


def test_a_wrapper_that_is_killed_takes_its_container_with_it_and_no_other(
    level: str, tmp_path: Path
) -> None:
    with running_kernel(level=level, cwd=tmp_path) as sibling:
        sibling.run("alive = 1")
        with running_kernel(level=level, cwd=tmp_path) as kernel:
            kernel.run("1")
            (container,) = container_ids(kernel.wrapper_pid)
            os.kill(kernel.wrapper_pid, signal.SIGKILL)
            eventually(lambda: not exists(container), what="the container is gone", within=10)
        assert sibling.run("alive").result == "1"


def keeper_of(wrapper: int) -> int:
    children = Path(f"/proc/{wrapper}/task/{wrapper}/children").read_text().split()
    (keeper,) = (
        int(pid)
        for pid in children
        if b"isolation.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return keeper


def test_a_keeper_that_is_killed_alone_costs_the_variables_and_its_container_ends(
    contained: Kernel,
) -> None:
    contained.run("kept = 1")
    (before,) = container_ids(contained.wrapper_pid)
    os.kill(keeper_of(contained.wrapper_pid), signal.SIGKILL)
    eventually(lambda: not exists(before), what="its container is gone", within=20)
    assert contained.run("'kept' in globals()").result == "False"
    assert len(container_ids(contained.wrapper_pid)) == 1


def test_a_container_whose_keeper_was_killed_too_is_removed_by_the_next_wrapper(
    level: str, tmp_path: Path
) -> None:
    with running_kernel(level=level, cwd=tmp_path) as kernel:
        kernel.run("1")
        client = connect()
        (about,) = containers_of(kernel.wrapper_pid)
        label = about["Config"]["Labels"]
        os.kill(keeper_of(kernel.wrapper_pid), signal.SIGKILL)
        os.kill(kernel.wrapper_pid, signal.SIGKILL)
    # What nobody has removed: a container that does not end with its lifeline.
    left = client.create_container(IMAGE, ["sleep", "600"], labels=label)["Id"]
    client.start(left)
    try:
        with running_kernel(level=level, cwd=tmp_path) as kernel:
            kernel.run("1")
            eventually(lambda: not exists(left), what="what was left is removed")
            assert container_ids(kernel.wrapper_pid)
    finally:
        if exists(left):
            client.remove_container(left, force=True)
        client.close()


# When there is no engine --------------------------------------------------------------------------


@contextmanager
def frozen_engine(path: Path) -> Iterator[None]:
    """A socket that takes connections and never says a word."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(16)
        yield


def first_cell(kernel: Kernel) -> tuple[float, Outcome]:
    began = time.monotonic()
    outcome = kernel.run("1 + 1")
    return time.monotonic() - began, outcome


@pytest.mark.parametrize("how", ["absent", "frozen"])
def test_an_engine_that_does_not_answer_gives_no_weaker_level_and_the_kernel_recovers_with_it(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, how: str
) -> None:
    place = tmp_path_factory.mktemp("e") / "s"
    real = os.environ["DOCKER_HOST"].removeprefix("unix://")
    options: dict[str, Any] = {"cwd": tmp_path, "env": {"DOCKER_HOST": f"unix://{place}"}}
    engine = frozen_engine(place) if how == "frozen" else nullcontext()
    accepting = isolation("container", "process", require="process")
    with engine, running_kernel(policy=accepting, **options) as kernel:
        seconds, outcome = first_cell(kernel)
        assert outcome.ename == "SandboxUnavailable"
        assert "engine" in outcome.evalue
        assert seconds < 10 + 1
        place.unlink(missing_ok=True)
        place.symlink_to(real)
        eventually(lambda: kernel.run("1 + 1").status == "ok", what="it works again", within=30)
        assert kernel.run("1").receipt["isolation"]["level"] == "container"


def test_an_engine_that_lacks_the_image_gives_the_next_level_and_says_why(tmp_path: Path) -> None:
    accepting = isolation("container", "process", require="process", image="no-such-image")
    with running_kernel(policy=accepting, cwd=tmp_path) as kernel:
        assert kernel.run("1 + 1").receipt["isolation"]["level"] == "process"
        banner = kernel.client.kernel_info(reply=True, timeout=10)["content"]["banner"]
    assert "policy prefers container: the engine has no image for 'no-such-image'" in banner


def test_an_image_with_a_volume_is_refused(tmp_path: Path) -> None:
    client = connect()
    try:
        made = client.create_container(IMAGE, ["true"])["Id"]
        client.commit(made, "with-a-volume", changes='VOLUME ["/data"]')
        client.remove_container(made)
        accepting = isolation("container", "process", require="process", image="with-a-volume")
        with running_kernel(policy=accepting, cwd=tmp_path) as kernel:
            outcome = kernel.run("1 + 1")
            assert outcome.ename == "SandboxUnavailable"
            assert "declares volumes (/data)" in outcome.evalue
    finally:
        client.remove_image("with-a-volume")
        client.close()


def test_a_pin_that_does_not_hold_gives_no_weaker_level(tmp_path: Path) -> None:
    pinned = f"{IMAGE}@sha256:{'0' * 64}"
    accepting = isolation("container", "process", require="process", image=pinned)
    with running_kernel(policy=accepting, cwd=tmp_path) as kernel:
        for _ in range(2):
            outcome = kernel.run("1 + 1")
            assert outcome.ename == "SandboxUnavailable"
            assert "pins" in outcome.evalue


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"image": "no-such-image"}, "image build"),
        ({"image": f"{IMAGE}@sha256:{'0' * 64}"}, "pins"),
        ({"runtime": "kata-nowhere"}, "kata-nowhere"),
    ],
)
def test_what_the_engine_does_not_have_is_named(
    tmp_path: Path, changes: dict[str, str], named: str
) -> None:
    with running_kernel(policy=isolation("gvisor", **changes), cwd=tmp_path) as kernel:
        outcome = kernel.run("1 + 1")
        assert outcome.ename == "SandboxUnavailable"
        assert named in outcome.evalue


def test_a_container_that_was_started_on_trial_is_kept_only_if_the_policy_asks_for_it(
    tmp_path: Path, state_home: Path
) -> None:
    """The second kernel of a policy starts as the first one was, before the policy is read."""
    policy = tmp_path / "policy.yaml"
    env = {"SANDBOX_KERNEL_POLICY": str(policy)}

    def memory_of_next(limit: str) -> tuple[int, set[Path]]:
        policy.write_text(
            f"extends: {UNCHECKED}\nlimits: {{sandbox_memory: {limit}}}\n{isolation('container')}"
        )
        policy.chmod(0o600)
        with running_kernel(cwd=tmp_path, env=env) as kernel:
            assert kernel.run("1 + 1").result == "2"
            eventually(lambda: len(containers_of(kernel.wrapper_pid)) == 1, what="one is left")
            (about,) = containers_of(kernel.wrapper_pid)
        return about["HostConfig"]["Memory"], {*(state_home / "remembered").iterdir()}

    first, remembered = memory_of_next("1GiB")
    assert len(remembered) == 1
    assert memory_of_next("1GiB") == (first, remembered)
    second, _ = memory_of_next("2GiB")
    assert second == 2 * first
    assert memory_of_next("2GiB")[0] == second


# An engine's socket that can be frozen without the engine.
RELAY = """
import asyncio, sys

async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def serve(reader, writer):
    engine_reader, engine_writer = await asyncio.open_unix_connection(sys.argv[2])
    await asyncio.gather(copy(reader, engine_writer), copy(engine_reader, writer))

async def main():
    await (await asyncio.start_unix_server(serve, sys.argv[1])).serve_forever()

asyncio.run(main())
"""


def test_an_engine_that_is_frozen_while_a_cell_runs_holds_nobody_up(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The engine is on no way between the wrapper and its sandbox."""
    place = tmp_path_factory.mktemp("e") / "s"
    real = os.environ["DOCKER_HOST"].removeprefix("unix://")
    engine = subprocess.Popen([sys.executable, "-c", RELAY, str(place), real])
    eventually(place.exists, what="the relay listens")
    try:
        env = {"DOCKER_HOST": f"unix://{place}"}
        with running_kernel(level="container", cwd=tmp_path, env=env) as kernel:
            kernel.run("kept = 1")
            os.kill(engine.pid, signal.SIGSTOP)
            outcome = kernel.run_within({"wall": "500ms"}, "while True: pass")
            assert outcome.ename == "CellTimeout"
            assert kernel.run("kept").result == "1"
            os.kill(engine.pid, signal.SIGCONT)
            wrapper = kernel.wrapper_pid
        eventually(lambda: not is_running(wrapper), what="the wrapper has ended")
    finally:
        engine.kill()
        engine.wait()
