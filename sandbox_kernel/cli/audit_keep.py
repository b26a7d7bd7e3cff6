"""`sandbox-kernel audit verify | anchor | prune | rotate`: whether the log is whole, and that it stays so."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandbox_kernel.errors import AuditUnavailable
from sandbox_kernel.text import printable
from sandbox_kernel.words import count

if TYPE_CHECKING:
    from sandbox_kernel.audit.anchor import Found
    from sandbox_kernel.audit.keep import Kept, Progress
    from sandbox_kernel.audit.verify import Report

_SHOWN: Final = 20
# Exit codes: somebody has changed the log; or whether anybody has could not be looked at.
CHANGED: Final = 1
NOT_KNOWN: Final = 2


def add_commands(command: Callable[[str, Any, str], argparse.ArgumentParser]) -> None:
    verify = command(
        "verify",
        _verify,
        "whether the log is what was written; exits with 1 if not, with 2 if that cannot be told",
    )
    verify.set_defaults(no_look=NOT_KNOWN)
    verify.add_argument(
        "--anchor", type=Path, metavar="FILE", help="anchors that were kept elsewhere"
    )
    verify.add_argument("--key", type=Path, metavar="FILE", help="the public key of the anchors")
    verify.add_argument("--json", action="store_true", help="print JSON")
    anchor = command("anchor", _anchor, "sign the log's last record and write that elsewhere")
    anchor.add_argument(
        "--to", type=_place, metavar="PLACE", help="syslog, file:/PATH or command:/PROGRAM …"
    )
    prune = command("prune", _prune, "delete old records; what is left can be verified still")
    prune.add_argument(
        "--keep-days", type=_days, required=True, metavar="N", help="delete what is older"
    )
    rotate = command("rotate", _rotate, "move all records to an archive beside the log")
    for each in (prune, rotate):
        each.add_argument(
            "--to",
            type=_place,
            metavar="PLACE",
            help="where to anchor that; else as the policy says",
        )
        each.add_argument("--json", action="store_true", help="print JSON")


def _days(text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        msg = f"{text!r} is not a number of days"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _place(text: str) -> str:
    from sandbox_kernel.policy.audit_section import PLACES

    if not PLACES["anchor"].fullmatch(text):
        msg = f"{text!r} is neither syslog nor file:/PATH nor command:/PROGRAM"
        raise argparse.ArgumentTypeError(msg)
    return text


# verify ----------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace) -> int:
    from sandbox_kernel.audit.anchor import PUBLIC_NAME, read_anchors
    from sandbox_kernel.audit.verify import verify
    from sandbox_kernel.cli.audit import log_path

    path = log_path(options)
    found = None
    if options.anchor is not None:
        found = read_anchors(options.anchor, options.key or path.parent / PUBLIC_NAME)
    report = verify(path, found.anchors if found else (), progress=_progress("verified"))
    options.judged = CHANGED if report.problems else NOT_KNOWN if report.doubts else 0
    if options.json:
        print(json.dumps(_as_json(report, found)))
    else:
        _print_report(report, found, is_own_key=options.key is None)
    return int(options.judged)


def _as_json(report: Report, found: Found | None) -> dict[str, Any]:
    return {
        "good": report.good,
        "records": report.records,
        "first": report.first,
        "last": report.head.seq,
        "mac": report.head.mac.hex(),
        "pruned_through": report.pruned_through,
        "anchors_checked": report.anchors_checked,
        "anchors_of_others": found.others if found else 0,
        "anchors_spoiled": found.spoiled if found else 0,
        "problems": [problem.to_json() for problem in report.problems],
        "doubts": report.doubts,
    }


def _print_report(report: Report, found: Found | None, *, is_own_key: bool) -> None:
    for problem in report.problems[:_SHOWN]:
        where = f"record {problem.seq}" if problem.seq else "the file"
        print(f"✘ {where}: {printable(problem.what)}.")
    if len(report.problems) > _SHOWN:
        print(f"… and {count(len(report.problems) - _SHOWN, 'more problem')}.")
    if found is not None and found.spoiled:
        lines = count(found.spoiled, "line")
        print(f"! {lines} in the anchors' file with this log's key that it has not signed.")
    for doubt in report.doubts:
        print(f"? {printable(doubt)}.")
    if report.problems:
        return
    pruned = f", {report.pruned_through:,} pruned before them" if report.pruned_through else ""
    print(
        f"✔ {count(report.records, 'record')}, the last number {report.head.seq:,}{pruned}: all as written."
    )
    if found is not None:
        others = (
            f"; {count(found.others, 'anchor')} of other logs passed over" if found.others else ""
        )
        if report.anchors_checked:
            print(f"✔ {count(report.anchors_checked, 'anchor')} of it fit{others}.")
        if is_own_key:
            print(
                "– The key of the anchors is the one beside the log: who replaced the whole directory has "
                "replaced it too. Keep a copy of it elsewhere: --key FILE."
            )
    else:
        print(
            "– Not looked at: whether its end was cut off, or all of it replaced. "
            "That takes an anchor: --anchor FILE."
        )


def _progress(word: str) -> Progress:
    """On a terminal, a line that grows; elsewhere nothing."""
    if not sys.stderr.isatty():
        return lambda done, total: None

    def show(done: int, total: int) -> None:
        end = "\n" if done >= total else ""
        print(f"\r{word} {done:,} of {total:,} records", end=end, file=sys.stderr, flush=True)

    return show


# anchor ----------------------------------------------------------------------------------------


def _anchor(options: argparse.Namespace) -> int:
    from sandbox_kernel.cli.audit import log_path

    path = log_path(options)
    place = options.to or _place_of_policy()
    if place == "none":
        what = "no place: give --to, or name one in the policy's `audit.anchor`"
        print(f"sandbox-kernel audit anchor: {what}", file=sys.stderr)
        return 2
    _make_anchor(path, place)
    return 0


def _make_anchor(path: Path, place: str) -> None:
    from sandbox_kernel.audit.anchor import new_anchor, send, signing_key
    from sandbox_kernel.audit.query import AuditReader
    from sandbox_kernel.audit.table import sync_to_disk

    with AuditReader(path) as reader:
        anchor = new_anchor(reader.head())
    # An anchor that outlives its record in a power cut would accuse a log that nobody has touched.
    try:
        sync_to_disk(path)
    except OSError as error:
        what = f"The audit log {path} could not be written to the disk: {error}."
        raise AuditUnavailable(what, hint="Nothing was anchored; look at the disk.") from error
    send(anchor.to_line(signing_key(path.parent)), place)


def _place_of_policy() -> str:
    import os

    from sandbox_kernel.policy.levels import choose_policy
    from sandbox_kernel.policy.load import load_policy

    return load_policy(choose_policy(None, os.environ, None)).audit.anchor


# prune, rotate ---------------------------------------------------------------------------------


def _prune(options: argparse.Namespace) -> int:
    from sandbox_kernel.audit.keep import prune
    from sandbox_kernel.audit.records import MICROSECONDS_PER_DAY, now_us
    from sandbox_kernel.cli.audit import log_path

    before = now_us() - options.keep_days * MICROSECONDS_PER_DAY
    directory = _directory_of_log(log_path(options))
    return _tell(
        options,
        prune(directory, before, _progress("pruned"), verifying=_progress("verified")),
    )


def _rotate(options: argparse.Namespace) -> int:
    from sandbox_kernel.audit.keep import rotate
    from sandbox_kernel.cli.audit import log_path

    directory = _directory_of_log(log_path(options))
    return _tell(options, rotate(directory, _progress("moved"), verifying=_progress("verified")))


def _directory_of_log(path: Path) -> Path:
    """Archives stay as they are, and the log beside one is not what was meant."""
    from sandbox_kernel.audit.table import LOG_NAME

    if path.name != LOG_NAME:
        what = f"{path} is not a log that grows: those are called {LOG_NAME}."
        hint = "An archive is deleted as a whole, as a file, when it is no longer to be kept."
        raise AuditUnavailable(what, hint=hint)
    return path.parent


def _tell(options: argparse.Namespace, kept: Kept) -> int:
    from sandbox_kernel.cli.audit import log_path

    place = options.to or _place_of_policy()
    if kept.pruned and place != "none":
        _make_anchor(log_path(options), place)
    archive = None if kept.archive is None else str(kept.archive)
    if options.json:
        said = {"pruned": kept.pruned, "through": kept.through, "archive": archive}
        print(json.dumps(said | {"overwritten": kept.overwritten}))
    elif archive is not None:
        print(f"{count(kept.pruned, 'record')} moved to {archive}.")
    else:
        print(f"{count(kept.pruned, 'record')} pruned.")
    if not kept.overwritten and not options.json:
        print(
            "Somebody reads the log: what was pruned is overwritten in the file when kernels write on."
        )
    if kept.pruned and place == "none" and not options.json:
        print(
            "Earlier anchors say nothing about what is left: `sandbox-kernel audit anchor --to …`."
        )
    return 0
