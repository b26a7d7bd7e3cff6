"""The list of built images: private, whole, found by flavour or tag."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_kernel.errors import ImageError
from sandbox_kernel.isolation.images import (
    ImageRecord,
    default_tag,
    full_tag,
    record,
    recorded,
    records,
    records_path,
)

MINIMAL = ImageRecord(
    id="sha256:" + "a" * 64,
    flavor="python-minimal",
    tag="sandbox-kernel-python-minimal:latest",
    python="3.11.2",
    base="sha256:" + "b" * 64,
    size_bytes=123,
    built_at="2024-01-01T00:00:00+00:00",
)


def test_before_any_build_there_is_none() -> None:
    assert records() == []
    assert recorded("python") is None


def test_a_built_image_is_found_by_its_flavour_and_by_its_tag() -> None:
    record(MINIMAL)
    assert recorded("python-minimal") == MINIMAL
    assert recorded("sandbox-kernel-python-minimal:latest") == MINIMAL
    assert recorded("sandbox-kernel-python-minimal") == MINIMAL
    assert recorded("python") is None
    assert recorded("sandbox-kernel-python-minimal:1") is None


def test_an_image_with_a_name_of_its_own_does_not_stand_for_its_flavour() -> None:
    record(MINIMAL)
    record(replace(MINIMAL, id="sha256:" + "c" * 64, tag="mine:latest"))
    assert recorded("python-minimal") == MINIMAL
    found = recorded("mine")
    assert found is not None
    assert found.id == "sha256:" + "c" * 64


def test_a_new_build_takes_the_place_of_the_old_under_its_tag() -> None:
    record(MINIMAL)
    newer = replace(MINIMAL, id="sha256:" + "d" * 64)
    record(newer)
    assert records() == [newer]


def test_the_list_is_for_its_owner_alone(state_home: Path) -> None:
    record(MINIMAL)
    assert records_path().parent == state_home
    assert stat.S_IMODE(records_path().stat().st_mode) == 0o600
    records_path().chmod(0o644)
    record(MINIMAL)
    assert stat.S_IMODE(records_path().stat().st_mode) == 0o600


def test_builds_at_the_same_time_are_all_remembered() -> None:
    images = [replace(MINIMAL, tag=f"image-{number}:latest") for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(record, images))
    assert {image.tag for image in records()} == {image.tag for image in images}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"schema": 2, "images": []}',
        '{"schema": 1, "images": [3]}',
        '{"schema": 1, "images": [{"id": "x"}]}',
    ],
)
def test_a_list_that_cannot_be_read_is_said_so_and_never_taken_for_empty(content: str) -> None:
    records_path().write_text(content)
    with pytest.raises(ImageError, match=r"images\.json") as caught:
        recorded("python")
    assert "Remove it and build the images again" in caught.value.hint
    with pytest.raises(ImageError):
        record(MINIMAL)
    assert records_path().read_text() == content


def test_a_list_that_cannot_be_written_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SANDBOX_KERNEL_HOME", str(tmp_path / "file"))
    with pytest.raises(ImageError, match="cannot be written") as caught:
        record(MINIMAL)
    assert "SANDBOX_KERNEL_HOME" in caught.value.hint


def test_the_file_says_what_it_is() -> None:
    record(MINIMAL)
    document = json.loads(records_path().read_text())
    assert document["schema"] == 1
    assert document["images"][0]["id"] == MINIMAL.id


def test_names_are_completed_as_engines_do() -> None:
    assert full_tag("mine") == "mine:latest"
    assert full_tag("mine:1") == "mine:1"
    assert full_tag("localhost:5000/mine") == "localhost:5000/mine:latest"
    assert default_tag("python") == "sandbox-kernel-python:latest"
