"""What holds at run time where the static check is bypassed: the controls of level ``process``.

Each rule of the check names one of them, the nearest, or none. The others hold as well: none of them
looks at code. docs/backstops.md is written by ``python -m sandbox_kernel.policy.backstops``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sandbox_kernel.paths import policies_directory

POLICIES: Final = ("default", "strict")
NOT_ENFORCED: Final = "not enforced at run time: early warning only"
TEST: Final = "tests/hostile/test_backstops.py"


class Control(NamedTuple):
    """Something that the sandbox enforces, whatever a cell says."""

    key: str
    holds: str  # one sentence
    made_by: tuple[str, ...]  # where to read how


CONTROLS: Final = {
    control.key: control
    for control in (
        Control(
            "network",
            "The sandbox has a network namespace of its own with nothing but loopback in it: no route "
            "leads anywhere, and the host's own ports and abstract sockets are not there.",
            ("isolation/process.py",),
        ),
        Control(
            "host_files",
            "Of the host's files only system libraries, Python and the notebook's folder are there, all "
            "read-only; home folders, most of /etc and /var, and devices are not.",
            ("isolation/view.py", "isolation/process.py"),
        ),
        Control(
            "ephemeral",
            "What can be written (home, /tmp and /dev/shm) is the sandbox's own, in memory, and ends "
            "with it.",
            ("isolation/process.py",),
        ),
        Control(
            "processes",
            "The sandbox has a pid namespace of its own: processes of the host can be neither seen nor "
            "signalled, and all of its own end with it.",
            ("isolation/process.py", "inner/supervisor.py", "isolation/lifeline.py"),
        ),
        Control(
            "separate_process",
            "The cell's process holds nothing of the wrapper's: not the frontend's key, not its "
            "connection file, no descriptor that was open there; its own key is worthless outside.",
            ("relay/inner.py", "isolation/view.py", "isolation/process.py"),
        ),
        Control(
            "seccomp",
            "System calls that are not on an allow-list fail, whatever code makes them.",
            ("isolation/seccomp.py", "policies/seccomp.json"),
        ),
        Control(
            "no_privileges",
            "The sandbox's user is root nowhere, has no capabilities and can gain none; started by "
            "root, it is a user whom nothing on the host belongs to.",
            ("isolation/process.py", "isolation/descent.py", "inner/supervisor.py"),
        ),
        Control(
            "limits",
            "A cell that takes more time, memory, processes or output than the policy says is stopped "
            "from outside, with all that it started.",
            ("limits/enforcer.py", "limits/meter.py", "inner/checkpoint.py"),
        ),
        Control(
            "environment",
            "Of the environment variables only those on a short list of harmless ones enter the "
            "sandbox, and those that the policy's `environment.pass` names.",
            ("isolation/view.py",),
        ),
    )
}


def in_words(key: str | None) -> str:
    """What holds if a rule that names this control is bypassed."""
    if key is None:
        return f"{NOT_ENFORCED[0].upper()}{NOT_ENFORCED[1:]}."
    return f"{CONTROLS[key].holds} ({key})"


# The document --------------------------------------------------------------------------------------

_INTRODUCTION: Final = f"""\
# What holds if the static check is bypassed

The check that reads a cell before it runs is policy and early warning, never the boundary. Python can
be written in more ways than any reader foresees, so **assume that every rule below can be bypassed**.
What then stands between the code and the host is the sandbox, which does not read code at all.

This page names for each rule the nearest control of the sandbox (level `process`); the others hold
too. For each of these rules `{TEST}` runs a cell that does what
the rule is about, with the check off: in a plain kernel, where it does its harm, and in the sandbox,
where it does none that a witness on the host could see. One such cell is an example and no proof: what
the layers are, and what they do not protect against, is in [threats](threats.md).

Rules marked *{NOT_ENFORCED}* have nothing behind them in this
build. They are about scripts and markup, which run in the notebook's page, in your browser, and not in
the sandbox; other kinds of output can carry them too.

Written by `python -m sandbox_kernel.policy.backstops`; do not edit.
"""


def document() -> str:
    """What docs/backstops.md holds."""
    parts = (_INTRODUCTION, "## Controls\n", *_controls(), "\n## Rules\n", *_rules())
    return "\n".join(parts) + "\n"


def _controls() -> Iterator[str]:
    yield "| control | what holds | made by |\n|---|---|---|"
    for control in CONTROLS.values():
        places = ", ".join(f"`{place}`" for place in control.made_by)
        yield f"| {control.key} | {control.holds} | {places} |"


def _rules() -> Iterator[str]:
    from sandbox_kernel.policy.load import load_policy
    from sandbox_kernel.policy.model import NAME_RULES
    from sandbox_kernel.policy.rules import all_ids, rule

    codes = [load_policy(name).code for name in POLICIES]
    yield f"| rule | risk | {' | '.join(POLICIES)} | control | test |\n|---|---|---|---|---|---|"
    for id in all_ids():
        risk, control = rule(id).risk, rule(id).backstop
        if id in NAME_RULES:
            otherwise = [getattr(code, NAME_RULES[id]).otherwise for code in codes]
            decisions = [f"by name, otherwise {decision}" for decision in otherwise]
        else:
            decisions = [code.decide(id, "") for code in codes]
        test = f"`test_backstops.py[{control}]`" if control else ""
        held_by = control or f"*{NOT_ENFORCED}*"
        yield f"| `{id}` | {risk} | {' | '.join(decisions)} | {held_by} | {test} |"


def document_path() -> Path:
    """Where it is, in a source checkout."""
    return policies_directory().parent / "docs" / "backstops.md"


if __name__ == "__main__":
    document_path().write_text(document())
