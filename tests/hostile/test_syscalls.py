"""Sensitive system calls: the seccomp filter by itself, and what is left of them at each level.

The filter is asked by real calls inside bubblewrap. Every call is made three times in the same sandbox,
which gives the process every capability over its own namespaces so that little but the filter stands
in its way:

* *filtered*: with the profile as it is shipped; the call must fail;
* *marked*: with the same rules but an error number no kernel code path returns here; getting that
  number back shows that the filter answered, and not the kernel behind it;
* *open*: without a filter; the kernel's own answer must be another one than the filtered answer.

A call that the kernel refuses in the same words without a filter proves nothing by itself. Those are
listed in `REFUSED_BY_THE_KERNEL_TOO`, are shown as skipped, and do not count as blocked.

Then the same calls are made in a kernel at each level. Under gVisor no call of a cell reaches the host's
kernel: gVisor's own answers, and is itself confined by a filter, which is what is looked at there.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.isolation import seccomp
from tests.hostile.syscalls import making, workload
from tests.hostile.syscalls.calls import (
    ANSWERED_BY_GVISOR,
    LET_THROUGH,
    PROBES,
    REFUSED_BY_GVISOR,
    REFUSED_BY_THE_KERNEL_TOO,
    Probe,
    call_number,
)
from tests.kernel import Kernel, containers_of, running_kernel

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "policies" / "seccomp.json"
MARK = errno.EXFULL
# Of all that is sensitive, what is let through among it.
BLOCKED_SHARE = 0.9

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]


def sandboxed(program: bytes | None, script: Any, stdin: str = "") -> str:
    """Run a module in bubblewrap under the BPF `program` and return what it printed."""
    command = ["bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--uid", "0", "--gid", "0", "--cap-add", "ALL", "--ro-bind", "/", "/"]
    command += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for visible in (sys.base_prefix, sys.prefix, str(ROOT)):
        command += ["--ro-bind", visible, visible]  # it may lie in the /tmp just covered
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLCONFIGDIR": "/tmp",
        "TMPDIR": "/tmp",
        "HOME": "/tmp",
    }
    with open(os.memfd_create("seccomp"), "wb") as file:  # noqa: PTH123 - a descriptor
        if program is not None:
            file.write(program)
            file.flush()
            file.seek(0)
            command += ["--seccomp", str(file.fileno())]
        done = subprocess.run(
            [*command, "--", sys.executable, "-X", "faulthandler", str(script.__file__)],
            input=stdin,
            capture_output=True,
            text=True,
            pass_fds=[file.fileno()],
            env=environment,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


CALLS = json.dumps([[p.label, call_number(p), p.args, p.entry] for p in (*PROBES, *LET_THROUGH)])


def answers_under(program: bytes | None) -> dict[str, str]:
    answers: dict[str, str] = json.loads(sandboxed(program, making, CALLS))
    return answers


def answers_in(kernel: Kernel) -> dict[str, str]:
    """The same in a cell."""
    text = Path(making.__file__).read_text()
    loaded = kernel.run(f"making = {{'__name__': 'making'}}\nexec({text!r}, making)")
    assert loaded.status == "ok", loaded.evalue
    outcome = kernel.run(
        f"import json\nprint(json.dumps(making['run_probes'](json.loads({CALLS!r}))))"
    )
    assert outcome.status == "ok", (outcome.ename, outcome.evalue)
    answers: dict[str, str] = json.loads(outcome.text())
    return answers


@pytest.fixture(scope="module")
def filtered() -> dict[str, str]:
    return answers_under(seccomp.compile_profile(PROFILE.read_bytes()))


@pytest.fixture(scope="module")
def marked() -> dict[str, str]:
    profile = json.loads(PROFILE.read_bytes()) | {"defaultErrnoRet": MARK}
    return answers_under(seccomp.compile_profile(json.dumps(profile).encode()))


@pytest.fixture(scope="module")
def unfiltered() -> dict[str, str]:
    return answers_under(None)


def test_there_are_enough_probes_and_each_has_its_own_name() -> None:
    labels = [probe.label for probe in (*PROBES, *LET_THROUGH)]
    assert len(labels) == len(set(labels))
    assert len(labels) >= 60
    assert set(REFUSED_BY_THE_KERNEL_TOO) < set(labels)


def test_the_filter_is_on_in_one_sandbox_only(
    filtered: dict[str, str], unfiltered: dict[str, str]
) -> None:
    assert filtered["Seccomp"] == "2"
    assert unfiltered["Seccomp"] != filtered["Seccomp"] or (
        unfiltered["Seccomp_filters"] < filtered["Seccomp_filters"]
    )


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.label)
def test_probe_is_blocked_by_the_filter(
    probe: Probe,
    filtered: dict[str, str],
    marked: dict[str, str],
    unfiltered: dict[str, str],
) -> None:
    answer = filtered[probe.label]
    assert answer in probe.answers
    # Rules with an answer of their own do not take the default's mark.
    assert marked[probe.label] == (errno.errorcode[MARK] if answer == "EPERM" else answer)
    if unfiltered[probe.label] == answer and probe.label in REFUSED_BY_THE_KERNEL_TOO:
        pytest.skip(f"not counted: {REFUSED_BY_THE_KERNEL_TOO[probe.label]}")
    assert unfiltered[probe.label] != answer, "the kernel says the same: the probe shows nothing"


def test_what_is_let_through_is_what_the_table_says(
    marked: dict[str, str], unfiltered: dict[str, str]
) -> None:
    for probe in LET_THROUGH:
        assert marked[probe.label] == unfiltered[probe.label], probe.label


def test_an_everyday_workload_runs_to_its_end() -> None:
    program = seccomp.compile_profile(PROFILE.read_bytes())
    lines = sandboxed(program, workload).splitlines()
    assert lines == [f"{name} ok" for name in workload.WORKLOAD]


@pytest.mark.every_level(always=True)
def test_sensitive_calls_of_a_cell_are_blocked(
    level: str,
    tmp_path: Path,
    unfiltered: dict[str, str],
    record_property: Callable[[str, object], None],
) -> None:
    with running_kernel(level=level, cwd=tmp_path) as kernel:
        answers = answers_in(kernel)
        confined = seen_from_the_host(kernel)
        assert kernel.run("1 + 1").result == "2"
    # The witness: what the host says of the process that makes the calls (under gVisor: for it).
    assert confined == {("Seccomp", "2"), ("NoNewPrivs", "1")}
    answered = {p.label: answers[p.label] for p in PROBES if not is_refusal(p, answers, level)}
    if level == "gvisor":
        assert set(answered) <= set(ANSWERED_BY_GVISOR)
    else:
        assert answered == {}
    # Where the kernel behind says the same, nothing is shown.
    refused = [probe.label for probe in PROBES if probe.label not in answered]
    unshown = [label for label in refused if answers[label] == unfiltered[label]]
    blocked = len(refused) - len(unshown)
    sensitive = blocked + len(answered) + len(LET_THROUGH)
    lines = [f"sensitive system calls at {level}: {blocked} of {sensitive} blocked"]
    lines += [f"  let through: {probe.label}: {why}" for probe, why in LET_THROUGH.items()]
    lines += [f"  answered by gVisor: {label}: {ANSWERED_BY_GVISOR[label]}" for label in answered]
    lines += [
        f"  not counted: {label}: the kernel itself says {answers[label]}" for label in unshown
    ]
    record_property("figures", "\n".join(lines))
    if level != "gvisor":
        assert blocked >= BLOCKED_SHARE * sensitive


def is_refusal(probe: Probe, answers: dict[str, str], level: str) -> bool:
    words = {
        "process": probe.answers,
        # A runtime says ENOSYS for calls that are newer than its list of names.
        "container": (*probe.answers, "ENOSYS"),
        "gvisor": (*probe.answers, *REFUSED_BY_GVISOR),
    }
    return answers[probe.label] in words[level]


def seen_from_the_host(kernel: Kernel) -> set[tuple[str, str]]:
    if kernel.level == "gvisor":
        (about,) = containers_of(kernel.wrapper_pid)
        pids = [about["State"]["Pid"]]
    else:
        pids = [kernel.kernel_pid]
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    facts = [tuple(line.split(":\t", 1)) for line in lines]
    return {(name, value) for name, value in facts if name in ("Seccomp", "NoNewPrivs")}
