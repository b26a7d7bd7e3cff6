from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_kernel.limits import cgroup
from sandbox_kernel.limits.cgroup import Cgroup, Held, Memory
from sandbox_kernel.limits.cgroup_places import PREFIX, family, find_places

MIB = 1 << 20


def about(tmp_path: Path, cgroups: str, *mounts: str) -> Path:
    """A directory like /proc/self with these two files; ``@`` stands for ``tmp_path``."""
    directory = tmp_path / "self"
    directory.mkdir()
    (directory / "cgroup").write_text(cgroups)
    lines = [f"{30 + number} 23 0:{number} {mount}" for number, mount in enumerate(mounts)]
    (directory / "mountinfo").write_text(
        "".join(f"{line}\n" for line in lines).replace("@", str(tmp_path))
    )
    return directory


def places(tmp_path: Path, cgroups: str, *mounts: str) -> list[tuple[int, dict[str, str]]]:
    return [
        (version, {name: str(path.relative_to(tmp_path)) for name, path in parents.items()})
        for version, parents in find_places(about(tmp_path, cgroups, *mounts))
    ]


def v2_directory(path: Path, handed_on: str = "", **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.subtree_control").write_text(f"{handed_on}\n")
    (path / "cgroup.procs").write_text("")
    for name, text in files.items():
        (path / name.replace("_", ".")).write_text(text)
    return path


# -- where cgroups can be made ----------------------------------------------------------------------


def test_a_host_without_cgroups_has_no_place_for_them(tmp_path: Path) -> None:
    assert places(tmp_path, "", "/ / rw - ext4 /dev/vda rw") == []  # nobody has mounted any
    assert [*find_places(tmp_path / "nowhere")] == []  # nor has the kernel any


def test_version_1_in_a_hybrid_layout(tmp_path: Path) -> None:
    """As on a machine whose version 2 has no memory controller."""
    v2_directory(tmp_path / "unified", "hugetlb")
    found = places(
        tmp_path,
        "9:name=systemd:/\n8:pids:/\n4:memory:/jobs/one\n2:cpuacct:/\n1:cpu:/\n0::/\n",
        "/ / rw - ext4 /dev/vda rw",
        "/ @/pids rw,relatime - cgroup cgroup rw,pids",
        "/ @/memory rw,relatime shared:9 - cgroup cgroup rw,memory",
        "/ @/cpuacct rw,relatime - cgroup cgroup rw,cpuacct",
        "/ @/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate",
    )
    assert found == [(1, {"memory": "memory/jobs/one", "cpuacct": "cpuacct", "pids": "pids"})]


def test_the_controller_that_shares_processors_out_is_found_as_well(tmp_path: Path) -> None:
    found = places(
        tmp_path,
        "2:cpuacct:/a\n1:cpu:/b\n",
        "/ @/cpu rw,relatime - cgroup cgroup rw,cpu",
        "/ @/cpuacct rw,relatime - cgroup cgroup rw,cpuacct",
    )
    assert found == [(1, {"cpuacct": "cpuacct/a", "cpu": "cpu/b"})]


def test_version_1_with_controllers_mounted_together(tmp_path: Path) -> None:
    found = places(
        tmp_path,
        "4:memory:/a\n3:cpu,cpuacct:/b\n",
        "/ @/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
        "/ @/memory rw - cgroup cgroup rw,memory",
    )
    together = {"cpuacct": "cpu,cpuacct/b", "cpu": "cpu,cpuacct/b"}
    assert found == [(1, {"memory": "memory/a", **together})]


def test_version_1_in_a_container_that_sees_its_own_part_only(tmp_path: Path) -> None:
    found = places(
        tmp_path,
        "4:memory:/docker/abc\n3:pids:/docker/abc/inner\n2:cpuacct:/elsewhere\n",
        "/docker/abc @/memory ro - cgroup cgroup rw,memory",
        "/docker/abc @/pids rw - cgroup cgroup rw,pids",
        "/docker/abc @/cpuacct rw - cgroup cgroup rw,cpuacct",
    )
    assert found == [(1, {"memory": "memory", "pids": "pids/inner"})]


def test_a_process_outside_of_its_namespaces_root_has_no_place(tmp_path: Path) -> None:
    mount = "/.. @/memory rw - cgroup cgroup rw,memory"
    assert places(tmp_path, "4:memory:/../../other\n", mount) == []


def test_version_2_at_the_root(tmp_path: Path) -> None:
    v2_directory(tmp_path / "fs", "cpu memory pids")
    found = places(tmp_path, "0::/\n", "/ @/fs rw - cgroup2 cgroup2 rw")
    assert found == [(2, dict.fromkeys(("memory", "cpuacct", "pids", "cpu"), "fs"))]


def test_version_2_in_a_systemd_user_session_is_beside_its_own(tmp_path: Path) -> None:
    # systemd writes special characters like this; mountinfo writes a backslash in octal.
    own = r"/user.slice/app.slice/app-jupyter\x2dlab.scope"
    v2_directory(tmp_path / "fs" / "user.slice" / "app.slice", "memory")
    v2_directory(tmp_path / "fs" / own[1:], memory_max="max\n", cpu_max="max 100000\n")
    found = places(tmp_path, f"0::{own}\n", "/ @/fs rw - cgroup2 cgroup2 rw")
    parent = "fs/user.slice/app.slice"
    assert found == [(2, {"memory": parent, "cpuacct": parent})]


@pytest.mark.parametrize("limit", [{"memory_max": "1000000"}, {"cpu_max": "50000 100000"}])
def test_version_2_does_not_leave_a_limit_behind(tmp_path: Path, limit: dict[str, str]) -> None:
    v2_directory(tmp_path / "fs" / "system.slice", "memory pids")
    v2_directory(tmp_path / "fs" / "system.slice" / "jupyter.service", **limit)
    mount = "/ @/fs rw - cgroup2 cgroup2 rw"
    assert places(tmp_path, "0::/system.slice/jupyter.service\n", mount) == []


def test_version_2_in_a_container_has_no_place(tmp_path: Path) -> None:
    """Its root has processes, and so cannot hand on controllers; what is above it is not mounted."""
    v2_directory(tmp_path / "fs", memory_max="max")
    assert places(tmp_path, "0::/\n", "/ @/fs ro - cgroup2 cgroup2 rw") == []


def test_other_file_systems_may_be_as_odd_as_they_like(tmp_path: Path) -> None:
    found = places(
        tmp_path,
        "4:memory:/a\x0cb\u2028c\n",
        r"/ /wsl rw,noatime - 9p C:\134Program\040Files rw,aname=drvfs;path=C:\Program Files\x - y",
        "/ /empty rw - tmpfs  rw",
        "/ @/memory rw - cgroup cgroup rw,memory",
        "/odd\x0cpath\u2028/ /mnt rw - ext4 /dev/vdb rw",
    )
    assert found == [(1, {"memory": "memory/a\x0cb\u2028c"})]


def test_mount_points_with_spaces(tmp_path: Path) -> None:
    found = places(tmp_path, "4:memory:/\n", r"/ @/a\040b rw - cgroup cgroup rw,memory")
    assert found == [(1, {"memory": "a b"})]


# -- version 2, in a directory laid out like one ---------------------------------------------------


@pytest.fixture
def v2(tmp_path: Path) -> Cgroup:
    v2_directory(tmp_path / "fs", "cpu memory pids")
    made = Cgroup.create(about(tmp_path, "0::/\n", "/ @/fs rw - cgroup2 cgroup2 rw"))
    assert made is not None
    assert made.version == 2
    (path,) = made.paths
    assert path.parent == tmp_path / "fs"
    assert path.name.startswith(family())
    return made


def test_version_2_is_read(v2: Cgroup) -> None:
    (path,) = v2.paths
    (path / "memory.stat").write_text(
        "anon 1000\nfile 99999\nkernel 30\nkernel_stack 10\nshmem 200\nshmem_thp 5\n"
    )
    (path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nsystem_usec 2\n")
    (path / "pids.current").write_text("7\n")
    (path / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n")
    (path / "cgroup.procs").write_text("17\n4\n")
    assert v2.memory() == Memory(anon=1000, shmem=200, kernel=30)
    assert v2.cpu_seconds() == 2.5
    assert v2.tasks() == 7
    assert v2.oom_kills() == 1
    assert v2.pids() == [17, 4]
    assert v2.source == "cgroup v2"


def test_version_2_of_an_old_kernel_has_the_parts_of_kernel_memory(v2: Cgroup) -> None:
    (path,) = v2.paths
    (path / "memory.stat").write_text("anon 1\nkernel_stack 16\npagetables 32\nshmem 2\nslab 64\n")
    assert v2.memory() == Memory(anon=1, shmem=2, kernel=112)


def test_version_2_is_limited(v2: Cgroup) -> None:
    (path,) = v2.paths
    names = ("memory.max", "memory.swap.max", "pids.max", "cpu.max")
    for name in names:
        (path / name).touch()
    held = v2.limit(memory_bytes=512 * MIB, processes=64, cpus=1.5)
    assert held == Held(memory=True, processes=True, cpus=True)
    written = [(path / name).read_text() for name in names]
    assert written == ["536870912", "0", "64", "150000 100000"]
    assert not (path / "memory.oom.group").exists()


def test_what_is_not_there_is_not_read_and_not_held(v2: Cgroup) -> None:
    assert v2.memory() is None
    assert v2.cpu_seconds() is None
    assert v2.tasks() is None
    assert v2.oom_kills() == 0
    held = v2.limit(memory_bytes=1, processes=1, cpus=1)
    assert held == Held(memory=False, processes=False, cpus=False)


# -- version 1, or 2 where there is one, for real ----------------------------------------------------


@pytest.fixture
def real() -> Iterator[Cgroup]:
    made = Cgroup.create()
    if made is None or made.memory() is None:
        pytest.skip("no cgroup with a memory controller can be made here")
    yield made
    made.close()


def child(group: Cgroup, code: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=group.join,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_child_is_measured(real: Cgroup) -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass\n"
    hold = "data = bytearray(b'x') * (64 << 20)\nprint(flush=True)\ninput()"
    with child(real, burn + hold) as process:
        assert real.keeps(process.pid)
        assert real.pids() == [process.pid]
        memory, cpu_seconds = real.memory(), real.cpu_seconds()
        assert memory is not None
        assert 64 * MIB < memory.anon < 90 * MIB
        assert memory.shmem < MIB
        assert cpu_seconds is None or 0.45 < cpu_seconds < 1.5
        assert real.tasks() in (None, 1)
        process.communicate("\n")


def test_shared_memory_is_not_page_cache(real: Cgroup, tmp_path: Path) -> None:
    fill = "for _ in range(64): os.write(file, bytes(1 << 20))"
    code = (
        f"import os\nfile = os.memfd_create('x')\n{fill}\n"
        f"file = os.open({str(tmp_path / 'cached')!r}, os.O_CREAT | os.O_WRONLY)\n{fill}\n"
        "os.fsync(file)\nprint(flush=True)\ninput()"
    )
    with child(real, code) as process:
        memory = real.memory()
        assert memory is not None
        assert 64 * MIB <= memory.shmem < 80 * MIB
        process.communicate("\n")


def test_memory_beyond_the_limit_is_refused_and_counted(real: Cgroup) -> None:
    with child(real, "print(flush=True)\ninput()\ndata = bytearray(b'x') * (256 << 20)") as process:
        assert real.limit(memory_bytes=64 * MIB).memory
        process.communicate("\n")
        assert process.returncode == -9
    assert real.oom_kills() == 1


def test_a_memory_limit_can_be_lowered_and_raised(real: Cgroup) -> None:
    for size in (256, 64, 512):
        assert real.limit(memory_bytes=size * MIB).memory
        path = next(path for path in real.paths if (path / "memory.stat").exists())
        name = "memory.max" if real.version == 2 else "memory.limit_in_bytes"
        assert int((path / name).read_text()) == size * MIB


def test_tasks_beyond_the_limit_are_refused(real: Cgroup) -> None:
    if real.tasks() is None:
        pytest.skip("no pids controller here")
    code = (
        "import os\nprint(flush=True)\ninput()\ntry: os.fork()\nexcept BlockingIOError: os._exit(7)"
    )
    with child(real, code) as process:
        assert real.limit(processes=1) == Held(memory=False, processes=True, cpus=False)
        process.communicate("\n")
        assert process.returncode == 7


def test_a_list_of_processes_is_never_an_old_one(real: Cgroup) -> None:
    """Version 1 repeats an old list for a second to whoever keeps the file open."""
    for _ in range(3):
        assert real.pids() == []
        with child(real, "print(flush=True)\ninput()") as process:
            assert real.pids() == [process.pid]
            process.communicate("\n")


def test_closing_waits_for_processes_that_are_ending() -> None:
    made = Cgroup.create()
    if made is None:
        pytest.skip("no cgroup can be made here")
    paths = made.paths
    code = "data = bytearray(b'x') * (128 << 20)\nprint(flush=True)\ninput()"
    with child(made, code) as process:
        process.kill()
        made.close()
    assert not any(path.exists() for path in paths)
    assert made.memory() is None
    made.close()


def test_a_child_that_could_not_join_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    made = Cgroup(1, {"memory": tmp_path / "memory"})
    made.join()
    assert not made.keeps(os.getpid())
    assert made.paths == set()
    assert not (tmp_path / "memory").exists()


def test_what_dead_wrappers_left_is_removed(tmp_path: Path) -> None:
    root = v2_directory(tmp_path / "fs", "memory")
    start = cgroup.start_ticks(os.getpid())
    gone = subprocess.Popen(["true"])
    gone.wait()
    abandoned = [f"{PREFIX}{gone.pid}-1-1", f"{PREFIX}{os.getpid()}-{start + 1}-1"]
    in_use = [f"{PREFIX}{os.getpid()}-{start}-99", "sandbox-kernel-x", "sandbox-kernel-1"]
    others = ["user.slice", f"my-{PREFIX}{gone.pid}-1-1"]
    for name in (*abandoned, *in_use, *others):
        (root / name).mkdir()
    made = Cgroup.create(about(tmp_path, "0::/\n", "/ @/fs rw - cgroup2 cgroup2 rw"))
    assert made is not None
    left = {path.name for path in root.iterdir() if path.is_dir()}
    assert left == {*in_use, *others, *(path.name for path in made.paths)}


def test_without_a_place_none_is_made(tmp_path: Path) -> None:
    assert Cgroup.create(about(tmp_path, "0::/\n", "/ / rw - ext4 /dev/vda rw")) is None


def test_kernel_memory_that_the_host_can_reclaim_is_not_the_cells() -> None:
    before = Memory(anon=0, shmem=0, kernel=100, host_reclaimable=1000)
    assert before._replace(kernel=150).kernel_gained(before) == 50
    # A cell that reads files: the host's kernel remembers them, and can forget them.
    assert before._replace(kernel=150, host_reclaimable=1040).kernel_gained(before) == 10
    # The host reclaims memory meanwhile, or the cell gives some back.
    assert before._replace(kernel=150, host_reclaimable=0).kernel_gained(before) == 50
    assert before._replace(kernel=50).kernel_gained(before) == 0
