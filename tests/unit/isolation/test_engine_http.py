"""An engine may answer anything, or nothing: it is taken at its word only where that makes sense."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.engine_http import Engine, EngineRefusal
from tests.unit.isolation.engine_server import always, says, serving


def test_answers_come_in_the_order_of_the_questions(tmp_path: Path) -> None:
    second_asked = threading.Event()

    def answer(first: str, connection: socket.socket) -> None:
        if "/slow" in first:
            assert second_asked.wait(10), "the second question waits for the first answer"
        else:
            second_asked.set()
        connection.sendall(says(200, b'{"path": "%s"}' % first.split()[1].encode()))

    with serving(tmp_path, answer) as address:
        slow, fast = Engine(address).ask("/slow", "/fast")
    assert (slow, fast) == ({"path": "/slow"}, {"path": "/fast"})


def test_a_refusal_has_the_engines_own_words_on_one_line(tmp_path: Path) -> None:
    with serving(tmp_path, always(says(404, b'{"message": "no such\\n  thing"}'))) as address:
        engine = Engine(address)
        with pytest.raises(EngineRefusal, match=r"^no such thing$") as refusal:
            engine.get("/x")
        assert refusal.value.status == 404
        (answer,) = engine.ask("/x")
        assert isinstance(answer, EngineRefusal)
        with pytest.raises(EngineRefusal):
            engine.attach("nobody")


@pytest.mark.parametrize("body", [b"", b"plain words", b"[]", b'{"message": null}', b"\xff\xfe"])
def test_a_refusal_in_any_form_is_one(tmp_path: Path, body: bytes) -> None:
    with (
        serving(tmp_path, always(says(500, body))) as address,
        pytest.raises(EngineRefusal) as refusal,
    ):
        Engine(address).post("/x", {"a": 1})
    assert refusal.value.explanation


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.0 fine\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n",
        says(200, b'{"cut'),
        says(200, b"[1, 2]"),
    ],
    ids=["nothing", "another_protocol", "no_status", "no_end_of_head", "torn", "no_mapping"],
)
def test_an_improper_answer_is_an_engine_that_cannot_be_used(tmp_path: Path, data: bytes) -> None:
    with (
        serving(tmp_path, always(data)) as address,
        pytest.raises(SandboxUnavailable, match="no proper answer") as error,
    ):
        Engine(address).ask("/version")
    assert error.value.hint


def test_an_endless_answer_is_cut_off(tmp_path: Path) -> None:
    sent = 0

    def answer(_: str, connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(says(200, b""))
        try:
            while True:
                sent += connection.send(b" " * 65536)
        except OSError:
            return

    with serving(tmp_path, answer) as address, pytest.raises(SandboxUnavailable):
        Engine(address).get("/endless")
    assert sent < 20 << 20


def test_an_engine_that_is_silent_is_told_of_once_and_given_up_in_time(tmp_path: Path) -> None:
    over = threading.Event()
    told: list[float] = []
    began = time.monotonic()

    def note() -> None:
        told.append(time.monotonic() - began)

    with serving(tmp_path, lambda *_: over.wait(30) or None) as address:
        with pytest.raises(SandboxUnavailable, match="not answer"):
            Engine(address, timeout=1.5, on_silence=note).ask("/a", "/b")
        took = time.monotonic() - began
        over.set()
    assert len(told) == 1
    assert told[0] < took
    assert took < 10


def test_an_engine_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="engine") as error:
        Engine(f"unix://{tmp_path}/none.sock").ask("/version")
    assert error.value.hint


def test_what_comes_behind_the_head_of_a_stream_is_not_lost(tmp_path: Path) -> None:
    with serving(tmp_path, always(says(200, b"printed"))) as address:
        console, printed = Engine(address).attach("it")
        with console:
            while part := console.recv(100):
                printed += part
    assert printed == b"printed"
