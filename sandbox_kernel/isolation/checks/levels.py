"""Which levels this host has, and which of them a policy gets: as a start would choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from sandbox_kernel.isolation.checks.base import Check, Host, together
from sandbox_kernel.isolation.checks.engines import ENGINE, IMAGE
from sandbox_kernel.isolation.checks.installation import HOME, PYTHON
from sandbox_kernel.isolation.checks.kernel import FILTER, SECCOMP
from sandbox_kernel.isolation.checks.namespaces import BWRAP, USER_NAMESPACES
from sandbox_kernel.isolation.checks.offers import Lack, Offers
from sandbox_kernel.isolation.checks.root import CHANGING_USER, LEAVING_ROOT
from sandbox_kernel.isolation.checks.runtimes import GVISOR
from sandbox_kernel.policy.model import Level

if TYPE_CHECKING:
    from sandbox_kernel.policy.model import Policy

# From weak to strong, with the checks that each needs. Every level needs system call filters: one
# confines the process that reads commands and large cells.
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "restricted": (CHANGING_USER, SECCOMP, FILTER, PYTHON, HOME),
    "process": (BWRAP, USER_NAMESPACES, LEAVING_ROOT, SECCOMP, FILTER, PYTHON, HOME),
    "container": (ENGINE, IMAGE, SECCOMP, FILTER, HOME),
    "gvisor": (ENGINE, GVISOR, IMAGE, SECCOMP, FILTER, HOME),
}
# Which image and which runtime must be there is a policy's own matter.
_OF_POLICIES: Final = (IMAGE, GVISOR)
# What a start knows before it tries; all else turns out when it is too late for another level.
PASSED_OVER: Final = frozenset({(BWRAP, "missing"), (CHANGING_USER, "refused")})
# What to know of a level before one asks for it.
ABOUT: Final[Mapping[str, str]] = {
    "restricted": "only where a policy names it; weak: no namespaces, so it relies on the check of the "
    "code, system call filters and Landlock",
}


@dataclass(frozen=True, slots=True)
class LevelHere:
    """Whether a level can run here, and why it cannot if so."""

    level: str
    available: bool
    why: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class PolicyHere:
    """The level that a policy gets here; ``None``: it cannot run, and ``why`` says the reason."""

    policy: str
    prefer: tuple[str, ...]
    require: str | None
    level: str | None
    why: str
    # What the engine must be given for it; what the checks say is not said again.
    fix: str | None = None


def levels_here(checks: Sequence[Check]) -> list[LevelHere]:
    """Every level, as far as it does not depend on a policy."""
    found = []
    for level, needs in NEEDS.items():
        why = _lacking(needs, checks)
        found.append(LevelHere(level, not why, why, ABOUT.get(level, "")))
    return found


def _lacking(needs: Sequence[str], checks: Sequence[Check]) -> str:
    passed = {check.name for check in checks if check.status == "ok"}
    lacking = [name for name in needs if name not in passed]
    return f"needs {', '.join(lacking)}" if lacking else ""


def policy_here(policy: Policy, checks: Sequence[Check], offers: Offers) -> PolicyHere:
    """The first level that the policy prefers and accepts and a start would get; else the reasons."""
    isolation = policy.isolation
    reasons, fixes = [], []
    found = None
    for level in isolation.prefer:
        if level not in isolation.accepted:
            reasons.append(f"{level} is weaker than {isolation.require}")
            continue
        lack = _lack(policy, level, checks, offers)
        if lack is None:
            found = level
            break
        reasons.append(f"{level} {lack.why.removesuffix('.')}")
        fixes += [lack.fix] if lack.fix else []
        if lack.is_final:
            break
    why = "" if found else "; ".join(reasons)
    fix = " ".join(dict.fromkeys(fixes)) or None
    return PolicyHere(policy.name, isolation.prefer, isolation.require, found, why, fix)


def _lack(policy: Policy, level: Level, checks: Sequence[Check], offers: Offers) -> Lack | None:
    needs = [name for name in NEEDS[level] if name not in _OF_POLICIES]
    offered = offers.lack(policy, level) if ENGINE in needs else None
    if why := _lacking(needs, checks):
        if ENGINE in needs:
            # One that is there and does not say what it has is no reason for a start to go on.
            return Lack(why, is_final=offered is not None and offered.is_final)
        found = {(check.name, check.status) for check in checks if check.name in needs}
        return Lack(why, is_final=not found & PASSED_OVER)
    return offered


def policies_here(checks: Sequence[Check], host: Host) -> list[PolicyHere]:
    """Every policy that can be chosen by name."""
    from sandbox_kernel.policy.find import policy_names

    names = policy_names()
    offers = Offers(host)
    # At once, and not for ever: an engine may begin to hang at any moment.
    answers = together(
        [partial(_named, name, checks, offers) for name in names], 2 * host.timeout_seconds
    )
    found = []
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, Exception):
            raise answer
        silent = PolicyHere(name, (), None, None, "the engine does not answer any more")
        found.append(silent if answer is None else answer)
    return found


def policy_at(path: str, checks: Sequence[Check], host: Host) -> PolicyHere:
    """A policy that is chosen by its path."""
    (answer,) = together([partial(_named, path, checks, Offers(host))], 2 * host.timeout_seconds)
    if isinstance(answer, Exception):
        raise answer
    return answer or PolicyHere(path, (), None, None, "the engine does not answer any more")


def _named(name: str, checks: Sequence[Check], offers: Offers) -> PolicyHere:
    from sandbox_kernel.errors import PolicyError
    from sandbox_kernel.policy.load import load_policy

    try:
        policy = load_policy(name)
    except PolicyError as error:
        return PolicyHere(name, (), None, None, error.what)
    return policy_here(policy, checks, offers)
