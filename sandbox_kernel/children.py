"""Processes that the wrapper has started for itself and will collect: none of a sandbox's.

At `restricted` both are below it, and nothing else tells them apart.
"""

from __future__ import annotations

from typing import Final

OWN: Final[set[int]] = set()
