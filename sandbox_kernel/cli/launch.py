"""`sandbox-kernel launch -f FILE`: start the kernel.

What is imported before the sandbox is on its way adds to the start of every kernel; all else (zmq,
the relay, even the reading of the connection file) happens while the sandbox boots.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandbox_kernel.errors import PolicyError, SandboxError, SandboxUnavailable
from sandbox_kernel.isolation.base import SandboxSpec
from sandbox_kernel.isolation.process import ProcessSandbox
from sandbox_kernel.isolation.rundir import RunDirectory
from sandbox_kernel.isolation.start import StartedSandbox, start_sandbox
from sandbox_kernel.log import log
from sandbox_kernel.paths import state_home

if TYPE_CHECKING:
    from sandbox_kernel.isolation.select import Chosen
    from sandbox_kernel.policy.model import Policy

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


class Launcher:
    """Starts sandboxes for one wrapper, in one run directory that ends with it."""

    def __init__(self, connection_file: Path, argv: Sequence[str]) -> None:
        self.session = os.urandom(16).hex()
        self._connection_file = connection_file
        self._argv = argv
        self._spec: SandboxSpec | None = None
        self._run_directory: RunDirectory | None = None
        self._policy: Policy | None = None
        self._chosen: Chosen | None = None

    def adopt(
        self, policy: Policy, first: StartedSandbox | SandboxError
    ) -> StartedSandbox | SandboxError:
        """Start what ``policy`` asks for. ``first`` was started before that was known, on trial.

        It is the level of nearly every kernel, and nothing has run in it: it is kept if it is the
        right one.
        """
        self._policy = policy
        try:
            if self._choose().level == "process":
                return first
        except SandboxUnavailable as error:
            problem: SandboxError | None = error
        else:
            problem = None
        if isinstance(first, StartedSandbox):
            first.close()
        if problem is not None:
            return problem
        try:
            return self.start()
        except SandboxUnavailable as error:
            return error

    def _choose(self) -> Chosen:
        from sandbox_kernel.isolation.select import choose_level

        assert self._policy is not None
        if self._chosen is None:
            self._chosen = choose_level(self._policy)
        return self._chosen

    def start(self) -> StartedSandbox:
        """A new sandbox; raises ``SandboxUnavailable``."""
        try:
            make = ProcessSandbox if self._policy is None else self._choose().make
            if self._spec is None:
                self._spec = self._make_spec()
            if self._run_directory is None:
                self._run_directory = RunDirectory(state_home())
            sandbox = make(self._spec)
            return start_sandbox(sandbox, self._run_directory, self.session, self._argv)
        except OSError as error:
            what = f"A sandbox cannot be prepared: {error}."
            hint = "See that the notebook's folder exists and the disk is not full; run the cell again."
            raise SandboxUnavailable(what, hint=hint) from error

    def _make_spec(self) -> SandboxSpec:
        working_directory = Path.cwd()
        secrets = [state_home(), self._connection_file]
        runtime = self._connection_file.parent
        if not working_directory.is_relative_to(runtime.resolve()):
            secrets.append(runtime)  # other kernels' connection files
        return SandboxSpec(
            working_directory=working_directory,
            working_descriptor=os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC),
            python=Path(sys.executable),
            secrets=tuple(secrets),
        )

    def close(self) -> None:
        if self._run_directory is not None:
            self._run_directory.close()


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
    launcher = Launcher(connection_file, passed_on)
    first: StartedSandbox | SandboxError | None = None
    try:
        try:
            first = launcher.start()
        except SandboxUnavailable as error:
            first = error
        return _serve(connection_file, launcher, first, policy, trust)
    finally:
        if isinstance(first, StartedSandbox):
            first.close()
        launcher.close()


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


def _serve(
    connection_file: Path,
    launcher: Launcher,
    first: StartedSandbox | SandboxError,
    policy_name: str | None,
    trust: str | None,
) -> int:
    from sandbox_kernel.policy.find import DEFAULT
    from sandbox_kernel.policy.levels import choose_policy
    from sandbox_kernel.policy.load import load_policy
    from sandbox_kernel.relay.connection import ConnectionFileError, ConnectionInfo
    from sandbox_kernel.relay.wire import Author

    start = launcher.start
    try:
        policy = load_policy(choose_policy(policy_name, os.environ, trust))
    except PolicyError as error:
        # No cell may run under a guess of what the policy meant, and the user must see why.
        if isinstance(first, StartedSandbox):
            first.close()
        first = refusal = error
        policy = load_policy(DEFAULT)

        def start() -> StartedSandbox:
            raise refusal

    else:
        first = launcher.adopt(policy, first)
    try:
        info = ConnectionInfo.load(connection_file)
        from sandbox_kernel.relay.wrapper import Wrapper

        wrapper = Wrapper(info, Author(launcher.session), start, policy)
    except ConnectionFileError as error:
        log(str(error))
        return 1
    wrapper.run(first)
    return 0
