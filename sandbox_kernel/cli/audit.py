"""`sandbox-kernel audit`: read, verify and keep the log of what cells did."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandbox_kernel.cli.audit_words import (
    coloured,
    in_words,
    narrow_table,
    show_rich,
)
from sandbox_kernel.errors import AuditUnavailable, PolicyError, SandboxError
from sandbox_kernel.text import printable_lines
from sandbox_kernel.words import duration

if TYPE_CHECKING:
    from sandbox_kernel.audit.query import CellDetail, CellEntry

VERDICTS: Final = ("allow", "warn", "ask", "approved", "deny", "none")
OUTCOMES: Final = (
    *("ok", "error", "denied", "timeout", "cpu", "memory", "output"),
    *("interrupted", "aborted", "lost"),
)
_AGO: Final = re.compile(r"([0-9]{1,6})(min|h|d|w)")
_UNITS: Final = {"min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_CODE_CHARACTERS: Final = 40
# Of an audit id: its time, to a quarter of a microsecond. `show` takes the beginning of one.
ID_CHARACTERS: Final = 18


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    try:
        code = int(options.run(options))
        sys.stdout.flush()
    except (AuditUnavailable, PolicyError) as error:
        print(f"sandbox-kernel audit: {printable_lines(str(error))}", file=sys.stderr)
        return _code_of(error, options)
    except BrokenPipeError:
        # Who reads has enough: `… | head`. What Python has still to write when it ends goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(options.judged)
    return code


def _code_of(error: SandboxError, options: argparse.Namespace) -> int:
    """A log that is gone, or that no anchor is of, does not verify. One that cannot be read may be whole."""
    from sandbox_kernel.audit.anchor import NoAnchor
    from sandbox_kernel.audit.table import NoLog

    return 1 if isinstance(error, NoLog | NoAnchor) else int(options.no_look)


def _parser() -> argparse.ArgumentParser:
    from sandbox_kernel.cli import audit_keep, audit_stats

    parser = argparse.ArgumentParser(
        prog="sandbox-kernel audit",
        description="The log of what cells did, below SANDBOX_KERNEL_HOME.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, summary: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=summary, description=summary)
        # The exit codes if nobody reads what is said, and if the log cannot be looked at.
        found.set_defaults(run=run, judged=0, no_look=1)
        found.add_argument(
            "--log", type=Path, metavar="FILE", help="another log, such as an archive"
        )
        return found

    listing = command(
        "list", _list, "the newest cells: when, who, what was decided, how they ended"
    )
    _add_json(listing)
    listing.add_argument("--since", type=moment, metavar="WHEN", help="2026-01-31, or 2h, 7d ago")
    listing.add_argument("--kernel", metavar="ID", help="of one kernel, by its session id")
    listing.add_argument(
        "--verdict", choices=VERDICTS, help="what was decided, by the user where the policy asks"
    )
    listing.add_argument("--outcome", choices=OUTCOMES, help="how it ended")
    listing.add_argument("--user", help="of one user")
    listing.add_argument(
        "--limit", type=int, default=50, metavar="N", help="the newest N (default 50); 0 is all"
    )
    show = command(
        "show", _show, "one cell: code, findings, receipt, all its records, its neighbours"
    )
    _add_json(show)
    show.add_argument("id", metavar="ID", help="its audit id, or the beginning of it")
    show.add_argument(
        "--code",
        type=Path,
        metavar="FILE",
        help="say whether this is what ran; exits with 1 if not",
    )
    audit_stats.add_commands(command)
    audit_keep.add_commands(command)
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def log_path(options: argparse.Namespace) -> Path:
    """The log that is meant."""
    from sandbox_kernel.audit.table import LOG_NAME, audit_directory
    from sandbox_kernel.paths import state_home

    chosen: Path | None = options.log
    return audit_directory(state_home()) / LOG_NAME if chosen is None else chosen.absolute()


def moment(text: str) -> int:
    """A time in microseconds: a date, a date with a time (UTC unless it says otherwise), or an age."""
    if match := _AGO.fullmatch(text):
        try:
            when = datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
        except OverflowError as error:
            msg = f"{text!r} is longer ago than there are dates"
            raise argparse.ArgumentTypeError(msg) from error
    else:
        try:
            when = datetime.fromisoformat(text)
        except ValueError as error:
            msg = f"{text!r} is neither a date such as 2026-01-31 nor an age such as 30min, 2h, 7d"
            raise argparse.ArgumentTypeError(msg) from error
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return int(when.timestamp() * 1e6)


# list ------------------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
    from sandbox_kernel.audit.query import AuditReader
    from sandbox_kernel.audit.wanted import Wanted

    wanted = Wanted(
        since_us=options.since,
        kernel=options.kernel,
        verdict=options.verdict,
        outcome=options.outcome,
        user=options.user,
        limit=options.limit or None,
    )
    with AuditReader(log_path(options)) as reader:
        entries = reader.cells(wanted)
    if options.json:
        print(json.dumps([entry.to_json() for entry in entries]))
        return 0
    table = narrow_table("time (UTC)", "id", "user", "verdict", "outcome", "took")
    table.add_column("code")
    for entry in entries:
        table.add_row(*_row(entry))
    show_rich(table)
    return 0


def _row(entry: CellEntry) -> list[Any]:
    from rich.text import Text

    from sandbox_kernel.text import printable

    ran = entry.outcome not in (None, "denied", "aborted")
    return [
        in_words(entry.time_us)[len("2026-") :],
        Text(printable(entry.id[:ID_CHARACTERS])),
        Text(printable(entry.user)),
        coloured(entry.verdict),
        coloured(entry.outcome or "no end"),
        duration(entry.wall_seconds) if ran else "",
        Text(_in_short(entry), no_wrap=True, overflow="ellipsis"),
    ]


def _in_short(entry: CellEntry) -> str:
    from sandbox_kernel.text import printable

    if entry.code is None:
        return "(hash)" if entry.readable else "(unreadable)"
    line = " ".join(entry.code[: 4 * _CODE_CHARACTERS].split())
    cut = line if len(line) <= _CODE_CHARACTERS else f"{line[: _CODE_CHARACTERS - 1]}…"
    return printable(cut)


# show ------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace) -> int:
    from sandbox_kernel.audit.query import AuditReader

    with AuditReader(log_path(options)) as reader:
        detail = reader.show(options.id)
    if options.code is not None:
        return _prove(detail, options)
    if options.json:
        print(json.dumps(detail.to_json()))
    else:
        _print_detail(detail)
    return 0


def _prove(detail: CellDetail, options: argparse.Namespace) -> int:
    """Also where secrets were taken out of what is stored: its keyed hash is of what ran."""
    from sandbox_kernel.audit.chain import Keyed, read_key
    from sandbox_kernel.audit.proof import is_code_of
    from sandbox_kernel.audit.records import said_in

    directory, file = log_path(options).parent, options.code
    intent = next(record for record in detail.records if record.kind == "intent")
    try:
        text, key = file.read_bytes().decode(), read_key(directory, to_write=False)
    except (OSError, UnicodeDecodeError) as error:
        what = f"The code cannot be compared: {error}."
        raise AuditUnavailable(
            what, hint="Give a file of text; the key lies beside the log."
        ) from error
    same = is_code_of(said_in(intent.body), text, Keyed(key))
    options.judged = 0 if same else 1
    print(f"{'✔' if same else '✘'} {file} is {'' if same else 'not '}what this cell was to run.")
    return int(options.judged)


def _print_detail(detail: CellDetail) -> None:
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text

    from sandbox_kernel.text import printable

    entry = detail.entry
    facts = Table(
        title=Text(f"cell {printable(entry.id)}"), title_justify="left", show_header=False
    )
    for name, value in (
        ("when", f"{in_words(entry.time_us)} UTC"),
        ("who", entry.user),
        ("kernel", entry.kernel),
        ("policy", entry.policy),
        ("verdict", entry.verdict),
        ("outcome", entry.outcome or "no end was recorded"),
        ("before it", "–" if detail.before is None else _beside(detail.before)),
        ("after it", "–" if detail.after is None else _beside(detail.after)),
    ):
        facts.add_row(name, Text(printable(value)))
    show_rich(facts)
    if not entry.readable:
        show_rich(
            Text("What is stored of the code is not readable: see `sandbox-kernel audit verify`.")
        )
    elif entry.code is None:
        show_rich(Text("The policy keeps a hash of the code only."))
    else:
        code = printable_lines(entry.code.expandtabs())
        show_rich(Syntax(code, "python", line_numbers=True, word_wrap=True))
    for finding in detail.findings:
        rule, line, about = (finding.get(key, "") for key in ("rule", "line", "about"))
        said = f"{finding.get('decision', '')}: {rule} in line {line}, {about}"
        show_rich(Text(printable(said)))
    records = Table(title="records", title_justify="left")
    for name in ("record", "time (UTC)", "kind", ""):
        records.add_column(name, no_wrap=True)
    records.add_column("says", overflow="fold")
    for record in detail.records:
        said = printable(record.body.decode("utf-8", "replace"))
        records.add_row(
            str(record.seq),
            in_words(record.time_us),
            *(Text(printable(each)) for each in (record.kind, record.word)),
            Text(said),
        )
    show_rich(records)
    if detail.receipt:
        show_rich(Syntax(json.dumps(detail.receipt, indent=1), "json", word_wrap=True))


def _beside(entry: CellEntry) -> str:
    return f"{entry.id}: {_in_short(entry)}"
