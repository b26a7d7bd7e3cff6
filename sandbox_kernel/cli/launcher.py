"""The first sandbox and those that replace it, and the wrapper that they are for.

What is imported before the sandbox is on its way adds to the start of every kernel; all else (zmq,
the relay, even the reading of the connection file) happens while the sandbox boots.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox_kernel.errors import PolicyError, SandboxError, SandboxUnavailable
from sandbox_kernel.isolation.base import Sandbox, SandboxSpec
from sandbox_kernel.isolation.rundir import RunDirectory
from sandbox_kernel.isolation.start import StartedSandbox, start_sandbox
from sandbox_kernel.log import log
from sandbox_kernel.paths import state_home

if TYPE_CHECKING:
    from sandbox_kernel.isolation.hire import HiredKeeper
    from sandbox_kernel.isolation.select import Maker, Selection
    from sandbox_kernel.policy.model import Policy
    from sandbox_kernel.relay.lifecycle import Starter


class Launcher:
    """Starts sandboxes for one wrapper, in one run directory that ends with it."""

    def __init__(
        self,
        connection_file: Path,
        argv: Sequence[str],
        engine_policy: str | None,
        keeper: HiredKeeper | None,
    ) -> None:
        self.session = os.urandom(16).hex()
        self.connection_file = connection_file
        self._argv = argv
        # What the policy is called if it seems to prefer an engine, and a keeper for that.
        self._name = engine_policy
        self._keeper = keeper
        self._spec: SandboxSpec | None = None
        self._run_directory: RunDirectory | None = None
        self._selection: Selection | None = None
        # Variables that the policy passes on.
        self._passed: tuple[str, ...] = ()
        # What the first sandbox is made with, before the policy is read.
        self._tried: Maker | None = None

    def begin(self) -> StartedSandbox | SandboxError | None:
        """Start what will be needed, as far as can be guessed before the policy is read.

        A sandbox of the level that nearly every kernel has, or a container as the policy's last kernel
        had it.
        """
        if self._name is None:
            from sandbox_kernel.isolation.process import ProcessSandbox

            self._tried = ProcessSandbox
        else:
            from sandbox_kernel.isolation.remembered import recall

            self._tried = recall(self._name, self._keeper)
            if self._tried is None:
                return None
            self._keeper = None  # it has it
        try:
            return self.start()
        except SandboxUnavailable as error:
            return error

    def adopt(
        self, policy: Policy, first: StartedSandbox | SandboxError | None
    ) -> StartedSandbox | SandboxError:
        """Start what ``policy`` asks for. ``first`` was started before that was known, on trial.

        Nothing has run in it: it is kept if it is right.
        """
        from sandbox_kernel.isolation.process import ProcessSandbox
        from sandbox_kernel.isolation.select import Selection

        self._passed = policy.environment
        if self._spec is not None:
            self._spec = self._spec._replace(passed=self._passed)
        self._selection, self._keeper = Selection(policy, self._keeper, self._tried), None
        try:
            make = self._selection.choose().make
            # A container that was tried has been given what is passed on.
            right = make is self._tried and (make is not ProcessSandbox or not self._passed)
            if right and first is not None:
                if isinstance(first, StartedSandbox):
                    first.sandbox.remarks = self._selection.remarks
                return first
            started: StartedSandbox | SandboxError = self.start()
            self._remember(make)
        except SandboxError as error:
            started = error
        finally:
            self._selection.dismiss()
        if isinstance(first, StartedSandbox):
            first.close()
        return started

    def _remember(self, make: Maker) -> None:
        if self._name is None:
            return
        from sandbox_kernel.isolation.container import Containers
        from sandbox_kernel.isolation.remembered import remember

        if isinstance(make, Containers):
            remember(self._name, make)

    def instead(self, failed: Sandbox, reason: SandboxUnavailable) -> StartedSandbox:
        """One of another level that the policy accepts, if this host has none of that of ``failed``.

        Else raises ``reason``.
        """
        if self._selection is None or not failed.missing:
            raise reason
        self._selection.exclude(failed.missing)
        return self.start()

    def start(self) -> StartedSandbox:
        """A new sandbox; raises ``SandboxUnavailable``."""
        try:
            make = self._tried if self._selection is None else self._selection.choose().make
            assert make is not None
            if self._spec is None:
                self._spec = self._make_spec()
            if self._run_directory is None:
                self._run_directory = RunDirectory(state_home())
            sandbox = make(self._spec)
            if self._selection is not None:
                sandbox.remarks = self._selection.remarks
            return start_sandbox(sandbox, self._run_directory, self.session, self._argv)
        except OSError as error:
            what = f"A sandbox cannot be prepared: {error}."
            hint = "See that the notebook's folder exists and the disk is not full; run the cell again."
            raise SandboxUnavailable(what, hint=hint) from error

    def _make_spec(self) -> SandboxSpec:
        working_directory = Path.cwd()
        secrets = [state_home(), self.connection_file]
        runtime = self.connection_file.parent
        if not working_directory.is_relative_to(runtime.resolve()):
            secrets.append(runtime)  # other kernels' connection files
        return SandboxSpec(
            working_directory=working_directory,
            working_descriptor=os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC),
            python=Path(sys.executable),
            secrets=tuple(secrets),
            passed=self._passed,
        )

    def dismiss(self) -> None:
        """No sandbox will be started."""
        if self._keeper is not None:
            self._keeper.dismiss()
            self._keeper = None

    def close(self) -> None:
        if self._run_directory is not None:
            self._run_directory.close()


class Refusing:
    """Starts no sandbox at all."""

    def __init__(self, reason: SandboxError) -> None:
        self._reason = reason

    def start(self) -> StartedSandbox:
        raise self._reason

    def instead(self, failed: Sandbox, reason: SandboxUnavailable) -> StartedSandbox:
        raise self._reason


def serve(launcher: Launcher, policy_name: str | None, trust: str | None) -> int:
    """Be the kernel, from its start to its end."""
    first: StartedSandbox | SandboxError | None = None
    try:
        first = launcher.begin()
        return _serve(launcher, first, policy_name, trust)
    finally:
        if isinstance(first, StartedSandbox):
            first.close()
        launcher.close()


def _serve(
    launcher: Launcher,
    first: StartedSandbox | SandboxError | None,
    policy_name: str | None,
    trust: str | None,
) -> int:
    import zmq

    from sandbox_kernel.relay.connection import ConnectionFileError, ConnectionInfo
    from sandbox_kernel.relay.frontend import FrontendSockets

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        info = ConnectionInfo.load(launcher.connection_file)
        # As early as can be: a client that finds nobody there tries again a tenth of a second later.
        frontend = FrontendSockets(context, info)
    except ConnectionFileError as error:
        context.destroy(linger=0)
        launcher.dismiss()
        log(str(error))
        return 1
    from sandbox_kernel.policy.find import DEFAULT
    from sandbox_kernel.policy.levels import choose_policy
    from sandbox_kernel.policy.load import load_policy
    from sandbox_kernel.relay.wire import Author

    starter: Starter = launcher
    try:
        policy = load_policy(choose_policy(policy_name, os.environ, trust))
    except PolicyError as error:
        # No cell may run under a guess of what the policy meant, and the user must see why.
        if isinstance(first, StartedSandbox):
            first.close()
        launcher.dismiss()
        first = error
        starter = Refusing(error)
        policy = load_policy(DEFAULT)
    else:
        first = launcher.adopt(policy, first)
    from sandbox_kernel.audit.log import AuditLog
    from sandbox_kernel.relay.wrapper import Wrapper

    audit = AuditLog(policy, launcher.session, state_home())
    author = Author(launcher.session)
    wrapper = Wrapper(context, frontend, info, author, starter, policy, audit)
    audit.open()
    wrapper.run(first)
    return 0
