"""How the commands of `sandbox-kernel audit` show times, texts and tables on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def in_words(time_us: int) -> str:
    try:
        return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        return f"{time_us} µs"  # no time that a writer has stored


def coloured(word: str) -> Any:
    from rich.text import Text

    from sandbox_kernel.text import printable

    colours = {"allow": "green", "ok": "green", "warn": "yellow", "deny": "red", "denied": "red"}
    return Text(printable(word), colours.get(word, ""))


def narrow_table(*names: str) -> Any:
    """A table without lines between columns, none of which is ever cut."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def show_rich(what: Any) -> None:
    from rich.console import Console

    Console(force_jupyter=False).print(what)
