"""Amounts as people write them: ``10min``, ``2GiB``, ``256``; the same in YAML and in JSON.

Amounts are counted in whole steps (a microsecond, a byte, one), so that nothing is lost to floating
point and what is shown reads back as the same amount.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import Final, NamedTuple

# Strict on purpose: `010`, `1_000`, `0x10`, `1:30` and `1e3` mean different things to different
# readers of YAML, so they mean nothing here. Bounded, since Python refuses to read huge integers.
_AMOUNT: Final = re.compile(r"(0|[1-9][0-9]{0,17})(?:\.([0-9]{1,9}))?(?: ?([A-Za-z]+))?")
_LARGEST_STEPS: Final = 2**63 - 1  # what the kernel's own limits can hold


class UnitError(ValueError):
    """Not an amount of the kind that was wanted."""


class Kind(NamedTuple):  # not a frozen dataclass, which takes 1 ms to make at every start
    """One kind of amount: what it is called and the steps in each of its units."""

    noun: str
    examples: str
    steps_of: Mapping[str, int]
    bare_unit: str

    @property
    def wanted(self) -> str:
        """What to write, for a hint."""
        return f"{self.noun} such as {self.examples}"

    def parse(self, value: object) -> float:
        """The amount in bare units; an ``int`` unless steps are smaller than those."""
        steps = self._steps(value)
        if steps > _LARGEST_STEPS:
            msg = f"{shown(value)} is too large"
            raise UnitError(msg)
        bare = self.steps_of[self.bare_unit]
        return steps if bare == 1 else steps / bare

    def show(self, amount: float) -> str:
        """The amount in the largest unit that needs no fraction."""
        steps = round(amount * self.steps_of[self.bare_unit])
        by_size = sorted(self.steps_of.items(), key=lambda item: item[1])
        smallest, per_unit = by_size[0]
        for unit, factor in reversed(by_size):
            if steps and steps % factor == 0:
                return f"{steps // factor}{unit}"
        whole, rest = divmod(steps, per_unit)
        return f"{whole}.{rest:03}{smallest}" if rest else f"{whole}{smallest}"

    def _steps(self, value: object) -> int:
        if isinstance(value, str):
            return self._steps_of_text(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._steps_of_number(value)
        raise self._not_one(value)

    def _steps_of_text(self, text: str) -> int:
        match = _AMOUNT.fullmatch(text)
        factor = self.steps_of.get(match[3] or self.bare_unit) if match else None
        if match is None or factor is None or (match[2] and factor == 1):
            raise self._not_one(text)
        fraction = match[2] or ""
        scale: int = 10 ** len(fraction)
        # Rounded down: a limit is never a little looser than written.
        return int(match[1] + fraction) * factor // scale

    def _steps_of_number(self, number: float) -> int:
        bare = self.steps_of[self.bare_unit]
        if not 0 <= number <= _LARGEST_STEPS or (bare == 1 and number != int(number)):
            raise self._not_one(number)  # nan compares false and ends here too
        return round(number * bare)

    def _not_one(self, value: object) -> UnitError:
        return UnitError(f"{shown(value)} is not {self.noun}")


_DURATIONS: Final = {"ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
_SIZES: Final = {
    "B": 1,
    "kB": 1000,
    "KiB": 1024,
    "MB": 1000**2,
    "MiB": 1024**2,
    "GB": 1000**3,
    "GiB": 1024**3,
}
DURATION: Final = Kind("a duration", "500ms, 90s, 10min or 2h", _DURATIONS, "s")
SIZE: Final = Kind("a size", "64KiB, 512MiB, 2GiB or 2GB", _SIZES, "B")
COUNT: Final = Kind("a whole number", "256", {"": 1}, "")
PROCESSORS: Final = Kind("a number of processors", "2, 1.5 or 0.5", {"": 1000}, "")


def shown(value: object) -> str:
    """Whatever somebody sent, short and printable: it may be huge, nested or full of escapes."""
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge number"  # Python may refuse to write it out
    return reprlib.repr(value)
