from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from sandbox_kernel.errors import SandboxError, SandboxUnavailable
from sandbox_kernel.isolation.checks.engines import Engine, ask, check_engines, image
from sandbox_kernel.isolation.engine import find_engines
from tests.unit.isolation.checks.hosts import engine_at, listening, made_up, program

DOCKER = {
    "/version": {
        "Version": "20.10.24+dfsg1",
        "ApiVersion": "1.41",
        "Components": [{"Name": "Engine"}, {"Name": "containerd"}],
    },
    "/info": {
        "CgroupDriver": "cgroupfs",
        "CgroupVersion": "1",
        "DefaultRuntime": "runc",
        "Runtimes": {
            "io.containerd.runc.v2": {"path": "runc"},
            "runc": {"path": "runc"},
            "runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--host-uds=open"]},
        },
        "SecurityOptions": ["name=seccomp,profile=default"],
    },
    "/images/sha256:there/json": {"Id": "sha256:there"},
}
PODMAN = {
    "/version": {
        "Version": "4.3.1",
        "ApiVersion": "1.41",
        "Components": [{"Name": "Podman Engine"}, {"Name": "Conmon"}],
    },
    "/info": {
        "CgroupDriver": "systemd",
        "CgroupVersion": "2",
        "DefaultRuntime": "crun",
        "Runtimes": {"crun": {"path": "/bin/sh"}, "runsc": {"path": "/bin/sh"}},
        "SecurityOptions": ["name=rootless", "name=seccomp,profile=default"],
    },
}


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A name that is short enough for a socket."""
    return tmp_path_factory.mktemp("e") / "s"


# which there are


def test_the_environment_decides_or_sockets_are_found_ones_own_first(tmp_path: Path) -> None:
    run, own = tmp_path / "run", tmp_path / "user"
    for path in (run / "docker.sock", own / "podman" / "podman.sock"):
        path.parent.mkdir(parents=True)
        path.touch()
    environ = {"DOCKER_HOST": "unix:///elsewhere", "XDG_RUNTIME_DIR": str(own)}
    assert find_engines(environ, run) == ["unix:///elsewhere"]
    del environ["DOCKER_HOST"]
    assert find_engines(environ, run) == [
        f"unix://{own}/podman/podman.sock",
        f"unix://{run}/docker.sock",
    ]
    assert find_engines({}, tmp_path, []) == []


def test_a_docker_that_is_installed_and_has_no_socket_is_an_engine_that_is_stopped(
    tmp_path: Path,
) -> None:
    program(tmp_path, "podman", "")  # which has no daemon
    assert find_engines({}, tmp_path, [str(tmp_path / "bin")]) == []
    program(tmp_path, "dockerd", "")
    for environ, programs in (({}, [str(tmp_path / "bin")]), ({"PATH": str(tmp_path / "bin")}, [])):
        assert find_engines(environ, tmp_path, programs) == [f"unix://{tmp_path}/docker.sock"]
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman" / "podman.sock").touch()
    assert find_engines({}, tmp_path, [str(tmp_path / "bin")]) == [
        f"unix://{tmp_path}/podman/podman.sock"
    ], "it is not needed"


def test_an_engine_that_is_named_twice_is_asked_once(tmp_path: Path) -> None:
    (tmp_path / "docker.sock").touch()
    environ = {"DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
    assert len(find_engines(environ, tmp_path)) == 1


# what they say


def test_docker_is_described(place: Path) -> None:
    with engine_at(place, DOCKER) as address:
        engine = ask(address, 10, ["sha256:there", "sha256:gone"])
    assert (engine.kind, engine.version, engine.rootless) == ("Docker", "20.10.24+dfsg1", False)
    assert engine.cgroups == "cgroupfs (version 1)"
    assert engine.default_runtime == "runc"
    assert engine.runtimes["runsc"].arguments == ("--host-uds=open",)
    assert engine.images == {"sha256:there"}


def test_podman_is_described_with_the_runtime_that_it_would_take(place: Path) -> None:
    with engine_at(place, PODMAN) as address:
        engine = ask(address, 10)
    assert (engine.kind, engine.version, engine.rootless) == ("Podman", "4.3.1", True)
    assert set(engine.runtimes) == {"crun"}
    assert "rootless" in engine.summary()


def test_an_engine_that_answers_is_ok_and_its_runtimes_are_told(
    tmp_path: Path, place: Path
) -> None:
    with engine_at(place, DOCKER) as address:
        checks = {c.name: c for c in check_engines(made_up(tmp_path, engines=(address,)))}
    assert checks["engine"].status == "ok"
    assert "Docker 20.10.24" in checks["engine"].found
    assert checks["runtimes"].found == "runc (default), runsc"


# what may go wrong


def statuses(tmp_path: Path, *addresses: str, seconds: float = 10.0) -> dict[str, str]:
    host = made_up(tmp_path, engines=addresses, timeout_seconds=seconds)
    return {check.name: check.status for check in check_engines(host)}


def test_without_an_engine_it_says_what_to_install(tmp_path: Path) -> None:
    first, *rest = check_engines(made_up(tmp_path))
    assert (first.name, first.status) == ("engine", "missing")
    assert "apt-get install docker.io" in str(first.fix)
    assert "ok" not in {check.status for check in rest}


def test_an_engine_that_is_not_there_is_missing(tmp_path: Path) -> None:
    assert statuses(tmp_path, f"unix://{tmp_path}/none")["engine"] == "missing"


def test_a_socket_that_nobody_listens_on_is_refused(tmp_path: Path, place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(place))
    first, *_ = check_engines(made_up(tmp_path, engines=(f"unix://{place}",)))
    assert first.status == "refused"
    assert "systemctl start docker" in str(first.fix)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "ssh://nobody@localhost", "npipe:x", ""])
def test_an_engine_elsewhere_is_refused_and_not_called(tmp_path: Path, address: str) -> None:
    first, *_ = check_engines(made_up(tmp_path, engines=(address,)))
    assert first.status == "refused"
    assert "unix://" in str(first.fix)


def test_an_engine_that_never_answers_does_not_hang_the_doctor(tmp_path: Path, place: Path) -> None:
    connected = threading.Event()
    started = time.monotonic()
    with listening(place, lambda connection: connected.set()) as address:
        first, *rest = check_engines(made_up(tmp_path, engines=(address,), timeout_seconds=1.0))
        taken = time.monotonic() - started
    assert connected.is_set()
    assert (first.status, taken < 3) == ("unknown", True)
    assert first.fix is not None
    assert "ok" not in {check.status for check in rest}


def test_an_engine_that_answers_a_byte_at_a_time_does_not_either(
    tmp_path: Path, place: Path
) -> None:
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # whoever asked has hung up
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX: ")
            while not stop.wait(0.1):
                connection.send(b"x")

    started = time.monotonic()
    with listening(place, drip) as address:
        first, *_ = check_engines(made_up(tmp_path, engines=(address,), timeout_seconds=1.0))
        taken = time.monotonic() - started
        stop.set()
    assert (first.status, taken < 3) == ("unknown", True)


def test_an_engine_with_users_of_its_own_is_refused(tmp_path: Path, place: Path) -> None:
    with engine_at(place, PODMAN) as address:
        first, *_ = check_engines(made_up(tmp_path, engines=(address,)))
    assert first.status == "refused"
    assert "runs without root" in first.found
    assert "DOCKER_HOST" in str(first.fix)


def test_an_engine_that_hangs_does_not_hide_one_that_works(
    tmp_path: Path, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("e") / "s"
    with listening(place, lambda connection: None) as hung, engine_at(other, DOCKER) as sound:
        host = made_up(tmp_path, engines=(hung, sound), timeout_seconds=2.0)
        first, second, *rest = check_engines(host)
    assert (first.name, second.name, second.status) == ("engine", "other engine", "ok")
    assert first.status != "ok"
    assert f"DOCKER_HOST={sound}" in str(first.fix)
    assert {check.status for check in rest} <= {"unknown", "missing"}, "what a start would not use"


@pytest.mark.parametrize("version", [[], "text", 3, {"ApiVersion": 3}, {"ApiVersion": "x"}])
def test_what_is_no_engine_is_refused(tmp_path: Path, place: Path, version: object) -> None:
    with engine_at(place, {"/version": version, "/info": {}}) as address:
        assert statuses(tmp_path, address)["engine"] in ("refused", "unknown")


@pytest.mark.parametrize("info", [[], "text", None, {"Runtimes": {"a": 3}}, {"SecurityOptions": 3}])
def test_an_engine_that_talks_nonsense_of_itself_is_not_ok(
    tmp_path: Path, place: Path, info: object
) -> None:
    with engine_at(place, {**DOCKER, "/info": info}) as address:
        assert statuses(tmp_path, address)["engine"] in ("refused", "unknown")


def test_what_an_engine_lacks_is_no_reason_to_fail(tmp_path: Path, place: Path) -> None:
    with engine_at(place, {"/version": {"ApiVersion": "1.41"}, "/info": {}}) as address:
        assert statuses(tmp_path, address)["engine"] == "ok"


def test_an_error_from_the_engine_is_told(place: Path) -> None:
    with (
        engine_at(place, {"/version": DOCKER["/version"]}) as address,
        pytest.raises(SandboxUnavailable, match="no proper answer"),
    ):
        ask(address, 10)


# for real


@pytest.mark.skipif(
    not os.environ.get("DOCKER_HOST"), reason="container tests not run: DOCKER_HOST is not set"
)
def test_the_engine_of_this_machine_is_described(tmp_path: Path) -> None:
    host = made_up(tmp_path, engines=(os.environ["DOCKER_HOST"],))
    checks = {check.name: check for check in check_engines(host)}
    assert checks["engine"].status == "ok", checks
    assert "(default)" in checks["runtimes"].found


# images


def engine(*images: str) -> Engine:
    return Engine("unix:///x", "Docker", "20.10", False, "x", {}, "runc", frozenset(images))


def test_a_list_of_images_that_cannot_be_read_is_told() -> None:
    check = image(engine(), SandboxError("It is torn.", hint="Remove it."))
    assert (check.status, check.found, check.fix) == ("refused", "It is torn.", "Remove it.")


def test_an_image_must_be_built_and_still_be_there() -> None:
    assert image(engine(), None).status == "missing"
    assert image(engine(), {}).status == "missing"
    assert image(None, {"python": "sha256:a"}).status == "unknown"
    gone = image(engine("sha256:b"), {"python": "sha256:a"})
    assert (gone.status, gone.fix) == ("missing", "Make one: `sandbox-kernel image build`.")
    there = image(engine("sha256:a"), {"python": "sha256:a"})
    assert (there.status, there.found) == ("ok", "python")
    one = image(engine("sha256:a"), {"python": "sha256:a", "python-minimal": "sha256:b"})
    assert one.found == "python; python-minimal built, but the engine has it no more"
