"""What a batch run keeps of a notebook's outputs: what can be saved, and no more than can be read again.

A kernel's messages are made from what a sandbox said. An output that is not kept becomes a notice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from sandbox_kernel.cli.notebook_file import (
    MAX_BYTES,
    MAX_CONTAINERS,
    MAX_DEPTH,
    count_containers,
)
from sandbox_kernel.outputs.receipt import RECEIPT_MIME

# An output is inside a cell, inside the list of cells, inside the notebook.
_LEVELS_ABOVE: Final = 5
# An object or list counts as so much, besides its characters of JSON: a notebook has room for as many as
# can be read again.
_CONTAINER_BYTES: Final = MAX_BYTES // MAX_CONTAINERS
_HIGHEST_COUNT: Final = 1 << 31
_OUTPUTS: Final = frozenset(
    {"stream", "display_data", "execute_result", "error", "update_display_data"}
)
_TOO_MUCH: Final = f"the notebook would hold more than {MAX_BYTES >> 20} MiB of outputs"


class NotKept(Exception):
    """An output is left out of the notebook; the text says why."""


class KeptOutputs:
    """The outputs of one notebook, as long as there is room for them."""

    def __init__(self, room_bytes: int = MAX_BYTES) -> None:
        self._room = room_bytes
        # By display id: what its outputs take, which all show the same. An update makes a copy of
        # itself of each, so a small message can take much room.
        self._displays: dict[str, int] = {}
        self._displayed = 0  # all of them
        # What the cells that have ended take, and all that the running one has shown.
        self._ended = 0
        self._running = 0

    def check(self, message: dict[str, Any], places: int) -> None:
        """Raise ``NotKept`` for a message whose output no notebook can hold.

        ``places`` is how many outputs have its display id already.
        """
        content = message["content"]
        if not _is_count(content.get("execution_count")):
            msg = "one has an execution count that is not a whole number"
            raise NotKept(msg)
        if message["msg_type"] not in _OUTPUTS:
            return
        size_bytes = _size_bytes(content, MAX_DEPTH - _LEVELS_ABOVE)
        if self._ended + self._running + size_bytes > self._room:
            raise NotKept(_TOO_MUCH)
        self._running += size_bytes
        name = (content.get("transient") or {}).get("display_id")
        if name:
            copies = size_bytes * (places + 1)
            displayed = self._displayed - self._displays.get(name, 0) + copies
            if displayed > self._room:
                raise NotKept(_TOO_MUCH)
            self._displays[name], self._displayed = copies, displayed

    def end_cell(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs of a cell that has ended, or what is kept of them where they are too much."""
        self._running = 0
        for kept in (outputs, [each for each in outputs if RECEIPT_MIME in each.get("data", {})]):
            size_bytes = _size_bytes(kept, MAX_DEPTH)
            if self._ended + size_bytes <= self._room:
                self._ended += size_bytes
                return kept if kept is outputs else [notice(_TOO_MUCH), *kept]
        return [notice(_TOO_MUCH)]


def notice(reason: str) -> Any:
    """An output that says that there was another."""
    from nbformat.v4 import new_output

    text = f"sandbox-kernel run: outputs of this cell are left out: {reason}.\n"
    return new_output("stream", name="stderr", text=text)


def _size_bytes(value: Any, most_levels: int) -> int:
    containers = count_containers(value, most_levels)
    if containers is None:
        msg = "one is nested too deeply for a notebook"
        raise NotKept(msg)
    try:
        return len(json.dumps(value, allow_nan=False)) + containers * _CONTAINER_BYTES
    except ValueError as error:
        msg = "one holds a number that JSON does not have"
        raise NotKept(msg) from error


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value < _HIGHEST_COUNT)
