"""The run directory: sockets and boot files of one wrapper, gone when the wrapper is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.guardian import Guardian


class RunDirectory:
    """``<home>/run/<pid>-<start time>``, mode 0700, with one subdirectory per sandbox."""

    def __init__(self, home: Path) -> None:
        parent = home / "run"
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            parent.chmod(0o700)
            _remove_abandoned(parent)
            self.path = parent / f"{os.getpid()}-{start_time(os.getpid())}"
            self.path.mkdir(mode=0o700)
        except OSError as error:
            what = f"The run directory under {parent} cannot be made: {error.strerror}."
            hint = "Make it writable, or set SANDBOX_KERNEL_HOME to a directory that is."
            raise SandboxUnavailable(what, hint=hint) from error
        self._guardian = Guardian(self.path)
        # Held open for the wrapper's life: see `short`.
        self._descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY)
        self._generation = 0

    def new_generation(self) -> Path:
        """A fresh subdirectory for one sandbox; others may enter it, but not the path to it."""
        self._generation += 1
        path = self.path / str(self._generation)
        path.mkdir()
        path.chmod(0o711)
        return path

    def short(self, path: Path) -> Path:
        """The same place by a name that fits a unix socket's 107 bytes; valid in this process."""
        return Path(f"/proc/self/fd/{self._descriptor}") / path.relative_to(self.path)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)
        self._guardian.close()


def start_time(pid: int) -> int:
    """When process ``pid`` started, in clock ticks: with the pid it names a process for good."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])


def _remove_abandoned(parent: Path) -> None:
    """Clear what a power cut left: a directory whose wrapper is no more."""
    for path in parent.iterdir():
        pid, _, started = path.name.partition("-")
        if pid.isdecimal() and started.isdecimal() and not _is_running(int(pid), int(started)):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int, started: int) -> bool:
    try:
        return start_time(pid) == started
    except FileNotFoundError:
        return False
