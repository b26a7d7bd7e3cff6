"""``limits.cpus``: four busy processes get what the policy says, read from outside."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sandbox_kernel.limits.cgroup import Cgroup
from sandbox_kernel.limits.cgroup_places import find_places
from tests.cgroups import cgroup_of
from tests.kernel import Kernel, eventually, running_kernel

pytestmark = pytest.mark.slow

BUSY = (
    "import os, time\n"
    "for _ in range(4):\n"
    "    if not os.fork():\n"
    "        while True: pass\n"
    "time.sleep(0.2); print('busy', flush=True); time.sleep(60)"
)
SECONDS = 2.0
# Little: a busy machine may leave even an unlimited sandbox less than one processor.
CPUS = 0.1


def needs_share() -> None:
    if not any("cpu" in parents for _, parents in find_places()):
        pytest.skip("no cgroup with the cpu controller can be made here")


def account_of(kernel: Kernel) -> Cgroup:
    """The kernel's own account of the sandbox's time."""
    found = cgroup_of(kernel)
    assert found is not None
    return found


def make_busy(kernel: Kernel) -> None:
    kernel.client.execute(BUSY)
    while kernel.client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
        pass


def processors_used(kernel: Kernel) -> float:
    account = account_of(kernel)
    before, started = account.cpu_seconds(), time.monotonic()
    time.sleep(SECONDS)
    after = account.cpu_seconds()
    assert before is not None
    assert after is not None
    return (after - before) / (time.monotonic() - started)


@pytest.mark.parametrize(
    "level",
    [
        pytest.param("process", marks=pytest.mark.process),
        pytest.param("container", marks=pytest.mark.container),
    ],
)
def test_a_sandbox_keeps_no_more_processors_busy_than_it_may(level: str, tmp_path: Path) -> None:
    needs_share()
    policy = f"limits: {{cpus: {CPUS}}}\n"
    with running_kernel(level=level, policy=policy, cwd=tmp_path) as kernel:
        assert kernel.run("1").receipt["limits"]["cpus"] == CPUS
        make_busy(kernel)
        assert processors_used(kernel) < CPUS * 1.2
    # The control: the same without a limit.
    with running_kernel(level=level, cwd=tmp_path) as kernel:
        make_busy(kernel)
        eventually(lambda: processors_used(kernel) > CPUS * 1.2, within=30, what="more than that")


@pytest.mark.process
@pytest.mark.parametrize("cpus", ["0.000001", "0.001"])
def test_what_cannot_be_held_is_refused(cpus: str, tmp_path: Path) -> None:
    """Less than the kernel gives out: nothing runs, instead of running without the limit."""
    with running_kernel(policy=f"limits: {{cpus: {cpus}}}\n", cwd=tmp_path) as kernel:
        refused = kernel.run("1 + 1")
        assert refused.ename in ("SandboxUnavailable", "PolicyError")
        assert "cpus" in refused.evalue
        assert refused.status == "error"
