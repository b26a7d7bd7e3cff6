"""Which level a kernel gets: the first that its policy prefers and this host has. Never a weaker one.

What is not known to be missing is not passed over: then there is no sandbox, for the time being. What
is missing and is passed over is told of in the notes of those that the kernel gets instead.

Chosen once, when the kernel starts: a sandbox that is lost is replaced by one of the same level, the
same image and the same engine, or by none. What an engine has is found out by the keeper of the first
sandbox, beside the wrapper: so a level may turn out to be missing after it was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from sandbox_kernel.errors import SandboxError, SandboxUnavailable
from sandbox_kernel.isolation.base import Sandbox, SandboxSpec, preferred

if TYPE_CHECKING:
    from sandbox_kernel.isolation.container import Containers
    from sandbox_kernel.isolation.hire import HiredKeeper
    from sandbox_kernel.isolation.wanted import Wanted
    from sandbox_kernel.policy.model import Level, Policy

_PINNED: Final = re.compile(r"(?P<name>.*)@(?P<digest>sha256:[0-9a-f]{64})\Z")
# Levels that an engine has.
OF_ENGINES: Final = ("container", "gvisor")

Maker = Callable[[SandboxSpec], Sandbox]


class Chosen(NamedTuple):
    """A level that this host has, as far as is known, and how to make a sandbox of it."""

    level: Level
    make: Maker


class Selection:
    """The levels that a policy accepts, tried in turn until one can be had."""

    def __init__(
        self,
        policy: Policy,
        keeper: HiredKeeper | None = None,
        tried: Maker | None = None,
    ) -> None:
        self._policy = policy
        # What a sandbox was made with already, on trial: if that is right, it is chosen.
        self._tried = tried
        # Hired before it was known whether it is needed.
        self._keeper = keeper
        self._begin()

    def _begin(self) -> None:
        self._left = _in_turn(self._policy.isolation.accepted)
        self._refused: list[tuple[str, SandboxError]] = []
        self._chosen: Chosen | None = None

    def choose(self) -> Chosen:
        """Raises ``SandboxError`` that says for each level why not; then it begins anew.

        The same with any error that does not say that a level is missing.
        """
        while self._chosen is None:
            if not self._left:
                error = self._none_left()
                self._begin()
                raise error
            levels = self._left.pop(0)
            try:
                self._chosen = Chosen(levels[0], self._maker(levels))
            except SandboxError as error:
                if not (isinstance(error, SandboxUnavailable) and error.missing):
                    self._begin()  # nobody knows whether it is there, or it may be soon
                    raise
                self._refused += [(level, error) for level in levels]
        return self._chosen

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why the kernel does not have what its policy prefers to what was chosen."""
        levels: dict[str, list[str]] = {}
        for level, error in self._refused:
            levels.setdefault(error.what, []).append(level)
        return tuple(preferred(names, what) for what, names in levels.items())

    def dismiss(self) -> None:
        """Nothing is chosen any more that would need the keeper that was hired."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.dismiss()

    def exclude(self, missing: Sequence[tuple[str, SandboxError]]) -> None:
        """What was chosen turned out not to be here."""
        self._refused += missing
        self._chosen = None

    def _maker(self, levels: Sequence[Level]) -> Maker:
        if levels[0] in OF_ENGINES:
            made = _containers(self._policy, levels, self._keeper)
            if isinstance(self._tried, type(made)) and self._tried.same_as(made):
                return self._tried
            self._keeper = None
            return made
        return _MAKERS[levels[0]](self._policy)

    def _none_left(self) -> SandboxError:
        reasons = dict.fromkeys(error.what for _, error in self._refused)
        if len(reasons) == 1:
            return self._refused[0][1]
        each = " ".join(f"{level}: {error.what}" for level, error in self._refused)
        hints = " ".join(dict.fromkeys(error.hint for _, error in self._refused if error.hint))
        what = (
            f"None of the levels that policy `{self._policy.name}` accepts can be had here. {each}"
        )
        return SandboxUnavailable(what, hint=hints)


def _in_turn(levels: Sequence[Level]) -> list[list[Level]]:
    """One at a time, but what one engine is asked for, it is asked for at once."""
    turns: list[list[Level]] = []
    for level in levels:
        if turns and level in OF_ENGINES and turns[-1][0] in OF_ENGINES:
            turns[-1].append(level)
        else:
            turns.append([level])
    return turns


def _restricted(policy: Policy) -> Maker:
    from sandbox_kernel.isolation.restricted import RestrictedSandbox, find_stand_in

    stand_in = find_stand_in()
    return lambda spec: RestrictedSandbox(spec, policy.code.imports, stand_in)


def _process(_: Policy) -> Maker:
    from sandbox_kernel.isolation.process import ProcessSandbox, find_bwrap

    find_bwrap()
    return ProcessSandbox


_MAKERS: Final[Mapping[str, Callable[[Policy], Maker]]] = {
    "restricted": _restricted,
    "process": _process,
}


def _containers(policy: Policy, levels: Sequence[Level], keeper: HiredKeeper | None) -> Containers:
    from sandbox_kernel.isolation.container import Allowance, Containers
    from sandbox_kernel.isolation.engine import first_engine

    limits = policy.limits
    allowance = Allowance(limits.hard_memory_bytes, limits.hard_tasks, limits.cpus)
    wanted = wanted_of(policy, levels, first_engine())
    return Containers(wanted, allowance, policy.sha256, policy.environment, keeper)


def wanted_of(policy: Policy, levels: Sequence[Level], address: str) -> Wanted:
    """What a policy asks an engine for at these levels; raises ``ImageError``."""
    from sandbox_kernel.isolation.images import FLAVORS, default_tag, recorded
    from sandbox_kernel.isolation.wanted import Wanted

    image = policy.isolation.image
    pin = _PINNED.match(image)
    name = image if pin is None else pin["name"]
    record = recorded(name)
    tag = default_tag(name) if name in FLAVORS else name
    runtimes = {"container": None, "gvisor": policy.isolation.runtime}
    return Wanted(
        address=address,
        levels=tuple((level, runtimes[level]) for level in levels),
        image=name,
        reference=tag if record is None else record.id,
        digest=None if pin is None else pin["digest"],
    )
