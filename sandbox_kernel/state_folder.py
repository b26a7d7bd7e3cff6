"""Opens the state folder and the folders in it, after a check that they are this user's alone.

Whatever creates or removes something below the state folder gets its descriptor here and works relative
to it: a name that leads elsewhere a moment later changes nothing. On the way there only links of root and
of this user are followed, and no folder is passed that strangers may write to: they could put another in
the place of the next one. A group that this user is in is no stranger: images of Jupyter open the home
folder to one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from sandbox_kernel.errors import SandboxUnavailable

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Also for folders that may be passed but not listed.
_PASS: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS: Final = 40  # as in Linux


def open_state_folder(home: Path) -> int:
    """A descriptor of the state folder, made if there is none.

    Raises ``SandboxUnavailable`` if it is not a folder of this user's alone, or somebody else could put
    another in its place; else ``OSError``.
    """
    above = _open_above(home)
    try:
        return open_folder_in(above, home)
    finally:
        os.close(above)


def open_folder_in(parent: int, path: Path) -> int:
    """The same for the folder ``path``, by its name in ``parent``, which is open."""
    with contextlib.suppress(FileExistsError):  # checked below, whoever made the folder
        os.mkdir(path.name, 0o700, dir_fd=parent)
    return _open_own(path, parent)


def make_folder(path: Path) -> None:
    """Make ``path``, a folder right in the state folder; raises as the others do."""
    home = open_state_folder(path.parent)
    try:
        os.close(open_folder_in(home, path))
    finally:
        os.close(home)


def _open_above(home: Path) -> int:
    """A descriptor of the folder that ``home`` is in, made if there is none."""
    names = [*reversed(home.absolute().parts[1:-1])]  # the next one last
    links = 0
    place = os.open("/", _PASS)
    try:
        # Where a user namespace knows no root, that is whoever owns the root folder.
        trusted = {0, os.geteuid(), os.fstat(place).st_uid}
        while names:
            name = names.pop()
            status = _look_at(name, place)
            if stat.S_ISLNK(status.st_mode):
                if status.st_uid not in trusted:
                    why = f"{name!r}, above it, is a symbolic link of uid {status.st_uid}"
                    raise _out_of_hand(home, why)
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(home))
                target = Path(os.readlink(name, dir_fd=place))
                names += reversed(target.parts)  # the first of an absolute one is "/"
                continue
            above = os.fstat(place)
            place, passed = os.open(name, _PASS, dir_fd=place), place
            os.close(passed)
            folder = os.fstat(place)
            if _is_shared(above) and folder.st_uid not in trusted:
                why = (
                    f"{name!r}, above it, is in a shared folder and belongs to uid {folder.st_uid}"
                )
                raise _out_of_hand(home, why)
            _see_that_strangers_cannot_write(folder, name, home)
    except BaseException:
        os.close(place)
        raise
    return place


def _look_at(name: str, folder: int) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _is_shared(folder: os.stat_result) -> bool:
    """Whether it is like ``/tmp``: everybody may put something there, and remove what is theirs."""
    return bool(folder.st_mode & stat.S_ISVTX and folder.st_mode & _WRITABLE_BY_OTHERS)


def _see_that_strangers_cannot_write(status: os.stat_result, name: str, home: Path) -> None:
    if _is_shared(status):
        return  # nobody can replace there what is another's
    groups = {0, os.getegid(), *os.getgroups()}
    if status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and status.st_gid not in groups
    ):
        mode = stat.S_IMODE(status.st_mode)
        why = f"other users may write to {name!r}, above it (mode {mode:04o})"
        raise _out_of_hand(home, why)


def _open_own(path: Path, parent: int) -> int:
    status = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise _foreign(path, "it is a symbolic link")
    if not stat.S_ISDIR(status.st_mode):
        raise _foreign(path, "it is not a folder")
    descriptor = os.open(path.name, _OPEN, dir_fd=parent)
    why = _reason_against(os.fstat(descriptor))
    if why is not None:
        os.close(descriptor)
        raise _foreign(path, why)
    return descriptor


def _reason_against(status: os.stat_result) -> str | None:
    if status.st_uid != os.geteuid():
        return f"it belongs to uid {status.st_uid}"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return f"other users may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _foreign(path: Path, why: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"sandbox-kernel does not keep its files in {path}: {why}. It has changed nothing there.",
        hint="Set SANDBOX_KERNEL_HOME to a folder of your own that nobody else can write to; or move "
        f"{path} away if you do not know it.",
    )


def _out_of_hand(home: Path, why: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"sandbox-kernel does not keep its files in {home}: {why}. It has changed nothing there.",
        hint="Set SANDBOX_KERNEL_HOME to a folder of your own that nobody else can replace.",
    )
