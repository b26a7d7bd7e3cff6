from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox_kernel.isolation.checks.base import Host
from sandbox_kernel.isolation.checks.cgroups import check_cgroups
from sandbox_kernel.limits.cgroup import Cgroup
from tests.unit.isolation.checks.hosts import made_up, real, write


def with_cgroups(tmp_path: Path, cgroups: str, *mounts: str) -> Host:
    """A process in these cgroups, with these mounts; ``@`` stands for ``tmp_path``."""
    host = made_up(tmp_path)
    lines = [f"{30 + number} 23 0:{number} {mount}\n" for number, mount in enumerate(mounts)]
    write(host.about / "cgroup", cgroups)
    write(host.about / "mountinfo", "".join(lines).replace("@", str(tmp_path)))
    return host


def v2(path: Path, handed_on: str) -> Path:
    write(path / "cgroup.subtree_control", f"{handed_on}\n")
    write(path / "cgroup.procs", "")
    return path


def test_what_is_said_of_this_machine_is_what_a_sandbox_gets() -> None:
    made, memory = check_cgroups(real())
    cgroup = Cgroup.create()
    try:
        assert (made.status == "ok") == (cgroup is not None)
        assert (memory.status == "ok") == (cgroup is not None and cgroup.memory() is not None)
    finally:
        if cgroup is not None:
            cgroup.close()


def test_nothing_is_made(tmp_path: Path) -> None:
    v2(tmp_path / "fs", "memory pids")
    before = sorted((tmp_path / "fs").rglob("*"))
    made, _ = check_cgroups(with_cgroups(tmp_path, "0::/\n", "/ @/fs rw - cgroup2 cgroup2 rw"))
    assert made.status == "ok"
    assert sorted((tmp_path / "fs").rglob("*")) == before


def test_version_2_that_hands_on_memory(tmp_path: Path) -> None:
    v2(tmp_path / "fs", "memory pids")
    host = with_cgroups(tmp_path, "0::/\n", "/ @/fs rw - cgroup2 cgroup2 rw")
    made, memory = check_cgroups(host)
    assert (made.status, memory.status) == ("ok", "ok")
    assert f"version 2, below {tmp_path / 'fs'}" in made.found


def test_version_2_that_hands_on_nothing_says_how_to_get_a_session_that_does(
    tmp_path: Path,
) -> None:
    v2(tmp_path / "fs", "")
    host = with_cgroups(tmp_path, "0::/\n", "/ @/fs rw - cgroup2 cgroup2 rw")
    made, memory = check_cgroups(host)
    assert (made.status, memory.status) == ("missing", "missing")
    assert "systemd-run --user --scope" in str(made.fix)


def test_version_1_without_memory(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    host = with_cgroups(tmp_path, "8:pids:/\n", "/ @/pids rw - cgroup cgroup rw,pids")
    made, memory = check_cgroups(host)
    assert (made.status, memory.status) == ("ok", "missing")
    assert memory.fix is not None


def test_version_1_whose_directory_cannot_be_written(tmp_path: Path) -> None:
    host = with_cgroups(tmp_path, "8:memory:/gone\n", "/ @/memory rw - cgroup cgroup rw,memory")
    made, _ = check_cgroups(host)
    assert made.status == "missing"
    assert "unified_cgroup_hierarchy" in str(made.fix)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_root_is_not_for_an_ordinary_user(tmp_path: Path) -> None:
    v2(tmp_path / "fs", "memory").chmod(0o555)
    made, _ = check_cgroups(with_cgroups(tmp_path, "0::/\n", "/ @/fs rw - cgroup2 cgroup2 rw"))
    assert made.status == "missing"


def test_a_kernel_without_cgroups_has_none(tmp_path: Path) -> None:
    made, memory = check_cgroups(made_up(tmp_path))
    assert (made.status, memory.status) == ("missing", "missing")


def test_nonsense_is_unknown(tmp_path: Path) -> None:
    host = with_cgroups(tmp_path, "nonsense\n")
    assert check_cgroups(host)[0].status == "unknown"
