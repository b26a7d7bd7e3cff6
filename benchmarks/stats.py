"""Medians, quartiles and bootstrap intervals of interleaved samples."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Round = list[float]  # samples taken back to back from one kernel
Statistic = Callable[[Sequence[float]], float]
MIB = 1024 * 1024


def quantile(samples: Sequence[float], q: float) -> float:
    """Linear interpolation between the closest ranks."""
    ordered = sorted(samples)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def p95(samples: Sequence[float]) -> float:
    return quantile(samples, 0.95)


def pool(rounds: Sequence[Round]) -> list[float]:
    return [sample for samples in rounds for sample in samples]


@dataclass
class Row:
    """What was measured for one line of the table."""

    title: str
    target: float | None = None
    absolute: bool = False  # the target bounds our own figure (bytes), not the ratio
    statistic: Statistic = statistics.median
    ours: list[Round] = field(default_factory=list)
    plain: list[Round] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def measured(self) -> bool:
        return bool(self.ours and self.plain)

    def figure(self, rounds: Sequence[Round]) -> float:
        return self.statistic(pool(rounds))

    def spread(self, rounds: Sequence[Round]) -> tuple[float, float]:
        samples = pool(rounds)
        return quantile(samples, 0.25), quantile(samples, 0.75)

    @property
    def ratio(self) -> float:
        return self.figure(self.ours) / self.figure(self.plain)

    @property
    def score(self) -> float:
        """The number its target is about."""
        return self.figure(self.ours) if self.absolute else self.ratio

    def interval(self, resamples: int = 2000) -> tuple[float, float]:
        """Bootstrap 95 % interval of `score`.

        Whole rounds are drawn, ours together with the plain one beside it: samples of a round
        share the state the machine was in, and are not independent.
        """
        draw = random.Random(0)
        count = len(self.ours)
        scores = []
        for _ in range(resamples):
            chosen = draw.choices(range(count), k=count)
            ours = self.figure([self.ours[i] for i in chosen])
            plain = 1.0 if self.absolute else self.figure([self.plain[i] for i in chosen])
            scores.append(ours / plain)
        return quantile(scores, 0.025), quantile(scores, 0.975)

    def verdict(self) -> str:
        """`pass`, `miss` (even the interval's lower bound is above), `unsure`, or nothing."""
        if self.failures:
            return "fail"
        if self.target is None or not self.measured:
            return ""
        if self.score <= self.target:
            return "pass"
        return "miss" if self.interval()[0] > self.target else "unsure"
