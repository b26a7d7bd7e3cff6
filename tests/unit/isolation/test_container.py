"""What an engine is asked for, line by line: nothing of the host, and no way to get more."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sandbox_kernel.isolation import view
from sandbox_kernel.isolation.container import ContainerSpec, bind, container_config, explain
from sandbox_kernel.isolation.keeper import is_abandoned, owner_label
from sandbox_kernel.paths import policies_directory

SPEC = ContainerSpec(
    address="unix:///run/docker.sock",
    engine="docker runc",
    image="sha256:" + "0" * 64,
    runtime=None,
    memory_bytes=512 << 20,
    processes=100,
    policy_sha256="1" * 64,
)


def config(spec: ContainerSpec = SPEC) -> dict[str, object]:
    return container_config(
        spec,
        user="1900000001:1900000001",
        environment={"HOME": view.HOME},
        mounts=[bind(Path("/state/run/1"), view.RUN)],
    )


def host(spec: ContainerSpec = SPEC) -> dict[str, object]:
    settings = config(spec)["HostConfig"]
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


def test_all_that_is_mounted_is_read_only_and_without_what_is_mounted_below() -> None:
    for mount in host()["Mounts"]:
        assert mount["ReadOnly"] is True
        assert mount["BindOptions"] == {"Propagation": "rprivate", "NonRecursive": True}


def test_it_runs_as_nobody_of_the_host() -> None:
    uid, gid = map(int, config()["User"].split(":"))
    assert min(uid, gid) >= 1_900_000_000


def test_limits_that_a_policy_does_not_set_are_not_asked_for() -> None:
    unlimited = host(SPEC._replace(memory_bytes=None, processes=None))
    assert not {"Memory", "MemorySwap", "PidsLimit"} & set(unlimited)


def test_a_runtime_is_asked_for_by_its_name() -> None:
    assert "Runtime" not in host()
    assert host(SPEC._replace(runtime="runsc"))["Runtime"] == "runsc"


def test_a_label_says_whose_it_is_until_that_ends() -> None:
    label = config()["Labels"]["sandbox-kernel.wrapper"]
    assert label == owner_label(os.getpid())
    assert not is_abandoned(label)
    place, pid, start = label.split(" ")
    assert is_abandoned(f"{place} {pid} {int(start) + 1}"), "its pid is another's by now"
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    assert is_abandoned(f"{place} {ended} 1")


@pytest.mark.parametrize("label", ["", "elsewhere 1 1", "x y z", "a b"])
def test_what_cannot_be_known_to_be_abandoned_is_left_alone(label: str) -> None:
    assert not is_abandoned(label)


@pytest.mark.parametrize(
    ("said", "console", "named"),
    [
        ({"error": "It is gone.", "hint": "Start it."}, "", "It is gone. Start it."),
        ({"refused": "no such image", "status": 404}, "", "image build"),
        ({"refused": "unknown runtime"}, "", "unknown runtime"),
        ({"started": "1"}, "No module named 'ipykernel'", "No module named"),
        ({}, "", "It said nothing"),
    ],
)
def test_why_it_did_not_come_up_is_said(said: dict[str, object], console: str, named: str) -> None:
    assert named in str(explain(said, SPEC, console))
