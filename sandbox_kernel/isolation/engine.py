"""Container engines: found by their sockets, spoken to in Docker's API, which Podman has too."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandbox_kernel.errors import SandboxUnavailable

if TYPE_CHECKING:
    from docker import APIClient

# An engine that says nothing for so long is taken to be frozen.
TIMEOUT_SECONDS: Final = 8.0
UNIX: Final = "unix://"
_DOCKER: Final = "docker.sock"
_SOCKETS: Final = (_DOCKER, "podman/podman.sock")
# Ordinary users have these on no path of theirs, and it is there that engines are installed.
_SYSTEM_PROGRAMS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_HINT: Final = (
    "Start Docker (`systemctl start docker`) or Podman (`systemctl start podman.socket`), or set "
    "DOCKER_HOST to its socket; `sandbox-kernel doctor` shows what was found."
)


def find_engines(
    environ: Mapping[str, str] = os.environ,
    run: Path = Path("/run"),
    programs: Sequence[str] = _SYSTEM_PROGRAMS,
) -> list[str]:
    """Addresses of engines, the first choice first; ``DOCKER_HOST`` is the only one if it is set.

    Where there is no socket but a Docker is installed, the one it would have: a daemon that was not
    started by systemd takes its socket along when it is stopped, and is not missing for that. Podman
    has no daemon: without a socket it is not meant to be used as an engine.
    """
    if address := environ.get("DOCKER_HOST"):
        return [address]
    own = environ.get("XDG_RUNTIME_DIR")
    directories = [Path(own), run] if own else [run]
    places = [directory / name for directory in directories for name in _SOCKETS]
    found = [f"{UNIX}{place}" for place in places if os.path.lexists(place)]
    path = os.pathsep.join([environ.get("PATH", os.defpath), *programs])
    if not found and shutil.which("dockerd", path=path):
        return [f"{UNIX}{run / _DOCKER}"]
    return found


def first_engine() -> str:
    """The address of the first choice; raises ``SandboxUnavailable``, also if it is seen to be stopped."""
    addresses = find_engines()
    if not addresses:
        what = "No container engine was found."
        raise SandboxUnavailable(what, hint=_HINT, missing=True)
    (address, *_) = addresses
    if address.startswith(UNIX) and not os.path.lexists(address.removeprefix(UNIX)):
        raise _stopped(address)
    return address


def connect(address: str | None = None, timeout: float = TIMEOUT_SECONDS) -> APIClient:
    """A client of an engine that has just answered; raises ``SandboxUnavailable``."""
    if address is None:
        address = first_engine()
    # Where nobody listens the client would say less, and leave its socket open.
    knock(address, timeout).close()
    from docker import APIClient
    from docker.errors import DockerException
    from requests import RequestException

    try:
        return APIClient(base_url=address, version="auto", timeout=timeout)
    except (DockerException, RequestException) as error:
        raise unreachable(address, error) from error


def knock(address: str, timeout: float) -> socket.socket:
    """A connection to an engine; raises ``SandboxUnavailable`` that says why there is none."""
    if not address.startswith(UNIX):
        what = (
            f"The container engine at {address} cannot be used: a sandbox is reached through sockets "
            "in a folder, so its engine must be on this machine."
        )
        hint = "Set DOCKER_HOST to a unix:// address, or leave it unset."
        raise SandboxUnavailable(what, hint=hint)
    knocking = socket.socket(socket.AF_UNIX)
    knocking.settimeout(timeout)
    try:
        knocking.connect(address.removeprefix(UNIX))
    except OSError as error:
        knocking.close()
        if isinstance(error, PermissionError):
            what = f"This user may not use the container engine at {address}."
            hint = (
                "Join its group (`usermod -aG docker $USER`, then log in again), which is as good "
                "as being root; or prefer the level `process`, which needs no engine."
            )
            raise SandboxUnavailable(what, hint=hint) from error
        if isinstance(error, FileNotFoundError):
            raise _stopped(address) from error
        raise unreachable(address, error) from error
    return knocking


def _stopped(address: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The container engine at {address} does not run: there is no such socket.", hint=_HINT
    )


def unreachable(address: str, error: Exception) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The container engine at {address} does not answer: {reason_of(error)}.", hint=_HINT
    )


def reason_of(error: BaseException) -> str:
    """The innermost reason, in one line: clients of HTTP wrap it many times."""
    explanation = getattr(error, "explanation", None)
    if explanation:
        return " ".join(str(explanation).split())
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return " ".join(str(getattr(error, "strerror", None) or error).split())
