"""Jupyter in a container of its own, with the engine's socket: nobody there sees the sandbox's processes.

Here it is in a pid namespace, which is what matters of that. The engine says what cells use.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_kernel.isolation.engine import connect
from sandbox_kernel.isolation.owner import OWNER
from tests.engines import podman_service
from tests.kernel import Kernel, eventually, is_running, running_kernel

pytestmark = [pytest.mark.slow]

NAME = "out-of-sight"
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
COMMAND = (sys.executable, "-m", "sandbox_kernel")
SANDBOXES = [
    pytest.param("container", marks=pytest.mark.container),
    pytest.param("gvisor", marks=pytest.mark.gvisor),
    pytest.param("podman", marks=[pytest.mark.container, pytest.mark.podman]),
]
# An engine looks once a second; the first look of a cell may be its baseline.
LATE_SECONDS = 4
STUBBORN = (
    "import time\nkept = None\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass"
)
SLOWLY = (
    "import time\nhoard = []\nwhile True: hoard.append(bytearray(b'x') * (8 << 20)); time.sleep(.1)"
)
HOARD = "import time\nhoard = bytearray(b'x') * (200 << 20)"


@pytest.fixture(scope="module")
def podman() -> Iterator[str]:
    with podman_service() as address:
        yield address


@pytest.fixture(params=SANDBOXES)
def kernel(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kernel]:
    level = request.param
    if level == "podman":
        monkeypatch.setenv("DOCKER_HOST", request.getfixturevalue("podman"))
        level = "container"
    spec = tmp_path / "jupyter" / "kernels" / NAME
    spec.mkdir(parents=True)
    argv = [*APART, *COMMAND, "launch", "-f", "{connection_file}"]
    about = {"argv": argv, "display_name": NAME, "language": "python", "interrupt_mode": "message"}
    (spec / "kernel.json").write_text(json.dumps(about))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    tmp_path.chmod(0o755)
    with running_kernel(name=NAME, level=level, cwd=notebooks) as running:
        yield running


def wrapper_of(kernel: Kernel) -> int:
    """The host's pid of the wrapper, whose parent has made the namespace."""
    parent = kernel.wrapper_pid
    (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(child)


def containers_of_namespace(wrapper: int) -> list[str]:
    namespace = os.stat(f"/proc/{wrapper}/ns/pid").st_ino  # noqa: PTH116 - a link that leads nowhere
    client = connect()
    try:
        found = client.containers(all=True, filters={"label": OWNER})
        return [each["Id"] for each in found if f" {namespace} 1 " in each["Labels"][OWNER]]
    finally:
        client.close()


def test_the_engine_says_what_cells_use(kernel: Kernel) -> None:
    first = kernel.run(f"kept = [1, 2]\n{HOARD}\nlen(kept)")
    assert first.result == "2"
    assert first.receipt["usage"]["source"] == "engine"
    assert any("once a second" in each for each in first.receipt["isolation"]["limitations"])
    busy = kernel.run("until = time.monotonic() + 5\nwhile time.monotonic() < until: pass")
    usage = busy.receipt["usage"]
    assert 5 - LATE_SECONDS < usage["cpu_seconds"] < 5.5, usage
    assert usage["memory_peak_bytes"] > 200 << 20, usage
    # The control: what does nothing uses nothing, though more than a second of it is measured.
    resting = kernel.run("time.sleep(3)").receipt["usage"]
    assert resting["cpu_seconds"] < 1, resting
    assert resting["memory_delta_bytes"] < 50 << 20, resting


def test_limits_hold_and_variables_are_kept(kernel: Kernel) -> None:
    assert kernel.run("kept = [1, 2]").status == "ok"
    hung = kernel.run_within({"wall": "500ms", "grace": "200ms"}, STUBBORN)
    assert hung.ename == "CellTimeout"
    assert hung.receipt["state"] == "rolled_back"
    busy = kernel.run_within({"cpu": "1s", "wall": "60s", "grace": "200ms"}, "while True: pass")
    assert busy.ename == "CellCpuExceeded", busy.evalue
    assert busy.receipt["usage"]["wall_seconds"] < 1 + LATE_SECONDS
    hungry = kernel.run_within({"memory": "96MiB", "wall": "60s"}, SLOWLY)
    assert hungry.met_memory_limit, hungry.evalue
    assert kernel.run("kept").result == "[1, 2]"


def test_a_cell_is_not_blamed_for_what_the_one_before_it_took(kernel: Kernel) -> None:
    """Which the engine may not have seen yet when the next one begins."""
    assert kernel.run(HOARD).status == "ok"
    after = kernel.run_within({"memory": "96MiB"}, "time.sleep(4)\nlen(hoard)")
    assert after.result == str(200 << 20)


def test_with_the_namespace_the_container_ends(kernel: Kernel) -> None:
    """Its keeper is killed with all else there, so it must end of itself: its lifeline is cut."""
    assert kernel.run("1 + 1").result == "2"
    wrapper = wrapper_of(kernel)
    # The control for all of this module: another namespace than the engine's, and ours.
    assert not Path(f"/proc/{wrapper}/ns/pid").samefile("/proc/self/ns/pid")
    namespace = containers_of_namespace(wrapper)
    assert len(namespace) == 1
    os.kill(wrapper, signal.SIGKILL)
    eventually(lambda: not is_running(wrapper), what="the wrapper's end")

    def left() -> list[str]:
        client = connect()
        try:
            return [each["Id"] for each in client.containers(all=True) if each["Id"] in namespace]
        finally:
            client.close()

    eventually(lambda: not left(), what="an end of the container")


@pytest.mark.container
def test_the_doctor_says_so() -> None:
    def found(*before: str) -> str:
        command = [*before, *COMMAND, "doctor", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        checks = json.loads(done.stdout)["checks"]
        return next(check["found"] for check in checks if check["name"] == "engine")

    assert "in another pid namespace" in found(*APART)
    assert "namespace" not in found(), "the control"
