"""What the last kernel of a policy asked an engine for: the next one is started before its policy is read.

A guess, on which nothing rests: a container that turns out not to be what the policy asks for is thrown
away, and no cell has run in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.container import Allowance, Containers
from sandbox_kernel.isolation.engine import first_engine
from sandbox_kernel.isolation.hire import HiredKeeper
from sandbox_kernel.isolation.wanted import Wanted
from sandbox_kernel.paths import state_home
from sandbox_kernel.state_folder import make_folder


def recall(policy: str, keeper: HiredKeeper | None) -> Containers | None:
    """What was remembered under this name or path, if the engine is still the same.

    ``keeper`` is for the first of them.
    """
    try:
        document = json.loads(_path(policy).read_bytes())
        levels = tuple((level, runtime) for level, runtime in document["wanted"].pop("levels"))
        wanted = Wanted(levels=levels, **document["wanted"])
        allowance = Allowance(**document["allowance"])
        sha256, passed = str(document["policy"]), tuple(map(str, document["passed"]))
        if not levels or wanted.address != first_engine():
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SandboxUnavailable):
        return None  # there is none, or none that this version has written
    return Containers(wanted, allowance, sha256, passed, keeper)


def remember(policy: str, containers: Containers) -> None:
    path = _path(policy)
    document = {
        "wanted": containers.wanted._asdict(),
        "allowance": containers.allowance._asdict(),
        "policy": containers.policy_sha256,
        "passed": containers.passed,
    }
    draft = path.with_suffix(f".{os.getpid()}")
    # Else the next kernel starts a little later.
    with contextlib.suppress(OSError, SandboxUnavailable):
        make_folder(path.parent)
        draft.write_text(json.dumps(document))
        draft.replace(path)


def _path(policy: str) -> Path:
    return state_home() / "remembered" / f"{hashlib.sha256(os.fsencode(policy)).hexdigest()}.json"
