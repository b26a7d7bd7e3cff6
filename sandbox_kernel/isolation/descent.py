"""How a wrapper started by root leaves root before bubblewrap starts.

The sandbox's uid must be able to reach what is visible, though it may lie in root's own folders and
be readable by root alone. So root first takes hold of each visible path as a detached mount: an
*idmapped* one where the kernel and the file system can (Linux ≥ 5.12), in which root's files belong
to the sandbox's uid, read-only and in this one view. The child then sets these mounts up in a mount
namespace of its own, changes to the uid for good and runs bubblewrap as any other user would.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

# Where the child mounts the views: covered by a tmpfs in the child's namespace only.
STAGE: Final = Path("/mnt")

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_IDMAP = 0x1, 0x100000
_MOVE_MOUNT_F_EMPTY_PATH: Final = 0x4
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000


class _MountAttr(ctypes.Structure):
    """``struct mount_attr``."""

    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")
    )


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class View(NamedTuple):
    """A detached mount of a visible path, and where the child will put it."""

    tree: int
    place: Path
    is_directory: bool

    def close(self) -> None:
        os.close(self.tree)


def take_hold(path: Path, name: str) -> View:
    """A detached copy of the mounts at ``path``, for the child to put at ``STAGE / name``."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE)
    tree = _check(_libc().syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags))
    return View(tree, STAGE / name, path.is_dir())


def give_to(view: View, user_namespace: int) -> None:
    """Make root's files in ``view`` belong to the one that ``user_namespace`` maps root to.

    Raises ``OSError`` where the kernel or the file system does not support it.
    """
    attributes = _MountAttr(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_IDMAP, 0, 0, user_namespace)
    _check(
        _libc().syscall(
            _MOUNT_SETATTR,
            view.tree,
            b"",
            ctypes.c_uint(_AT_EMPTY_PATH | _AT_RECURSIVE),
            ctypes.byref(attributes),
            ctypes.c_size_t(ctypes.sizeof(attributes)),
        )
    )


def descent(views: Sequence[View], uid: int, gid: int) -> Callable[[], None]:
    """A function for the child before exec: put the views in place, then leave root for good."""
    libc = _libc()

    def descend() -> None:
        _check(libc.unshare(_CLONE_NEWNS))
        _check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))
        stage = os.fsencode(STAGE)
        flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
        _check(libc.mount(b"tmpfs", stage, b"tmpfs", flags, b"mode=0755"))
        for view in views:
            view.place.mkdir() if view.is_directory else view.place.touch()
            move = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
            place = os.fsencode(view.place)
            _check(libc.syscall(_MOVE_MOUNT, view.tree, b"", _AT_FDCWD, place, move))
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)

    return descend


def namespace_mapping_root_to(uid: int, gid: int) -> int:
    """A descriptor of a user namespace in which on-disk root means ``uid`` and ``gid``."""
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    child = os.fork()
    if child == 0:
        # Only calls that are safe after a fork: no imports, no Python-level cleanup.
        os.close(hold_write)
        failed = _libc().unshare(_CLONE_NEWUSER)
        os.write(ready_write, bytes([ctypes.get_errno() if failed else 0]))
        os.read(hold_read, 1)  # until the parent has the namespace, or is no more
        os._exit(0)
    os.close(ready_write)
    os.close(hold_read)
    try:
        if code := os.read(ready_read, 1)[0]:
            raise OSError(code, os.strerror(code))
        Path(f"/proc/{child}/uid_map").write_text(f"0 {uid} 1\n")
        Path(f"/proc/{child}/gid_map").write_text(f"0 {gid} 1\n")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.close(hold_write)
        os.waitpid(child, 0)
