"""Which container engines there are and a client for one, until ``isolation.engine`` has both."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandbox_kernel.errors import SandboxUnavailable

if TYPE_CHECKING:
    from docker import APIClient

UNIX: Final = "unix://"


def find_engines(environ: Mapping[str, str] = os.environ, run: Path = Path("/run")) -> list[str]:
    """The addresses that the environment names, there or not, and of the usual sockets that are."""
    found = [environ[name] for name in ("DOCKER_HOST", "CONTAINER_HOST") if environ.get(name)]
    places = [run / "docker.sock", run / "podman" / "podman.sock"]
    if own := environ.get("XDG_RUNTIME_DIR"):
        places += [Path(own, "docker.sock"), Path(own, "podman", "podman.sock")]
    found += [f"{UNIX}{place}" for place in places if os.path.lexists(place)]
    return list(dict.fromkeys(found))


def connect(address: str, timeout: float = 10) -> APIClient:
    """A client of the engine at ``address``, which has answered; or ``SandboxUnavailable``."""
    from docker import APIClient
    from docker.errors import DockerException

    if not address.startswith(UNIX):
        what = f"The container engine at {address} is not on a unix socket of this machine."
        hint = f"Set DOCKER_HOST to one that is, such as {UNIX}/run/docker.sock."
        raise SandboxUnavailable(what, hint=hint)
    _reach(address, timeout)
    try:
        return APIClient(base_url=address, version="auto", timeout=timeout)
    except DockerException as error:
        what = f"The container engine at {address} gives no proper answer: {error}."
        hint = "See that it is Docker or Podman, and its log; `systemctl restart docker`."
        raise SandboxUnavailable(what, hint=hint) from error


def _reach(address: str, timeout: float) -> None:
    """Whether anybody listens, said more plainly than the client would."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(address.removeprefix(UNIX))
        except PermissionError as error:
            what = f"This user may not use the container engine at {address}."
            hint = (
                "Join its group (`usermod -aG docker $USER`, then log in again), which is as good "
                "as being root; or use an engine of your own: `systemctl --user start podman.socket`."
            )
            raise SandboxUnavailable(what, hint=hint) from error
        except OSError as error:
            what = f"No container engine answers at {address}: {error.strerror or error}."
            hint = "Start it (`systemctl start docker`, `systemctl start podman.socket`), or unset DOCKER_HOST."
            raise SandboxUnavailable(what, hint=hint) from error
