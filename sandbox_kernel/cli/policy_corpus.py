"""`sandbox-kernel policy check --corpus FILE`: how much of many notebooks a policy denies."""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sandbox_kernel.cli.policy_check import CannotRead, field, judge_cells, lines, shown_path
from sandbox_kernel.policy.model import Policy
from sandbox_kernel.policy.source import FAILED, TOO_LONG
from sandbox_kernel.policy.verdict import Verdict

UNREADABLE: Final = "cell.unreadable"


def check_corpus(path: Path, policy: Policy, *, as_json: bool) -> int:
    """Figures, not a verdict: the exit code is 0 however much is denied, 2 if it cannot be read."""
    try:
        figures = measure_corpus(path, policy)
    except (OSError, EOFError, CannotRead) as error:
        print(f"{shown_path(path)}: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps(figures))
        return 0
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"{shown_path(path)}, policy {policy.name}"), title_justify="left")
    table.add_column("figure or rule that denies")
    table.add_column("", justify="right")
    for key, value in figures.items():
        if isinstance(value, int):
            table.add_row(key.replace("_", " "), str(value))
    table.add_section()
    for rule, count in figures["by_rule"].items():
        table.add_row(rule, str(count))
    Console(force_jupyter=False).print(table)
    return 0


def measure_corpus(path: Path, policy: Policy) -> dict[str, Any]:
    """How many cells and notebooks the policy denies, and in how many cells each rule does.

    Cells that no Python can read are counted apart: they would not run anywhere. What is valid and was
    not read in time, or made the check fail, is a denial like any other.
    """
    figures: Counter[str] = Counter()
    by_rule: Counter[str] = Counter()
    for texts in _notebooks(path):
        figures["notebooks"] += 1
        denied_before = figures["denied_cells"]
        for cell in judge_cells(policy.code, texts):
            figures["cells"] += 1
            denying = _denying(cell.verdict)
            if UNREADABLE in denying and not _is_valid(cell.verdict):
                figures["unparseable_cells"] += 1
            else:
                figures["not_read_in_time_cells"] += _says(cell.verdict, TOO_LONG)
                figures[f"{cell.verdict.decision}_cells"] += 1
                figures["denied_cells"] += bool(denying)
                by_rule.update(denying)
        figures["denied_notebooks"] += figures["denied_cells"] > denied_before
    return {
        "policy": policy.name,
        "cells": figures["cells"],
        "notebooks": figures["notebooks"],
        "denied_cells": figures["denied_cells"],
        "denied_notebooks": figures["denied_notebooks"],
        "not_read_in_time_cells": figures["not_read_in_time_cells"],
        "unparseable_cells": figures["unparseable_cells"],
        "asked_cells": figures["ask_cells"],
        "warned_cells": figures["warn_cells"],
        "by_rule": dict(by_rule.most_common()),
    }


def _denying(verdict: Verdict) -> set[str]:
    return {finding.rule for finding in verdict.findings if finding.decision == "deny"}


def _is_valid(verdict: Verdict) -> bool:
    """Whether the check gave up on a cell that Python may well run."""
    return _says(verdict, TOO_LONG) or _says(verdict, FAILED)


def _says(verdict: Verdict, reason: str) -> bool:
    return any(found.rule == UNREADABLE and found.about == reason for found in verdict.findings)


def _notebooks(path: Path) -> Iterator[list[str]]:
    """The cells of each line, with a progress bar where somebody sees it."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.text import Text

    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        read: Any = stack.enter_context(gzip.open(raw)) if path.suffix == ".gz" else raw
        hidden = not sys.stderr.isatty()
        bar = stack.enter_context(Progress(console=Console(stderr=True), disable=hidden))
        task = bar.add_task(Text(shown_path(path)).markup, total=path.stat().st_size)
        for number, line in enumerate(read, 1):
            try:
                cells = _cells(json.loads(line))
            except (ValueError, RecursionError) as error:
                msg = f"line {number}: {error}"
                raise CannotRead(msg) from error
            yield cells
            bar.update(task, completed=raw.tell())


def _cells(entry: Any) -> list[str]:
    """A notebook's ``cells``; or a single snippet's ``code``, in a shell's ``language`` perhaps."""
    if isinstance(entry, dict) and "code" in entry:
        is_shell = entry.get("language") in ("bash", "sh")
        return [("%%bash\n" if is_shell else "") + str(field(entry, "code", str))]
    return lines(field(entry, "cells", list))
