"""Ask an engine again and again what a container uses, without waiting for its answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any, Final

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.engine_http import Engine, EngineRefusal
from sandbox_kernel.limits.statistics import parse

# From one question to the next; Docker looks no more often itself.
PERIOD_SECONDS: Final = 1.0
# A container may have just ended, or its engine be in trouble: that is told elsewhere, and passes.
REFUSALS: Final = 2


class Inquiry:
    """One question at a time. ``go_on`` after each wait for ``sources`` or ``pause`` seconds."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        # `one-shot`: else Docker waits for a second look, to compare the two.
        self._path = f"/containers/{name}/stats?stream=false&one-shot=true"
        self._question: socket.socket | None = None
        self._asked_at = 0.0
        self._due = time.monotonic()
        self._refusals = 0

    @property
    def sources(self) -> list[int]:
        """Readable when the answer comes."""
        return [] if self._question is None else [self._question.fileno()]

    @property
    def pause(self) -> float:
        """How long to wait at most."""
        if self._question is None:
            return max(0.0, self._due - time.monotonic())
        return PERIOD_SECONDS

    def go_on(self, readable: Sequence[int]) -> dict[str, Any]:
        """Take an answer or ask a question, whatever it is time for; what is to be reported."""
        try:
            if self._question is None:
                if time.monotonic() >= self._due:
                    self._asked_at = time.monotonic()
                    self._due = self._asked_at + PERIOD_SECONDS
                    self._question = self._engine.begin(self._path)
            elif self._question.fileno() in readable:
                return self._take(self._question)
        except (SandboxUnavailable, AttributeError, TypeError):
            # The engine is gone, or not in its right mind: it may come back.
            self._drop()
        return {}

    def _take(self, question: socket.socket) -> dict[str, Any]:
        answer = self._engine.finish(question)
        self._drop()
        if isinstance(answer, EngineRefusal):
            return self._refused(answer.explanation)
        if (used := parse(answer)) is None:
            return self._refused("it gives no numbers")
        self._refusals = 0
        return {"used": used._asdict(), "asked_at": self._asked_at}

    def _refused(self, why: str) -> dict[str, Any]:
        self._refusals += 1
        return {"unused": why} if self._refusals >= REFUSALS else {}

    def _drop(self) -> None:
        if self._question is not None:
            self._question.close()
            self._question = None
