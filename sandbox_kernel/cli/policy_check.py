"""`sandbox-kernel policy check`: what a policy says of notebooks and scripts, without running them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sandbox_kernel.policy.model import Code, Policy
from sandbox_kernel.policy.verdict import DECISIONS, Finding, Verdict


class CannotRead(Exception):
    """A file that is no notebook or script, with the reason."""


class JudgedCell(NamedTuple):
    """A cell that has code, counted from 1, and what the policy says of it."""

    number: int
    text: str
    verdict: Verdict


def check(options: argparse.Namespace) -> int:
    """The exit code: 1 if a cell is denied, 2 if a file cannot be read."""
    from sandbox_kernel.policy.levels import choose_policy
    from sandbox_kernel.policy.load import load_policy

    if bool(options.files) == bool(options.corpus):
        options.parser.error("give notebooks and scripts to check, or a --corpus")
    policy = load_policy(choose_policy(options.policy, os.environ))
    if options.corpus:
        from sandbox_kernel.cli.policy_corpus import check_corpus

        return check_corpus(options.corpus, policy, as_json=options.json)
    return _check_files(options.files, policy, as_json=options.json)


# Files -----------------------------------------------------------------------------------------


def _check_files(paths: Sequence[Path], policy: Policy, *, as_json: bool) -> int:
    reports: list[tuple[Path, list[JudgedCell]]] = []
    is_incomplete = False
    for path in paths:
        try:
            reports.append((path, judge_cells(policy.code, read_cells(path))))
        except CannotRead as error:
            is_incomplete = True
            print(f"{shown_path(path)}: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps(_as_json(policy, reports)))
    else:
        _print_reports(policy, reports)
    denied = any(cell.verdict.decision == "deny" for _, cells in reports for cell in cells)
    return 2 if is_incomplete else int(denied)


def judge_cells(code: Code, texts: Sequence[str]) -> list[JudgedCell]:
    """The verdicts on the cells of one notebook, in order: later ones depend on earlier ones."""
    from sandbox_kernel.policy.judge import Judge

    judge = Judge(code)
    return [JudgedCell(n, text, judge.judge(text)) for n, text in enumerate(texts, 1)]


def read_cells(path: Path) -> list[str]:
    """The code of a notebook, cell by cell, or of a script, which is one cell."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise CannotRead(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        msg = f"byte {error.start} is not UTF-8"
        raise CannotRead(msg) from error
    if path.suffix == ".py":
        return [text]
    if path.suffix != ".ipynb":
        msg = "neither .ipynb nor .py"
        raise CannotRead(msg)
    try:
        return list(_code_cells(json.loads(text)))
    except (ValueError, RecursionError) as error:
        msg = f"not a notebook: {error}"
        raise CannotRead(msg) from error


def _code_cells(notebook: Any) -> Iterator[str]:
    """Of nbformat 4, and of 3 with its worksheets; raises ``ValueError`` where it is neither."""
    is_old = isinstance(notebook, dict) and "worksheets" in notebook
    sheets = field(notebook, "worksheets", list) if is_old else [notebook]
    for sheet in sheets:
        for cell in field(sheet, "cells", list):
            if field(cell, "cell_type", str) != "code":
                continue
            source = field(cell, "input" if is_old else "source", str | list)
            text = source if isinstance(source, str) else "".join(lines(source))
            if text.strip():
                yield text


def field(value: Any, key: str, kind: Any) -> Any:
    """What an object has under a key, if it is of that type; else ``ValueError``."""
    if not isinstance(value, dict) or not isinstance(value.get(key), kind):
        msg = f"{key!r} is missing or of the wrong type"
        raise ValueError(msg)
    return value[key]


def lines(source: list[Any]) -> list[str]:
    """The same list, if it is one of texts; else ``ValueError``."""
    if not all(isinstance(line, str) for line in source):
        msg = "a line of code is not text"
        raise ValueError(msg)
    return source


def _as_json(policy: Policy, reports: Sequence[tuple[Path, list[JudgedCell]]]) -> dict[str, Any]:
    files = []
    for path, cells in reports:
        found = [
            {
                "cell": cell.number,
                "decision": cell.verdict.decision,
                "risk": cell.verdict.risk,
                "findings": [finding.to_json() for finding in cell.verdict.findings],
            }
            for cell in cells
            if cell.verdict.findings
        ]
        gravest = _gravest(cells)
        files.append({"file": str(path), "decision": gravest, "cells": len(cells), "found": found})
    return {"policy": {"name": policy.name, "sha256": policy.sha256}, "files": files}


def _gravest(cells: Sequence[JudgedCell]) -> str:
    return max((cell.verdict.decision for cell in cells), key=DECISIONS.index, default="allow")


def _print_reports(policy: Policy, reports: Sequence[tuple[Path, list[JudgedCell]]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sandbox_kernel.cli.policy import COLOURS

    console = Console(highlight=False, force_jupyter=False)
    for path, cells in reports:
        for cell in cells:
            for finding in cell.verdict.findings:
                _print_finding(console, path, cell, finding)
    table = Table("file", "cells", *DECISIONS, title=f"policy {policy.name}", title_justify="left")
    for path, cells in reports:
        counts = Counter(cell.verdict.decision for cell in cells)
        numbers = [Text(str(counts[decision] or ""), COLOURS[decision]) for decision in DECISIONS]
        table.add_row(Text(shown_path(path)), str(len(cells)), *numbers)
    console.print(table)


def _print_finding(console: Any, path: Path, cell: JudgedCell, finding: Finding) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    from sandbox_kernel.cli.policy import COLOURS
    from sandbox_kernel.policy.violation import excerpt
    from sandbox_kernel.text import printable

    shown, before, marked = excerpt(cell.text.split("\n"), finding)
    caret = "^" * cell_len(marked)
    colour = COLOURS[finding.decision]
    where = f"{shown_path(path)}: cell {cell.number}, line {finding.line}, column {finding.column + 1}: "
    head = Text(where).append(f"{finding.decision} ", f"bold {colour}").append(finding.rule, "bold")
    head.append(f" ({finding.risk} risk)")
    for line in (
        head,
        Text(f"    {shown}"),
        Text(f"    {' ' * cell_len(before)}").append(caret, colour),
        Text(f"    {printable(finding.about)}: {finding.reason}. {finding.instead}.\n"),
    ):
        console.print(line, soft_wrap=True)


def shown_path(path: Path) -> str:
    """A path for a terminal: its name may be a stranger's."""
    from sandbox_kernel.text import printable

    return printable(str(path))
