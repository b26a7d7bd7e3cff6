"""What can be done to a sandbox in which a cell has reached a limit, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from sandbox_kernel.limits.meter import Meter
from sandbox_kernel.relay.cells import RunningCell
from sandbox_kernel.relay.settle import Ending


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint has taken over: the state is the one after cell ``label``."""

    label: int
    not_restored: tuple[str, ...]
    # Whether more had been changed since, of which no checkpoint could be made.
    is_older: bool = False


class Ladder(Protocol):
    """What can be done to a sandbox, step by step."""

    # The last cell whose effects are in the state: said by the enforcer, and needed for an undo.
    finished: int

    @property
    def ready(self) -> bool: ...
    def meter(self) -> Meter | None: ...
    def interrupt(self) -> None: ...
    def sweep(
        self, since_ticks: int, done: Callable[[int], None], before_ticks: int | None = None
    ) -> None: ...
    def forget(self) -> None: ...
    def roll_back(
        self, to: int | Literal["previous"], done: Callable[[Restored | None], None]
    ) -> None: ...
    def replace(self, how: str) -> None: ...


class Concluding(Protocol):
    """Who is told how a cell ended."""

    def conclude(self, cell: RunningCell, ending: Ending) -> None: ...
    def notice(self, text: str, event: str) -> None: ...
