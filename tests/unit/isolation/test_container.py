"""What an engine is asked for, line by line: nothing of the host, and no way to get more."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation import base, view
from sandbox_kernel.isolation.base import SandboxSpec
from sandbox_kernel.isolation.container import (
    Allowance,
    Containers,
    ContainerSandbox,
    bind,
    container_config,
    explain,
    volume,
)
from sandbox_kernel.isolation.keeper import unheld, volumes_of
from sandbox_kernel.isolation.owner import OWNER, owner_label
from sandbox_kernel.isolation.wanted import HOST_TASKS_PER_TASK, Found, Wanted
from sandbox_kernel.limits.statistics import LIMITATION, Statistics, Used
from sandbox_kernel.paths import policies_directory

LIMITED = Allowance(memory_bytes=512 << 20, processes=100, cpus=1.5)
FOUND = Found(level="container", runtime=None, image="sha256:" + "0" * 64, engine="docker")


def config(allowance: Allowance = LIMITED, found: Found = FOUND) -> dict[str, object]:
    return found.complete(
        container_config(
            allowance,
            "1" * 64,
            user="1900000001:1900000001",
            environment={"HOME": view.HOME},
            mounts=[bind(Path("/state/run/1"), view.RUN)],
        )
    )


def host(allowance: Allowance = LIMITED, found: Found = FOUND) -> dict[str, object]:
    settings = config(allowance, found)["HostConfig"]
    assert isinstance(settings, dict)
    return settings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("NetworkMode", "none"),
        ("ReadonlyRootfs", True),
        ("CapDrop", ["ALL"]),
        ("Privileged", False),
        ("IpcMode", "private"),
        ("CgroupnsMode", "private"),
        ("Memory", 512 << 20),
        ("MemorySwap", 512 << 20),
        ("PidsLimit", 100),
        ("NanoCpus", 1_500_000_000),
        ("AutoRemove", True),
    ],
)
def test_a_container_is_asked_for_with(key: str, value: object) -> None:
    assert host()[key] == value


def test_nothing_that_would_give_more_is_asked_for() -> None:
    giving = (
        "CapAdd",
        "Devices",
        "DeviceRequests",
        "Binds",
        "GroupAdd",
        "PortBindings",
        "VolumesFrom",
    )
    assert not {*giving, "UsernsMode", "Sysctls", "ExtraHosts"} & set(host())


def test_the_filter_is_the_one_that_is_shipped_and_privileges_cannot_be_gained() -> None:
    first, second = host()["SecurityOpt"]
    assert first == "no-new-privileges:true"
    shipped = json.loads((policies_directory() / "seccomp.json").read_text())
    assert json.loads(second.removeprefix("seccomp=")) == shipped


def test_podman_is_told_where_the_filter_lies() -> None:
    _, second = host(found=FOUND._replace(engine="podman"))["SecurityOpt"]
    assert Path(second.removeprefix("seccomp=")) == policies_directory() / "seccomp.json"


def test_all_that_is_mounted_is_read_only_and_without_what_is_mounted_below() -> None:
    for mount in host()["Mounts"]:
        assert mount["ReadOnly"] is True
        assert mount["BindOptions"] == {"Propagation": "rprivate", "NonRecursive": True}


def test_a_folder_is_shown_without_its_devices_and_the_keeper_knows_what_to_remove() -> None:
    shown = volume(Path("/home/ada"), "sandbox-kernel-1-a-0")
    options = shown["VolumeOptions"]["DriverConfig"]["Options"]
    assert set(options["o"].split(",")) == {"bind", "ro", "nodev", "nosuid"}
    assert (options["device"], shown["Target"]) == ("/home/ada", "/home/ada")
    assert shown["ReadOnly"] is True
    asked_for = container_config(LIMITED, "1" * 64, user="1:1", environment={}, mounts=[shown])
    assert volumes_of(FOUND.complete(asked_for)) == ["sandbox-kernel-1-a-0"]
    by_podman = FOUND._replace(engine="podman").complete(asked_for)
    assert volumes_of(by_podman) == []
    assert by_podman["HostConfig"]["Mounts"] == [bind(Path("/home/ada"), "/home/ada")]


@pytest.mark.parametrize(
    "mount",
    [
        volume(Path("/home/ada/nb,src=/home/bob"), "sandbox-kernel-1-a-0"),
        bind("/home/ada/a,b.csv", "/home/ada/a,b.csv"),
        bind("/dev/null", "/srv/a,b"),
        {"Type": "tmpfs", "Target": "/srv/a,b", "ReadOnly": True},
    ],
)
def test_podman_is_not_asked_for_a_path_that_it_would_read_as_another(
    mount: dict[str, object],
) -> None:
    asked_for = container_config(LIMITED, "1" * 64, user="1:1", environment={}, mounts=[mount])
    assert FOUND.complete(asked_for)["HostConfig"]["Mounts"] == [mount], "Docker reads it as it is"
    with pytest.raises(SandboxUnavailable, match="comma") as caught:
        FOUND._replace(engine="podman").complete(asked_for)
    assert repr(mount["Target"]) in caught.value.what
    assert "Rename it" in caught.value.hint


def sandbox(
    folder: Path, *levels: tuple[str, str | None], held: Path | None = None
) -> ContainerSandbox:
    """One that is not started, for a kernel that was started in ``held``."""
    wanted = Wanted("unix:///x", levels or (("container", None),), "python", "python", None)
    descriptor = os.open(held or folder, os.O_PATH)
    try:
        spec = SandboxSpec(folder, working_descriptor=descriptor, python=Path("/usr/bin/python3"))
        return ContainerSandbox(spec, Containers(wanted, LIMITED, "1" * 64))
    finally:
        os.close(descriptor)


def test_a_folder_that_was_exchanged_since_the_start_is_not_shown(tmp_path: Path) -> None:
    """The engine is root: a link in its place could show whatever root can read."""
    mine, other, name = tmp_path / "mine", tmp_path / "other", tmp_path / "notebooks"
    for folder in (mine, other):
        folder.mkdir()
    name.symlink_to(mine)
    assert mounted(sandbox(name, held=mine)) == [str(name)], "the control"
    name.unlink()
    name.symlink_to(other)
    exchanged = sandbox(name, held=mine)
    assert mounted(exchanged) == []
    assert "no longer the folder" in " ".join(exchanged.facts.notes)


def mounted(made: ContainerSandbox) -> list[str]:
    return [mount["Target"] for mount in made._folder_mounts("name")]


def test_an_engine_that_says_not_even_once_what_is_used_gets_no_cells(tmp_path: Path) -> None:
    made = sandbox(tmp_path)
    made._said = {"started": "1", "cpus": LIMITED.cpus}
    assert not made.failed, "the control"
    made._said |= {"unused": "not here"}
    assert made.failed
    # One that has said it before may be away for a while.
    made._statistics = Statistics(Used(1.0, 1, 1, 1, 1), asked_at=0.0)
    assert not made.failed


@pytest.mark.parametrize(
    ("engine", "runtime", "user", "unheld", "why"),
    [
        ("docker", None, "own", [], None),
        ("docker", "runsc", "root", [], None),
        ("podman", None, "own", ["swap"], None),
        ("docker", None, "other", [], "not of this sandbox's user"),
        ("docker", None, "root", [], "not of this sandbox's user"),
        ("docker", "runsc", "own", [], "not of this sandbox's user"),
        ("docker", None, "own", ["memory", "processes"], "no limit of memory and processes"),
        ("podman", "runsc", "root", [], "the memory that gVisor has"),
    ],
)
def test_the_engine_is_asked_what_is_used_only_where_that_is_enough(
    tmp_path: Path, engine: str, runtime: str | None, user: str, unheld: list[str], why: str | None
) -> None:
    made = sandbox(tmp_path)
    made._keeper = Mock()
    made._containers.found = Found("container", runtime, "sha256:1", engine)
    made._said = {"unheld": unheld}
    reason = made.ask_for_statistics({"own": made._uid, "root": 0, "other": made._uid + 1}[user])
    if why is None:
        assert reason is None
        assert made.ask_for_statistics({"own": made._uid, "root": 0}[user]) is None
        made._keeper.ask_for_statistics.assert_called_once_with()
        assert LIMITATION in made.facts.limitations
    else:
        assert reason is not None
        assert why in reason
        made._keeper.ask_for_statistics.assert_not_called()


def test_two_wrappers_with_the_same_pid_have_users_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in two containers of Jupyter's."""
    namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - it leads nowhere
    monkeypatch.setattr(base, "_FIRST_PID_NAMESPACE", namespace)
    assert base.unrelated_uid() == base.FIRST_UNRELATED_UID + os.getpid()
    monkeypatch.setattr(base, "_FIRST_PID_NAMESPACE", namespace + 1)
    drawn = {base.unrelated_uid() for _ in range(100)}
    assert len(drawn) > 95
    # Whom nobody has who goes by their pid; and below what some programs take for the largest.
    assert base.FIRST_UNRELATED_UID + (1 << 22) <= min(drawn) <= max(drawn) < 1 << 31


def test_limits_that_the_engine_has_dropped_are_said(tmp_path: Path) -> None:
    asked = {"Memory": 100, "MemorySwap": 100, "PidsLimit": 10}
    assert unheld(asked, asked) == []
    assert unheld({}, asked) == []
    assert unheld(asked, {"Memory": 100, "MemorySwap": -1, "PidsLimit": None}) == [
        "swap",
        "processes",
    ]
    made = sandbox(tmp_path)
    before = made.facts.notes
    made._said = {"unheld": ["swap"]}
    (note,) = set(made.facts.notes) - set(before)
    assert "no limit of swap" in note


def test_labels_that_would_close_the_sockets_are_off_and_that_is_said(tmp_path: Path) -> None:
    labelling = FOUND._replace(labels=True)
    assert "label=disable" in host(found=labelling)["SecurityOpt"]
    assert "label=disable" not in host()["SecurityOpt"]
    made = sandbox(tmp_path)
    made._containers.found = labelling
    assert "SELinux" in " ".join(made.facts.notes)


def test_an_images_own_health_check_does_not_run() -> None:
    assert config()["Healthcheck"] == {"Test": ["NONE"]}


def test_what_is_known_of_a_sandbox_outlives_its_folder(tmp_path: Path) -> None:
    """It is asked for with every cell."""
    folder = tmp_path / "notebooks"
    folder.mkdir(mode=0o700)
    made = sandbox(folder)
    before = made.facts
    assert f"chmod o+rx {folder}" in " ".join(before.notes), "the control"
    folder.rmdir()
    assert made.facts == before


def test_a_level_that_the_engine_has_instead_says_why(tmp_path: Path) -> None:
    made = sandbox(tmp_path, ("gvisor", "runsc"), ("container", None))
    made.remarks = ("policy prefers process: it is a joke",)
    why = "policy prefers gvisor: the engine has no runtime 'runsc'"
    assert why not in made.facts.notes, "it is not known yet"
    made._containers.found = FOUND
    assert made.facts.notes[:2] == (*made.remarks, why)
    made._containers.found = FOUND._replace(engine="podman")
    assert "default runtime, which is not 'runsc'" in made.facts.notes[1]
    made._containers.found = FOUND._replace(level="gvisor", runtime="runsc")
    assert why not in made.facts.notes


def test_it_runs_as_nobody_of_the_host() -> None:
    uid, gid = map(int, config()["User"].split(":"))
    assert min(uid, gid) >= 1_900_000_000


def test_limits_that_a_policy_does_not_set_are_not_asked_for() -> None:
    unlimited = host(Allowance(None, None, None))
    assert not {"Memory", "MemorySwap", "PidsLimit", "NanoCpus"} & set(unlimited)


def test_a_runtime_is_asked_for_by_its_name() -> None:
    assert "Runtime" not in host()
    assert host(found=FOUND._replace(runtime="runsc"))["Runtime"] == "runsc"


def test_a_second_kernel_counts_its_own_tasks_and_has_more_of_the_hosts() -> None:
    """gVisor ends, with all variables, when the host refuses it a thread."""
    second = host(found=FOUND._replace(runtime="runsc"))
    assert {"Name": "nproc", "Soft": 100, "Hard": 100} in second["Ulimits"]
    assert second["PidsLimit"] == 100 * HOST_TASKS_PER_TASK
    unlimited = host(LIMITED._replace(processes=None), FOUND._replace(runtime="runsc"))
    for without in (host(), unlimited):
        assert "nproc" not in {limit["Name"] for limit in without["Ulimits"]}


def test_a_label_says_whose_it_is() -> None:
    assert config()["Labels"][OWNER] == owner_label(os.getpid())


@pytest.mark.parametrize(
    ("said", "console", "named"),
    [
        ({"error": "It is gone.", "hint": "Start it."}, "", "It is gone. Start it."),
        ({"missing": [["gvisor", "No runtime.", "Install it."]]}, "", "No runtime. Install it."),
        ({"refused": "no such image", "status": 404, "made": False}, "", "image build"),
        ({"refused": "no such container", "status": 404, "made": True}, "", "refused the sandbox"),
        ({"refused": "unknown runtime"}, "", "unknown runtime"),
        ({"started": "1"}, "No module named 'ipykernel'", "No module named"),
        ({}, "", "It said nothing"),
        ({"found": {"runtime": "runsc"}}, "lifeline.connect(…) PermissionError", "--host-uds=open"),
        ({"found": {"runtime": "runsc"}}, "No module named 'ipykernel'", "No module named"),
        ({"found": {"runtime": None}}, "lifeline.connect(…) PermissionError", "PermissionError"),
    ],
)
def test_why_it_did_not_come_up_is_said(said: dict[str, object], console: str, named: str) -> None:
    assert named in str(explain(said, "unix:///run/docker.sock", console))
