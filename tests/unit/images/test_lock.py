"""The lock files of the flavours: complete, pinned, hashed; and how such files are read."""

from __future__ import annotations

import hashlib
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from sandbox_kernel.errors import ImageError
from sandbox_kernel.images.lock import Pin, normalised, pins_of, read_lock
from sandbox_kernel.isolation.images import FLAVORS
from sandbox_kernel.paths import images_directory

REPOSITORY = Path(__file__).parents[3]
# What these wheels must run on: the Debian base.
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "python_version": "3.11", "extra": ""}


def lock(flavor: str) -> dict[str, Pin]:
    pins = read_lock(images_directory() / flavor / "requirements.txt")
    assert len({pin.name for pin in pins}) == len(pins)
    return {pin.name: pin for pin in pins}


def asked_for(flavor: str) -> list[Requirement]:
    lines = (images_directory() / flavor / "requirements.in").read_text().splitlines()
    return [Requirement(line) for line in lines if line and line[0] not in "#-"]


@pytest.mark.parametrize("flavor", FLAVORS)
def test_all_that_a_flavour_asks_for_is_locked_at_a_version_it_allows(flavor: str) -> None:
    locked = lock(flavor)
    assert asked_for(flavor)
    for requirement in asked_for(flavor):
        assert requirement.specifier.contains(locked[normalised(requirement.name)].version)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_what_locked_packages_need_is_locked_too(flavor: str) -> None:
    """As far as they are installed here; for the others the build itself refuses."""
    locked = lock(flavor)
    followed = 0
    for name in locked:
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        followed += 1
        for requirement in map(Requirement, needs):
            if requirement.marker is None or requirement.marker.evaluate(LINUX):
                assert normalised(requirement.name) in locked, f"{name} needs {requirement}"
    assert followed > 10


def test_the_large_flavour_has_the_small_one_in_it() -> None:
    large, small = lock("python"), lock("python-minimal")
    assert small.items() <= large.items()
    assert len(small) < len(large)


def test_the_kernel_inside_is_one_that_the_boot_files_are_made_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (bounds,) = [
        found for found in map(Requirement, project["dependencies"]) if found.name == "ipykernel"
    ]
    for flavor in FLAVORS:
        assert bounds.specifier.contains(lock(flavor)["ipykernel"].version)


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "numpy==2.0",
        "numpy>=2 --hash=sha256:" + "0" * 64,
        "numpy==2.0 --hash=sha256:" + "0" * 63,
        "numpy==2.0 --hash=md5:" + "0" * 32,
        "-r other.txt",
        "--index-url somewhere",
    ],
)
def test_a_line_without_version_and_hash_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(f"good==1 --hash=sha256:{'a' * 64}\n")
    assert len(read_lock(path)) == 1
    path.write_text(f"good==1 --hash=sha256:{'a' * 64}\n{line}\n")
    with pytest.raises(ImageError, match="no lock file"):
        read_lock(path)


def test_a_pin_is_read_as_it_is_written(tmp_path: Path) -> None:
    pin = Pin("some-name", "1.0", frozenset({"a" * 64, "b" * 64}))
    path = tmp_path / "requirements.txt"
    path.write_text(f"# by hand\n{pin}\n    # via\n    #   something\n")
    assert read_lock(path) == [pin]


def test_wheels_are_pinned_to_their_very_bytes(tmp_path: Path) -> None:
    wheel = tmp_path / "Some_Name-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    digest = hashlib.sha256(b"wheel").hexdigest()
    assert pins_of([wheel]) == [Pin("some-name", "1.0", frozenset({digest}))]
