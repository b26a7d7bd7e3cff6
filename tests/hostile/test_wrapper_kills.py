"""Wrappers killed at any moment, at every level, beside others: nothing is left, nobody is harmed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from docker.errors import NotFound

from sandbox_kernel.isolation.engine import connect
from sandbox_kernel.isolation.keeper import AFTERTHOUGHT_SECONDS
from sandbox_kernel.isolation.owner import OWNER, owner_label
from sandbox_kernel.limits.cgroup_places import PREFIX, directories_of, find_places
from sandbox_kernel.limits.meter import process_tree
from tests.kernel import (
    LEVELS,
    UNCHECKED,
    Kernel,
    eventually,
    is_running,
    isolation,
    running_kernel,
)
from tests.ports import connection_file
from tests.tiers import SEED, rounds

pytestmark = [pytest.mark.process, pytest.mark.container, pytest.mark.gvisor, pytest.mark.slow]

KILLS = rounds(200, push=12)
AT_ONCE = 3
# After its start: before, while and after its sandbox comes up.
LATEST_SECONDS = 3.0
GONE_SECONDS = 10.0


@contextmanager
def wrapper(policy: Path, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A wrapper as Jupyter starts it, without waiting for anything."""
    file = directory / f"{os.urandom(4).hex()}.json"
    connection_file(file)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sandbox_kernel", "launch", "-f", str(file)],
        env={**os.environ, "SANDBOX_KERNEL_POLICY": str(policy)},
        stderr=subprocess.DEVNULL,
        cwd=directory,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def write_policy(path: Path, level: str) -> Path:
    path.write_text(f"extends: {UNCHECKED}\n{isolation(level)}")
    path.chmod(0o600)
    return path


class Traces:
    """What can be left of wrappers: on the host, and in the engine."""

    def __init__(self, wrappers: Sequence[int]) -> None:
        self._wrappers = wrappers
        self._labels = [owner_label(wrapper) for wrapper in wrappers]
        self._pids: set[int] = set()
        self._cgroups: set[Path] = set()
        self.containers = 0
        self.volumes = 0

    def look(self) -> None:
        """At what there is now, while its owners live."""
        self._pids = {pid for wrapper in self._wrappers for pid in process_tree(wrapper)}
        containers, volumes = self._in_engine()
        for about in containers:
            self._cgroups |= cgroups_of(about)
        self.containers, self.volumes = len(containers), len(volumes)

    def left(self) -> list[object]:
        # A keeper that waits for a container's removal ends with it.
        running = [pid for pid in self._pids if is_running(pid)]
        return [*running, *self.left_later()]

    def left_later(self) -> list[object]:
        """The same, at a time when the pids may be those of others."""
        made = {path for wrapper in self._wrappers for path in cgroups_by(wrapper)}
        containers, volumes = self._in_engine()
        cgroups = [path for path in self._cgroups | made if path.exists()]
        return [*cgroups, *(about["Id"] for about in containers), *volumes]

    def _in_engine(self) -> tuple[list[dict[str, Any]], list[str]]:
        containers: list[dict[str, Any]] = []
        volumes: list[str] = []
        client = connect()
        try:
            for label in self._labels:
                ours = {"label": f"{OWNER}={label}"}
                for each in client.containers(all=True, filters=ours):
                    with suppress(NotFound):  # removed while we looked
                        containers.append(client.inspect_container(each["Id"]))
                volumes += [each["Name"] for each in client.volumes(filters=ours)["Volumes"] or ()]
        finally:
            client.close()
        return containers, volumes


def cgroups_by(wrapper: int) -> Iterator[Path]:
    """Those that a wrapper has made itself."""
    for _, places in find_places():
        for place in places.values():
            yield from place.glob(f"{PREFIX}{wrapper}-*")


def cgroups_of(container: dict[str, Any]) -> set[Path]:
    """Those that the engine has made."""
    about = Path(f"/proc/{container['State']['Pid']}/cgroup")
    try:
        directories = directories_of(about, Path("/proc/self/mountinfo"))
    except (FileNotFoundError, ProcessLookupError):  # it does not run yet, or no more
        return set()
    return {path for _, path in directories.values() if container["Id"] in path.name}


@pytest.mark.timeout(300 + 10 * KILLS)
def test_killed_wrappers_leave_nothing_and_harm_nobody(tmp_path: Path, state_home: Path) -> None:
    moments = random.Random(SEED)
    tmp_path.chmod(0o700)
    remembered = {level: write_policy(tmp_path / f"{level}.yaml", level) for level in LEVELS}
    with ExitStack() as stack:
        siblings: list[Kernel] = []
        for level in LEVELS:
            env = {"SANDBOX_KERNEL_POLICY": str(remembered[level])}
            kernel = stack.enter_context(running_kernel(cwd=tmp_path, env=env))
            kernel.run(f"mine = '{level}'")
            siblings.append(kernel)
        assert len(list((state_home / "remembered").iterdir())) == len(LEVELS) - 1, "by containers"
        beside = {path.name for path in (state_home / "run").iterdir()}
        killed = containers = volumes = 0
        victims: list[Traces] = []
        while killed < KILLS:
            levels = [moments.choice(LEVELS) for _ in range(min(AT_ONCE, KILLS - killed))]
            # The second start by a policy begins before that is read.
            again = [moments.random() < 0.5 for _ in levels]
            about = f"seed {SEED}, kill {killed}: {levels}, {again}"
            policies = [
                remembered[level] if known else write_policy(tmp_path / f"{killed}-{n}.yaml", level)
                for n, (level, known) in enumerate(zip(levels, again, strict=True))
            ]
            with ExitStack() as batch:
                started = [batch.enter_context(wrapper(policy, tmp_path)) for policy in policies]
                traces = Traces([process.pid for process in started])
                victims.append(traces)
                time.sleep(moments.uniform(0, LATEST_SECONDS))
                traces.look()
                for process in started:
                    os.kill(process.pid, signal.SIGKILL)
                    killed += 1
            containers += traces.containers
            volumes += traces.volumes

            def left(traces: Traces = traces) -> list[object]:
                directories = {path.name for path in (state_home / "run").iterdir()} - beside
                return [*directories, *traces.left()]

            eventually(
                lambda left=left: not left(),
                within=GONE_SECONDS,
                what=lambda about=about, left=left: f"{about}: {left()}",
            )
        for kernel, level in zip(siblings, LEVELS, strict=True):
            assert kernel.run("mine").result == f"'{level}'", "a sibling is unharmed"
        assert containers > 0, "some had a container when they were killed"
        assert volumes > 0, "and a volume"
        mine = Traces([kernel.wrapper_pid for kernel in siblings])
        mine.look()
        assert mine.containers == mine.volumes == len(LEVELS) - 1, "the control: siblings are seen"
        assert any(isinstance(each, Path) for each in mine.left()), "and their cgroups"

    def all_left() -> list[object]:
        traces = [each for traces in (mine, *victims) for each in traces.left_later()]
        return [*(state_home / "run").iterdir(), *traces]

    eventually(lambda: not all_left(), within=GONE_SECONDS, what=all_left)
    # A container may be made after a look that saw none: by an engine that was slow, or at the word of
    # a keeper that was hired at the last moment. So one more look, when all is over.
    time.sleep(AFTERTHOUGHT_SECONDS)
    assert all_left() == []
    print(f"{killed} wrappers killed, {containers} containers of theirs seen, none left")
