"""A level gives way to the next only if it is known to be missing, and the kernel says so."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sandbox_kernel.errors import ImageError, SandboxUnavailable
from sandbox_kernel.isolation import process
from sandbox_kernel.isolation.engine import find_engines
from sandbox_kernel.isolation.select import Selection
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.model import Level

NO_IMAGE = SandboxUnavailable("The engine has no image for 'python'.", hint="Build it.")


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One with bubblewrap and an engine; the state home, where the list of images is."""
    monkeypatch.setattr(process, "find_bwrap", lambda: Path("/usr/bin/bwrap"))
    engine = tmp_path / "engine.sock"
    engine.touch()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine}")
    monkeypatch.setenv("SANDBOX_KERNEL_HOME", str(tmp_path))
    return tmp_path


def selection(*prefer: Level, require: Level = "process") -> Selection:
    policy = load_policy("default")
    isolation = policy.isolation._replace(prefer=prefer, require=require)
    return Selection(replace(policy, isolation=isolation))


def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox_kernel.isolation.engine.find_engines", lambda: [])


def test_what_is_preferred_is_chosen_without_a_word() -> None:
    chosen = selection("container", "process")
    assert chosen.choose().level == "container"
    assert chosen.remarks == ()


def test_without_an_engine_the_next_level_is_chosen_and_the_reason_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_engine(monkeypatch)
    chosen = selection("container", "process")
    assert chosen.choose().level == "process"
    assert chosen.remarks == ("policy prefers container: no container engine was found",)


def test_one_reason_for_two_levels_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    without_engine(monkeypatch)
    chosen = selection("gvisor", "container", "process")
    assert chosen.choose().level == "process"
    assert chosen.remarks == ("policy prefers gvisor, container: no container engine was found",)


def test_what_the_engine_lacks_is_told_as_well() -> None:
    chosen = selection("container", "process")
    chosen.choose()
    chosen.exclude([("container", NO_IMAGE)])
    assert chosen.choose().level == "process"
    assert chosen.remarks == ("policy prefers container: the engine has no image for 'python'",)


def test_nothing_weaker_than_required_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    without_engine(monkeypatch)
    chosen = selection("container", "process", require="container")
    with pytest.raises(SandboxUnavailable, match="No container engine was found"):
        chosen.choose()
    assert chosen.remarks == (), "it begins anew"


def test_an_engine_that_is_stopped_gives_no_weaker_level_and_is_used_once_it_runs(
    monkeypatch: pytest.MonkeyPatch, host: Path
) -> None:
    engine = host / "docker.sock"
    found = partial(find_engines, {}, host, [str(host)])
    monkeypatch.setattr("sandbox_kernel.isolation.engine.find_engines", found)
    chosen = selection("container", "process")
    assert chosen.choose().level == "process", "the control: no Docker is installed"
    (host / "dockerd").touch(mode=0o755)
    chosen = selection("container", "process")
    for _ in range(2):  # the next cell tries again
        with pytest.raises(SandboxUnavailable, match=f"{engine} does not run: .* start docker"):
            chosen.choose()
    engine.touch()
    assert chosen.choose().level == "container"


def test_a_list_of_images_that_cannot_be_read_gives_no_weaker_level(host: Path) -> None:
    images = host / "images.json"
    images.write_text("torn")
    chosen = selection("container", "process")
    for _ in range(2):  # the next cell tries again
        with pytest.raises(ImageError, match="cannot be read"):
            chosen.choose()
    images.unlink()
    assert chosen.choose().level == "container"
