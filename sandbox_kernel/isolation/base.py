"""The seam between the wrapper and an isolation level: a small contract, one class per level.

Values here are named tuples rather than dataclasses: that module costs a tenth of a kernel's start,
before the sandbox is on its way.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any, Final, NamedTuple

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation import view
from sandbox_kernel.limits.cgroup import Cgroup
from sandbox_kernel.limits.statistics import Statistics

# Above every range that systems and container engines hand out.
FIRST_UNRELATED_UID: Final = 1_900_000_000
# Of the host itself, by the kernel's own definition.
_FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
_MAX_PID: Final = 1 << 22
_CHANCE_BITS: Final = 27


def unrelated_uid() -> int:
    """One uid per wrapper, so that two sandboxes are strangers to each other.

    In a container of Jupyter's own a pid is not the wrapper's alone; there chance must do.
    """
    if os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE:  # noqa: PTH116 - on every start
        return FIRST_UNRELATED_UID + os.getpid()
    drawn = int.from_bytes(os.urandom(4)) >> (32 - _CHANCE_BITS)
    return FIRST_UNRELATED_UID + _MAX_PID + drawn


class SandboxFacts(NamedTuple):
    """What was achieved, as opposed to asked for. Shown in the banner."""

    level: str
    engine: str
    network: str
    working_directory: str
    notes: tuple[str, ...] = ()
    # What the level leaves open that others do not. In every receipt too.
    not_protected: tuple[str, ...] = ()
    # What does not work there as it does elsewhere, in plain words. In every receipt too.
    limitations: tuple[str, ...] = ()
    image: str = ""  # of a container: its id, which is a digest
    folder_shown: bool = True  # the working directory, or something in it

    def summary(self) -> str:
        return f"{self.level} ({self.engine}) · network {self.network}"


def preferred(levels: Iterable[str], what: str) -> str:
    """A note: these levels the policy would rather have, and ``what`` is why it has another."""
    return f"policy prefers {', '.join(levels)}: {what[:1].lower()}{what[1:].removesuffix('.')}"


class SandboxSpec(NamedTuple):
    """What a sandbox is asked to run."""

    working_directory: Path
    # The same folder, held open since the start: its name may lead elsewhere by now.
    working_descriptor: int
    python: Path
    # Files that must not be seen inside even where a visible directory holds them.
    secrets: tuple[Path, ...] = ()
    # Variables that the policy passes on.
    passed: tuple[str, ...] = ()


class Sandbox(ABC):
    """One sandbox, from start to end. Called from the loop's thread only; nothing here blocks."""

    # Whose uid and gid those inside have, if not the wrapper's own.
    _stand_in: int | None = None
    # Why it is of this level, if the policy prefers another: by whoever chose it. Among the notes.
    remarks: tuple[str, ...] = ()

    def give(self, path: Path) -> None:
        """Let the sandbox use a file of the run directory, which has just been made."""
        if self._stand_in is not None:
            os.chown(path, self._stand_in, self._stand_in)

    @property
    @abstractmethod
    def facts(self) -> SandboxFacts:
        """Asked for with every receipt: nothing of it is looked up on the host by then."""

    def place(self, run_directory: Path) -> str:
        """Where those inside find the run directory. Asked before the start."""
        return view.RUN

    def settings(self) -> dict[str, Any]:
        """What the supervisor is told beyond what all are."""
        return {}

    @abstractmethod
    def start(self, run_directory: Path) -> None:
        """Start it on ``run_directory``, mounted read-only inside.

        Raises ``SandboxUnavailable`` if it is known at once that it cannot run.
        """

    # On the host, with the sandbox's console as its stdout: bwrap, or who has the container.
    _outer: Popen[bytes] | None = None
    _exit_descriptor = -1

    def _watch(self, outer: Popen[bytes]) -> None:
        """``outer`` has just been started."""
        try:
            self._exit_descriptor = os.pidfd_open(outer.pid)
        except OSError:  # Linux before 5.3
            outer.kill()
            outer.wait()
            raise
        self._outer = outer
        os.set_blocking(self.console_descriptor, False)

    @property
    def exit_descriptor(self) -> int:
        """Readable once the sandbox's outer process has ended."""
        return self._exit_descriptor

    @property
    def console_descriptor(self) -> int:
        """Where the sandbox's own stdout and stderr can be read."""
        assert self._outer is not None
        assert self._outer.stdout is not None
        return self._outer.stdout.fileno()

    @property
    @abstractmethod
    def root_pid(self) -> int:
        """The host's pid of the process whose descendants are the sandbox."""

    # -- what is known of it only later, where another process starts it --------------------------

    @property
    def report_descriptor(self) -> int | None:
        """Readable when there is more to `hear`; ``None``: all is known when it has started."""
        return None

    def hear(self) -> bool:
        """Take in what was said; whether more may come."""
        return False

    @property
    def known(self) -> bool:
        """Whether ``facts``, ``root_pid`` and ``cgroup`` are what they will be."""
        return True

    @property
    def waiting(self) -> SandboxUnavailable | None:
        """What holds it up, if that is more than is normal."""
        return None

    @property
    def failed(self) -> bool:
        """Whether it will not come up, as was heard; ``explain`` says why."""
        return False

    @property
    def missing(self) -> Sequence[tuple[str, SandboxUnavailable]]:
        """Levels that this host turned out not to have, and why: another may be tried."""
        return ()

    @property
    def holds_cpus(self) -> bool:
        """Whether somebody else has limited its processors: ``failed`` if that should be so."""
        return False

    def contains(self, pid: int) -> bool:
        """Whether the process of this pid, which has opened the lifeline, is seen to be in it."""
        return True

    def ask_for_statistics(self, uid: int) -> str | None:
        """Have somebody else say what the sandbox uses; else why that cannot be.

        Who has opened the lifeline is a process of this user that cannot be seen from here.
        """
        return "there is nobody to ask"

    @property
    def supervisor_pid(self) -> int | None:
        """The host's pid of the supervisor, where no pid namespace tells which process it is."""
        return None

    @property
    def cgroup(self) -> Cgroup | None:
        """The cgroup that all its processes are in, for the meter; ``None``: ``/proc`` must do."""
        return None

    @property
    def statistics(self) -> Statistics | None:
        """What was said of its usage, after ``ask_for_statistics``; ``None``: nothing yet."""
        return None

    @abstractmethod
    def explain(self, console: str) -> SandboxUnavailable:
        """Why it ended before it was ready, from what it printed."""

    @abstractmethod
    def kill(self) -> None:
        """End every process in it, whatever they are doing, and collect the outer process."""
