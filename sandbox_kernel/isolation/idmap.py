"""Read-only views of root's files for a sandbox that runs under another uid.

A wrapper started by root drops to an unrelated uid inside the sandbox, which then could not read a
notebook folder of mode 0700. An idmapped mount (Linux ≥ 5.12) shows root's files as owned by that
uid, in this one view, without touching them. Where the file system cannot, the caller is told.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_IDMAP = 0x1, 0x100000
_MOVE_MOUNT_F_EMPTY_PATH: Final = 0x4
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


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


def owner_view(path: Path, user_namespace: int) -> int:
    """A detached read-only copy of the mount at ``path`` in which root's files have another owner.

    Raises ``OSError`` where the kernel or the file system does not support it.
    """
    libc = _libc()
    tree = _check(
        libc.syscall(
            _OPEN_TREE,
            _AT_FDCWD,
            os.fsencode(path),
            ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE),
        )
    )
    attributes = _MountAttr(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_IDMAP, 0, 0, user_namespace)
    try:
        _check(
            libc.syscall(
                _MOUNT_SETATTR,
                tree,
                b"",
                ctypes.c_uint(_AT_EMPTY_PATH | _AT_RECURSIVE),
                ctypes.byref(attributes),
                ctypes.c_size_t(ctypes.sizeof(attributes)),
            )
        )
    except OSError:
        os.close(tree)
        raise
    return tree


def mounter(views: Sequence[tuple[int, Path]]) -> Callable[[], None]:
    """A function for the child before exec: its own mount namespace, with each view in place."""
    libc = _libc()
    targets = [(tree, os.fsencode(path)) for tree, path in views]

    def mount_views() -> None:
        _check(libc.unshare(_CLONE_NEWNS))
        _check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))
        for tree, target in targets:
            flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
            _check(libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, target, flags))

    return mount_views


def namespace_mapping_root_to(uid: int, gid: int) -> int:
    """A descriptor of a user namespace in which on-disk root means ``uid`` and ``gid``."""
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    child = os.fork()
    if child == 0:
        # Only calls that are safe after a fork: no imports, no Python-level cleanup.
        os.close(hold_write)
        status = _libc().unshare(_CLONE_NEWUSER)
        os.write(ready_write, b"0" if status == 0 else b"1")
        os.read(hold_read, 1)  # until the parent has the namespace, or is no more
        os._exit(0)
    os.close(ready_write)
    os.close(hold_read)
    try:
        if os.read(ready_read, 1) != b"0":
            msg = "user namespaces are not available"
            raise OSError(msg)
        Path(f"/proc/{child}/uid_map").write_text(f"0 {uid} 1\n")
        Path(f"/proc/{child}/gid_map").write_text(f"0 {gid} 1\n")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.close(hold_write)
        os.waitpid(child, 0)
