from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sandbox_kernel.isolation.view import HOME_ENTRIES, plan_environment, plan_view


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home" / "me"
    home.mkdir(parents=True)
    return home


def test_the_working_directory_and_the_python_prefix_are_visible(home: Path) -> None:
    work = home / "work"
    work.mkdir()
    view = plan_view(work, (), {home}, {})
    assert work in view.read_only
    assert any(Path(sys.prefix).is_relative_to(root) for root in view.read_only)
    assert view.notes == ()


def test_nothing_nested_is_listed_twice(home: Path) -> None:
    (home / "work" / "lib").mkdir(parents=True)
    view = plan_view(home / "work", (), {home}, {"PYTHONPATH": str(home / "work" / "lib")})
    assert home / "work" in view.read_only
    assert home / "work" / "lib" not in view.read_only


@pytest.mark.parametrize("place", ["/", "/etc", "/run/user", "/proc/self", "/dev/shm"])
def test_system_state_is_never_shown_as_a_folder(home: Path, place: str) -> None:
    view = plan_view(Path(place), (), {home}, {})
    assert Path(place) not in view.read_only
    assert any("empty" in note for note in view.notes)


def test_a_home_of_slash_does_not_open_the_host(home: Path) -> None:
    view = plan_view(Path("/"), (), {Path("/"), home}, {})
    assert not any(path in view.read_only for path in (Path("/"), Path("/etc"), Path("/var")))


def test_pythonpath_that_holds_the_home_folder_is_refused_with_a_note(home: Path) -> None:
    view = plan_view(home / "x", (), {home}, {"PYTHONPATH": str(home.parent)})
    assert home.parent not in view.read_only
    assert any(str(home.parent) in note for note in view.notes)


def test_of_an_environment_around_the_home_folder_only_its_parts_are_visible(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = home.parent
    for name in ("bin", "lib", "other"):
        (prefix / name).mkdir()
    (prefix / "pyvenv.cfg").touch()
    (prefix / "lib64").symlink_to("/")
    monkeypatch.setattr(sys, "prefix", str(prefix))
    view = plan_view(home / "x", (), {home}, {})
    shown = {path.name for path in view.read_only if path.parent == prefix}
    assert shown == {"bin", "lib", "pyvenv.cfg"}
    assert prefix not in view.read_only
    assert any("only what Python is made of" in note for note in view.notes)


def test_secrets_are_hidden_only_where_they_would_show(home: Path) -> None:
    inside, outside = home / "work" / "kernel.json", home / "elsewhere" / "kernel.json"
    inside.parent.mkdir()
    view = plan_view(home / "work", (inside, outside), {home}, {})
    assert inside in view.hidden
    assert outside not in view.hidden


def test_the_environment_is_an_allow_list() -> None:
    environ = {
        "AWS_SECRET": "x",
        "LANG": "de_DE.UTF-8",
        "LC_TIME": "C",
        "PATH": "/evil",
        "HOME": "/me",
    }
    environment = plan_environment(environ, [])
    assert "AWS_SECRET" not in environment
    assert environment["LANG"] == "de_DE.UTF-8"
    assert environment["LC_TIME"] == "C"
    assert "/evil" not in environment["PATH"]
    assert environment["HOME"] == "/home/sandbox"
    assert "JPY_PARENT_PID" not in environment


def test_pythonpath_keeps_only_what_is_visible(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": f"{tmp_path / 'seen'}:/nowhere"}
    environment = plan_environment(environ, [tmp_path / "seen"])
    assert environment["PYTHONPATH"] == str(tmp_path / "seen")


def test_a_home_folder_behind_a_symlink_is_still_the_home_folder(home: Path) -> None:
    (home / ".ssh").mkdir()
    (home / "work").mkdir()
    link = home.parent / "link"
    link.symlink_to(home)
    view = plan_view(home, (), {link}, {})
    assert home / "work" in view.read_only
    assert home not in view.read_only
    assert home / ".ssh" not in view.read_only


def test_symlinks_in_the_home_folder_are_not_followed(home: Path) -> None:
    (home / "all").symlink_to("/")
    (home / "keys").symlink_to(".ssh")
    view = plan_view(home, (), {home}, {})
    assert home / "all" not in view.read_only
    assert home / "keys" not in view.read_only


def test_a_home_folder_with_any_number_of_entries_is_shown_in_part_folders_first(
    home: Path,
) -> None:
    for number in range(HOME_ENTRIES):
        (home / f"file{number}").touch()
    for number in range(10):
        (home / f"zfolder{number}").mkdir()
    view = plan_view(home, (), {home}, {})
    shown = [path for path in view.read_only if path.is_relative_to(home)]
    assert len(shown) == HOME_ENTRIES
    assert {home / f"zfolder{number}" for number in range(10)} < {*shown}
    assert any(note.startswith(f"10 more in {home} are not visible") for note in view.notes)


def test_an_entry_of_the_home_folder_that_cannot_be_looked_at_is_left_out_with_a_note(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "remote").mkdir()  # as a mount whose server is gone
    (home / "work").mkdir()
    lstat = Path.lstat

    def fails(path: Path) -> os.stat_result:
        if path == home / "remote":
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", fails)
    view = plan_view(home, (), {home}, {})
    assert home / "work" in view.read_only
    assert home / "remote" not in view.read_only
    assert f"{home}/remote is not visible: {os.strerror(errno.ENOTCONN)}" in view.notes


def test_packages_that_are_installed_to_be_edited_are_visible(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, module = home / "project" / "package", home / "project" / "module.py"
    package.mkdir(parents=True)
    module.touch()
    finder = ModuleType("__editable___project_0_1_finder")  # as setuptools makes it
    finder.MAPPING = {"package": str(package), "module": str(module)}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, finder.__name__, finder)
    view = plan_view(home / "work", (), {home}, {})
    assert {package, module} < {*view.read_only}
    assert home / "project" not in view.read_only


def test_a_secret_behind_a_symlink_is_hidden_by_its_real_name(home: Path) -> None:
    state, link = home / "work" / "state", home / "elsewhere"
    state.mkdir(parents=True)
    link.symlink_to(state)
    assert state in plan_view(home / "work", (link,), {home}, {}).hidden


def test_a_working_directory_inside_a_secret_is_not_shown(home: Path) -> None:
    state = home / "state"
    (state / "run").mkdir(parents=True)
    view = plan_view(state / "run", (state,), {home}, {})
    assert state / "run" not in view.read_only
    assert any("secrets" in note for note in view.notes)


def test_the_folder_of_all_homes_is_not_shown(home: Path) -> None:
    assert Path("/home") not in plan_view(Path("/home"), (), {home}, {}).read_only
