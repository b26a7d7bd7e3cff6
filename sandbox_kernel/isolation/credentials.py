"""Finds credentials in what a sandbox is about to be shown, so that they can be hidden.

Only where they are known to be kept, and never below: a walk through all packages would cost more than
the rest of a start. What is meant for the notebook's own programs, such as ``.env``, is not among them.
Files come and go meanwhile: what cannot be looked at is passed over.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandbox_kernel.isolation.hiding import MOST

# Files and folders that other programs keep keys, tokens and passwords in.
NAMES: Final = frozenset(
    (
        *(".aws", ".azure", ".boto", ".condarc", ".docker", ".dockercfg", ".gcloud"),
        *(".git-credentials", ".gnupg", ".htpasswd", ".kaggle", ".kube", ".my.cnf", ".mylogin.cnf"),
        *(".netrc", ".npmrc", ".oci", ".password-store", ".pgpass", ".pypirc", ".s3cfg"),
        *(".ssh", ".terraformrc", ".vault-token", "_netrc", "condarc", "kaggle.json", "pip.conf"),
        "pip.ini",
    )
)
# Files that hold nothing but keys, in forms that only their own programs read.
KEY_STORE_ENDINGS: Final = (".jks", ".keystore", ".p12", ".pfx", ".ppk")
# Files that hold a private key, or certificates, which are for everybody.
KEY_ENDINGS: Final = (".key", ".p8", ".pem")
_KEYS_OF_SSH: Final = ("id_dsa", "id_ecdsa", "id_ed25519", "id_rsa")
_JUPYTER: Final = "jupyter_"
_CONFIG_ENDINGS: Final = ("_config.json", "_config.py")
_PRIVATE_KEY: Final = b"PRIVATE KEY-----"
# A key may come last, behind a chain of certificates.
_KEY_FILE_BYTES: Final = 256 * 1024
# What a Python environment does not run without: never hidden, whatever its mode.
ENVIRONMENT_NEEDS: Final = frozenset(
    (
        *("bin", "conda-meta", "include", "lib", "lib32", "lib64", "libexec", "pyvenv.cfg"),
        *("sbin", "share", "ssl"),
    )
)
ENVIRONMENT_MARKS: Final = ("pyvenv.cfg", "conda-meta")
# Of a Python environment, where programs keep their configuration.
_CONFIGURATION: Final = "etc"
_SERVER_CONFIGURATION: Final = ("etc", "jupyter")
_MOST_FOLDERS: Final = 1000
# In one folder: each takes a while to look through, and a stranger's folder may hold any number.
_MOST_ENVIRONMENTS: Final = 8
_SYSTEM: Final = Path("/usr")


def in_folder(folder: Path) -> Iterator[Path]:
    """Those right in ``folder``, by their names; of a symlink, what it leads to."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - of any number
    except OSError:
        return  # not a folder, or not readable: nothing to look through
    number = 0
    for name in names:
        if _may_be_one(name) and (place := _behind(folder / name)) and _is_one(name, place):
            yield place
            number += 1
            if number > MOST:
                return  # the folder will be hidden as a whole


def is_credential(path: Path) -> bool:
    """Whether ``path`` itself, a file or folder, is one by its name and what it holds."""
    return _may_be_one(path.name) and _is_one(path.name, path)


def in_environment(prefix: Path) -> Iterator[Path]:
    """Those of a Python environment: by name, or because its other files are open to more users."""
    yield from in_folder(prefix)
    yield from in_folder(prefix / "share" / "jupyter")
    server = _behind(prefix.joinpath(*_SERVER_CONFIGURATION))
    if server is not None:
        yield server  # whole: nothing that runs in a kernel reads it
    try:
        # In an environment that is closed as a whole, each of its files is: then names alone decide.
        is_closed = is_private(prefix.stat().st_mode)
    except OSError:
        return
    folders = [prefix]
    for number, folder in enumerate(folders):
        if number == _MOST_FOLDERS:
            yield prefix / _CONFIGURATION  # too many to look at
            return
        for entry in _entries(folder):
            is_top = folder == prefix
            if is_top and entry.name in ENVIRONMENT_NEEDS:
                continue
            if entry.name in NAMES:
                if place := _behind(Path(entry.path)):
                    yield place
            elif not is_closed and _is_private_entry(entry):
                yield Path(entry.path)
            elif _is_folder(entry) and (not is_top or entry.name == _CONFIGURATION):
                folders += [Path(entry.path)] if Path(entry.path) != server else []


def environments_in(folder: Path) -> Iterator[Path]:
    """Python environments right in ``folder``, such as a project's ``.venv``."""
    found = [entry for entry in _entries(folder) if entry.is_symlink() or _is_folder(entry)]
    # Where a folder has any number of others, those that are called like one come first.
    found.sort(key=lambda entry: "env" not in entry.name)
    number = 0
    for entry in found[:_MOST_FOLDERS]:
        if number < _MOST_ENVIRONMENTS and _is_environment(Path(entry.path)):
            number += 1
            yield Path(entry.path)


def is_private(mode: int) -> bool:
    return not mode & (stat.S_IRWXG | stat.S_IRWXO)


def is_key(path: Path) -> bool:
    """Whether it is a private key: certificates have the same endings, and are for everybody."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True  # whoever cannot read it here must not inside
    try:
        return _PRIVATE_KEY in os.read(descriptor, _KEY_FILE_BYTES)
    except OSError:
        return False  # a folder, say
    finally:
        os.close(descriptor)


def _may_be_one(name: str) -> bool:
    return (
        name in NAMES
        or (name.startswith(_JUPYTER) and name.endswith(_CONFIG_ENDINGS))
        or name.lower().endswith(KEY_STORE_ENDINGS)
        or _may_be_key(name)
    )


def _may_be_key(name: str) -> bool:
    if name.lower().endswith(KEY_ENDINGS):
        return True
    is_copy = name.startswith(_KEYS_OF_SSH) and not name.endswith(".pub")
    return is_copy or (name.startswith("id_") and "." not in name)


def _is_one(name: str, place: Path) -> bool:
    return not _may_be_key(name) or is_key(place)


def _behind(path: Path) -> Path | None:
    """The file or folder at ``path``, or the one that a symlink there leads to; else ``None``.

    Not one that holds the symlink itself, and no program of the system: to hide that would hide more
    than credentials.
    """
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            folder = path.parent.resolve()
            target = Path(os.path.realpath(path, strict=True))
            if folder.is_relative_to(target) or target.is_relative_to(_SYSTEM):
                return None
            # By the name that the folder has in the view, if it lies in there.
            inside = target.is_relative_to(folder)
            path = path.parent / target.relative_to(folder) if inside else target
            mode = path.lstat().st_mode
    except OSError:
        return None
    return path if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_private_entry(entry: os.DirEntry[str]) -> bool:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return False  # gone since, or in a folder that cells cannot enter either
    return is_private(mode) and (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _is_environment(folder: Path) -> bool:
    return any(os.path.lexists(folder / mark) for mark in ENVIRONMENT_MARKS)
