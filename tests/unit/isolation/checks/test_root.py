from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox_kernel.isolation import probe
from sandbox_kernel.isolation.checks.root import (
    CHANGING_USER,
    IDMAPPED,
    LEAVING_ROOT,
    check_root,
)
from sandbox_kernel.isolation.restricted import closed_to_others, python_paths
from tests.unit.isolation.checks.hosts import made_up, real, write


def test_an_ordinary_user_has_nothing_to_leave(tmp_path: Path) -> None:
    checks = check_root(made_up(tmp_path, uid=1000))
    assert {check.name: check.status for check in checks} == {
        LEAVING_ROOT: "ok",
        CHANGING_USER: "ok",
    }


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="root's own")
def test_root_of_this_machine_leaves_root_and_this_process_stays_as_it_is() -> None:
    before = Path("/mnt").stat().st_dev, os.getresuid()
    left, mapped, _ = check_root(real())
    assert (left.name, left.status) == (LEAVING_ROOT, "ok"), left
    assert (mapped.name, mapped.status) == (IDMAPPED, "ok"), mapped
    assert (Path("/mnt").stat().st_dev, os.getresuid()) == before


def test_root_without_privileges_is_refused(tmp_path: Path) -> None:
    host = made_up(tmp_path, uid=0)
    write(host.about / "status", "CapEff:\t00000000a80425fb\n")  # as in a container
    check, _ = check_root(host)
    assert check.status == "refused"
    assert check.fix == probe.root_without_privileges().hint


def test_root_of_a_namespace_with_one_id_is_refused(tmp_path: Path) -> None:
    host = made_up(tmp_path, uid=0)
    write(host.about / "uid_map", "         0       1000          1\n")
    check, _ = check_root(host)
    assert check.status == "refused"
    assert check.fix == probe.root_of_a_lone_namespace().hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root can do it")
def test_who_only_seems_to_be_root_is_refused_by_the_kernel(tmp_path: Path) -> None:
    left, mapped, _ = check_root(made_up(tmp_path, uid=0, environ=dict(os.environ)))
    assert left.status == "refused"
    assert mapped.status == "missing"


def test_restricted_needs_less_of_root_than_bubblewrap_does(tmp_path: Path) -> None:
    host = made_up(tmp_path, uid=0)
    write(host.about / "status", "CapEff:\t00000000a80425fb\n")  # as in a container
    _, changing = check_root(host)
    closed = closed_to_others(python_paths())
    expected = "ok" if closed is None else "refused"
    assert (changing.name, changing.status) == (CHANGING_USER, expected)


def test_restricted_is_refused_to_root_who_cannot_become_another_user(tmp_path: Path) -> None:
    host = made_up(tmp_path, uid=0)
    write(host.about / "status", "CapEff:\t0000000000000000\n")
    *_, changing = check_root(host)
    assert changing.status == "refused"
    assert changing.fix == probe.root_cannot_change_user().hint
