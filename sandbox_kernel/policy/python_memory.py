"""What the names that earlier cells defined stand for, and the short texts among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

Standing = tuple[str, ...]  # qualified names; none for what a cell itself defined
Proposal = tuple[Mapping[str, Standing | None], Mapping[str, str]]

STARS: Final = "*"  # where modules are kept of which everything was imported: no name is spelt so
LONGEST_TEXT: Final = 200  # a path or a name, rather than data
_MOST_TEXTS: Final = 2000


class Memory:
    """What the names of earlier cells stand for.

    ``examine`` only proposes: nothing of a cell is kept until ``commit``, so that one that was denied
    leaves nothing. Not for several threads.
    """

    def __init__(self, most_names: int = 20_000) -> None:
        self._most_names = most_names
        self._kept: dict[str, Standing] = {}
        self._proposed: dict[str, Standing | None] = {}
        self._texts: dict[str, str] = {}
        self._proposed_texts: dict[str, str] = {}

    @property
    def names(self) -> Collection[str]:
        """What earlier cells defined, as ``read_cell`` wants to know it."""
        return self._kept.keys()

    def begin(self) -> None:
        """Forget what was proposed: another cell is about to be examined."""
        self._proposed.clear()
        self._proposed_texts.clear()

    def propose(self, standings: Mapping[str, Standing | None], texts: Mapping[str, str]) -> None:
        """Names that the cell binds, or deletes (None), and those of them that are a known text."""
        self._proposed.update(standings)
        for name in standings:
            self._proposed_texts.pop(name, None)
        self._proposed_texts.update(texts)

    @property
    def proposed(self) -> Proposal:
        """What the cell that was examined last binds or deletes."""
        return dict(self._proposed), dict(self._proposed_texts)

    def commit(self) -> None:
        """Keep what was proposed: the cell runs."""
        for name, standing in self._proposed.items():
            self._kept.pop(name, None)
            self._texts.pop(name, None)
            if standing is not None:
                self._kept[name] = standing
        self._texts.update(self._proposed_texts)
        self.begin()
        while len(self._texts) > _MOST_TEXTS:
            del self._texts[next(iter(self._texts))]
        while len(self._kept) > self._most_names:
            del self._kept[next(iter(self._kept))]

    def get(self, name: str) -> Standing | None:
        """What it stands for; None if no cell defined it."""
        if (standing := self._proposed.get(name)) is not None:
            return standing
        return self._kept.get(name)

    def text(self, name: str) -> str | None:
        """The text that it is, as far as that is known."""
        if name in self._proposed:
            return self._proposed_texts.get(name)
        return self._texts.get(name)
