"""No probe gets out of a sandbox, at any level (see ``probes``).

A level has one kernel, a sibling beside it, and a host full of things to be after. Every probe runs
three ways: inside, where it must fail; on the host (the control), where the same code must succeed; and
a witness on the host, which looks before and after, must have seen nothing of the first and, where it
leaves something to be seen, all of the second. A control that fails makes a probe invalid, which is a
failure of this test.
"""

from __future__ import annotations

import collections
import importlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hostile.probes import attack
from tests.kernel import Kernel, running_kernel

MODULES = {
    f"{attack.__package__}.{name}": importlib.import_module(f"{attack.__package__}.{name}")
    for name in attack.MODULES
}

from tests.hostile.probes.attack import PROBES, Probe  # noqa: E402 - now they are all there
from tests.hostile.probes.control import controls  # noqa: E402
from tests.hostile.probes.stage import Stage, staged  # noqa: E402
from tests.hostile.probes.witnesses import Witnesses, must_see_the_control  # noqa: E402

FEWEST_PROBES = 150
# Its own words; all else is a mistake in the probe.
BLOCKED = ("refused", "absent", "failed", "killed", "read")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can plant what root must not lose"),
]


class Result(NamedTuple):
    """What became of one probe: ``blocked``, ``own``, ``reached``, ``invalid`` or ``not here``."""

    probe: Probe
    verdict: str
    why: str = ""


def load_inside(kernel: Kernel) -> None:
    texts = {name: Path(str(module.__file__)).read_text() for name, module in MODULES.items()}
    outcome = kernel.run(
        "import json, sys, types\n"
        f"for name, text in {texts!r}.items():\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(text, name, 'exec'), module.__dict__)\n"
    )
    assert outcome.status == "ok", outcome.evalue


def run_inside(kernel: Kernel, probes: Iterable[Probe], targets: dict[str, Any]) -> Any:
    order = json.dumps([[probe.name for probe in probes], targets])
    outcome = kernel.run(
        f"print(json.dumps(sys.modules[{attack.__name__!r}].run(*json.loads({order!r}))))"
    )
    assert outcome.status == "ok", (outcome.ename, outcome.evalue)
    return json.loads(outcome.text())


def reached(outcome: list[str], secret: str) -> bool:
    word, said = outcome
    return word == "did" or (word == "read" and secret in said)


def judge(
    probe: Probe,
    level: str,
    inside: list[str],
    control: list[str],
    witnessed: list[object],
    secret: str,
) -> Result:
    before, after, after_control = witnessed
    if not reached(control, secret):
        if probe.optional and control[0] in ("absent", "refused", "failed"):
            return Result(probe, "not here", str(control))
        return Result(probe, "invalid", f"the control did not succeed: {control}")
    if must_see_the_control(probe) and after_control == after:
        return Result(probe, "invalid", "its witness did not see the control")
    if before != after:
        return Result(probe, "reached", f"the host has seen it: {before} became {after}")
    if reached(inside, secret):
        if level in probe.own and secret not in inside[1]:
            return Result(probe, "own", probe.own[level])
        return Result(probe, "reached", str(inside))
    if inside[0] not in BLOCKED:
        return Result(probe, "invalid", str(inside))
    return Result(probe, "blocked", str(inside))


def try_all(stage: Stage, kernel: Kernel, sibling: Kernel) -> list[Result]:
    probes = [probe for probe in PROBES if kernel.level not in probe.left_out]
    witnesses = Witnesses(stage, kernel, sibling)
    stage.targets |= witnesses.pids | {
        "shell port": kernel.client.get_connection_info()["shell_port"]
    }
    load_inside(kernel)
    before = {probe.name: witnesses.observe(probe) for probe in probes}
    inside: dict[str, list[str]] = {}
    for kind in dict.fromkeys(probe.kind for probe in probes):
        batch = [probe for probe in probes if probe.kind == kind]
        inside |= run_inside(kernel, batch, stage.inside())
    after = {probe.name: witnesses.observe(probe) for probe in probes}
    control: dict[str, list[str]] = {}
    for place in ("apart", "host"):
        names = [probe.name for probe in probes if probe.control == place]
        targets = stage.control()
        control |= controls(names, targets, stage.secret, apart=place == "apart")
    after_control = {probe.name: witnesses.observe(probe) for probe in probes}
    return [
        judge(
            probe,
            kernel.level,
            inside[probe.name],
            control[probe.name],
            [witnessed[probe.name] for witnessed in (before, after, after_control)],
            stage.secret,
        )
        for probe in probes
    ]


def table(level: str, results: list[Result]) -> str:
    """Blocked of all, by kind; then, one by one, what was not counted or is not the host's."""
    counted = [result for result in results if result.verdict != "not here"]
    held = collections.Counter(r.probe.kind for r in counted if r.verdict in ("blocked", "own"))
    total = collections.Counter(r.probe.kind for r in counted)
    lines = [f"escape and host-access probes at {level}: {held.total()}/{total.total()} blocked"]
    lines += [f"  {kind:28} {held[kind]:3}/{number}" for kind, number in total.items()]
    lines += [
        f"  {result.verdict}: {result.probe.name} ({result.why})"
        for result in results
        if result.verdict in ("own", "not here")
    ]
    return "\n".join(lines)


def test_each_probe_has_a_name_of_its_own() -> None:
    names = [probe.name for probe in PROBES]
    assert [name for name in names if names.count(name) > 1] == []


@pytest.mark.every_level(always=True)
def test_no_probe_reaches_the_host(
    level: str, record_property: Callable[[str, object], None]
) -> None:
    with staged() as stage:
        env = {
            "HOME": str(stage.home),
            "PROBE_TOKEN": stage.secret,
            "SANDBOX_KERNEL_HOME": str(stage.state),
        }
        own_file = stage.folder / "kernel.json"
        sibling_file = stage.runtime / "kernel-sibling.json"
        options = {"level": level, "cwd": stage.folder, "env": env}
        stage.targets |= {
            "connection file": str(sibling_file),
            "connection file in the folder": str(own_file),
        }
        with (
            running_kernel(**options, connection_file=str(sibling_file)) as sibling,
            running_kernel(**options, connection_file=str(own_file)) as kernel,
        ):
            sibling.run("alive = 1")
            kernel.run("kept = 42")
            results = try_all(stage, kernel, sibling)
            assert kernel.run("kept").result == "42"
            assert sibling.run("alive").result == "1"
    record_property("figures", table(level, results))
    wrong = [r for r in results if r.verdict in ("reached", "invalid")]
    report = "\n".join(f"{r.probe.kind} / {r.probe.name}: {r.verdict}: {r.why}" for r in wrong)
    assert not wrong, report
    counted = [r for r in results if r.verdict in ("blocked", "own")]
    assert len(counted) >= FEWEST_PROBES
