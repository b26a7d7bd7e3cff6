"""`sandbox-kernel doctor`: what this host can do, what each policy gets here, and what to mend."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from sandbox_kernel.isolation.checks.base import Check
    from sandbox_kernel.isolation.checks.levels import LevelHere, PolicyHere

SCHEMA: Final = 1
# Where commands for root are, besides what is in an ordinary user's PATH.
_ROOTS_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin"
_QUOTED: Final = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found, as it is shown."""

    checks: tuple[Check, ...]
    levels: tuple[LevelHere, ...]
    policies: tuple[PolicyHere, ...]
    chosen: str | None  # the policy that a kernel gets; None: what chooses it cannot be used

    @property
    def default(self) -> PolicyHere | None:
        from sandbox_kernel.policy.find import DEFAULT

        return next((policy for policy in self.policies if policy.policy == DEFAULT), None)

    @property
    def can_run(self) -> bool:
        return self.default is not None and self.default.level is not None

    @property
    def needed(self) -> set[str]:
        """The checks that decide on policy ``default``: of the level it gets, or could get."""
        from sandbox_kernel.isolation.checks.levels import NEEDS

        if self.default is None:
            return set()
        levels = [self.default.level] if self.default.level else self.default.prefer
        return {name for level in levels for name in NEEDS[level]}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="sandbox-kernel doctor",
        description="What this host can do, what each policy would get, and what to mend. "
        "Exits with 0 if policy `default` can run here, else with 1. Changes nothing.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    report = examine()
    if options.json:
        print(json.dumps(_as_document(report)))
    else:
        _print(report)
    return 0 if report.can_run else 1


def examine() -> Report:
    from sandbox_kernel.errors import PolicyError
    from sandbox_kernel.isolation.checks import check_host, this_host
    from sandbox_kernel.isolation.checks.levels import levels_here, policies_here
    from sandbox_kernel.policy.levels import choose

    host = this_host()
    checks = check_host(host)
    levels = levels_here(checks)
    try:
        chosen = choose(None, os.environ).policy
    except PolicyError:  # which the check of the policies tells
        chosen = None
    return Report(tuple(checks), tuple(levels), tuple(policies_here(checks, host)), chosen)


# for programs ----------------------------------------------------------------------------------


def _as_document(report: Report) -> dict[str, Any]:
    from sandbox_kernel import __version__

    return {
        "schema": SCHEMA,
        "host": {
            "version": __version__,
            "python": sys.version.split()[0],
            "kernel": os.uname().release,
            "machine": os.uname().machine,
            "uid": os.geteuid(),
        },
        "default_can_run": report.can_run,
        "chosen": report.chosen,
        "checks": [asdict(check) for check in report.checks],
        "levels": [asdict(level) for level in report.levels],
        "policies": [asdict(policy) for policy in report.policies],
    }


# for people ------------------------------------------------------------------------------------


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(force_jupyter=False, highlight=False)
    for table in _tables(report):
        console.print(table)
    failures = [check for check in report.checks if check.status != "ok" and check.fix]
    # What keeps `default` from running comes first.
    failures.sort(key=lambda check: check.name not in report.needed)
    lacking = [policy for policy in report.policies if policy.fix]
    if failures or lacking:
        console.print(Text("What to do", "bold"))
    for check in failures:
        kind = "" if check.name in report.needed else ", which policy default does without"
        _print_fix(console, f"{check.name} ({check.status}{kind})", check.fix or "")
    for policy in lacking:
        _print_fix(console, f"policy {policy.policy}", policy.fix or "")
    console.print(_conclusion(report), soft_wrap=True)


def _conclusion(report: Report) -> Text:
    default = report.default
    if default is not None and default.level is not None:
        return _text(f"✔ Policy default can run here, at level {default.level}.", "bold green")
    why = "there is no such policy" if default is None else default.why
    return _text(f"✘ Policy default cannot run here: {why}.", "bold red")


def _tables(report: Report) -> Iterator[RenderableType]:
    from rich.table import Table

    needed = report.needed
    checks = Table("", "check", "", title="This host", title_justify="left")
    checks.add_column("found", overflow="fold")  # paths are longer than the column
    for check in report.checks:
        mark = _mark(check.status == "ok", check.name in needed)
        checks.add_row(mark, _text(check.name), check.status, _text(check.found))
    yield checks
    levels = Table("", "level", "here", title="Levels, the strongest last", title_justify="left")
    for level in report.levels:
        here = level.why or f"can run{f', {level.about}' if level.about else ''}"
        levels.add_row(_mark(level.available, False), level.level, _text(here))
    yield levels
    policies = Table(
        "", "policy", "prefers", "requires", "gets here", title="Policies", title_justify="left"
    )
    for policy in report.policies:
        gets = _text(policy.level or f"nothing: {policy.why}")
        name = f"{policy.policy} ←" if policy.policy == report.chosen else policy.policy
        row = (_text(name), ", ".join(policy.prefer), policy.require or "", gets)
        policies.add_row(_mark(policy.level is not None, True), *row)
    policies.caption = "← what a kernel gets that is told nothing else"
    policies.caption_justify = "left"
    yield policies


def _mark(good: bool, needed: bool) -> RenderableType:
    from rich.text import Text

    if good:
        return Text("✔", "green")
    return Text("✘", "red") if needed else Text("–", "yellow")


def _print_fix(console: Console, subject: str, fix: str) -> None:
    """A comment that says it all, then what can be typed here; lines are not broken, to be copied."""
    from rich.text import Text

    console.print(_text(f"# {subject}: {fix}", "dim"), soft_wrap=True)
    for command in _commands(fix):
        console.print(Text(command, "bold"), soft_wrap=True)


def _commands(fix: str) -> Iterator[str]:
    """What is quoted in ``fix`` and begins with a program of this host."""
    path = f"{os.environ.get('PATH', os.defpath)}:{_ROOTS_PATH}"
    for quoted in _QUOTED.findall(fix):
        program, _, rest = quoted.partition(" ")
        if rest and shutil.which(program, path=path):
            yield quoted


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    from sandbox_kernel.policy.violation import printable

    # Some of it is what programs and engines said: nothing of it is markup or moves the cursor.
    return Text(printable(text), style)
