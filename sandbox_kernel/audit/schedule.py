"""When a kernel has anchors made: at intervals while it records something, and at its end.

Each is made by a short-lived process of its own, so that no cell waits for a disk elsewhere and the wrapper
does not carry the libraries for signatures.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from sandbox_kernel import children
from sandbox_kernel.log import log


class Anchors:
    """One kernel's anchors. Nothing here waits or raises."""

    def __init__(self, place: str, every_seconds: float, written: Callable[[], int]) -> None:
        self._place = place
        self._every_seconds = every_seconds
        self._written = written
        # Of records that this kernel has written: the last that is known to be anchored.
        self._anchored = 0
        # The processes that make one, each with the last record that it is sure to see.
        self._making: list[tuple[subprocess.Popen[bytes], int]] = []

    def begin(self, call_later: Callable[[float, Callable[[], None]], object]) -> None:
        """Make one every so often, by the timer of a loop."""
        if self._place == "none":
            return

        def due() -> None:
            self.make()
            call_later(self._every_seconds, due)

        call_later(self._every_seconds, due)

    def make(self) -> None:
        """Have the head anchored, if this kernel has recorded something since the last one that was made."""
        self._see_what_was_made()
        # If one is still being made, the place it writes to is slow: the next time comes.
        if self._wanted() and not self._making:
            self._start()

    def make_last(self) -> None:
        """The same at the kernel's end: no next time comes."""
        self._see_what_was_made()
        if self._wanted():
            self._start()

    def _wanted(self) -> bool:
        return self._place != "none" and self._written() > self._anchored

    def _see_what_was_made(self) -> None:
        for process, written in [*self._making]:
            status = process.poll()
            if status is None:
                continue
            self._making.remove((process, written))
            children.OWN.discard(process.pid)
            if status == 0:
                self._anchored = max(self._anchored, written)
            else:
                log(f"no anchor of the audit log could be made: exit status {status}")

    def _start(self) -> None:
        command = [
            *(sys.executable, "-P", "-m", "sandbox_kernel", "audit", "anchor"),
            "--to",
            self._place,
        ]
        try:
            # A session of its own: it outlives the kernel, whose group Jupyter kills.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            log(f"no anchor of the audit log could be made: {error}")
        else:
            children.OWN.add(process.pid)
            self._making.append((process, self._written()))
