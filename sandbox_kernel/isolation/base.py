"""The seam between the wrapper and an isolation level: a small contract, one class per level.

Values here are named tuples rather than dataclasses: that module costs a tenth of a kernel's start,
before the sandbox is on its way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.limits.cgroup import Cgroup


class SandboxFacts(NamedTuple):
    """What was achieved, as opposed to asked for. Shown in the banner."""

    level: str
    engine: str
    network: str
    working_directory: str
    notes: tuple[str, ...] = ()

    def summary(self) -> str:
        return f"{self.level} ({self.engine}) · network {self.network}"


class SandboxSpec(NamedTuple):
    """What a sandbox is asked to run."""

    working_directory: Path
    # The same folder, held open since the start: its name may lead elsewhere by now.
    working_descriptor: int
    python: Path
    # Files that must not be seen inside even where a visible directory holds them.
    secrets: tuple[Path, ...] = ()


class Sandbox(ABC):
    """One sandbox, from start to end. Called from the loop's thread only; nothing here blocks."""

    @abstractmethod
    def give(self, path: Path) -> None:
        """Let the sandbox use a file of the run directory, which has just been made."""

    @property
    @abstractmethod
    def facts(self) -> SandboxFacts: ...

    @abstractmethod
    def start(self, run_directory: Path) -> None:
        """Start it on ``run_directory``, mounted read-only inside.

        Raises ``SandboxUnavailable`` if it is known at once that it cannot run.
        """

    @property
    @abstractmethod
    def exit_descriptor(self) -> int:
        """Readable once the sandbox's outer process has ended."""

    @property
    @abstractmethod
    def console_descriptor(self) -> int:
        """Where the sandbox's own stdout and stderr can be read."""

    @property
    @abstractmethod
    def root_pid(self) -> int:
        """The host's pid of the process whose descendants are the sandbox."""

    @property
    def cgroup(self) -> Cgroup | None:
        """The cgroup that all its processes are in, for the meter; ``None``: ``/proc`` must do."""
        return None

    @abstractmethod
    def explain(self, console: str) -> SandboxUnavailable:
        """Why it ended before it was ready, from what it printed."""

    @abstractmethod
    def kill(self) -> None:
        """End every process in it, whatever they are doing, and collect the outer process."""
