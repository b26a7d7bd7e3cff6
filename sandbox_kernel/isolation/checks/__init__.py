"""What this host can do, looked at or tried piece by piece: nothing is changed, nothing hangs.

One module per subject; in each a function that answers with its checks. `sandbox-kernel doctor`
shows them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from sandbox_kernel.isolation.checks.base import Check, Host, together
from sandbox_kernel.isolation.checks.cgroups import check_cgroups
from sandbox_kernel.isolation.checks.engines import check_engines
from sandbox_kernel.isolation.checks.installation import check_installation
from sandbox_kernel.isolation.checks.kernel import check_kernel
from sandbox_kernel.isolation.checks.namespaces import check_namespaces
from sandbox_kernel.isolation.checks.root import check_root
from sandbox_kernel.isolation.engine import find_engines
from sandbox_kernel.paths import state_home

SUBJECTS: Final[Mapping[str, Callable[[Host], list[Check]]]] = {
    "namespaces": check_namespaces,
    "root": check_root,
    "kernel": check_kernel,
    "cgroups": check_cgroups,
    "engines": check_engines,
    "installation": check_installation,
}
# A subject has at most three questions, one after another, to programs that may hang.
_QUESTIONS: Final = 4


def this_host() -> Host:
    return Host(os.geteuid(), os.environ, state_home(), tuple(find_engines()))


def check_host(
    host: Host, subjects: Mapping[str, Callable[[Host], list[Check]]] = SUBJECTS
) -> list[Check]:
    """All checks, made at the same time. One that goes wrong is a check too, with what went wrong."""
    answers = together(
        [partial(check, host) for check in subjects.values()], _QUESTIONS * host.timeout_seconds
    )
    checks: list[Check] = []
    for name, answer in zip(subjects, answers, strict=True):
        if answer is None:
            checks.append(Check(name, "unknown", "the checks did not end in time"))
        elif isinstance(answer, Exception):
            found = f"the check itself failed: {type(answer).__name__}: {answer}"
            fix = "This is a mistake in sandbox-kernel: please report it, with this line."
            checks.append(Check(name, "unknown", found, fix))
        else:
            checks += answer
    return checks
