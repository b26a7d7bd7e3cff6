"""Which levels this host has, and which of them a policy gets: as a start would choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from sandbox_kernel.isolation.checks.base import Check
from sandbox_kernel.isolation.checks.engines import ENGINE, IMAGE
from sandbox_kernel.isolation.checks.installation import HOME, PYTHON
from sandbox_kernel.isolation.checks.kernel import FILTER, SECCOMP
from sandbox_kernel.isolation.checks.namespaces import BWRAP, USER_NAMESPACES
from sandbox_kernel.isolation.checks.root import LEAVING_ROOT
from sandbox_kernel.isolation.checks.runtimes import GVISOR
from sandbox_kernel.policy.model import Level

# From weak to strong, with the checks that each needs.
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "restricted": (PYTHON, HOME),
    "process": (BWRAP, USER_NAMESPACES, LEAVING_ROOT, SECCOMP, FILTER, PYTHON, HOME),
    "container": (ENGINE, IMAGE, HOME),
    "gvisor": (ENGINE, GVISOR, IMAGE, HOME),
}
_IN_THIS_BUILD: Final = get_args(Level)


@dataclass(frozen=True, slots=True)
class LevelHere:
    """Whether a level can run here, and why it cannot if so."""

    level: str
    available: bool
    why: str


@dataclass(frozen=True, slots=True)
class PolicyHere:
    """The level that a policy gets here; ``None``: it cannot run, and ``why`` says the reason."""

    policy: str
    prefer: tuple[str, ...]
    require: str | None
    level: str | None
    why: str


def levels_here(
    checks: Sequence[Check], in_this_build: Sequence[str] = _IN_THIS_BUILD
) -> list[LevelHere]:
    """Every level; of several checks of one name, as for engines, one is enough."""
    passed = {check.name for check in checks if check.status == "ok"}
    found = []
    for level, needs in NEEDS.items():
        lacking = [name for name in needs if name not in passed]
        if level not in in_this_build:
            why = "not in this build"
        else:
            why = f"needs {', '.join(lacking)}" if lacking else ""
        found.append(LevelHere(level, not why, why))
    return found


def level_for(
    prefer: Sequence[str], require: str, levels: Sequence[LevelHere]
) -> tuple[str | None, str]:
    """The first preferred level that can run and is not weaker than required; else the reasons."""
    strength = list(NEEDS)
    why = {here.level: here.why for here in levels}
    reasons = []
    for level in prefer:
        if strength.index(level) < strength.index(require):
            reasons.append(f"{level} is weaker than {require}")
        elif not why[level]:
            return level, ""
        else:
            reasons.append(f"{level} {why[level]}")
    return None, "; ".join(reasons)


def policies_here(levels: Sequence[LevelHere]) -> list[PolicyHere]:
    """Every policy that can be chosen by name."""
    from sandbox_kernel.errors import PolicyError
    from sandbox_kernel.policy.find import policy_names
    from sandbox_kernel.policy.load import load_policy

    found = []
    for name in policy_names():
        try:
            isolation = load_policy(name).isolation
        except PolicyError as error:
            found.append(PolicyHere(name, (), None, None, error.what))
            continue
        level, why = level_for(isolation.prefer, isolation.require, levels)
        found.append(PolicyHere(name, isolation.prefer, isolation.require, level, why))
    return found
