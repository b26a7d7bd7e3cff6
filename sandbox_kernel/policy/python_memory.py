"""What the names that earlier cells defined stand for."""

from __future__ import annotations

from collections.abc import Mapping

Standing = tuple[str, ...]  # qualified names; none for what a cell itself defined


class Memory:
    """What the names of earlier cells stand for.

    ``examine`` only proposes: nothing of a cell is kept until ``commit``, so that one that was denied
    leaves nothing. Not for several threads.
    """

    def __init__(self, most_names: int = 20_000) -> None:
        self._most_names = most_names
        self._kept: dict[str, Standing] = {}
        self._proposed: dict[str, Standing | None] = {}

    @property
    def names(self) -> frozenset[str]:
        """What earlier cells defined, as ``read_cell`` wants to know it."""
        return frozenset(self._kept)

    def begin(self) -> None:
        """Forget what was proposed: another cell is about to be examined."""
        self._proposed.clear()

    def propose(self, standings: Mapping[str, Standing | None]) -> None:
        """Names that the cell binds, or deletes (None)."""
        self._proposed.update(standings)

    @property
    def proposed(self) -> Mapping[str, Standing | None]:
        """What the cell that was examined last binds or deletes."""
        return dict(self._proposed)

    def commit(self) -> None:
        """Keep what was proposed: the cell runs."""
        for name, standing in self._proposed.items():
            self._kept.pop(name, None)
            if standing is not None:
                self._kept[name] = standing
        self._proposed.clear()
        for name in list(self._kept)[: max(0, len(self._kept) - self._most_names)]:
            del self._kept[name]

    def get(self, name: str) -> Standing | None:
        """What it stands for; None if no cell defined it."""
        if (standing := self._proposed.get(name)) is not None:
            return standing
        return self._kept.get(name)
