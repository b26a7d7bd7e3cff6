"""Start a keeper, before or when it is known what it is to keep."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = str(Path(__file__).parent.parent.parent)
# Without `site`, which it does not need.
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv.pop()); "
    "from sandbox_kernel.isolation.keeper import main; main()"
)


class HiredKeeper(NamedTuple):
    """A process that waits for its order on stdin, and the descriptor that it reports to."""

    process: subprocess.Popen[bytes]
    report: int

    def order(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has not even started: its console says why
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()

    def ask_for_statistics(self) -> None:
        self.order(b"statistics")

    def dismiss(self) -> None:
        """Without stdin it ends, as soon as its container is removed, and is collected later."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        os.close(self.report)


def hire() -> HiredKeeper:
    report, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(write_end), _ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[write_end],
            cwd="/",
            # Not the wrapper's: a process's environment can be read by its whole life.
            env={"PATH": "/usr/bin:/bin"},
            # jupyter_client kills a kernel's whole process group.
            start_new_session=True,
        )
    finally:
        os.close(write_end)
    os.set_blocking(report, False)
    return HiredKeeper(process, report)
