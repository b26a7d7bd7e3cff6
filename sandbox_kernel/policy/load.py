"""Find, check and read a policy. Whatever is wrong with it, nothing is guessed: ``PolicyError``.

Importing this loads PyYAML, some 15 ms: do it while the sandbox boots.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, get_args

import yaml

from sandbox_kernel.errors import PolicyError
from sandbox_kernel.paths import policies_directory
from sandbox_kernel.policy import model
from sandbox_kernel.policy.model import Policy, Setting, suggestion
from sandbox_kernel.policy.units import UnitError, shown

POLICY_VARIABLE: Final = "SANDBOX_KERNEL_POLICY"
SYSTEM_DIRECTORY: Final = Path("/etc/sandbox-kernel/policies")
DEFAULT: Final = "default"
MAX_BYTES: Final = 64 * 1024
_MAX_DEPTH: Final = 8
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def choose_policy(argument: str | None, environ: Mapping[str, str]) -> str:
    """The policy's name or path: the command line's, the environment's, or ``default``.

    An empty variable counts as unset, as is usual. An empty argument does not: it was meant to say
    something, and ``load_policy`` refuses it.
    """
    return argument if argument is not None else environ.get(POLICY_VARIABLE) or DEFAULT


def load_policy(name_or_path: str) -> Policy:
    """The policy of that name in a trusted directory, or in the file at that absolute path.

    Raises ``PolicyError``; never falls back to another policy.
    """
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    source = _at_path(name_or_path) if is_path else _named(name_or_path)
    layers = _layers(source, above=())
    _check_complete(*layers[0])
    merged: dict[str, Any] = {}
    for _, settings in layers:
        for key, value in settings.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return Policy(
        name=source.name,
        sha256=hashlib.sha256(b"".join(layer.data for layer, _ in layers)).hexdigest(),
        limits=model.Limits(**merged["limits"]),
        budget=model.Budget(**merged["budget"]),
        checkpoint=merged["checkpoint"],
        annotate=merged["annotate"],
    )


class _Source(NamedTuple):
    """A policy file as it was read, once."""

    name: str
    path: Path
    data: bytes

    def refuse(self, mark: Any, what: str, hint: str) -> NoReturn:
        line = f", line {mark.line + 1}" if mark else ""
        what = f"{self.path}{line}: {what}."
        raise PolicyError(what, hint=hint)


# Which file ------------------------------------------------------------------------------------


def _at_path(text: str) -> _Source:
    path = Path(os.path.expanduser(text))  # noqa: PTH111 - Path's own raises without a home
    if not path.is_absolute():
        what = f"The policy path {shown(text)} is relative."
        hint = "Give an absolute path: the current folder is the notebook's, which is not trusted."
        raise PolicyError(what, hint=hint)
    # With its extension, so that no receipt takes a file called strict.yaml for the policy `strict`.
    return _Source(path.name, path, _read(path))


def _named(name: str) -> _Source:
    """``/etc`` first: an administrator may replace what is shipped. Then shipped, then the user's.

    A file in the home directory must not change what ``strict`` means; nor is it quietly passed
    over, since whoever put it there believes that it holds.
    """
    if not _NAME.fullmatch(name):
        what = f"{shown(name)} is not a name for a policy."
        raise PolicyError(what, hint="Use letters, digits, - and _; or an absolute path to a file.")
    system, shipped, *home = [directory / f"{name}.yaml" for directory in _directories()]
    found = [path for path in (system, shipped) if _exists(path)]
    own = [path for path in home if os.path.lexists(path)]
    if own and found:
        what = f"{own[0]} has the name of a policy in {found[0].parent}, which it cannot replace."
        raise PolicyError(what, hint=f"Rename it, to my-{name}.yaml for example, and choose that.")
    if not (found or own):
        names = {file.stem for directory in _directories() for file in directory.glob("*.yaml")}
        what = f"There is no policy named {shown(name)}."
        raise PolicyError(what, hint=suggestion(name, sorted(names)))
    path = (found or own)[0]
    return _Source(name, path, _read(path, shipped=path == shipped))


def _directories() -> list[Path]:
    """The system's, the shipped one, the user's. Never anything below the current directory."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    own = [Path(home, "sandbox-kernel", "policies")] if home.startswith("/") else []
    return [SYSTEM_DIRECTORY, policies_directory(), *own]


def _exists(path: Path) -> bool:
    """Whether it is there; one that cannot be looked at is not the same as none."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from error
    return True


# Its bytes -------------------------------------------------------------------------------------


def _read(path: Path, *, shipped: bool = False) -> bytes:
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
        raise _unreadable(path, error) from error
    if not regular or len(data) > MAX_BYTES:
        what = "larger than 64 KiB" if regular else "not a regular file"
        what = f"The policy {path} is {what}."
        raise PolicyError(what, hint="See that it is the right file.")
    # Whoever can write a shipped policy can write the code beside it: its mode proves nothing, and in
    # a shared environment its owner may be anybody.
    for place, found in places.items() if not shipped else ():
        _check_owner(place, found)
    return data


def _open(directory: int, name: str, flags: int) -> int:
    # Not blocking: a FIFO must not hang the start.
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=directory)


def _check_owner(path: Path, status: os.stat_result) -> None:
    # In a sticky directory others cannot replace a file that is not theirs.
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_uid not in (0, os.geteuid()):
        why, command = f"belongs to another user (uid {status.st_uid})", "chown"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
        why, command = "can be written by others than its owner", "chmod go-w"
    else:
        return
    what = f"The policy is not trusted: {path} {why}."
    hint = f"See that nobody changed the policy, then run `{command}` on what is named."
    raise PolicyError(what, hint=hint)


def _unreadable(path: Path, error: Exception) -> PolicyError:
    reason = getattr(error, "strerror", None) or str(error)
    return PolicyError(f"The policy {path} cannot be read: {reason}.", hint="Check path and mode.")


# What it says ----------------------------------------------------------------------------------


def _layers(source: _Source, above: tuple[str, ...]) -> list[tuple[_Source, dict[str, Any]]]:
    """The files a policy is made of, the base first, each with what it sets."""
    nodes = dict(_items(source, _compose(source), "the policy", [*_READERS, "extends"]))
    extends = nodes.pop("extends", None)
    settings = {key: _READERS[key](source, key, node) for key, node in nodes.items()}
    if extends is not None:
        parent = _text(source, "extends", extends)
        if source.name == DEFAULT or parent in (*above, source.name):
            what = f"{source.name} cannot extend {shown(parent)}: that leads back to itself"
            source.refuse(extends.start_mark, what, f"All policies extend {DEFAULT} in the end.")
        try:
            base = _named(parent)
        except PolicyError as error:
            source.refuse(extends.start_mark, f"extends: {error.what.rstrip('.')}", error.hint)
    elif source.name == DEFAULT:
        return [(source, settings)]
    else:
        base = _named(DEFAULT)
    return [*_layers(base, (*above, source.name)), (source, settings)]


def _check_complete(default: _Source, settings: Mapping[str, Any]) -> None:
    """Every chain begins with ``default``: a gap there must never come to mean "no limit"."""
    gaps = [key for key in _READERS if key not in settings]
    for section, table in _TABLES.items():
        given = settings.get(section, {})
        gaps += [f"{section}.{key}" for key, setting in table.items() if setting.field not in given]
    if gaps:
        what = f"the base of all policies does not say {', '.join(gaps)}"
        default.refuse(None, what, "State every key in it; `none` means no limit.")


def _compose(source: _Source) -> yaml.Node:
    try:
        text = source.data.decode()
        _refuse_indirection(source, text)  # first: composing is recursive, and follows aliases
        root: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    except UnicodeDecodeError as error:
        source.refuse(None, f"byte {error.start} is not UTF-8", "Save the file as UTF-8.")
    except yaml.YAMLError as error:
        said = [getattr(error, name, None) for name in ("context", "problem")]
        problem = " ".join(filter(None, said)) or "it holds a character that YAML forbids"
        hint = "Check indentation, colons and quotes there and in the line before."
        source.refuse(getattr(error, "problem_mark", None), f"not YAML: {problem}", hint)
    if root is None:
        source.refuse(
            None, "the file is empty", "Write `extends: default` if that is what it means."
        )
    return root


def _refuse_indirection(source: _Source, text: str) -> None:
    """Aliases can grow a page into gigabytes, tags change what is read: a policy needs neither."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if getattr(event, "anchor", None) is not None:
            source.refuse(event.start_mark, "anchors and aliases are refused", "Write it out.")
        if getattr(event, "tag", None) is not None:
            source.refuse(event.start_mark, "tags are refused", "Leave out what begins with `!`.")
        if depth > _MAX_DEPTH:
            source.refuse(event.start_mark, "nested too deeply", "See default.yaml for the form.")


def _items(
    source: _Source, node: yaml.Node, what: str, known: Collection[str]
) -> Iterator[tuple[str, yaml.Node]]:
    """The keys and values of a mapping whose keys are all known and there once."""
    if not isinstance(node, yaml.MappingNode):
        source.refuse(node.start_mark, f"{what} is not a mapping", f"Keys: {', '.join(known)}.")
    seen: dict[str, int] = {}
    for key, value in node.value:
        name = _text(source, f"a key of {what}", key)
        if name not in known:
            hint = suggestion(name, known)
            source.refuse(key.start_mark, f"{shown(name)} is not a key of {what}", hint)
        if name in seen:
            text = f"{name!r} is there twice, first in line {seen[name]}"
            source.refuse(key.start_mark, text, "Remove one of them.")
        seen[name] = key.start_mark.line + 1
        yield name, value


def _text(source: _Source, key: str, node: yaml.Node) -> str:
    """A scalar as it is written: what YAML 1.1 makes of `off`, `010` or `1:30` does not count."""
    if not isinstance(node, yaml.ScalarNode):
        source.refuse(node.start_mark, f"{key} is not a single value", "Write one word or number.")
    return str(node.value)


def _read_amounts(
    table: Mapping[str, Setting], source: _Source, section: str, node: yaml.Node
) -> dict[str, float | None]:
    amounts = {}
    for key, value in _items(source, node, section, table):
        try:
            amounts[table[key].field] = table[key].read(_text(source, key, value))
        except UnitError as error:
            hint = f"Write {table[key].wanted}."
            source.refuse(value.start_mark, f"{section}.{key}: {error}", hint)
    return amounts


def _read_choice(choices: tuple[str, ...], source: _Source, key: str, node: yaml.Node) -> str:
    if (text := _text(source, key, node)) not in choices:
        what = f"{key}: {shown(text)} is none of {', '.join(choices)}"
        source.refuse(node.start_mark, what, suggestion(text, choices))
    return text


# A new section: its table or its own reader here, its dataclass in model.py, and its argument in
# `load_policy`.
_TABLES: Final = {"limits": model.LIMITS, "budget": model.BUDGET}
_READERS: Final[Mapping[str, Callable[[_Source, str, yaml.Node], Any]]] = {
    **{section: partial(_read_amounts, table) for section, table in _TABLES.items()},
    "checkpoint": partial(_read_choice, get_args(model.Checkpoint)),
    "annotate": partial(_read_choice, get_args(model.Annotate)),
}
