"""What of the host a sandbox may see: system libraries, the user's Python, the notebook's folder.

All of it read-only and nothing else. These functions only plan; ``process`` mounts.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import site
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

HOME: Final = "/home/sandbox"
RUN: Final = "/run/sandbox"
# Below it, what runs inside.
INNER: Final = "inner"
BOOT: Final = f"{RUN}/{INNER}/boot.py"

SYSTEM_DIRECTORIES: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Configuration, devices and sockets of the host: never shown as somebody's folder.
SYSTEM_STATE: Final = ("/dev", "/etc", "/proc", "/run", "/sys", "/var/run")
# Configuration that programs need and that says nothing about the host's users or secrets.
ETC_ENTRIES: Final = (
    "alternatives",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)
# Each is a mount, and as root a descriptor too, of which there are 1,024.
HOME_ENTRIES: Final = 500
ENVIRONMENT_ALLOWED: Final = frozenset(
    {
        "COLUMNS",
        "IPYKERNEL_CELL_NAME",
        "JPY_SESSION_NAME",
        "LANG",
        "LANGUAGE",
        "MKL_NUM_THREADS",
        "MPLBACKEND",
        "NUMEXPR_NUM_THREADS",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "PYDEVD_DISABLE_FILE_VALIDATION",
        "PYTHONHASHSEED",
        "PYTHONUTF8",
        "TERM",
        "TZ",
    }
)


class View(NamedTuple):
    """Host paths visible inside at the same place, and places there that must look empty."""

    read_only: tuple[Path, ...]
    hidden: tuple[Path, ...]
    notes: tuple[str, ...]


def plan_view(
    working_directory: Path,
    secrets: Iterable[Path],
    homes: Collection[Path],
    environ: Mapping[str, str],
) -> View:
    """Decide what is visible.

    ``secrets`` are files or directories hidden wherever they would show, ``homes`` folders that hold
    some; both are known by every name that leads to them.
    """
    homes = _all_names(homes)
    notes: list[str] = []
    visible: list[Path] = []
    for path in _python_directories(environ):
        if _is_private(path, homes):
            notes.append(f"{path} is on the Python path but holds more than packages: not visible")
        elif path.exists():
            visible.append(path)
    folder = plan_folder(working_directory, secrets, homes)
    visible = _without_nested([*visible, *folder.read_only])
    hidden = _hidden(_all_names(secrets), visible)
    return View(tuple(visible), hidden, (*notes, *folder.notes))


def plan_folder(working_directory: Path, secrets: Iterable[Path], homes: Collection[Path]) -> View:
    """The part of it that is the notebook's folder: all of the host that a container sees."""
    secrets = _all_names(secrets)
    notes: list[str] = []
    visible: list[Path] = []
    if any(working_directory.is_relative_to(secret) for secret in secrets):
        notes.append(f"the working directory {working_directory} holds the kernel's secrets: empty")
    else:
        visible += _working_directory(working_directory, _all_names(homes), notes)
    return View(tuple(visible), _hidden(secrets, visible), tuple(notes))


def _hidden(secrets: Iterable[Path], visible: Collection[Path]) -> tuple[Path, ...]:
    return tuple(path for path in secrets if any(path.is_relative_to(root) for root in visible))


def _all_names(paths: Iterable[Path]) -> list[Path]:
    """Each path as it was given and as it resolves: a home folder may be a symlink."""
    return list(dict.fromkeys(name for path in paths for name in (path, path.resolve())))


def _python_directories(environ: Mapping[str, str]) -> list[Path]:
    """Where this Python and its packages live: prefixes, and every extra directory on its path."""
    working_directory = Path.cwd()
    prefixes = [Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    listed = environ.get("PYTHONPATH", "").split(os.pathsep)
    extra = [Path(entry) for entry in (*sys.path, *listed, *_editable()) if entry]
    paths: list[Path] = []
    for path in (*prefixes, Path(sys.executable).resolve().parent.parent, *extra):
        if path != working_directory and path.is_absolute():
            # Both names: programs use the one they were given and the one it resolves to.
            paths += [path, path.resolve()]
    return [path for path in paths if not path.is_relative_to("/usr")]


def _editable() -> Iterator[str]:
    """Packages that setuptools finds by a hook, where a folder on the path would hold more than them."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("__editable__"):
            yield from getattr(module, "MAPPING", {}).values()


def _working_directory(path: Path, homes: Collection[Path], notes: list[str]) -> list[Path]:
    if path in homes and path != Path("/"):
        # The home folder holds keys and tokens: only its plain entries, as they are now.
        notes.append(
            f"{path} is your home folder: hidden files and later additions are not visible"
        )
        return _plain_entries(path, notes)
    if _is_private(path, homes):
        notes.append(
            f"the working directory {path} is shared with others or holds your home: empty"
        )
        return []
    return [path]


def _plain_entries(home: Path, notes: list[str]) -> list[Path]:
    """Folders first: each entry is a mount, of which there cannot be any number."""
    folders: list[Path] = []
    files: list[Path] = []
    for entry in sorted(home.iterdir()):
        if entry.name.startswith("."):
            continue
        try:
            mode = entry.lstat().st_mode
        except OSError as error:  # a mount whose server is gone, say
            notes.append(f"{entry} is not visible: {error.strerror}")
            continue
        # A symlink would show its target, wherever that is.
        if stat.S_ISDIR(mode):
            folders.append(entry)
        elif stat.S_ISREG(mode):
            files.append(entry)
    entries = [*folders, *files]
    if (more := len(entries) - HOME_ENTRIES) > 0:
        notes.append(
            f"{more} more in {home} are not visible, nearly all of them files: start Jupyter in a folder "
            "of its own"
        )
    return entries[:HOME_ENTRIES]


def _is_private(path: Path, homes: Collection[Path]) -> bool:
    """Whether showing ``path`` whole would show other people's files or the user's secrets."""
    if path == Path("/home") or any(home.is_relative_to(path) for home in homes):
        return True
    if any(path.is_relative_to(root) for root in SYSTEM_STATE):
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_ISVTX) and bool(mode & stat.S_IWOTH)


def homes(environ: Mapping[str, str] = os.environ) -> set[Path]:
    """The user's home folder by both accounts; a container's user may have neither."""
    found = set()
    if environ.get("HOME"):
        found.add(Path(environ["HOME"]))
    with contextlib.suppress(KeyError):
        found.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return found


def _without_nested(paths: Iterable[Path]) -> list[Path]:
    kept: list[Path] = []
    for path in sorted(set(paths), key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(root) for root in kept):
            kept.append(path)
    return kept


def plan_environment(
    environ: Mapping[str, str], visible: Iterable[Path], passed: Collection[str] = ()
) -> dict[str, str]:
    """The sandbox's whole environment: an allow-list and a few values of our own."""
    roots = [Path("/usr"), *visible]
    environment = plan_image_environment(environ, passed)
    python_path = [
        entry
        for entry in environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry and any(Path(entry).is_relative_to(root) for root in roots)
    ]
    if python_path:
        environment["PYTHONPATH"] = os.pathsep.join(python_path)
    if site.ENABLE_USER_SITE and any(
        Path(site.getusersitepackages()).is_relative_to(root) for root in roots
    ):
        environment["PYTHONUSERBASE"] = site.getuserbase()
    if sys.prefix != sys.base_prefix:
        environment["VIRTUAL_ENV"] = sys.prefix
    return environment | {"PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"}


def plan_image_environment(
    environ: Mapping[str, str], passed: Collection[str] = ()
) -> dict[str, str]:
    """The part of it that has nothing to do with where the host's Python is."""
    allowed = {
        name: value
        for name, value in environ.items()
        if name in ENVIRONMENT_ALLOWED or name.startswith("LC_") or name in passed
    }
    return allowed | {
        "HOME": HOME,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "TMPDIR": "/tmp",
        "IPYTHONDIR": f"{HOME}/.ipython",
    }
