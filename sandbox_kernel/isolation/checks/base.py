"""What a check of the host is, where it looks, and how it is kept from hanging."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from sandbox_kernel.errors import SandboxError
from sandbox_kernel.isolation.probe import read_sysctl

Status = Literal["ok", "missing", "refused", "unknown"]
_SAID_BYTES: Final = 64 * 1024
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Check:
    """What one look at the host has shown, and what to do if that is not as it should be."""

    name: str
    status: Status
    found: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """Where checks look. The defaults are this machine; tests make up others."""

    uid: int
    environ: Mapping[str, str]
    home: Path  # where state is kept
    engines: tuple[str, ...]  # addresses
    # Where Jupyter looks for kernelspecs; its own list if there is none here.
    kernel_directories: tuple[str, ...] | None = None
    proc: Path = Path("/proc")
    timeout_seconds: float = 10.0  # for one question to one program or engine

    @property
    def about(self) -> Path:
        """The kernel's files about this process."""
        return self.proc / "self"

    def setting(self, name: str) -> str | None:
        return read_sysctl(name, self.proc / "sys")


def failed(name: str, status: Status, error: SandboxError) -> Check:
    """A check that found what would keep a sandbox from starting, in the words a cell would get."""
    return Check(name, status, error.what.strip(), error.hint)


class Ran(NamedTuple):
    """How a program ended; ``None``: not in time."""

    code: int | None
    said: str


def run(
    command: Sequence[str],
    host: Host,
    *,
    environ: Mapping[str, str] | None = None,
    uid: int | None = None,
    executable: str | None = None,
    pass_fds: Sequence[int] = (),
) -> Ran:
    """Run a program to its end, as ``uid`` if root says so, but never longer than the timeout."""
    try:
        process = subprocess.Popen(
            command,
            executable=executable,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"} if environ is None else environ,
            pass_fds=pass_fds,
            start_new_session=True,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Ran(127, str(error))
    with process:
        try:
            output, _ = process.communicate(timeout=host.timeout_seconds)
        except subprocess.TimeoutExpired:
            # With all that it has started, which may hold the pipe; so nothing more is read.
            with contextlib.suppress(ProcessLookupError):  # ended just now
                os.killpg(process.pid, signal.SIGKILL)
            return Ran(None, "")
    return Ran(process.returncode, output[-_SAID_BYTES:].decode(errors="replace").strip())


def together(functions: Sequence[Callable[[], _T]], seconds: float) -> list[_T | Exception | None]:
    """What each function returns or raises, all called at once; ``None``: it takes too long.

    One that hangs is left behind in its thread, which ends with the process.
    """
    results: list[_T | Exception | None] = [None] * len(functions)

    def call(place: int, function: Callable[[], _T]) -> None:
        try:
            results[place] = function()
        except Exception as error:  # whatever it is, the caller tells it
            results[place] = error

    threads = [
        threading.Thread(target=call, args=(place, function), daemon=True)
        for place, function in enumerate(functions)
    ]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(results)
