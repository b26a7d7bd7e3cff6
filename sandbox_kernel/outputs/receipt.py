"""The receipt of a cell: what was allowed, what it used, how it ended and what became of the variables.

Made by the wrapper alone from what it measured itself. It stands under ``METADATA_KEY`` in the
metadata of the reply and, unless the policy says otherwise, in a last output of type ``RECEIPT_MIME``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from sandbox_kernel.policy.verdict import Answer, Finding
from sandbox_kernel.words import (
    LIMIT_NAMES,
    Action,
    Limit,
    Outcome,
    State,
    amount,
    amount_beyond,
    count,
    duration,
    size,
    size_change,
)

if TYPE_CHECKING:
    from sandbox_kernel.isolation.base import SandboxFacts

METADATA_KEY: Final = "sandbox"
RECEIPT_MIME: Final = "application/vnd.sandbox-kernel.receipt+json"
SCHEMA: Final = 1

VerdictWord = Literal["allow", "warn", "approved", "deny"]
# Why the audit log lacks a cell: the policy keeps none, or it could not be written.
AuditState = Literal["off", "missing"]

_OUTCOMES: Final[Mapping[Outcome, str]] = {
    "ok": "",
    "error": "failed",
    "denied": "not run: the policy forbids it",
    "timeout": "stopped: it ran too long",
    "cpu": "stopped: too much CPU time",
    "memory": "stopped: too much memory",
    "output": "stopped: too much output",
    "interrupted": "interrupted",
    "aborted": "not run: an earlier cell failed",
    "lost": "the sandbox ended",
}
# Of a cell that the policy asks about and that was not run.
_REFUSED: Final[Mapping[Answer, str]] = {
    "no": "not run: you said no",
    "unclear": "not run: you said neither yes nor no",
    "withdrawn": "not run: you interrupted the question",
    "nobody": "not run: the policy asks, and this client cannot be asked",
}
_STATES: Final[Mapping[State, str]] = {
    "kept": "variables kept",
    "rolled_back": "variables rolled back",
    "lost": "variables lost",
}
_AUDIT: Final[Mapping[AuditState, str]] = {
    "off": "not in the audit log, which is off",
    "missing": "NOT in the audit log, which could not be written",
}
_NEVER_RAN: Final[frozenset[Outcome]] = frozenset({"denied", "aborted"})


@dataclass(frozen=True, slots=True)
class BackgroundUsage:
    """What earlier cells' leftovers used since the receipt before: not this cell's."""

    cpu_seconds: float
    memory_bytes: int  # by which the sandbox grew between the cells

    def to_json(self) -> dict[str, Any]:
        return {"cpu_seconds": rounded(self.cpu_seconds), "memory_bytes": self.memory_bytes}

    def words(self) -> str:
        amounts = [f"CPU {duration(self.cpu_seconds)}"] if self.cpu_seconds else []
        amounts += [f"memory {size_change(self.memory_bytes)}"] if self.memory_bytes else []
        return f"not this cell's, but left running by earlier ones: {', '.join(amounts)}"


@dataclass(frozen=True, slots=True)
class Usage:
    """What one cell used, measured from outside."""

    wall_seconds: float
    cpu_seconds: float
    memory_peak_bytes: int
    memory_delta_bytes: int
    processes_peak: int
    output_bytes: int
    source: str  # where the meter read it, such as "cgroup v1"
    background: BackgroundUsage | None = None  # ``None``: nothing worth telling

    def to_json(self) -> dict[str, Any]:
        used: dict[str, Any] = {
            "wall_seconds": rounded(self.wall_seconds),
            "cpu_seconds": rounded(self.cpu_seconds),
            "memory_peak_bytes": self.memory_peak_bytes,
            "memory_delta_bytes": self.memory_delta_bytes,
            "processes_peak": self.processes_peak,
            "output_bytes": self.output_bytes,
            "source": self.source,
        }
        if self.background is not None:
            used["background"] = self.background.to_json()
        return used

    def words(self) -> list[str]:
        peak = f"peak {size(self.memory_peak_bytes)}"
        change = f"{size_change(self.memory_delta_bytes)}, " if self.memory_delta_bytes else ""
        parts = [
            duration(self.wall_seconds),
            f"CPU {duration(self.cpu_seconds)}",
            f"memory {change}{peak}",
        ]
        parts += [count(self.processes_peak, "process")] if self.processes_peak > 1 else []
        return parts if self.background is None else [*parts, self.background.words()]


@dataclass(frozen=True, slots=True)
class Exceeded:
    """The limit that ended a cell, in seconds, bytes or numbers, and what was done about it."""

    limit: Limit
    allowed: float
    used: float
    action: Action

    def to_json(self) -> dict[str, Any]:
        return {
            "limit": self.limit,
            "allowed": rounded(self.allowed),
            "used": rounded(self.used),
            "action": self.action,
        }

    def words(self) -> str:
        allowed = amount(self.limit, self.allowed)
        used = amount_beyond(self.limit, self.used, self.allowed)
        return f"stopped: {LIMIT_NAMES[self.limit]} {allowed} (used {used})"


@dataclass(frozen=True, slots=True)
class Isolation:
    """The isolation that was achieved."""

    level: str
    engine: str
    network: str
    not_protected: tuple[str, ...] = ()  # against what, in plain words
    limitations: tuple[str, ...] = ()  # what does not work as at other levels

    @classmethod
    def of(cls, facts: SandboxFacts) -> Isolation:
        """As a sandbox has it."""
        return cls(facts.level, facts.engine, facts.network, facts.not_protected, facts.limitations)

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "level": self.level,
            "engine": self.engine,
            "network": self.network,
        }
        if self.not_protected:
            said["not_protected"] = list(self.not_protected)
        if self.limitations:
            said["limitations"] = list(self.limitations)
        return said

    def words(self) -> str:
        network = "" if self.network == "none" else f", network {self.network}"
        weak = " (weak: see the kernel's banner)" if self.not_protected else ""
        return f"{self.level} sandbox{network}{weak}"


@dataclass(frozen=True, slots=True)
class PolicyName:
    """Which policy it was: its name, and the digest of what it said."""

    name: str
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class Receipt:
    """All that is said about one cell."""

    audit_id: str
    verdict: VerdictWord
    outcome: Outcome
    state: State
    isolation: Isolation
    policy: PolicyName
    usage: Usage
    limits: Mapping[str, float]
    findings: tuple[Finding, ...] = ()
    exceeded: Exceeded | None = None
    not_restored: tuple[str, ...] = ()  # plain words, such as "2 threads"
    audit: AuditState | None = None  # ``None``: it is recorded
    answer: Answer | None = None  # ``None``: the user was not asked

    def to_json(self) -> dict[str, Any]:
        """As it is published; keys that would say nothing are left out at the end."""
        receipt: dict[str, Any] = {
            "schema": SCHEMA,
            "audit_id": self.audit_id,
            "verdict": self.verdict,
            "findings": [finding.to_json() for finding in self.findings],
            "outcome": self.outcome,
            "state": self.state,
            "isolation": self.isolation.to_json(),
            "policy": self.policy.to_json(),
            "usage": self.usage.to_json(),
            "limits": {name: rounded(value) for name, value in self.limits.items()},
        }
        if self.exceeded is not None:
            receipt["exceeded"] = self.exceeded.to_json()
        if self.not_restored:
            receipt["not_restored"] = list(self.not_restored)
        if self.audit is not None:
            receipt["audit"] = self.audit
        if self.answer is not None:
            receipt["answer"] = self.answer
        return receipt

    def line(self) -> str:
        """All of it in one line of text."""
        ran = self.outcome not in _NEVER_RAN
        ended = _OUTCOMES[self.outcome] if self.exceeded is None else self.exceeded.words()
        if self.outcome == "denied" and self.answer is not None:
            ended = _REFUSED.get(self.answer, ended)
        parts = [ended]
        if self.state != "kept" or self.exceeded is not None:
            lacking = f" (not {', '.join(self.not_restored)})" if self.not_restored else ""
            parts.append(_STATES[self.state] + lacking)
        if self.verdict == "warn":
            parts.append(warnings_in_words(self.findings))
        elif self.verdict == "approved":
            earlier = " earlier, for good" if self.answer == "earlier" else ""
            parts.append(f"approved by you{earlier}")
        parts += self.usage.words() if ran else []
        parts += [self.isolation.words(), f"audit {self.audit_id}"]
        parts += [] if self.audit is None else [_AUDIT[self.audit]]
        return " · ".join(part for part in parts if part)


def warnings_in_words(findings: Sequence[Finding]) -> str:
    first, *more = findings
    others = f" and {len(more)} more" if more else ""
    return f"warning: {first.rule} in line {first.line}{others}"


def display_content(receipt: Receipt, in_json: Mapping[str, Any]) -> dict[str, Any]:
    """Content of the ``display_data`` that ends a cell. It has no display id: no cell can change it."""
    return {
        "data": {RECEIPT_MIME: in_json, "text/plain": receipt.line()},
        "metadata": {METADATA_KEY: {"audit_id": receipt.audit_id}},
        "transient": {},
    }


@dataclass(slots=True)
class _AuditIds:
    """UUIDs of version 7 (RFC 9562, method 3): 60 bits of time that only ever grow, 62 random."""

    _last: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def new(self) -> str:
        milliseconds, rest = divmod(time.time_ns(), 1_000_000)
        now = milliseconds << 12 | (rest << 12) // 1_000_000
        with self._lock:
            # A clock that stands still or steps back: go on counting from the last id.
            self._last = ticks = max(now, self._last + 1)
        random = int.from_bytes(os.urandom(8), "big") & (1 << 62) - 1
        number = (ticks >> 12) << 80 | 7 << 76 | (ticks & 0xFFF) << 64 | 0b10 << 62 | random
        digits = f"{number:032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


_AUDIT_IDS: Final = _AuditIds()


def new_audit_id() -> str:
    """An id unlike any other on any host; in this process each sorts after those before it."""
    return _AUDIT_IDS.new()


def rounded(value: float) -> float:
    return round(value, 4) if isinstance(value, float) else value
