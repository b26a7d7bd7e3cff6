"""Nothing below the state folder is made, changed or removed that is not this user's and ours."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.rundir import RunDirectory
from tests.sandbox.ordinary_user import UID

OURS = "123-0a1b2c3d"
MARK = "sandbox-kernel run directory\n"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")


def abandoned(run: Path, name: str = OURS, mark: str = MARK) -> Path:
    directory = run / name
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "precious").write_text("precious")
    (directory / "lock").write_text(mark)
    return directory


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns)
        for path in (folder, *sorted(folder.rglob("*")))
    }


def refusal(home: Path) -> SandboxUnavailable:
    with pytest.raises(SandboxUnavailable) as caught:
        RunDirectory(home)
    return caught.value


def test_what_a_wrapper_left_behind_is_removed(tmp_path: Path) -> None:
    left = abandoned(tmp_path / "run")
    RunDirectory(tmp_path).close()
    assert not left.exists()


def test_a_directory_in_use_is_not_removed(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path)
    first.new_generation()
    RunDirectory(tmp_path).close()
    assert (first.path / "1").is_dir()
    first.close()
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "mark"),
    [("project", MARK), ("notes-2024", ""), (OURS, ""), (OURS, "mine\n"), (f"{OURS}-copy", MARK)],
)
def test_a_folder_that_no_wrapper_made_stays_as_it_is(tmp_path: Path, name: str, mark: str) -> None:
    foreign = abandoned(tmp_path / "run", name, mark)
    before = tree(foreign)
    RunDirectory(tmp_path).close()
    assert tree(foreign) == before


def test_a_folder_without_a_lock_is_given_none(tmp_path: Path) -> None:
    foreign = abandoned(tmp_path / "run")
    (foreign / "lock").unlink()
    before = tree(foreign)
    RunDirectory(tmp_path).close()
    assert tree(foreign) == before


def test_a_lock_that_is_a_symlink_does_not_make_a_folder_ours(tmp_path: Path) -> None:
    foreign = abandoned(tmp_path / "run")
    (foreign / "lock").rename(tmp_path / "mark")
    (foreign / "lock").symlink_to(tmp_path / "mark")
    before = tree(foreign)
    RunDirectory(tmp_path).close()
    assert tree(foreign) == before


def test_a_symlink_in_the_run_folder_is_not_followed(tmp_path: Path) -> None:
    elsewhere = abandoned(tmp_path / "elsewhere")
    home = tmp_path / "home"
    (home / "run").mkdir(parents=True)
    (home / "run" / OURS).symlink_to(elsewhere)
    before = tree(elsewhere)
    RunDirectory(home).close()
    assert tree(elsewhere) == before


@pytest.mark.parametrize("which", ["home", "home/run"])
def test_a_symlink_in_place_of_a_state_folder_is_refused(tmp_path: Path, which: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    abandoned(elsewhere)
    abandoned(elsewhere / "run")
    elsewhere.chmod(0o755)
    link = tmp_path / which
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    before = tree(elsewhere)
    error = refusal(tmp_path / "home")
    assert str(link) in error.what
    assert "symbolic link" in error.what
    assert "SANDBOX_KERNEL_HOME" in error.hint
    assert tree(elsewhere) == before


@pytest.mark.parametrize("which", ["home", "home/run"])
def test_a_folder_that_others_may_write_to_is_refused_and_left(tmp_path: Path, which: str) -> None:
    (tmp_path / "home" / "run").mkdir(parents=True)
    (tmp_path / which).chmod(0o777)
    left = abandoned(tmp_path / "home" / "run")
    before = tree(tmp_path / "home")
    assert "other users may write to it (mode 0777)" in refusal(tmp_path / "home").what
    assert tree(tmp_path / "home") == before
    assert left.is_dir()


@as_root
@pytest.mark.parametrize("which", ["home", "home/run"])
def test_a_folder_of_another_user_is_refused_and_left(tmp_path: Path, which: str) -> None:
    (tmp_path / "home" / "run").mkdir(parents=True)
    os.chown(tmp_path / which, UID, UID)
    abandoned(tmp_path / "home" / "run")
    before = tree(tmp_path / "home")
    assert f"it belongs to uid {UID}" in refusal(tmp_path / "home").what
    assert tree(tmp_path / "home") == before


@as_root
def test_a_directory_of_another_user_in_the_run_folder_stays(tmp_path: Path) -> None:
    foreign = abandoned(tmp_path / "run")
    os.chown(foreign, UID, UID)
    before = tree(foreign)
    RunDirectory(tmp_path).close()
    assert tree(foreign) == before


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    assert "it is not a folder" in refusal(tmp_path).what
    assert (tmp_path / "run").read_text() == "mine"


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o755)
    RunDirectory(tmp_path).close()
    assert run.stat().st_mode & 0o777 == 0o755


def test_new_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "a" / "b"
    directory = RunDirectory(home)
    for path in (home, home / "run", directory.path):
        assert path.stat().st_mode & 0o777 == 0o700, path
    directory.close()


# -- the way to the state folder -------------------------------------------------------------------


def test_links_of_ones_own_lead_to_the_state_folder(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    (tmp_path / "relative").symlink_to("absolute/../real/deep")
    RunDirectory(tmp_path / "relative" / "new" / "home").close()
    assert (tmp_path / "real" / "deep" / "new" / "home" / "run").is_dir()


def test_links_that_lead_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    assert os.strerror(errno.ELOOP) in refusal(tmp_path / "circle" / "home").what


@as_root
def test_a_link_of_another_user_above_the_state_folder_is_refused(tmp_path: Path) -> None:
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "link"
    elsewhere.mkdir()
    link.symlink_to(elsewhere)
    os.lchown(link, UID, UID)
    before = tree(elsewhere)
    assert f"'link', above it, is a symbolic link of uid {UID}" in refusal(link / "a" / "home").what
    assert tree(elsewhere) == before


@pytest.mark.parametrize(
    ("mode", "passes"), [(0o777, False), (0o757, False), (0o1777, True), (0o755, True)]
)
def test_a_folder_above_that_others_may_write_to_is_refused_unless_it_is_sticky(
    tmp_path: Path, mode: int, passes: bool
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    if passes:
        RunDirectory(shared / "home").close()
        assert (shared / "home" / "run").is_dir()
    else:
        assert f"other users may write to 'shared', above it (mode {mode:04o})" in (
            refusal(shared / "home").what
        )
        assert list(shared.iterdir()) == []


@as_root
@pytest.mark.parametrize("group", [0, UID], ids=["root's", "another's"])
def test_a_folder_above_may_be_open_to_a_group_that_the_user_is_in(
    tmp_path: Path, group: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 0, group)
    shared.chmod(0o2775)
    if group == UID:
        assert "(mode 2775)" in refusal(shared / "home").what
    else:
        RunDirectory(shared / "home").close()


@as_root
def test_what_another_user_made_in_a_shared_folder_is_not_passed(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "theirs").mkdir(parents=True)
    os.chown(shared / "theirs", UID, UID)
    RunDirectory(shared / "theirs" / "home").close()  # as a home folder of root's: /github/home
    shared.chmod(0o1777)
    assert f"belongs to uid {UID}" in refusal(shared / "theirs" / "other").what
    assert not (shared / "theirs" / "other").exists()


def test_a_generation_is_made_in_the_directory_that_is_held_open(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "home")
    moved = tmp_path / "moved"
    (tmp_path / "home").rename(moved)
    (tmp_path / "home" / "run" / directory.path.name).mkdir(parents=True)
    path = directory.new_generation()
    assert path == directory.path / "1"
    assert not path.exists()
    assert (moved / "run" / directory.path.name / "1").stat().st_mode & 0o777 == 0o711
    directory.close()
