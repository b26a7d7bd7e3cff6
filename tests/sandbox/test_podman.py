"""The container level through Podman, by the API it shares with Docker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_kernel.isolation.engine import connect
from tests.engines import podman_service
from tests.kernel import Kernel, containers_of, eventually, isolation, running_kernel

pytestmark = [pytest.mark.container, pytest.mark.podman, pytest.mark.slow]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with podman_service() as running:
        yield running


@pytest.fixture
def podman(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Kernel]:
    monkeypatch.setenv("DOCKER_HOST", address)
    tmp_path.chmod(0o755)
    with running_kernel(level="container", cwd=tmp_path) as kernel:
        yield kernel


def test_cells_run_and_the_receipt_says_where(podman: Kernel) -> None:
    outcome = podman.run("x = 41\nx + 1")
    assert outcome.result == "42"
    assert outcome.receipt["isolation"]["level"] == "container"
    assert outcome.receipt["isolation"]["engine"].startswith("podman")
    assert podman.run("import os; len(os.listdir('/sys/class/net'))").result in ("0", "1")


def test_a_cell_that_hangs_is_killed_and_the_variables_are_kept(podman: Kernel) -> None:
    podman.run("kept = [1, 2]")
    stubborn = "import time\nkept = None\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass"
    outcome = podman.run_within({"wall": "500ms", "grace": "200ms"}, stubborn)
    assert outcome.ename == "CellTimeout"
    assert outcome.receipt["state"] == "rolled_back"
    assert podman.run("kept").result == "[1, 2]"


def test_a_cell_that_fills_the_memory_is_stopped(podman: Kernel) -> None:
    podman.run("kept = 42")
    hungry = "hoard = []\nwhile True: hoard.append(bytearray(b'x') * (1 << 20))"
    outcome = podman.run_within({"memory": "96MiB", "wall": "60s"}, hungry)
    assert outcome.met_memory_limit, outcome.evalue
    assert podman.run("kept").result == "42"


def test_what_is_asked_for_is_what_podman_has(podman: Kernel) -> None:
    (about,) = containers_of(podman.wrapper_pid)
    host = about["HostConfig"]
    checks = {
        "privileged": host["Privileged"] is False,
        "network": host["NetworkMode"] == "none",
        "memory": host["Memory"] > 0,
        "processes": 0 < host["PidsLimit"] < 10_000,
        "root filesystem": host["ReadonlyRootfs"] is True,
        "mounts": not any(mount["RW"] for mount in about["Mounts"] if mount["Type"] == "bind"),
    }
    assert {name for name, held in checks.items() if not held} == set()
    # What counts is what the kernel of the host says.
    status = Path(f"/proc/{about['State']['Pid']}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {facts[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {"0" * 16}
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    assert int(facts["Uid"].split()[0]) >= 1_900_000_000


def test_gvisor_is_not_claimed_where_podman_would_not_use_it(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Podman lists `runsc`, and starts containers with its default whatever it is asked for."""
    monkeypatch.setenv("DOCKER_HOST", address)
    tmp_path.chmod(0o755)
    either = isolation("gvisor", "container", require="container")
    with running_kernel(policy=either, cwd=tmp_path) as kernel:
        outcome = kernel.run("open('/proc/version').read()")
        assert outcome.receipt["isolation"]["level"] == "container"
        assert "runsc" not in outcome.receipt["isolation"]["engine"]
        assert Path("/proc/version").read_text() in eval(outcome.result)
    with running_kernel(level="gvisor", cwd=tmp_path) as kernel:
        refused = kernel.run("1 + 1")
        assert refused.ename == "SandboxUnavailable"
        assert "default runtime" in refused.evalue
        assert "podman --runtime runsc" in refused.evalue


def test_a_folder_whose_name_podman_would_misread_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    secret = tmp_path / "secret"
    folder = Path(f"{tmp_path}/nb,src={secret}")
    for path in (secret, folder):
        path.mkdir(parents=True)
    with running_kernel(level="container", cwd=folder) as kernel:
        outcome = kernel.run("1 + 1")
        assert outcome.ename == "SandboxUnavailable"
        assert str(folder) in outcome.evalue
        assert "Rename it" in outcome.evalue


def test_a_killed_wrapper_takes_its_container_with_it(podman: Kernel) -> None:
    podman.run("1")
    (about,) = containers_of(podman.wrapper_pid)
    os.kill(podman.wrapper_pid, signal.SIGKILL)
    client = connect()
    try:
        eventually(
            lambda: about["Id"] not in [each["Id"] for each in client.containers(all=True)],
            what="the container is gone",
        )
    finally:
        client.close()
