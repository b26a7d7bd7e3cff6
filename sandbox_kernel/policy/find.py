"""Which file a policy is, and its bytes: only from places that nobody else can write.

Whatever is wrong, nothing is guessed and no other file is taken instead: ``PolicyError``.
"""

from __future__ import annotations

import os
import re
import stat
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from sandbox_kernel.errors import PolicyError
from sandbox_kernel.paths import policy_directories
from sandbox_kernel.policy.model import suggestion
from sandbox_kernel.policy.units import shown

SYSTEM_DIRECTORY: Final = Path("/etc/sandbox-kernel/policies")
DEFAULT: Final = "default"
MAX_BYTES: Final = 64 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Source(NamedTuple):
    """A policy file as it was read, once."""

    name: str
    path: Path
    data: bytes

    def refuse(self, mark: Any, what: str, hint: str) -> NoReturn:
        line = f", line {mark.line + 1}" if mark else ""
        what = f"{self.path}{line}: {what}."
        raise PolicyError(what, hint=hint)


# Which file ------------------------------------------------------------------------------------


def find_policy(name_or_path: str) -> Source:
    """The policy of that name in a trusted directory, or the file at that absolute path."""
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    return _at_path(name_or_path) if is_path else find_named(name_or_path)


def find_named(name: str) -> Source:
    """``/etc`` first: an administrator may replace what is shipped. Then shipped, then the user's.

    A file in the home directory must not change what ``strict`` means; nor is it quietly passed
    over, since whoever put it there believes that it holds.
    """
    if not _NAME.fullmatch(name):
        what = f"{shown(name)} is not a name for a policy."
        raise PolicyError(what, hint="Use letters, digits, - and _; or an absolute path to a file.")
    system, shipped, *home = [directory / f"{name}.yaml" for directory in directories()]
    found = [path for path in (system, shipped) if exists(path)]
    own = [path for path in home if os.path.lexists(path)]
    if own and found:
        what = f"{own[0]} has the name of a policy in {found[0].parent}, which it cannot replace."
        raise PolicyError(what, hint=f"Rename it, to my-{name}.yaml for example, and choose that.")
    if not (found or own):
        what = f"There is no policy named {shown(name)}."
        raise PolicyError(what, hint=suggestion(name, policy_names()))
    path = (found or own)[0]
    return Source(name, path, read_trusted(path, shipped=path == shipped))


def policy_names() -> list[str]:
    """The names of all policies that can be chosen by name, usable or not."""
    return sorted({file.stem for directory in directories() for file in directory.glob("*.yaml")})


def directories() -> list[Path]:
    return policy_directories(SYSTEM_DIRECTORY)


def exists(path: Path, noun: str = "policy") -> bool:
    """Whether it is there; one that cannot be looked at is not the same as none."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, noun) from error
    return True


def _at_path(text: str) -> Source:
    path = Path(os.path.expanduser(text))  # noqa: PTH111 - Path's own raises without a home
    if not path.is_absolute():
        what = f"The policy path {shown(text)} is relative."
        hint = "Give an absolute path: the current folder is the notebook's, which is not trusted."
        raise PolicyError(what, hint=hint)
    # With its extension, so that no receipt takes a file called strict.yaml for the policy `strict`.
    return Source(path.name, path, read_trusted(path))


# Its bytes -------------------------------------------------------------------------------------


def read_trusted(path: Path, *, shipped: bool = False, noun: str = "policy") -> bytes:
    """The bytes of a regular file of bounded size that, unless shipped, nobody else can change.

    A link is as good as the directory it stands in. What it points to is looked at by descriptor, so
    that what is checked is what was read.
    """
    try:
        real = path.resolve(strict=True)
        directory = os.open(real.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            opener = partial(_open, directory)
            with open(real.name, "rb", opener=opener) as file:
                status, beside = os.fstat(file.fileno()), os.fstat(directory)
                regular = stat.S_ISREG(status.st_mode)
                data = file.read(MAX_BYTES + 1) if regular else b""
        finally:
            os.close(directory)
        places = {path.parent: path.parent.stat(), real.parent: beside, real: status}
    except (OSError, RuntimeError, ValueError) as error:  # also a loop of links, a NUL in the path
        raise _unreadable(path, error, noun) from error
    if not regular or len(data) > MAX_BYTES:
        what = "larger than 64 KiB" if regular else "not a regular file"
        what = f"The {noun} {path} is {what}."
        raise PolicyError(what, hint="See that it is the right file.")
    # Whoever can write a shipped policy can write the code beside it: its mode proves nothing, and in
    # a shared environment its owner may be anybody.
    for place, found in places.items() if not shipped else ():
        _check_owner(place, found, noun)
    return data


def _open(directory: int, name: str, flags: int) -> int:
    # Not blocking: a FIFO must not hang the start.
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=directory)


def _check_owner(path: Path, status: os.stat_result, noun: str) -> None:
    # In a sticky directory others cannot replace a file that is not theirs.
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_uid not in (0, os.geteuid()):
        why, command = f"belongs to another user (uid {status.st_uid})", "chown"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
        why, command = "can be written by others than its owner", "chmod go-w"
    else:
        return
    what = f"The {noun} is not trusted: {path} {why}."
    hint = f"See that nobody changed the {noun}, then run `{command}` on what is named."
    raise PolicyError(what, hint=hint)


def _unreadable(path: Path, error: Exception, noun: str) -> PolicyError:
    reason = getattr(error, "strerror", None) or str(error)
    return PolicyError(f"The {noun} {path} cannot be read: {reason}.", hint="Check path and mode.")
