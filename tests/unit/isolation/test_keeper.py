"""The keeper, a process of its own, with an engine that is not at its best."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation import engine_http as client
from sandbox_kernel.isolation.container import explain
from sandbox_kernel.isolation.hire import HiredKeeper, hire
from sandbox_kernel.isolation.keeper import find
from sandbox_kernel.isolation.wanted import Found, Wanted
from tests.kernel import eventually
from tests.unit.isolation.engine_server import says, serving

SECONDS = 20
ABOUT = {"Id": "1", "HostConfig": {}, "State": {"Pid": 1, "Running": True}}
GONE = {"message": "no such container"}
BUSY = {"message": "it is busy"}


def frame(text: str) -> bytes:
    return b"\x01\0\0\0" + len(text).to_bytes(4, "big") + text.encode()


class Engine:
    """Makes a container that prints at once, and answers questions of it as it is told."""

    def __init__(self, *about: tuple[int, dict[str, Any]], removals: Iterable[int] = ()) -> None:
        self._about = iter(about)
        self._removals = iter(removals)
        self._attached = 0
        self.statistics = 501, b'{"message": "not here"}'
        self.attached_again = threading.Event()
        self.removed = threading.Event()
        self.over = threading.Event()

    def __call__(self, first: str, connection: socket.socket) -> None:
        method, path, _ = first.split()
        if path.endswith("stream=1"):
            self._attach(connection)
        elif "/stats?" in path:
            connection.sendall(says(*self.statistics))
        elif method == "GET":
            status, body = next(self._about)
            connection.sendall(says(status, json.dumps(body).encode()))
        else:
            status = next(self._removals, 204) if method == "DELETE" else 201
            connection.sendall(says(status, b"{}"))
            if method == "DELETE" and status in (204, 404):
                self.removed.set()

    def _attach(self, connection: socket.socket) -> None:
        """The first time it hangs up, as an engine does that is started anew."""
        self._attached += 1
        connection.sendall(says(200, frame(f"{self._attached}. ")))
        if self._attached > 1:
            self.attached_again.set()
            self.over.wait(SECONDS)


@contextmanager
def kept(directory: Path, engine: Engine) -> Iterator[HiredKeeper]:
    with serving(directory, engine) as address:
        keeper = hire()
        wanted = Wanted(address, (("container", None),), "python", "python", None)
        order = {
            "name": "kept",
            "wanted": wanted._asdict(),
            "found": Found("container", None, "sha256:1", "docker")._asdict(),
            "config": {"HostConfig": {"Mounts": []}},
        }
        keeper.order(json.dumps(order).encode())
        try:
            yield keeper
        finally:
            engine.over.set()
            keeper.dismiss()
            keeper.process.wait(SECONDS)


def said_by(keeper: HiredKeeper) -> dict[str, Any]:
    """All that it has reported by its end."""
    keeper.process.wait(SECONDS)
    return heard(keeper)


def heard(keeper: HiredKeeper) -> dict[str, Any]:
    """What it has reported by now."""
    try:
        lines = os.read(keeper.report, 65536).splitlines()
    except BlockingIOError:
        return {}
    return {key: value for line in lines for key, value in json.loads(line).items()}


def test_an_engine_that_fails_to_tell_of_a_container_does_not_end_it(tmp_path: Path) -> None:
    engine = Engine((200, ABOUT), (500, BUSY), (503, BUSY), (200, ABOUT))
    with kept(tmp_path, engine) as keeper:
        assert engine.attached_again.wait(SECONDS)
        assert not engine.removed.is_set()
        assert keeper.process.poll() is None
        assert keeper.process.stdin is not None
        keeper.process.stdin.close()  # as a wrapper's end does
        assert engine.removed.wait(SECONDS), "the control"


def test_statistics_are_told_once_they_are_asked_for_and_not_before(tmp_path: Path) -> None:
    engine = Engine((200, ABOUT), (200, ABOUT), (404, GONE))
    used = {"cpu_stats": {"cpu_usage": {"total_usage": 1}}, "memory_stats": {"usage": 4096}}
    engine.statistics = 200, json.dumps(used).encode()
    with kept(tmp_path, engine) as keeper:
        assert engine.attached_again.wait(SECONDS)
        assert heard(keeper).keys() == {"found", "started", "pid", "runtime", "cpus", "unheld"}
        keeper.ask_for_statistics()
        assert select.select([keeper.report], [], [], SECONDS)[0]
        assert heard(keeper)["used"]["anon"] == 4096
        assert not engine.removed.is_set(), "a question is not the wrapper's end"


def test_a_question_is_not_lost_while_the_engine_is_away(tmp_path: Path) -> None:
    engine = Engine((200, ABOUT), *[(500, BUSY)] * 3, (200, ABOUT), (404, GONE))
    with kept(tmp_path, engine) as keeper:
        assert select.select([keeper.report], [], [], SECONDS)[0]
        keeper.ask_for_statistics()
        assert engine.attached_again.wait(SECONDS)
        eventually(lambda: heard(keeper).get("unused") == "not here", what="an answer")


def test_a_container_that_is_gone_needs_no_keeper_any_more(tmp_path: Path) -> None:
    with kept(tmp_path, Engine((200, ABOUT), (404, GONE))) as keeper:
        assert said_by(keeper)["started"] == "1"


def test_a_container_that_the_engine_is_removing_is_kept_until_it_is_gone(tmp_path: Path) -> None:
    """It may fail at that, or die: then somebody has to ask again."""
    engine = Engine((200, ABOUT), (404, GONE), removals=(409, 500, 404))
    with kept(tmp_path, engine) as keeper:
        assert engine.removed.wait(SECONDS)
        assert keeper.process.wait(SECONDS) == 0


@pytest.mark.parametrize(
    ("default", "same"), [("/usr/bin/runsc", True), ("crun", False), ("kata", False)]
)
def test_a_podman_that_was_started_anew_without_gvisor_gets_no_sandbox(
    tmp_path: Path, default: str, same: bool
) -> None:
    answers = {
        "/version": {"Components": [{"Name": "Podman Engine"}]},
        "/info": {"DefaultRuntime": default, "SecurityOptions": []},
        "/images/tag/json": {"Id": "sha256:2", "Config": {}},
    }

    def answer(first: str, connection: socket.socket) -> None:
        path = first.split()[1]
        body = next(said for end, said in answers.items() if path.endswith(end))
        connection.sendall(says(200, json.dumps(body).encode()))

    before = Found("gvisor", "runsc", "sha256:1", "podman")
    with serving(tmp_path, answer) as address:
        levels = (("gvisor", "runsc"), ("gvisor", "kata"))
        wanted = Wanted(address, levels, "python", "tag", None)
        if same:
            assert find(client.Engine(address), wanted, before._asdict()) == before
        else:
            with pytest.raises(SandboxUnavailable) as caught:
                find(client.Engine(address), wanted, before._asdict())
            assert caught.value.hint
            assert not caught.value.missing


def test_a_container_that_is_gone_before_it_was_seen_is_told_by_what_it_printed(
    tmp_path: Path,
) -> None:
    with kept(tmp_path, Engine((404, GONE), (404, GONE))) as keeper:
        said = said_by(keeper)
        assert not said.keys() & {"started", "refused", "error"}
        assert keeper.process.stdout is not None
        console = keeper.process.stdout.read().decode()
    assert console == "1. "
    what = str(explain(said, "unix:///x", console))
    assert "ended before its kernel was ready" in what
    assert "no such image" not in what
