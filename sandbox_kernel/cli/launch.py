"""`sandbox-kernel launch -f FILE`: start the kernel. The sandbox is on its way before zmq loads."""

from __future__ import annotations

import argparse
import re
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.base import SandboxSpec
from sandbox_kernel.isolation.process import ProcessSandbox
from sandbox_kernel.isolation.rundir import RunDirectory
from sandbox_kernel.isolation.start import StartedSandbox, start_sandbox
from sandbox_kernel.log import log
from sandbox_kernel.paths import state_home
from sandbox_kernel.relay.connection import ConnectionFileError, ConnectionInfo
from sandbox_kernel.relay.wire import Author

# Options of ipykernel that only change how cells run inside; the rest of its command line could
# redirect sockets, files or the kernel class.
PASSED_ON: Final = re.compile(
    r"--(HistoryManager\.(hist_file=:memory:|enabled=(True|False))"
    r"|InlineBackend\.\w+=.*|InteractiveShell\.\w+=.*|matplotlib=\w+|pylab=\w+)\Z"
)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="sandbox-kernel launch", allow_abbrev=False)
    parser.add_argument("-f", dest="connection_file", type=Path, required=True)
    options, extra = parser.parse_known_args(argv)
    passed_on = [option for option in extra if PASSED_ON.match(option)]
    for option in extra:
        if option not in passed_on:
            log(f"ignored {option!r}: not an option that may reach the inner kernel")
    try:
        info = ConnectionInfo.load(options.connection_file)
    except ConnectionFileError as error:
        log(str(error))
        return 1

    author = Author(session=uuid.uuid4().hex)
    run_directory: RunDirectory | None = None

    def start() -> StartedSandbox:
        nonlocal run_directory
        if run_directory is None:
            run_directory = RunDirectory(state_home())
        spec = SandboxSpec(
            working_directory=Path.cwd(),
            python=Path(sys.executable),
            secrets=(state_home(), options.connection_file.absolute()),
        )
        return start_sandbox(ProcessSandbox(spec), run_directory, author.session, passed_on)

    first: StartedSandbox | SandboxUnavailable
    try:
        first = start()
    except SandboxUnavailable as error:
        first = error
    try:
        # Imported now: the sandbox boots while zmq loads and the sockets are bound.
        from sandbox_kernel.relay.wrapper import Wrapper

        Wrapper(info, author, start).run(first)
    except ConnectionFileError as error:
        log(str(error))
        return 1
    finally:
        if isinstance(first, StartedSandbox):
            first.close()
        if run_directory is not None:
            run_directory.close()
    return 0
