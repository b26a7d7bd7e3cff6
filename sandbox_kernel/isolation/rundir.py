"""The run directory: sockets and boot files of one wrapper, gone when the wrapper is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from sandbox_kernel.isolation.guardian import MARK, Guardian
from sandbox_kernel.isolation.probe import home_not_writable
from sandbox_kernel.limits.cgroup_places import prefixes
from sandbox_kernel.state_folder import open_folder_in, open_state_folder

LOCK: Final = "lock"
_NAME: Final = re.compile(r"[0-9]+-[0-9a-f]{8}")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RunDirectory:
    """``<home>/run/<pid>-<random>``, mode 0700, with one subdirectory per sandbox.

    Its wrapper holds a lock on a file in it. So a directory whose lock can be had is abandoned (a power
    cut, say), and a pid, which means nothing on another host or in another namespace, decides nothing.
    A file: on NFS, where homes are shared between hosts, locks of directories are known to one host only.
    The file also says that a wrapper made the directory: nothing without it is ever removed.
    """

    def __init__(self, home: Path) -> None:
        parent = home / "run"
        self.path = parent / f"{os.getpid()}-{os.urandom(4).hex()}"
        name = self.path.name
        with ExitStack() as undo:
            try:
                home_folder = open_state_folder(home)
                undo.callback(os.close, home_folder)
                self._parent = open_folder_in(home_folder, parent)
                undo.callback(os.close, self._parent)
                # Before there is anything to remove: a wrapper may be killed at any moment.
                self._guardian = Guardian(self._parent, name, prefixes())
                undo.callback(self._guardian.close)
                with _locked(home_folder, f"run.{LOCK}"):
                    _remove_abandoned(self._parent)
                    os.mkdir(name, 0o700, dir_fd=self._parent)
                    # Both held open for the wrapper's life; on the first see `short`.
                    self._descriptor = os.open(name, _FOLDER, dir_fd=self._parent)
                    undo.callback(os.close, self._descriptor)
                    self._lock = _lock(self._descriptor, LOCK, os.O_CREAT | os.O_EXCL)
                    os.write(self._lock, f"{MARK}\n".encode())
            except OSError as error:
                raise home_not_writable(parent, error.strerror) from error
            undo.pop_all()
            os.close(home_folder)
        self._generation = 0

    def new_generation(self) -> Path:
        """A fresh subdirectory for one sandbox; others may enter it, but not the path to it."""
        self._generation += 1
        name = str(self._generation)
        os.mkdir(name, 0o700, dir_fd=self._descriptor)
        os.chmod(name, 0o711, dir_fd=self._descriptor)  # whatever the umask
        return self.path / name

    def short(self, path: Path) -> Path:
        """The same place by a name that fits a unix socket's 107 bytes; valid in this process."""
        return Path(f"/proc/self/fd/{self._descriptor}") / path.relative_to(self.path)

    def close(self) -> None:
        _remove(self._parent, self.path.name)
        os.close(self._descriptor)
        os.close(self._lock)
        os.close(self._parent)
        self._guardian.close()


def remove_tree(path: Path | str, parent: int | None = None) -> None:
    import shutil  # not on the way to a start

    shutil.rmtree(path, ignore_errors=True, dir_fd=parent)


def _remove(parent: int, name: str) -> None:
    """Remove a run directory; what says that it is one goes last, lest a part of it stay for ever."""
    with contextlib.suppress(OSError):  # the guardian, or the next start, tries again
        directory = os.open(name, _FOLDER, dir_fd=parent)
        try:
            for entry in os.listdir(directory):  # noqa: PTH208 - a descriptor
                if entry != LOCK:
                    remove_tree(entry, directory)
        finally:
            os.close(directory)
    remove_tree(name, parent)


@contextmanager
def _locked(folder: int, name: str) -> Iterator[None]:
    descriptor = _lock(folder, name, os.O_CREAT)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: int, name: str, flags: int = 0, wait: int = 0) -> int:
    """A descriptor of a file in ``folder`` that holds the lock until it is closed."""
    how = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, how | flags, 0o600, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | wait)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_abandoned(parent: int) -> None:
    for name in os.listdir(parent):
        # What others have put here stays as it is.
        if _NAME.fullmatch(name) is None:
            continue
        try:
            directory = os.open(name, _FOLDER, dir_fd=parent)
        except OSError:
            continue  # no directory, or being removed
        try:
            if os.fstat(directory).st_uid != os.geteuid():
                continue
            descriptor = _lock(directory, LOCK, wait=fcntl.LOCK_NB)
        except OSError:
            continue  # in use, being removed, or of another maker
        finally:
            os.close(directory)
        try:
            if _is_ours(descriptor):
                _remove(parent, name)
        finally:
            os.close(descriptor)


def _is_ours(lock: int) -> bool:
    status = os.fstat(lock)
    expected = f"{MARK}\n".encode()
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == os.geteuid()
        and os.pread(lock, len(expected) + 1, 0) == expected
    )
