from __future__ import annotations

from pathlib import Path

import pytest

from sandbox_kernel.isolation.checks.engines import Engine
from sandbox_kernel.isolation.checks.runtimes import Runtime, gvisor, named, runtimes
from tests.unit.isolation.checks.hosts import made_up, program


def engine(kind: str = "Docker", **found: Runtime) -> Engine:
    return Engine("unix:///x", kind, "1", False, "x", found, "runc", frozenset())


def runsc(
    tmp_path: Path, *arguments: str, flags: str = "  -host-uds value\n  -network value"
) -> Runtime:
    path = program(tmp_path, "runsc", f"cat <<'END'\n{flags}\nEND")
    return Runtime(str(path), arguments)


def test_no_engine_is_no_answer(tmp_path: Path) -> None:
    assert runtimes(None).status == "unknown"
    assert gvisor(None, made_up(tmp_path)).status == "unknown"


def test_the_known_runtimes_are_told_with_the_default() -> None:
    one = Runtime("x", ())
    names = {"runc": one, "crun": one, "io.containerd.runc.v2": one, "kata-runtime": one}
    assert runtimes(engine(**names)).found == "runc (default), crun, kata-runtime"


def test_without_runsc_it_says_how_to_register_it(tmp_path: Path) -> None:
    check = gvisor(engine(runc=Runtime("runc", ())), made_up(tmp_path))
    assert check.status == "missing"
    assert "apt-get install runsc" in str(check.fix)
    assert "runsc install -- --host-uds=open --network=none" in str(check.fix)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--host-uds=open", "--network=none"),
        ("-host-uds=all",),
        ("--network=none", "--host-uds", "open"),
        ("--fsgofer-host-uds",),
        ("--fsgofer-host-uds=true",),
    ],
)
def test_runsc_that_may_open_sockets_will_do(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    check = gvisor(engine(runsc=runsc(tmp_path, *arguments)), made_up(tmp_path))
    assert check.status == "ok", check
    assert arguments[0] in check.found


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--network=none",),
        ("--host-uds=none",),
        ("--host-uds=create",),
        ("--fsgofer-host-uds=false",),
    ],
)
def test_runsc_that_may_not_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    check = gvisor(engine(runsc=runsc(tmp_path, *arguments)), made_up(tmp_path))
    assert check.status == "refused"
    assert "runsc install -- --host-uds=open" in str(check.fix)


def test_runsc_that_may_do_more_than_it_must_is_told_so(tmp_path: Path) -> None:
    more = gvisor(engine(runsc=runsc(tmp_path, "--fsgofer-host-uds")), made_up(tmp_path))
    just = gvisor(engine(runsc=runsc(tmp_path, "--host-uds=open")), made_up(tmp_path))
    assert "--host-uds=open would do" in more.found
    assert "would do" not in just.found


def test_an_old_runsc_is_told_by_its_own_list_of_flags(tmp_path: Path) -> None:
    old = runsc(tmp_path, flags="  -fsgofer-host-uds\n    \tallow the gofer to mount sockets")
    check = gvisor(engine(runsc=old), made_up(tmp_path))
    assert check.status == "refused"
    assert "runsc install -- --fsgofer-host-uds --network=none" in str(check.fix)


def test_kvm_that_is_not_there_is_refused(tmp_path: Path) -> None:
    wants = runsc(tmp_path, "--host-uds=open", "--platform=kvm")
    check = gvisor(engine(runsc=wants), made_up(tmp_path))
    assert check.status == ("ok" if Path("/dev/kvm").exists() else "refused")


def test_a_registered_runsc_that_is_not_seen_is_unknown(tmp_path: Path) -> None:
    gone = Runtime("/gone/runsc", ("--host-uds=open",))
    assert gvisor(engine(runsc=gone), made_up(tmp_path)).status == "unknown"


def test_podman_does_not_tell_its_flags(tmp_path: Path) -> None:
    check = gvisor(engine("Podman", runsc=runsc(tmp_path)), made_up(tmp_path))
    assert check.status == "unknown"
    assert "--runtime-flag=host-uds=open" in str(check.fix)


def test_podman_that_would_take_another_is_told_how_to_take_it(tmp_path: Path) -> None:
    check = gvisor(engine("Podman", runc=Runtime("runc", ())), made_up(tmp_path))
    assert check.status == "missing"
    assert "default runtime, runc" in check.found
    assert "podman --runtime runsc" in str(check.fix)


def test_a_flag_that_an_old_runsc_does_not_know_is_refused(tmp_path: Path) -> None:
    flags = "  -fsgofer-host-uds\n    \tallow the gofer to mount sockets"
    new = runsc(tmp_path, "--host-uds=open", flags=flags)
    assert gvisor(engine(runsc=new), made_up(tmp_path)).status == "refused"


def test_another_name_for_runsc_counts_and_the_best_is_taken(tmp_path: Path) -> None:
    good, bad = runsc(tmp_path, "--host-uds=open"), runsc(tmp_path)
    check = gvisor(engine(runsc=bad, careful=good), made_up(tmp_path))
    assert check.status == "ok"
    assert check.found.startswith("careful")


def test_the_runtime_that_a_policy_names_is_judged_by_itself(tmp_path: Path) -> None:
    good, bad = runsc(tmp_path, "--host-uds=open"), runsc(tmp_path)
    both = engine(runsc=bad, careful=good, kata=Runtime("kata", ()))
    statuses = {name: named(both, name, made_up(tmp_path)).status for name in (*both.runtimes, "x")}
    assert statuses == {"runsc": "refused", "careful": "ok", "kata": "ok", "x": "missing"}
