"""Which policy a kernel gets: said outright, or through how far the notebook is trusted.

Only the operator says so: the command in kernel.json, the environment, Jupyter's configuration. What
lies beside the notebook has no say, and nothing here runs code: the configuration is JSON.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sandbox_kernel.errors import PolicyError
from sandbox_kernel.policy.find import DEFAULT, exists, read_trusted
from sandbox_kernel.policy.model import suggestion
from sandbox_kernel.policy.units import shown

POLICY_VARIABLE: Final = "SANDBOX_KERNEL_POLICY"
TRUST_VARIABLE: Final = "SANDBOX_KERNEL_TRUST"
CONFIG_NAME: Final = "sandbox_kernel_config.json"
CONFIG_CLASS: Final = "SandboxKernel"
SYSTEM_CONFIG: Final = (Path("/usr/local/etc/jupyter"), Path("/etc/jupyter"))
# How far a notebook is trusted, and the policy that follows.
TRUST: Final[Mapping[str, str]] = {
    "untrusted": "strict",
    "unknown": DEFAULT,
    "trusted": "trusted",
}


class Choice(NamedTuple):
    """A policy's name or path, and who said so, if anybody did."""

    policy: str
    said_by: str | None


def choose_policy(
    argument: str | None, environ: Mapping[str, str], trust: str | None = None
) -> str:
    """The policy's name or path: the command line's, the environment's, Jupyter's, or ``default``.

    Raises ``PolicyError``. An empty variable counts as unset, as is usual. An empty argument does
    not: it was meant to say something, and ``load_policy`` refuses it.
    """
    return choose(argument, environ, trust).policy


def choose(argument: str | None, environ: Mapping[str, str], trust: str | None = None) -> Choice:
    """The same, with who said so."""
    variables = [environ.get(name) or None for name in (POLICY_VARIABLE, TRUST_VARIABLE)]
    chosen = _said("the command line", "--policy", argument, "--trust", trust) or _said(
        "the environment", POLICY_VARIABLE, variables[0], TRUST_VARIABLE, variables[1]
    )
    return chosen or _configured(environ) or Choice(DEFAULT, None)


def _said(
    place: str, policy_key: str, policy: str | None, trust_key: str, trust: str | None
) -> Choice | None:
    """What one place says, which may be one or the other: both would leave open which holds."""
    if policy is not None and trust is not None:
        what = f"Both {policy_key} and {trust_key} are given by {place}."
        raise PolicyError(what, hint="Give one of them: a level of trust stands for a policy.")
    if policy is not None:
        return Choice(policy, f"{policy_key} of {place}")
    if trust is None:
        return None
    if trust not in TRUST:
        what = f"{trust_key} of {place}: {shown(trust)} is none of {', '.join(TRUST)}."
        raise PolicyError(what, hint=suggestion(trust, TRUST))
    return Choice(TRUST[trust], f"{trust_key} of {place}")


# Jupyter's configuration -----------------------------------------------------------------------


def _configured(environ: Mapping[str, str]) -> Choice | None:
    """What the first of Jupyter's configuration directories says that says anything."""
    for directory, is_beside_the_notebook in _config_directories(environ):
        path = directory / CONFIG_NAME
        if not exists(path, "configuration"):
            continue
        if is_beside_the_notebook:
            what = f"The configuration {path} is in the notebook's folder, which is not trusted."
            hint = "Move it to ~/.jupyter or /etc/jupyter, or mend JUPYTER_CONFIG_DIR and _PATH."
            raise PolicyError(what, hint=hint)
        settings = _read_config(path)
        chosen = _said(str(path), "policy", settings.get("policy"), "trust", settings.get("trust"))
        if chosen is not None:
            return chosen
    return None


def _config_directories(environ: Mapping[str, str]) -> Iterator[tuple[Path, bool]]:
    """Jupyter's own, each with whether it is the notebook's; the nearest to the user first.

    Written out, since importing jupyter_core takes some 15 ms of every start. Only a variable can
    point into the notebook's folder: home and the Python environment are the user's wherever they are.
    """
    if environ.get("JUPYTER_NO_CONFIG"):
        return
    given = environ.get("JUPYTER_CONFIG_PATH", "").split(os.pathsep)
    own = environ.get("JUPYTER_CONFIG_DIR", "")
    for text in filter(None, [*given, own]):
        yield Path(text), _is_beside_the_notebook(Path(text))
    home = os.path.expanduser("~")  # noqa: PTH111 - Path's own raises without a home
    fixed = [Path(home, ".jupyter")] if home.startswith("/") and not own else []
    if site.ENABLE_USER_SITE:
        fixed.append(Path(site.getuserbase(), "etc", "jupyter"))
    for path in (*fixed, Path(sys.prefix, "etc", "jupyter"), *SYSTEM_CONFIG):
        yield path, not path.is_absolute()


def _is_beside_the_notebook(path: Path) -> bool:
    try:
        return not path.is_absolute() or path.resolve().is_relative_to(Path.cwd())
    except (OSError, RuntimeError, ValueError):  # the folder is gone, a loop of links
        return True


def _read_config(path: Path) -> dict[str, str]:
    """What the file says of a policy: strictly, since a typo must not mean ``default``."""
    import json

    data = read_trusted(path, noun="configuration")
    try:
        document = json.loads(data.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _bad_config(path, f"not JSON: {error}") from error
    settings = _keys(path, "the file", document, (CONFIG_CLASS,)).get(CONFIG_CLASS, {})
    settings = _keys(path, CONFIG_CLASS, settings, ("policy", "trust"))
    for key, value in settings.items():
        if not isinstance(value, str) or not value:
            raise _bad_config(path, f"{key} is {shown(value)}, not a name")
    return settings


def _keys(path: Path, what: str, value: object, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _bad_config(path, f"{what} is {shown(value)}, not an object")
    for key in value:
        if key not in known:
            reason = f"{shown(key)} is not a key of {what}"
            raise _bad_config(path, reason, suggestion(key, known))
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "a key is there twice"
        raise ValueError(msg)
    return found


def _bad_config(path: Path, reason: str, hint: str = "") -> PolicyError:
    example = f'Write {{"{CONFIG_CLASS}": {{"trust": "unknown"}}}}, or a "policy" instead.'
    return PolicyError(f"The configuration {path} cannot be used: {reason}.", hint=hint or example)
