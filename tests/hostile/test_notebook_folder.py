"""A folder from a stranger: opening a notebook in it runs nothing of it on the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kernel import running_kernel

pytestmark = pytest.mark.process

SHADOWED = (
    "sandbox_kernel/__init__.py",
    "sandbox_kernel/__main__.py",
    "zmq.py",
    "json.py",
    "pathlib.py",
    "ctypes.py",
    "msgspec.py",
    "sitecustomize.py",
    "usercustomize.py",
)


def test_modules_in_the_folder_do_not_run_outside_the_sandbox(tmp_path: Path) -> None:
    witness, folder = tmp_path / "witness", tmp_path / "folder"
    witness.mkdir()
    witness.chmod(0o777)
    for name in SHADOWED:
        module = folder / name
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(f"open({str(witness / 'ran')!r}, 'w').write({name!r})\n")
    with running_kernel(cwd=folder) as kernel:
        assert kernel.run("1 + 1").result == "2"
        # The control: inside, the folder's modules are the user's to import, and harm nothing.
        assert kernel.run("import usercustomize").ename == "FileNotFoundError"
    assert list(witness.iterdir()) == []


def test_a_bwrap_in_the_folder_is_not_taken(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\ntouch {witness}\n")
    fake.chmod(0o755)
    path = f".:{os.environ['PATH']}"
    with running_kernel(cwd=tmp_path, env={"PATH": path}) as kernel:
        assert kernel.run("1 + 1").result == "2"
    assert not witness.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="about a wrapper started by root")
def test_a_folder_swapped_for_a_symlink_shows_the_folder_it_was(tmp_path: Path) -> None:
    """Root's wrapper shows root's files; which ones must not be another user's to choose."""
    secret, folder = tmp_path / "secret", tmp_path / "folder"
    secret.mkdir(mode=0o700)
    (secret / "key").write_text("secret")
    folder.mkdir()
    (folder / "data").write_text("data")
    with running_kernel(cwd=folder) as kernel:
        assert kernel.run("open('data').read()").result == "'data'"
        folder.rename(tmp_path / "moved")
        folder.symlink_to(secret)
        kernel.run("import os; os._exit(1)")
        assert kernel.run("open('key')").ename == "FileNotFoundError"
        assert kernel.run("open('data').read()").result == "'data'"
    assert (secret / "key").read_text() == "secret"
