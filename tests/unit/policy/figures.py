"""The figures that docs/static-check.md gives, so that tests can hold it to them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "static-check.md"


def published(row: str) -> list[str]:
    """The cells of the row of a table that begins with this word."""
    for line in DOCUMENT.read_text().splitlines():
        first, *cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and first == row:
            return cells
    msg = f"{DOCUMENT.name} has no row {row!r}"
    raise AssertionError(msg)
