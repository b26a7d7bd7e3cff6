"""A copy for log shippers, which holds up nobody."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from sandbox_kernel.audit import mirror
from sandbox_kernel.audit.mirror import Mirror
from sandbox_kernel.audit.store import Store
from tests.unit.audit.logs import cell_entries


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "audit")


def test_a_line_has_all_of_a_record(tmp_path: Path, store: Store) -> None:
    written = store.append(cell_entries(5))
    copy = Mirror(f"file:{tmp_path / 'copy'}")
    copy.write(written)
    copy.close()
    store.close()
    intent, outcome = map(json.loads, (tmp_path / "copy").read_text().splitlines())
    assert intent["body"] == {"code": "x = 5"}
    assert outcome["previous"] == intent["mac"] == written[0].mac.hex()


def test_syslog_gets_a_message_for_each(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "log")
    monkeypatch.setattr(mirror, "SYSLOG_SOCKET", path)
    copy = Mirror("syslog")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(path)
        copy.write(store.append(cell_entries(5)))
        received = [daemon.recv(65536) for _ in range(2)]
    copy.close()
    store.close()
    assert all(each.startswith(b"<86>sandbox-kernel: {") for each in received)


@pytest.mark.parametrize("place", ["file:/proc/none/x", "file:/dev/full", "syslog"])
def test_a_mirror_that_takes_nothing_is_said_once_and_raises_nothing(
    store: Store,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(mirror, "SYSLOG_SOCKET", "/no/such/socket")
    copy = Mirror(place)
    for number in range(3):
        copy.write(store.append(cell_entries(number)))
    copy.close()
    store.close()
    assert capsys.readouterr().err.count("lacks records") == 1


def test_a_line_that_was_cut_short_spoils_no_other(
    tmp_path: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "copy"
    copy = Mirror(f"file:{place}")
    copy.write(store.append(cell_entries(1)))
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
        copy.write(store.append(cell_entries(2)[:1]))
    copy.write(store.append(cell_entries(3)))
    copy.close()
    store.close()
    lines = place.read_text().splitlines()
    assert [json.loads(line)["seq"] for line in (*lines[:2], *lines[3:])] == [1, 2, 4, 5]
    assert len(lines[2]) == 20
    assert "cut short" in capsys.readouterr().err


@pytest.mark.parametrize("made_anew", [True, False])
def test_a_file_that_was_moved_away_is_begun_anew(
    tmp_path: Path, store: Store, made_anew: bool
) -> None:
    place = tmp_path / "copy"
    copy = Mirror(f"file:{place}")
    copy.write(store.append(cell_entries(1)))
    place.rename(tmp_path / "copy.1")
    if made_anew:
        place.touch()
    copy.write(store.append(cell_entries(2)))
    copy.close()
    store.close()
    for path, numbers in ((tmp_path / "copy.1", [1, 2]), (place, [3, 4])):
        assert [json.loads(line)["seq"] for line in path.read_text().splitlines()] == numbers


def test_a_record_that_nobody_can_read_is_mirrored(tmp_path: Path, store: Store) -> None:
    (record, _) = store.append(cell_entries(1))
    copy = Mirror(f"file:{tmp_path / 'copy'}")
    copy.write([record._replace(body=b'{"a":"\\udcff"}')])
    copy.close()
    store.close()
    assert "unreadable" in json.loads((tmp_path / "copy").read_text())["body"]


def test_a_pipe_that_nobody_reads_holds_up_nobody(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    copy = Mirror(f"file:{path}")
    for number in range(300):  # more than a pipe holds
        copy.write(store.append(cell_entries(number)))
    copy.close()
    os.close(reader)
    store.close()
