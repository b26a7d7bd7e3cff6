"""Of what is asked for, an engine has the first that it has; what it has not, it says by name."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.engine_http import Engine
from sandbox_kernel.isolation.offer import NothingFound, choose
from sandbox_kernel.isolation.wanted import Found, Wanted
from tests.unit.isolation.engine_server import Answering, always, says, serving

ID = f"sha256:{'a' * 64}"
OTHER = f"sha256:{'b' * 64}"
DOCKER = {"Components": [{"Name": "Engine"}]}
PODMAN = {"Components": [{"Name": "Podman Engine"}]}
GVISOR_FIRST = (("gvisor", "runsc"), ("container", None))


def engine(
    *,
    version: Mapping[str, Any] = DOCKER,
    image: Mapping[str, Any] | None = None,
    runtimes: tuple[str, ...] = ("runc",),
    refuses: str = "",
    **about: Any,
) -> Answering:
    def answer(first: str, connection: socket.socket) -> None:
        path = first.split()[1]
        if refuses and path.startswith(refuses):
            status, body = 500, {"message": "it is busy"}
        elif path == "/version":
            status, body = 200, version
        elif path == "/info":
            status, body = 200, {"Runtimes": {name: {} for name in runtimes}, **about}
        elif image is None:
            status, body = 404, {"message": "no such image"}
        else:
            status, body = 200, image
        connection.sendall(says(status, json.dumps(body).encode()))

    return answer


def wanted(address: str, levels: Any = (("container", None),), digest: str | None = None) -> Wanted:
    return Wanted(address, levels, "python", "sandbox-kernel-python", digest)


def found(tmp_path: Path, answering: Answering, *asked: Any, **more: Any) -> Found:
    with serving(tmp_path, answering) as address:
        return choose(Engine(address), wanted(address, *asked, **more))


def missing(tmp_path: Path, answering: Answering, *asked: Any, **more: Any) -> dict[str, str]:
    with pytest.raises(NothingFound) as nothing:
        found(tmp_path, answering, *asked, **more)
    assert all(error.hint for _, error in nothing.value.missing)
    return {level: error.what for level, error in nothing.value.missing}


def test_the_first_level_that_the_engine_has_is_found(tmp_path: Path) -> None:
    both = engine(image={"Id": ID}, runtimes=("runc", "runsc"))
    assert found(tmp_path, both, GVISOR_FIRST) == Found("gvisor", "runsc", ID, "docker")


def test_a_level_whose_runtime_is_missing_gives_way_to_the_next(tmp_path: Path) -> None:
    assert found(tmp_path, engine(image={"Id": ID}), GVISOR_FIRST).level == "container"


def test_a_runtime_that_is_missing_is_named_with_those_there_are(tmp_path: Path) -> None:
    said = missing(tmp_path, engine(image={"Id": ID}, runtimes=("runc", "kata")), GVISOR_FIRST[:1])
    assert said["gvisor"] == "The engine has no runtime 'runsc'; it has kata, runc."


@pytest.mark.parametrize("refuses", ["/info", "/version", "/images"])
def test_an_engine_that_does_not_say_what_it_has_gives_no_weaker_level(
    tmp_path: Path, refuses: str
) -> None:
    """A level that is missing would give way to the next: this is not known to be missing."""
    for levels in (GVISOR_FIRST, GVISOR_FIRST[1:]):
        busy = engine(image={"Id": ID}, runtimes=("runc", "runsc"), refuses=refuses)
        with pytest.raises(SandboxUnavailable, match="it is busy") as caught:
            found(tmp_path, busy, levels)
        assert caught.value.hint
        (tmp_path / "engine.sock").unlink()


def test_an_engine_that_is_silent_gives_no_weaker_level(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        address = f"unix://{tmp_path}/engine.sock"
        with pytest.raises(SandboxUnavailable, match="does not answer") as caught:
            choose(Engine(address, timeout=0.2), wanted(address))
    assert caught.value.hint


@pytest.mark.parametrize("left", [True, False])
def test_an_engine_that_is_dead_gives_no_weaker_level(tmp_path: Path, left: bool) -> None:
    """Whether it has left its socket, or `DOCKER_HOST` names one that is not there."""
    if left:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "engine.sock"))
    address = f"unix://{tmp_path}/engine.sock"
    words = "does not answer" if left else "does not run"
    with pytest.raises(SandboxUnavailable, match=words) as caught:
        choose(Engine(address), wanted(address))
    assert not caught.value.missing


def test_an_engine_that_talks_nonsense_gives_no_weaker_level(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="no proper answer"):
        found(tmp_path, always(b"SSH-2.0-OpenSSH\r\n\r\n"))


def test_an_engine_that_is_not_for_this_user_is_known_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(self: socket.socket, address: str) -> None:
        raise PermissionError(13, "Permission denied")

    address = f"unix://{tmp_path}/engine.sock"
    monkeypatch.setattr(socket.socket, "connect", connect)  # root may use every socket
    with pytest.raises(NothingFound) as nothing:
        choose(Engine(address), wanted(address))
    ((level, error),) = nothing.value.missing
    assert (level, "may not use" in error.what) == ("container", True)


@pytest.mark.parametrize(
    "about",
    [
        {"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]},
        {"SecurityOptions": ["name=userns"]},
        {"Rootless": True},
    ],
)
def test_an_engine_with_users_of_its_own_has_no_level(
    tmp_path: Path, about: dict[str, Any]
) -> None:
    said = missing(tmp_path, engine(image={"Id": ID}, runtimes=("runsc",), **about), GVISOR_FIRST)
    assert set(said) == {"gvisor", "container"}
    assert all("does not have the user" in what for what in said.values())


def test_other_options_of_an_engine_are_no_reason(tmp_path: Path) -> None:
    options = ["name=seccomp,profile=default", "name=cgroupns", "name=apparmor"]
    usual = engine(image={"Id": ID}, SecurityOptions=options, Rootless=False)
    assert found(tmp_path, usual).level == "container"


def test_podman_is_known_and_its_ids_are_completed(tmp_path: Path) -> None:
    podman = engine(version=PODMAN, image={"Id": "a" * 64})
    assert found(tmp_path, podman) == Found("container", None, ID, "podman")


def test_podman_has_no_runtime_but_its_default_whatever_it_lists(tmp_path: Path) -> None:
    """It takes its default whichever one it is asked for: the level would be a lie."""
    lists_all = ("runc", "crun", "runsc")
    podman = engine(version=PODMAN, image={"Id": ID}, runtimes=lists_all, DefaultRuntime="crun")
    said = missing(tmp_path, podman, GVISOR_FIRST[:1])
    assert said["gvisor"] == (
        "Podman starts every container with its default runtime, which is not 'runsc': it is crun."
    )
    (tmp_path / "engine.sock").unlink()
    assert found(tmp_path, podman, GVISOR_FIRST).level == "container"


@pytest.mark.parametrize("default", ["runsc", "/usr/local/bin/runsc"])
def test_podman_whose_default_is_gvisors_runtime_has_that_level(
    tmp_path: Path, default: str
) -> None:
    podman = engine(version=PODMAN, image={"Id": ID}, runtimes=(), DefaultRuntime=default)
    assert found(tmp_path, podman, GVISOR_FIRST) == Found("gvisor", "runsc", ID, "podman")


def test_an_engine_that_labels_containers_is_known(tmp_path: Path) -> None:
    labelling = engine(image={"Id": ID}, SecurityOptions=["name=seccomp", "name=selinux"])
    assert found(tmp_path, labelling).labels


def test_an_image_that_is_missing_is_missing_at_every_level(tmp_path: Path) -> None:
    said = missing(tmp_path, engine(runtimes=("runsc",)), GVISOR_FIRST)
    assert set(said) == {"gvisor", "container"}
    assert all("no image for 'python'" in what for what in said.values())


@pytest.mark.parametrize("digests", [[], [f"registry/python@{OTHER}"]])
def test_a_pinned_image_that_moved_is_refused(tmp_path: Path, digests: list[str]) -> None:
    """Not missing: that would give way to a weaker level."""
    moved = engine(image={"Id": ID, "RepoDigests": digests})
    with pytest.raises(SandboxUnavailable, match="not the one that the policy pins"):
        found(tmp_path, moved, digest=f"sha256:{'c' * 64}")


@pytest.mark.parametrize("digest", [ID, OTHER])
def test_a_pinned_image_is_known_by_its_id_or_its_digest(tmp_path: Path, digest: str) -> None:
    pinned = engine(image={"Id": ID, "RepoDigests": [f"registry/python@{OTHER}"]})
    assert found(tmp_path, pinned, digest=digest).image == ID


@pytest.mark.parametrize("config", [None, {}, {"Volumes": None}, {"Volumes": {}}])
def test_an_image_without_volumes_is_found(tmp_path: Path, config: object) -> None:
    assert found(tmp_path, engine(image={"Id": ID, "Config": config})).image == ID


def test_an_image_with_volumes_is_refused(tmp_path: Path) -> None:
    """What is written there goes to the host's disk, past every limit."""
    with_volumes = engine(image={"Id": ID, "Config": {"Volumes": {"/srv": {}, "/data": {}}}})
    with pytest.raises(
        SandboxUnavailable, match=r"'python' declares volumes \(/data, /srv\)"
    ) as caught:
        found(tmp_path, with_volumes)
    assert "VOLUME" in caught.value.hint
