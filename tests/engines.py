"""Engines of a test's own, to be killed, frozen or of another kind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from docker import APIClient
from docker.errors import NotFound

from sandbox_kernel.isolation.engine import connect
from tests.kernel import IMAGE, eventually, is_running

ENSURE = Path(__file__).parent.parent / "scripts" / "ensure-engine"
UP_SECONDS = 60
# An image of some 100 MiB is put together before the first byte of it comes.
SAVE_SECONDS = 300
STARTS = 4


@dataclass
class OwnEngine:
    """A Docker engine in a directory of its own."""

    directory: Path

    @property
    def address(self) -> str:
        return f"unix://{self.directory}/docker.sock"

    @property
    def env(self) -> Mapping[str, str]:
        return {"DOCKER_HOST": self.address}

    def start(self) -> None:
        """As a service manager does: a containerd that looks for dead containers may be too slow."""
        for _ in range(STARTS):
            command = [str(ENSURE), str(self.directory)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
        raise AssertionError(done.stderr)

    def pids(self) -> list[int]:
        """dockerd and its containerd; not the shims, which have the containers."""
        found = []
        for name in ("dockerd.pid", "exec/containerd/containerd.pid", "docker.pid"):
            file = self.directory / name
            if file.exists() and (text := file.read_text().strip()).isdecimal():
                found.append(int(text))
        return [pid for pid in found if is_running(pid)]

    def signal(self, number: int) -> None:
        for pid in self.pids():
            os.kill(pid, number)

    def kill(self) -> None:
        pids = self.pids()
        self.signal(signal.SIGKILL)
        eventually(lambda: not any(map(is_running, pids)), what="the engine is dead")

    def stop(self) -> None:
        """As its operator does."""
        command = [str(ENSURE), "--stop", str(self.directory)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def runtimes(self) -> set[str]:
        client = connect(self.address)
        try:
            return set(client.info()["Runtimes"])
        finally:
            client.close()

    def containers(self) -> list[str]:
        client = connect(self.address)
        try:
            return [
                f"{each['Names']} of {each['Image']}: {each['Status']}, {each['Labels']}"
                for each in client.containers(all=True)
                if self._has(client, each["Id"])
            ]
        finally:
            client.close()

    def _has(self, client: APIClient, container: str) -> bool:
        """Whether there is anything of it: Docker 20.10, killed and started again, may list for ever one
        that it has removed twice at once. It is dead there, without a name, and has no files."""
        if (self.directory / "data" / "containers" / container).exists():
            return True
        try:
            client.inspect_container(container)
        except NotFound:
            return False
        return True


@contextmanager
def own_engine() -> Iterator[OwnEngine]:
    # Short: what the engine puts below it must fit a unix socket's 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="e-", dir="/tmp"))
    engine = OwnEngine(directory)
    try:
        engine.start()
        yield engine
    finally:
        with suppress(subprocess.CalledProcessError):
            engine.stop()
        engine.kill()
        _clear(directory)


def _clear(directory: Path) -> None:
    """What an engine that was killed has left: who has its containers, and what is mounted."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended
                if str(directory).encode() in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{directory}/")]):
        subprocess.run(["umount", mount], check=False, capture_output=True)
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def podman_service() -> Iterator[str]:
    """The address of a Podman with storage of its own, which has the image of the tests."""
    directory = Path(tempfile.mkdtemp(prefix="p-", dir="/tmp"))
    # crun refuses hosts with both versions of cgroups.
    common = [
        *("podman", "--root", str(directory / "root"), "--runroot", str(directory / "run")),
        *("--runtime", "runc", "--cgroup-manager", "cgroupfs", "--storage-driver", "overlay"),
    ]
    address = f"unix://{directory}/podman.sock"
    service = None
    try:
        archive = directory / "image.tar"
        engine = connect(timeout=SAVE_SECONDS)
        try:
            _save(engine, archive)
        finally:
            engine.close()
        subprocess.run([*common, "load", "-q", "-i", archive], check=True, capture_output=True)
        archive.unlink()
        log = (directory / "log").open("wb")
        service = subprocess.Popen(
            [*common, "system", "service", "--time", "0", address], stdout=log, stderr=log
        )
        log.close()
        eventually((directory / "podman.sock").exists, within=UP_SECONDS, what="podman listens")
        yield address
    finally:
        if service is not None:
            service.terminate()
            service.wait(30)
        subprocess.run([*common, "rm", "-fa"], check=False, capture_output=True, timeout=60)
        _clear(directory)


def _save(engine: APIClient, archive: Path) -> None:
    with archive.open("wb") as file:
        for part in engine.get_image(IMAGE):
            file.write(part)
