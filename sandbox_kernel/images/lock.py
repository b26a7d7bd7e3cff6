"""Lock files: every package with its version and the hashes of the files it may come as."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox_kernel.errors import ImageError

_PINNED: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})\b")


@dataclass(frozen=True, slots=True)
class Pin:
    """One package at one version."""

    name: str  # normalised
    version: str
    hashes: frozenset[str]  # of all its files, for any platform

    def __str__(self) -> str:
        lines = [
            f"{self.name}=={self.version}",
            *(f"--hash=sha256:{h}" for h in sorted(self.hashes)),
        ]
        return " \\\n    ".join(lines)


def read_lock(path: Path) -> list[Pin]:
    """The pins of a lock file; one line that is not pinned and hashed makes it none."""
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line.strip() for line in text.splitlines()]
    return [_pin(line, path) for line in lines if line and not line.startswith("#")]


def _pin(line: str, path: Path) -> Pin:
    found, hashes = _PINNED.match(line), frozenset(_HASH.findall(line))
    if found is None or not hashes:
        what = f"{path} is no lock file: `{line[:80]}` is not pinned (`name==version`) and hashed."
        raise ImageError(what, hint="Make it with `pip-compile --generate-hashes`.")
    return Pin(normalised(found["name"]), found["version"], hashes)


def pins_of(wheels: Iterable[Path]) -> list[Pin]:
    """What a folder of wheels amounts to."""
    pins = []
    for wheel in sorted(wheels):
        name, version, *_ = wheel.name.split("-")
        pins.append(Pin(normalised(name), version, frozenset({sha256_of(wheel)})))
    return pins


def normalised(name: str) -> str:
    """One spelling per package, as PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
