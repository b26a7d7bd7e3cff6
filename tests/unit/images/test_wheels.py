from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from sandbox_kernel.errors import ImageError
from sandbox_kernel.images import wheels
from sandbox_kernel.images.wheels import Target, download_command, fetch

DEBIAN = Target("3.11.2", "cp311", "x86_64", 36)


def options(command: list[str], name: str) -> list[str]:
    return [command[place + 1] for place, word in enumerate(command) if word == name]


@pytest.fixture(scope="module")
def tags() -> list[str]:
    """The tags that pip itself takes our arguments to allow."""
    command = download_command(DEBIAN, [], Path("/nowhere"))
    ask = [sys.executable, "-m", "pip", "debug", "--verbose"]
    for name in ("--platform", "--python-version", "--abi", "--implementation"):
        ask += [word for value in options(command, name) for word in (name, value)]
    said = subprocess.run(ask, check=True, capture_output=True, text=True).stdout
    return said.partition("Compatible tags:")[2].split()


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("cp311-cp311-manylinux_2_28_x86_64", True),
        ("cp311-cp311-manylinux2014_x86_64", True),
        ("cp38-abi3-manylinux_2_36_x86_64", True),
        ("py3-none-any", True),
        ("cp311-cp311-manylinux_2_37_x86_64", False),
        ("cp311-cp311-manylinux_2_28_aarch64", False),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
        ("cp312-cp312-manylinux_2_28_x86_64", False),
    ],
)
def test_wheels_are_taken_that_fit_the_image(tags: list[str], tag: str, fits: bool) -> None:
    assert (tag in tags) is fits


def test_nothing_is_built_from_source_on_the_host() -> None:
    command = download_command(DEBIAN, [], Path("/nowhere"))
    assert options(command, "--only-binary") == [":all:"]


SOURCES = {
    "a path": "{project}",
    "a path that can be edited": "-e {project}",
    "an address": "evil @ file://{project}",
    "an archive": "{archive}",
    "an option": "--no-index\n--find-links {folder}\n--no-binary evil\nevil",
}


@pytest.mark.parametrize("form", SOURCES)
def test_what_requirements_ask_to_be_built_is_not(tmp_path: Path, form: str) -> None:
    project, witness = tmp_path / "evil-1.0", tmp_path / "witness"
    project.mkdir()
    setup = f"open({str(witness)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='evil', version='1.0')\n"
    (project / "setup.py").write_text(setup)
    (project / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    archive = tmp_path / "evil-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(project, project.name)
    extra = tmp_path / "requirements.txt"
    extra.write_text(SOURCES[form].format(project=project, archive=archive, folder=tmp_path))
    command = download_command(DEBIAN, ["-r", str(extra)], tmp_path / "wheels")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "nothing is built on the host" in done.stdout + done.stderr
    assert not witness.exists()
    plain = [sys.executable, "-m", "pip", *command[command.index("download") :]]
    subprocess.run([*plain, "--no-build-isolation"], capture_output=True, check=False)
    assert witness.exists(), "the control"


def test_nothing_of_the_current_folder_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = tmp_path / "witness"
    for name in ("pip", "runpy", "pkgutil"):
        (tmp_path / f"{name}.py").write_text(f"open({str(witness)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    assert witness.exists(), "the control"
    witness.unlink()
    command = download_command(DEBIAN, ["--no-index", "no-such-package"], tmp_path / "wheels")
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "no-such-package" in said.stdout + said.stderr
    assert not witness.exists()


def test_what_pip_says_against_it_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    lock = tmp_path / "requirements.txt"
    lock.write_text(f"no-such-package==1 --hash=sha256:{'a' * 64}\n")
    with pytest.raises(ImageError, match="no-such-package") as caught:
        fetch(DEBIAN, lock, [], None, tmp_path / "wheels", lambda *_: None)
    assert "wheel for Python 3.11.2 on x86_64" in caught.value.hint


def test_a_host_without_pip_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(wheels.sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ImageError, match="has no pip") as caught:
        fetch(DEBIAN, tmp_path / "any", [], None, tmp_path / "wheels", lambda *_: None)
    assert "ensurepip" in caught.value.hint
