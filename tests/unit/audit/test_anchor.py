"""Signed heads of the log: what they are, where they go, and whose they are."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox_kernel.audit import mirror
from sandbox_kernel.audit.anchor import (
    PRIVATE_NAME,
    PUBLIC_NAME,
    new_anchor,
    read_anchors,
    send,
    signing_key,
)
from sandbox_kernel.audit.records import EMPTY, Head
from sandbox_kernel.audit.schedule import Anchors
from sandbox_kernel.errors import AuditUnavailable
from tests.unit.audit.logs import fill, records

HEAD = Head(7, bytes(range(32)))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "audit"
    path.mkdir()
    return path


def line(directory: Path, head: Head = HEAD) -> bytes:
    return new_anchor(head).to_line(signing_key(directory))


def test_what_is_written_to_a_file_reads_back(directory: Path, tmp_path: Path) -> None:
    place = tmp_path / "anchors"
    for seq in (7, 8):
        send(line(directory, Head(seq, HEAD.mac)), f"file:{place}")
    assert place.stat().st_mode & 0o777 == 0o600
    found = read_anchors(place, directory / PUBLIC_NAME)
    assert (found.others, found.spoiled) == (0, 0)
    assert [(each.seq, each.mac) for each in found.anchors] == [(7, HEAD.mac), (8, HEAD.mac)]


def test_the_private_key_is_made_once_and_for_its_owner_alone(directory: Path) -> None:
    assert signing_key(directory).private_bytes_raw() == signing_key(directory).private_bytes_raw()
    assert (directory / PRIVATE_NAME).stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in directory.iterdir()) == [PRIVATE_NAME, PUBLIC_NAME]


def test_a_command_gets_it_on_its_stdin(directory: Path, tmp_path: Path) -> None:
    got = tmp_path / "got"
    script = tmp_path / "take.py"
    script.write_text("import sys; open(sys.argv[1], 'w').write(sys.stdin.read())")
    send(line(directory), f"command:{sys.executable} {script} {got}")
    assert read_anchors(got, directory / PUBLIC_NAME).anchors[0].seq == 7


@pytest.mark.parametrize("command", ["/bin/false", "/no/such/program", "/bin/sh -c 'exit 3'"])
def test_a_place_that_does_not_take_it_is_an_error(directory: Path, command: str) -> None:
    with pytest.raises(AuditUnavailable, match="could not be written to"):
        send(line(directory), f"command:{command}")


def test_a_file_in_no_directory_is_an_error(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(AuditUnavailable, match="could not be written to"):
        send(line(directory), f"file:{tmp_path / 'none' / 'anchors'}")


def test_lines_of_syslog_read_back(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    monkeypatch.setattr(mirror, "SYSLOG_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(path))
        send(line(directory), "syslog")
        received = daemon.recv(65536)
    assert received.startswith(b"<85>sandbox-kernel-anchor: {")
    kept = tmp_path / "messages"
    kept.write_bytes(b"Nov 16 18:00:00 vm cron: other\nNov 16 18:00:01 vm " + received[4:] + b"\n")
    assert read_anchors(kept, directory / PUBLIC_NAME).anchors[0].mac == HEAD.mac


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("key", "0" * 16),
        ("seq", 8),
        ("mac", "00" * 32),
        ("time", "2020-01-01"),
        ("host", "x"),
        ("signature", "AAAA"),
    ],
)
def test_an_anchor_that_was_changed_is_refused(
    directory: Path, tmp_path: Path, key: str, value: object
) -> None:
    place = tmp_path / "anchors"
    place.write_text(json.dumps({**json.loads(line(directory)), key: value}))
    with pytest.raises(AuditUnavailable, match="There is no anchor of this log"):
        read_anchors(place, directory / PUBLIC_NAME)


def test_anchors_of_another_key_are_refused(directory: Path, tmp_path: Path) -> None:
    """Who replaces the log and its keys cannot replace what was signed before."""
    place = tmp_path / "anchors"
    send(line(directory), f"file:{place}")
    for path in directory.iterdir():
        path.unlink()
    signing_key(directory)
    with pytest.raises(AuditUnavailable, match="There is no anchor of this log"):
        read_anchors(place, directory / PUBLIC_NAME)


def test_a_file_without_anchors_is_no_proof(directory: Path, tmp_path: Path) -> None:
    signing_key(directory)
    (tmp_path / "empty").write_text("nothing\n")
    with pytest.raises(AuditUnavailable, match="There is no anchor of this log"):
        read_anchors(tmp_path / "empty", directory / PUBLIC_NAME)


def test_what_others_write_to_the_same_place_is_passed_over_and_counted(
    directory: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    own = line(directory)
    forged = json.dumps({**json.loads(own), "seq": 5000}).encode()
    lines = [
        line(other),
        b'logger: {"anchor":1}',
        b'logger: {"anchor": ' + b"[" * 100_000,
        b"caf\xe9 {",
        own,
        forged,
        b"vm sandbox-kernel-anchor: " + line(directory, Head(8, HEAD.mac)),
    ]
    place = tmp_path / "messages"
    place.write_bytes(b"\n".join(lines) + b"\n")
    found = read_anchors(place, directory / PUBLIC_NAME)
    assert [each.seq for each in found.anchors] == [7, 8]
    assert (found.others, found.spoiled) == (3, 1)


def test_an_anchor_behind_one_that_was_cut_short_is_found(directory: Path, tmp_path: Path) -> None:
    place = tmp_path / "anchors"
    place.write_bytes(line(directory)[:60])
    send(line(directory, Head(8, HEAD.mac)), f"file:{place}")
    found = read_anchors(place, directory / PUBLIC_NAME)
    assert [each.seq for each in found.anchors] == [8]


def test_an_anchor_that_is_cut_short_is_an_error(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    text = line(directory)
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
    with pytest.raises(AuditUnavailable, match="cut short"):
        send(text, f"file:{tmp_path / 'anchors'}")


def test_an_empty_log_is_not_anchored() -> None:
    """Every log has what such an anchor is about: it would accuse the one that it is of."""
    with pytest.raises(AuditUnavailable, match="nothing in the audit log"):
        new_anchor(EMPTY)


def test_a_key_of_another_kind_is_refused(directory: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = tmp_path / "other.pub"
    public = X25519PrivateKey.generate().public_key()
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    key.write_bytes(public.public_bytes(encoding, form))
    (tmp_path / "anchors").write_bytes(line(directory))
    with pytest.raises(AuditUnavailable, match="not of the kind"):
        read_anchors(tmp_path / "anchors", key)


@pytest.mark.parametrize("place", ["", "/bin/true", "none", "http://example.org", "File:/x"])
def test_a_place_of_no_known_kind_is_refused_and_nothing_is_run(
    directory: Path, tmp_path: Path, place: str
) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    script.chmod(0o700)
    for each in (place, str(script)):
        with pytest.raises(AuditUnavailable, match="neither syslog nor"):
            send(line(directory), each)
    assert not (tmp_path / "ran").exists()


class Scheduled:
    """Anchors to a command whose processes the test sees, and how much a kernel has written."""

    def __init__(self, home: Path, command: str) -> None:
        self.written = 0
        self.home = home
        self.anchors = Anchors(f"command:{command}", 600, lambda: self.written)

    def write(self) -> None:
        self.written = len(records(fill(self.home / "audit", 1)))

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [process for process, _ in self.anchors._making]

    def wait(self) -> None:
        for process in self.processes:
            process.wait()


def counted(tmp_path: Path, then: str = "") -> tuple[str, Callable[[], int]]:
    """A command that counts how often it ran, and the count."""
    script, times = tmp_path / "count.sh", tmp_path / "times"
    script.write_text(f"cat > {tmp_path / 'line'}; echo x >> {times}\n{then}\n")
    return f"/bin/sh {script}", lambda: len(times.read_text().split()) if times.exists() else 0


def test_none_is_made_where_nothing_was_recorded_since(state_home: Path, tmp_path: Path) -> None:
    command, times = counted(tmp_path)
    kernel = Scheduled(state_home, command)
    kernel.anchors.make()
    assert not kernel.processes
    kernel.write()
    for _ in range(2):
        kernel.anchors.make()
        kernel.wait()
    kernel.anchors.make_last()
    assert not kernel.processes
    assert times() == 1


def test_one_that_could_not_be_made_is_tried_again(
    state_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, times = counted(tmp_path, then="exit 3")
    kernel = Scheduled(state_home, command)
    kernel.write()
    for _ in range(2):
        kernel.anchors.make()
        kernel.wait()
    kernel.anchors.make_last()
    kernel.wait()
    assert times() == 3
    assert capsys.readouterr().err.count("no anchor of the audit log could be made") == 2


def test_the_last_one_is_made_even_if_one_is_still_being_made(
    state_home: Path, tmp_path: Path
) -> None:
    """What was recorded since would never be anchored."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    opened = os.open(gate, os.O_RDWR)
    command, times = counted(tmp_path, then=f"dd bs=1 count=1 status=none < {gate}")
    kernel = Scheduled(state_home, command)
    kernel.write()
    kernel.anchors.make()
    kernel.write()
    kernel.anchors.make()
    assert len(kernel.processes) == 1
    kernel.anchors.make_last()
    assert len(kernel.processes) == 2
    os.write(opened, b"go")  # a byte for each
    kernel.wait()
    os.close(opened)
    assert times() == 2
