"""What a policy would get of the engine that a start uses: asked as a start asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sandbox_kernel.errors import SandboxError
from sandbox_kernel.isolation.checks.base import Host
from sandbox_kernel.isolation.checks.engines import ask
from sandbox_kernel.isolation.checks.runtimes import named
from sandbox_kernel.isolation.engine_http import Engine
from sandbox_kernel.isolation.offer import NothingFound, choose
from sandbox_kernel.isolation.select import wanted_of

if TYPE_CHECKING:
    from sandbox_kernel.policy.model import Level, Policy


class Lack(NamedTuple):
    """Why a level cannot be had, and what to do about it."""

    why: str
    fix: str | None = None
    # A start would fail with it, and not go on to the next level.
    is_final: bool = False


class Offers:
    """The first engine of a host, which is the only one that a start asks."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def lack(self, policy: Policy, level: Level) -> Lack | None:
        """Why a container of this level, image and runtime could not be had; ``None``: it could."""
        if not self._host.engines:
            return Lack("needs an engine")
        address, timeout = self._host.engines[0], self._host.timeout_seconds
        try:
            wanted = wanted_of(policy, [level], address)
        except SandboxError as error:
            return Lack(f"cannot be asked for: {error.what}", error.hint, is_final=True)
        try:
            found = choose(Engine(address, timeout), wanted)
            if found.runtime is None:
                return None
            check = named(ask(address, timeout), found.runtime, self._host)
        except NothingFound as nothing:
            _, missing = nothing.missing[0]
            return Lack(f"cannot be had: {missing.what}", missing.hint)
        except SandboxError as error:
            return Lack(f"is not known to be there: {error.what}", error.hint, is_final=True)
        if check.status == "ok":
            return None
        how = "is not known to come up" if check.status == "unknown" else "would not come up"
        return Lack(f"{how}: {check.found}", check.fix, is_final=True)
