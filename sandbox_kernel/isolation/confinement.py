"""What holds a ``restricted`` sandbox: a narrower system call filter, and Landlock where there is one.

Planned here, by the wrapper; put on by ``inner/confine.py``, which ends the sandbox if it cannot. So
what is said of it is true of every sandbox that runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from sandbox_kernel.isolation import landlock, probe, view
from sandbox_kernel.isolation.seccomp import SeccompError, compile_profile
from sandbox_kernel.paths import SECCOMP, policies_directory

FILTER: Final = "filter.bpf"
_AF_UNIX: Final = 1
# What the other levels may allow, since what it could reach is not there. Owners, modes, times and
# attributes of files are nothing that Landlock looks at; the rest names processes and files past it.
_TAKEN_AWAY: Final = {
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat"),
    *("utime", "utimes", "utimensat", "setxattr", "lsetxattr", "fsetxattr"),
    *("removexattr", "lremovexattr", "fremovexattr", "truncate", "mknod", "mknodat"),
    "pidfd_send_signal",
}
_SOCKETS: Final = frozenset({"socket", "socketpair"})
_DEVICES: Final = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))


def engine(version: int) -> str:
    return "seccomp and Landlock" if version else "seccomp"


def plan(version: int, visible: Iterable[Path], run: str, home: str) -> dict[str, Any]:
    """For ``inner/confine.py``: what is ``visible`` can be read, ``home`` be written to.

    Held by Landlock, of which ``version`` is that of its interface; 0: there is none.
    """
    system = ("/usr", *view.SYSTEM_DIRECTORIES, *(f"/etc/{entry}" for entry in view.ETC_ENTRIES))
    return {
        "filter": f"{run}/{FILTER}",
        "landlock": version,
        "read": [*system, "/proc", run, *map(str, visible)],
        "write": [home],
        "devices": list(_DEVICES),
    }


def not_protected(version: int, *, shares_user: bool) -> Iterator[str]:
    """What a cell that gets past the check of its code can do all the same."""
    whose = "you" if shares_user else "everybody"
    if not version:
        also = ", and memory and environment of your other processes" if shares_user else ""
        yield f"files that {whose} may read or write{also} (this kernel has no Landlock)"
    elif version < landlock.TRUNCATION:
        yield f"files that {whose} may write being emptied (Linux before 6.2)"
    if shares_user and version < landlock.SIGNALS:
        yield "signals to your other processes, this kernel's among them (Linux before 6.12)"
    yield f"services of this host behind unix sockets that {whose} may use"
    yield "a full disk, a look at names of files and processes, bugs of the Linux kernel"


def compile_filter(profile: bytes | None = None) -> bytes:
    """The BPF program; raises ``SandboxUnavailable``."""
    try:
        if profile is None:
            profile = (policies_directory() / SECCOMP).read_bytes()
        return compile_profile(narrowed(profile))
    except (SeccompError, OSError, ValueError) as error:
        raise probe.filter_impossible(error) from error


def narrowed(profile: bytes) -> bytes:
    """``profile`` without a network, and without what only a namespace or a mount makes harmless."""
    document = json.loads(profile)
    entries = []
    for entry in document["syscalls"]:
        names = [name for name in entry["names"] if name not in _TAKEN_AWAY]
        if _SOCKETS.intersection(names) and not _is_for_unix(entry):
            continue
        if names:
            entries.append({**entry, "names": names})
    return json.dumps({**document, "syscalls": entries}).encode()


def _is_for_unix(entry: dict[str, Any]) -> bool:
    families = [arg.get("valueTwo") for arg in entry.get("args") or () if arg["index"] == 0]
    return families == [_AF_UNIX]
