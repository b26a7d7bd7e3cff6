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

from sandbox_kernel.isolation import credentials, hiding

HOME: Final = "/home/sandbox"
# Where the notebook's own folder is ``HOME``, which must not be writable then.
OTHER_HOME: Final = "/home/sandbox-kernel"
# What cells can write to. It ends with the sandbox.
WRITABLE: Final = ("/dev/shm", "/tmp", "/var/tmp", HOME)
RUN: Final = "/run/sandbox"
# Below it, what runs inside.
INNER: Final = "inner"
BOOT: Final = f"{RUN}/{INNER}/boot.py"

SYSTEM_DIRECTORIES: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Configuration, devices and sockets of the host: never shown as somebody's folder.
SYSTEM_STATE: Final = ("/dev", "/etc", "/proc", "/run", "/sys", "/var/run")
# What is in these belongs to programs and services, whoever starts a notebook there.
SYSTEM_FOLDERS: Final = (
    "/boot",
    "/opt",
    "/srv",
    "/usr",
    "/var",
    *SYSTEM_DIRECTORIES,
    *SYSTEM_STATE,
)
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
# Where Python, its packages and their data are, in the folder of an environment.
ENVIRONMENT_PARTS: Final = ("bin", "include", "lib", "lib32", "lib64", "share", "pyvenv.cfg")
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
    # The working directory, where that is not shown whole: an empty folder must stand there. It is
    # read-only, so that nobody saves something in it that ends with the sandbox.
    stand_in: Path | None = None


def plan_view(
    working_directory: Path,
    secrets: Iterable[Path],
    homes: Collection[Path],
    environ: Mapping[str, str],
    *,
    hides: bool = True,
) -> View:
    """Decide what is visible; raises ``SandboxUnavailable`` if too much beside Python must be hidden.

    ``secrets`` are files or directories hidden wherever they would show, ``homes`` folders that hold
    some; both are known by every name that leads to them. ``hides``: whether the sandbox can hide a part
    of a folder that it shows.
    """
    homes = _all_names(homes)
    notes: list[str] = []
    visible: list[Path] = []
    for path in _python_directories(environ):
        if _is_private(path, homes):
            parts = _environment_parts(path, homes)
            visible += parts
            what = "visible is only what Python is made of" if parts else "not visible"
            notes.append(f"{path} is on the Python path but holds more than packages: {what}")
        elif path.exists():
            visible.append(path)
    folder = plan_folder(working_directory, secrets, homes, hides=hides)
    notes += folder.notes
    visible = hiding.without_nested([*visible, *folder.read_only])
    others = [path for path in visible if path not in folder.read_only]
    needed = _python_needs()
    found = hiding.dispensable(
        [*_credentials(others), *_environment_credentials()], [*needed, working_directory]
    )
    wanted = hiding.inside([*_all_names(secrets), *folder.hidden, *found], [*visible, Path("/usr")])
    hidden = hiding.bounded(wanted, notes) if hides else wanted
    if too_much := [path for path in hidden if path not in wanted and hiding.holds(path, needed)]:
        raise hiding.too_many(too_much[0])
    visible = hiding.without(visible, hidden)
    stand_in = _stand_in(working_directory, visible)
    return View(
        tuple(visible), hiding.inside(hidden, [*visible, Path("/usr")]), tuple(notes), stand_in
    )


def plan_folder(
    working_directory: Path,
    secrets: Iterable[Path],
    homes: Collection[Path],
    *,
    hides: bool = True,
) -> View:
    """The part of it that is the notebook's folder: all of the host that a container sees."""
    secrets = _all_names(secrets)
    notes: list[str] = []
    visible: list[Path] = []
    if any(working_directory.is_relative_to(secret) for secret in secrets):
        notes.append(f"the working directory {working_directory} holds the kernel's secrets: empty")
    else:
        visible += _working_directory(working_directory, _all_names(homes), notes)
    needed = [*_python_needs(), working_directory]
    found = hiding.inside(
        hiding.dispensable(_folder_credentials(working_directory, visible), needed), visible
    )
    wanted = hiding.inside([*secrets, *found], visible)
    hidden = hiding.bounded(wanted, notes) if hides else wanted
    shown = hiding.without(visible, hidden)
    # What is not shown at all is hidden at every level.
    if named := [path for path in found if hides or path in visible]:
        notes.append(
            f"hidden, as they look like credentials: {hiding.listed(named, working_directory)}"
        )
    stand_in = _stand_in(working_directory, shown)
    return View(tuple(shown), hiding.inside(hidden, shown), tuple(notes), stand_in)


def _credentials(visible: Iterable[Path]) -> list[Path]:
    """Those right in the visible folders, and visible files that are one."""
    found: list[Path] = []
    for root in visible:
        found += [root] if credentials.is_credential(root) else credentials.in_folder(root)
    return found


def _folder_credentials(working_directory: Path, visible: Collection[Path]) -> list[Path]:
    if not visible:
        return []
    # Of a home folder each entry is visible by itself: what they are is said by the folder.
    found = [*credentials.in_folder(working_directory), *_credentials(visible)]
    own = [path for path in _prefixes() if path.is_relative_to(working_directory)]
    for prefix in (*own, *credentials.environments_in(working_directory)):
        found += credentials.in_environment(prefix)
    return found


def _environment_credentials() -> list[Path]:
    names = dict.fromkeys([*_prefixes(), Path("/usr/local")])
    return [found for prefix in names for found in credentials.in_environment(prefix)]


def _prefixes() -> list[Path]:
    return _all_names(map(Path, dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix))))


def _python_needs() -> list[Path]:
    """What must not be hidden, nor anything above it."""
    entries = [Path(entry) for entry in (sys.executable, *sys.path) if entry.startswith("/")]
    return [Path("/usr"), *_prefixes(), *_all_names(entries)]


def shows(view: View, folder: Path) -> bool:
    """Whether something of ``folder`` can be seen inside."""
    return any(folder.is_relative_to(path) or path.parent == folder for path in view.read_only)


def _stand_in(working_directory: Path, visible: Collection[Path]) -> Path | None:
    if any(working_directory.is_relative_to(root) for root in visible):
        return None
    # These are there, and read-only, in every sandbox and image.
    if str(working_directory) in ("/", *SYSTEM_DIRECTORIES, *SYSTEM_STATE):
        return None
    if any(working_directory.is_relative_to(root) for root in ("/proc", "/sys")):
        return None
    if any(working_directory in Path(place).parents for place in WRITABLE):
        return None
    return working_directory


def own_places(view: View) -> dict[str, str]:
    """Variables that say where else home and temporary files are, if a stand-in has their place."""
    if view.stand_in == Path("/tmp"):
        return {"TMPDIR": "/var/tmp"}
    if view.stand_in == Path(HOME):
        return {"HOME": OTHER_HOME, "IPYTHONDIR": f"{OTHER_HOME}/.ipython"}
    return {}


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


def _environment_parts(path: Path, homes: Collection[Path]) -> list[Path]:
    """The parts of a Python environment whose folder holds more, such as a home folder."""
    parts = [path / name for name in ENVIRONMENT_PARTS] if path in _prefixes() else []
    return [
        part
        for part in parts
        if part.exists() and not part.is_symlink() and not _is_private(part, homes)
    ]


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
            f"the working directory {path} is shared with others or holds your home: empty, and nothing "
            "can be saved in it (start Jupyter in a project's folder)"
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


def keeps_roots_files(path: Path, homes: Collection[Path], working_directory: Path) -> bool:
    """Whether what only root may read there stays root's, where root shows it to another user.

    The notebook's folder is root's own to show, unless it is the system's. Anything else is shown as any
    user sees it, but for a Python that is closed to all others: that would not run at all.
    """
    if path == working_directory or path.parent == working_directory:
        if any(path.is_relative_to(place) for place in (*_all_names(homes), Path("/var/tmp"))):
            return False
        return any(path.is_relative_to(place) for place in SYSTEM_FOLDERS)
    return all(_is_open(each) for each in (path, path / "bin", path / "lib", *_packages(path)))


def _packages(path: Path) -> list[Path]:
    return [each for each in map(Path, sys.path) if each != path and each.is_relative_to(path)]


def _is_open(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return True  # it is not there
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & needed == needed


def homes(environ: Mapping[str, str] = os.environ) -> set[Path]:
    """The user's home folder by both accounts; a container's user may have neither."""
    found = set()
    if environ.get("HOME"):
        found.add(Path(environ["HOME"]))
    with contextlib.suppress(KeyError):
        found.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return found


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
