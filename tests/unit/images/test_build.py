from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from docker.errors import NotFound

from sandbox_kernel.errors import ImageError
from sandbox_kernel.images import base
from sandbox_kernel.images.base import find_base
from sandbox_kernel.images.build import ImageRequest, follow, inputs_of, write_context
from sandbox_kernel.paths import images_directory

MINIMAL = ImageRequest("python-minimal")


class EngineWithoutImages:
    def inspect_image(self, name: str) -> dict[str, Any]:
        raise NotFound(name)


def nothing(*_: object) -> None:
    pass


# inputs


def test_an_image_is_known_by_all_that_it_is_made_from(tmp_path: Path) -> None:
    more = tmp_path / "more.txt"
    more.write_text("one")
    extended = ImageRequest("python-minimal", requirements=more)
    digests = [
        inputs_of(MINIMAL, "sha256:1"),
        inputs_of(MINIMAL, "sha256:2"),
        inputs_of(ImageRequest("python"), "sha256:1"),
        inputs_of(extended, "sha256:1"),
    ]
    more.write_text("two")
    digests.append(inputs_of(extended, "sha256:1"))
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("option", ["-r", "-c"])
def test_a_file_that_requirements_take_in_is_a_part_of_the_image(
    tmp_path: Path, option: str
) -> None:
    nested = tmp_path / "nested"
    nested.mkdir()
    (tmp_path / "more.txt").write_text(f"{option} nested/first.txt\n")
    (nested / "first.txt").write_text("-r second.txt")
    (nested / "second.txt").write_text("numpy==1")
    extended = ImageRequest("python-minimal", requirements=tmp_path / "more.txt")
    before = inputs_of(extended, "sha256:1")
    assert inputs_of(extended, "sha256:1") == before
    (nested / "second.txt").write_text("numpy==2")
    assert inputs_of(extended, "sha256:1") != before


def test_a_name_makes_no_other_image() -> None:
    renamed = ImageRequest("python-minimal", tag="other", anew=True)
    assert inputs_of(renamed, "sha256:1") == inputs_of(MINIMAL, "sha256:1")


def test_requirements_that_are_not_there_are_said_to_be_missing(tmp_path: Path) -> None:
    request = ImageRequest("python", requirements=tmp_path / "none.txt")
    with pytest.raises(ImageError, match=r"none\.txt cannot be read: No such file"):
        inputs_of(request, "sha256:1")


# the context


def test_the_same_files_are_the_same_bytes_for_the_engine_s_cache(tmp_path: Path) -> None:
    def context() -> bytes:
        file = io.BytesIO()
        write_context(file, "a==1\n", tmp_path.glob("*.whl"))
        return file.getvalue()

    wheel = tmp_path / "a-1-py3-none-any.whl"
    wheel.write_bytes(b"1")
    first = context()
    wheel.touch()
    wheel.chmod(0o600)
    assert context() == first
    wheel.write_bytes(b"2")
    assert context() != first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        names = archive.getnames()
    assert names == ["Dockerfile", "requirements.txt", "wheels/a-1-py3-none-any.whl"]


def test_the_build_installs_hashed_wheels_from_its_context_only() -> None:
    text = (images_directory() / "Dockerfile").read_text()
    for option in (
        "--no-index",
        "--find-links /build/wheels",
        "--require-hashes",
        "--no-cache-dir",
    ):
        assert option in text
    assert "\nUSER 65534:65534\n" in text


# the engine's progress


def test_steps_are_reported_in_the_words_of_either_engine() -> None:
    reports: list[tuple[str, int, int]] = []
    lines = ["Step 1/9 : ARG BASE\n", " ---> Running in 1234\n", "[1/2] STEP 2/5: COPY wheels /b\n"]
    follow([{"stream": line} for line in lines], lambda *what: reports.append(what))
    assert reports == [("building: arg", 0, 9), ("building: copy", 1, 5)]


def test_a_failed_step_is_quoted() -> None:
    events = [
        {"stream": "Step 4/9 : RUN pip\n"},
        {"stream": "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES\n"},
        {"error": "The command returned\na non-zero code: 1"},
    ]
    with pytest.raises(ImageError, match="DO NOT MATCH") as caught:
        follow(events, nothing)
    assert "The command returned a non-zero code: 1" in caught.value.what


# the base


def test_a_base_that_the_engine_does_not_have_is_not_fetched_behind_one_s_back() -> None:
    with pytest.raises(ImageError, match="no image some:base") as caught:
        find_base(EngineWithoutImages(), "some:base", anew=False, report=nothing)
    assert "docker pull some:base" in caught.value.hint


def test_only_root_can_make_the_debian_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base.os, "geteuid", lambda: 1000)
    with pytest.raises(ImageError, match="Only root") as caught:
        find_base(EngineWithoutImages(), "debian", anew=False, report=nothing)
    assert "sudo" in caught.value.hint
    assert "--base IMAGE" in caught.value.hint


def test_a_host_without_debootstrap_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(base.os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match="debootstrap") as caught:
        find_base(EngineWithoutImages(), "debian", anew=False, report=nothing)
    assert "apt-get install debootstrap" in caught.value.hint


def test_what_debootstrap_fails_with_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "debootstrap"
    broken.write_text("#!/bin/sh\necho 'E: Failed getting release file'\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(base.os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ImageError, match="Failed getting release file"):
        find_base(EngineWithoutImages(), "debian", anew=False, report=nothing)


def test_debian_comes_from_the_mirror_that_is_named_and_is_checked_against_its_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "debootstrap"
    told.write_text('#!/bin/sh\necho "told: $*"\nexit 1\n')
    told.chmod(0o755)
    monkeypatch.setattr(base.os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ImageError) as caught:
        find_base(
            EngineWithoutImages(),
            "debian",
            anew=False,
            report=nothing,
            mirror="file:///srv/debian",
        )
    assert "--force-check-gpg" in caught.value.what
    assert caught.value.what.endswith("root file:///srv/debian'.")
    assert "--mirror URL" in caught.value.hint
