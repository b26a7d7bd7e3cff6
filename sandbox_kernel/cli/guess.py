"""A guess at what a policy asks for, at the price of a glance: it decides what is started on trial.

Whatever it is, what counts is the policy as it is read a moment later.
"""

from __future__ import annotations

import os
import re
from typing import Final

from sandbox_kernel.paths import policy_directories

_POLICY_VARIABLE: Final = "SANDBOX_KERNEL_POLICY"
_ENGINE_FIRST: Final = re.compile(rb"\bprefer\s*:\s*(?:[\[-]\s*)?[\"']?(?:container|gvisor)\b")
_LOOKED_AT_BYTES: Final = 64 * 1024


def policy_named(option: str | None) -> str | None:
    """The name or path of the policy, if one is given."""
    return option or os.environ.get(_POLICY_VARIABLE) or None


def prefers_engine(named: str) -> bool:
    """Whether the policy's own file seems to prefer a container."""
    paths = [named] if "/" in named else [f"{each}/{named}.yaml" for each in policy_directories()]
    return any(_ENGINE_FIRST.search(_glance(path)) for path in paths)


def _glance(path: str) -> bytes:
    try:
        # Not blocking: a FIFO must not hang the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return b""  # who reads the policy says what is wrong with it
    try:
        return os.read(descriptor, _LOOKED_AT_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
