"""Whose a container is, and when it is nobody's any more."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandbox_kernel.isolation import owner
from sandbox_kernel.isolation.keeper import remove_abandoned
from sandbox_kernel.isolation.owner import is_abandoned, is_of_an_earlier_boot, owner_label


def place_of(label: str) -> str:
    place, _, _ = label.rsplit(" ", 2)
    return place


def ended() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_a_label_says_whose_it_is_until_that_ends() -> None:
    label = owner_label(os.getpid())
    assert not is_abandoned(label)
    place, pid, start = label.rsplit(" ", 2)
    assert is_abandoned(f"{place} {pid} {int(start) + 1}"), "its pid is another's by now"
    assert is_abandoned(f"{place} {ended()} 1")


@pytest.mark.parametrize("signalling", ["allowed", "forbidden"])
def test_a_process_that_hides_its_times_is_alive(
    monkeypatch: pytest.MonkeyPatch, signalling: str
) -> None:
    """As with `hidepid`, where another user's process cannot be told from one that is gone."""
    label = owner_label(os.getpid())
    gone = f"{place_of(label)} {ended()} 1"
    monkeypatch.setattr(owner, "start_ticks", lambda pid: None)
    assert is_abandoned(gone), "the control"
    if signalling == "forbidden":

        def forbid(pid: int, number: int) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "kill", forbid)
    assert not is_abandoned(label)


@pytest.mark.parametrize("label", ["", "elsewhere 1 1", "x y z", "a b", "- - 1 1 1"])
def test_what_cannot_be_known_to_be_abandoned_is_left_alone(label: str) -> None:
    assert not is_abandoned(label)
    assert not is_of_an_earlier_boot(label)


# After the machine was started anew


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that say which machine this is, and since when it runs."""
    (tmp_path / "machine-id").write_text(f"{'a' * 32}\n")
    (tmp_path / "boot_id").write_text("first\n")
    monkeypatch.setattr(owner, "MACHINE", str(tmp_path / "machine-id"))
    monkeypatch.setattr(owner, "BOOT", str(tmp_path / "boot_id"))
    return tmp_path


def test_a_label_of_an_earlier_boot_is_known(machine: Path) -> None:
    label = owner_label(os.getpid())
    assert not is_of_an_earlier_boot(label)
    (machine / "boot_id").write_text("second\n")
    assert is_of_an_earlier_boot(label)
    assert not is_abandoned(label), "what its pid means here is another matter"


@pytest.mark.parametrize("other", ["b" * 32, "", "uninitialized", None])
def test_another_machine_s_label_is_left_alone_whatever_its_boot(
    machine: Path, other: str | None
) -> None:
    label = owner_label(os.getpid())
    (machine / "boot_id").write_text("second\n")
    assert is_of_an_earlier_boot(label), "the control"
    if other is None:
        (machine / "machine-id").unlink()
    else:
        (machine / "machine-id").write_text(f"{other}\n")
    assert not is_of_an_earlier_boot(label)
    # Nor are two that do not know theirs the same.
    nameless = owner_label(os.getpid())
    (machine / "boot_id").write_text("third\n")
    assert is_of_an_earlier_boot(nameless) == (other == "b" * 32)


class Engine:
    """Has a container and a volume of one owner, and says what it was told to remove."""

    def __init__(self, label: str, made: datetime | None = None) -> None:
        self._labels = {owner.OWNER: label}
        self._made = {} if made is None else {"CreatedAt": made.isoformat()}
        self.removed: list[str] = []

    def get(self, path: str) -> object:
        if path.startswith("/containers"):
            return [{"Id": "c", "Labels": self._labels}]
        return {"Volumes": [{"Name": "v", "Labels": self._labels, **self._made}]}

    def delete(self, path: str) -> None:
        self.removed.append(path)


def test_what_is_left_of_an_earlier_boot_is_removed_unless_it_runs(machine: Path) -> None:
    mine = Engine(owner_label(os.getpid()))
    theirs = Engine(f"{place_of(owner_label(os.getpid()))} {ended()} 1")
    for engine in (mine, theirs):
        remove_abandoned(engine)
    assert mine.removed == []
    assert theirs.removed == ["/containers/c?v=1&force=1", "/volumes/v"]
    (machine / "boot_id").write_text("second\n")
    remove_abandoned(mine)
    # Without force: an engine refuses to remove what runs, of another host by the same name.
    assert mine.removed == ["/containers/c?v=1", "/volumes/v"]


def test_a_volume_of_nobody_known_is_removed_when_its_container_must_have_been_made() -> None:
    """An engine refuses that while there is a container of it, be it anybody's."""
    now = datetime.now(UTC)
    for made, removed in ((now - timedelta(hours=2), ["/volumes/v"]), (now, []), (None, [])):
        engine = Engine("elsewhere 1 1 1 1", made)
        remove_abandoned(engine)
        assert engine.removed == removed, made
