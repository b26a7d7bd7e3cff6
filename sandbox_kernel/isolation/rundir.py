"""The run directory: sockets and boot files of one wrapper, gone when the wrapper is."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sandbox_kernel.isolation.guardian import Guardian
from sandbox_kernel.isolation.probe import home_not_writable
from sandbox_kernel.limits.cgroup_places import prefixes

_LOCK: Final = "lock"


class RunDirectory:
    """``<home>/run/<pid>-<random>``, mode 0700, with one subdirectory per sandbox.

    Its wrapper holds a lock on a file in it. So a directory whose lock can be had is abandoned (a power
    cut, say), and a pid, which means nothing on another host or in another namespace, decides nothing.
    A file: on NFS, where homes are shared between hosts, locks of directories are known to one host only.
    """

    def __init__(self, home: Path) -> None:
        parent = home / "run"
        self.path = parent / f"{os.getpid()}-{os.urandom(4).hex()}"
        # Before there is anything to remove: a wrapper may be killed at any moment.
        self._guardian = Guardian(self.path, prefixes())
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            parent.chmod(0o700)
            with _locked(home / f"run.{_LOCK}"):
                _remove_abandoned(parent)
                self.path.mkdir(mode=0o700)
                # Both held open for the wrapper's life; on the second see `short`.
                self._lock = _lock(self.path / _LOCK)
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._guardian.close()
            raise home_not_writable(parent, error.strerror) from error
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
        remove_tree(self.path)
        os.close(self._descriptor)
        os.close(self._lock)
        self._guardian.close()


def remove_tree(path: Path) -> None:
    import shutil  # not on the way to a start

    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = _lock(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path, flags: int = 0) -> int:
    """A descriptor that holds the lock until it is closed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    for path in parent.iterdir():
        try:
            descriptor = _lock(path / _LOCK, fcntl.LOCK_NB)
        except OSError:
            continue  # in use, or being removed
        remove_tree(path)
        os.close(descriptor)
