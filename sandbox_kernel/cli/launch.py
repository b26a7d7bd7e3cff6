"""`sandbox-kernel launch -f FILE`: start the kernel.

Nothing is imported here but what says what to start first: see ``launcher``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sandbox_kernel.cli.guess import policy_named, prefers_engine
from sandbox_kernel.log import log

USAGE: Final = (
    "usage: sandbox-kernel launch -f CONNECTION_FILE [--policy NAME|PATH | --trust LEVEL] "
    "[ipykernel option …]"
)
# Options of ipykernel that only change how cells run inside; the rest of its command line could
# redirect sockets, files or the kernel class.
PASSED_ON: Final = re.compile(
    r"--(HistoryManager\.(hist_file=:memory:|enabled=(True|False))"
    r"|InlineBackend\.\w+=.*|InteractiveShell\.\w+=.*|matplotlib=\w+|pylab=\w+)\Z"
)


def main(argv: Sequence[str]) -> int:
    arguments = list(argv)
    policy = _take_option(arguments, "--policy")
    trust = _take_option(arguments, "--trust")
    connection = _take_option(arguments, "-f")
    if not connection:
        print(USAGE, file=sys.stderr)
        return 2
    # What is put in the run directory is read by another user where root started the kernel; the
    # directory above it is for the owner alone.
    os.umask(0o022)
    connection_file = Path(connection).absolute()
    for option in arguments:
        if not PASSED_ON.match(option):
            log(f"ignored {option!r}: not an option that may reach the inner kernel")
    passed_on = [option for option in arguments if PASSED_ON.match(option)]
    named = policy_named(policy)
    engine_policy = named if named is not None and prefers_engine(named) else None
    keeper = None
    if engine_policy is not None:
        from sandbox_kernel.isolation.hire import hire

        keeper = hire()  # its interpreter starts while this one imports the rest
    from sandbox_kernel.cli.launcher import Launcher, serve

    return serve(Launcher(connection_file, passed_on, engine_policy, keeper), policy, trust)


def _take_option(arguments: list[str], name: str) -> str | None:
    """The value of an option, which is removed; ``None`` if it is not there.

    Both ``--policy strict`` and ``--policy=strict``: neither may come to mean ``default``. So an
    option without a value has the value "", which is refused like any that means nothing.
    """
    for place, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option != name:
            continue
        if not equals:
            value = "".join(arguments[place + 1 : place + 2])
            del arguments[place + 1 : place + 2]
        del arguments[place]
        return value
    return None
