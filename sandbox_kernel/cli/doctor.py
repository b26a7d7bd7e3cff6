"""`sandbox-kernel doctor`: whether sandboxes run on this host, and what to type where they do not."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from sandbox_kernel.isolation.checks.installation import POLICIES
from sandbox_kernel.isolation.checks.trial import TRIAL

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
    chosen: PolicyHere | None  # the policy that a kernel gets; None: what chooses it cannot be used
    trial: Check | None  # a cell that was run under it; None: there was no use in trying

    @property
    def default_can_run(self) -> bool:
        from sandbox_kernel.policy.find import DEFAULT

        return any(here.policy == DEFAULT and here.level is not None for here in self.policies)

    @property
    def can_run(self) -> bool:
        return self.trial is not None and self.trial.status == "ok"

    @property
    def why_not(self) -> str:
        """Why no cell can run, if that is so."""
        if self.can_run:
            return ""
        if self.trial is not None:
            return self.trial.found
        if self.chosen is not None:
            return self.chosen.why
        return next((check.found for check in self.checks if check.name == POLICIES), "")

    @property
    def needed(self) -> set[str]:
        """The checks that decide on the chosen policy: of the level it gets, or could get."""
        from sandbox_kernel.isolation.checks.levels import NEEDS

        if self.chosen is None or not self.chosen.prefer:
            return {POLICIES}
        levels = [self.chosen.level] if self.chosen.level else self.chosen.prefer
        return {name for level in levels for name in NEEDS[level]}

    @property
    def of_other_levels(self) -> set[str]:
        """The checks that matter only to levels that the chosen policy does without."""
        from sandbox_kernel.isolation.checks.engines import OTHER_ENGINE
        from sandbox_kernel.isolation.checks.levels import NEEDS
        from sandbox_kernel.isolation.checks.runtimes import RUNTIMES

        others = {name for needs in NEEDS.values() for name in needs}
        return (others | {OTHER_ENGINE, RUNTIMES}) - self.needed


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="sandbox-kernel doctor",
        description="Whether sandboxed Python runs on this host, with the policy that a kernel gets: "
        "a sandbox is started and runs a cell. Where it does not run, what to type. "
        "Exits with 0 if the cell ran, else with 1.",
    )
    parser.add_argument(
        "--all", action="store_true", help="show every check, level and policy, and all advice"
    )
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    options = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal has our marks
    report = examine()
    if options.json:
        print(json.dumps(_as_document(report)))
    else:
        _print(report, show_all=options.all)
    return 0 if report.can_run else 1


def examine() -> Report:
    from sandbox_kernel.errors import PolicyError
    from sandbox_kernel.isolation.checks import check_host, this_host
    from sandbox_kernel.isolation.checks.levels import levels_here, policies_here, policy_at
    from sandbox_kernel.isolation.checks.trial import try_cell
    from sandbox_kernel.policy.levels import choose

    host = this_host()
    checks = check_host(host)
    policies = policies_here(checks, host)
    chosen, trial = None, None
    try:
        name = choose(None, os.environ).policy
    except PolicyError:  # which the check of the policies tells
        pass
    else:
        named = [policy for policy in policies if policy.policy == name]
        chosen = named[0] if named else policy_at(name, checks, host)
        if chosen.level is not None:
            trial = try_cell(host, name)
    return Report(tuple(checks), tuple(levels_here(checks)), tuple(policies), chosen, trial)


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
        "can_run": report.can_run,
        "why_not": report.why_not,
        "level": report.chosen.level if report.chosen is not None and report.can_run else None,
        "trial": None if report.trial is None else asdict(report.trial),
        "default_can_run": report.default_can_run,
        "chosen": None if report.chosen is None else report.chosen.policy,
        "checks": [asdict(check) for check in report.checks],
        "levels": [asdict(level) for level in report.levels],
        "policies": [asdict(policy) for policy in report.policies],
    }


# for people ------------------------------------------------------------------------------------


def _print(report: Report, *, show_all: bool) -> None:
    from rich.console import Console

    console = Console(force_jupyter=False, highlight=False)
    for line in _verdict(report):
        console.print(line, soft_wrap=True)
    if not report.can_run:
        _print_advice(console, "What to do", _needed_advice(report))
    if show_all:
        for table in _tables(report):
            console.print(table)
    own, others = _optional_advice(report)
    _print_advice(console, "Optional", [*own, *others] if show_all else own)
    if not show_all:
        console.print()
        console.print(_text(_what_else(report)))


def _what_else(report: Report) -> str:
    more = "`sandbox-kernel doctor --all` shows every check"
    lacking = [level.level for level in report.levels if not level.available]
    if not report.can_run or report.chosen is None or not lacking:
        return f"{more}."
    return (
        f"Optional, and not used by policy {report.chosen.policy}: {', '.join(lacking)}. "
        f"{more}, and what these levels need."
    )


def _verdict(report: Report) -> Iterator[Text]:
    chosen, trial = report.chosen, report.trial
    policy = "" if chosen is None else f" (policy {chosen.policy})"
    if report.can_run and chosen is not None and trial is not None:
        yield _text(
            f"✔ Sandboxed Python can run here, at level {chosen.level}{policy}.", "bold green"
        )
        yield _text(f"  A cell {trial.found}.")
        return
    known = "cannot run here" if trial is None or trial.status != "unknown" else "may not run here"
    why = report.why_not.removesuffix(".")
    yield _text(f"✘ Sandboxed Python {known}{policy}: {why}.", "bold red")


Advice = list[tuple[str, str]]  # what it is about, and what to do


def _needed_advice(report: Report) -> Advice:
    """What keeps a cell from running."""
    checks = (*report.checks, *([report.trial] if report.trial else []))
    names = report.needed | {TRIAL}
    advice = [
        (f"{check.name} ({check.status})", check.fix)
        for check in checks
        if check.status != "ok" and check.fix and check.name in names
    ]
    if report.chosen is not None and report.chosen.fix:
        advice.append((f"policy {report.chosen.policy}", report.chosen.fix))
    return advice


def _optional_advice(report: Report) -> tuple[Advice, Advice]:
    """What would be better at the level that there is, and what other levels and policies lack."""
    own: Advice = []
    others: Advice = []
    for check in report.checks:
        if check.status == "ok" or not check.fix or check.name in report.needed:
            continue
        advice = others if check.name in report.of_other_levels else own
        advice.append((f"{check.name} ({check.status})", check.fix))
    others += [
        (f"policy {here.policy}", here.fix)
        for here in report.policies
        if here.fix and here != report.chosen
    ]
    return own, others


def _print_advice(console: Console, heading: str, advice: Advice) -> None:
    from rich.text import Text

    if not advice:
        return
    console.print()
    console.print(Text(heading, "bold"))
    for subject, fix in advice:
        _print_fix(console, subject, fix)


def _tables(report: Report) -> Iterator[RenderableType]:
    from rich.table import Table

    needed = report.needed
    checks = Table("", "check", "", title="This host", title_justify="left")
    checks.add_column("found", overflow="fold")  # paths are longer than the column
    for check in (*report.checks, *([report.trial] if report.trial else [])):
        mark = _mark(check.status == "ok", check.name in needed | {TRIAL})
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
    chosen = report.chosen
    listed = report.policies if chosen in (None, *report.policies) else (*report.policies, chosen)
    for policy in listed:
        assert policy is not None
        gets = _text(policy.level or f"nothing: {policy.why}")
        name = f"{policy.policy} ←" if policy == chosen else policy.policy
        row = (_text(name), ", ".join(policy.prefer), policy.require or "", gets)
        policies.add_row(_mark(policy.level is not None, True), *row)
    policies.caption = "← the policy that a kernel gets"
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

    from sandbox_kernel.text import printable

    # Some of it is what programs and engines said: nothing of it is markup or moves the cursor.
    return Text(printable(text), style)
