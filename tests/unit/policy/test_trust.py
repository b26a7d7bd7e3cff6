"""Which files are taken for policies: found in trusted places, nobody else's to change."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sandbox_kernel import paths
from sandbox_kernel.errors import PolicyError
from sandbox_kernel.paths import policies_directory
from sandbox_kernel.policy import find
from sandbox_kernel.policy.load import load_policy

SHIPPED = ["default", "strict", "trusted", "paranoid"]
STRANGER = 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


def write(path: Path, text: str = "limits: {wall: 5s}\n", mode: int = 0o644) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def refusal(name_or_path: Path | str) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        load_policy(str(name_or_path))
    return caught.value


# Names


def test_a_name_is_looked_up_for_the_system_and_the_user(system: Path, user: Path) -> None:
    write(system / "lab.yaml", "limits: {wall: 6s}")
    write(user / "mine.yaml", "limits: {wall: 7s}")
    assert load_policy("lab").limits.wall_seconds == 6
    assert load_policy("mine").limits.wall_seconds == 7


@pytest.mark.parametrize("name", SHIPPED[1:])
def test_an_administrator_can_replace_a_shipped_policy(system: Path, name: str) -> None:
    write(system / f"{name}.yaml", "limits: {wall: 6s}")
    assert load_policy(name).limits.wall_seconds == 6


@pytest.mark.parametrize("name", SHIPPED)
def test_a_user_s_file_neither_replaces_a_shipped_policy_nor_is_passed_over(
    user: Path, name: str
) -> None:
    path = write(user / f"{name}.yaml", "limits: {wall: none}")
    error = refusal(name)
    assert str(path) in error.what
    assert f"my-{name}.yaml" in error.hint


def test_a_user_s_file_does_not_replace_the_administrator_s(system: Path, user: Path) -> None:
    write(system / "lab.yaml")
    write(user / "lab.yaml")
    assert str(system) in refusal("lab").what


def test_xdg_config_home_is_where_the_user_s_policies_are(
    tmp_path: Path, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.move(user.parents[1], tmp_path / "elsewhere")
    write(tmp_path / "elsewhere" / "sandbox-kernel" / "policies" / "mine.yaml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
    assert load_policy("mine").limits.wall_seconds == 5


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "HOME"])
def test_a_relative_home_does_not_lead_into_the_notebook_s_folder(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for base in ("notebook", "notebook/.config"):
        directory = tmp_path / base / "sandbox-kernel" / "policies"
        directory.mkdir(parents=True)
        write(directory / "mine.yaml")
    monkeypatch.chdir(tmp_path / "notebook")
    monkeypatch.setenv(variable, ".")
    assert "no policy named 'mine'" in refusal("mine").what


def test_a_policy_in_the_notebook_s_folder_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mine.yaml")
    monkeypatch.chdir(tmp_path)
    assert "no policy named 'mine'" in refusal("mine").what


@pytest.mark.parametrize("path", ["mine.yaml", "./mine.yaml", "mine.yml", "a/b", "../mine.yaml"])
def test_a_relative_path_is_refused(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mine.yaml")
    monkeypatch.chdir(tmp_path)
    error = refusal(path)
    assert "relative" in error.what
    assert "absolute" in error.hint


def test_a_path_may_begin_with_the_home_directory(user: Path) -> None:
    write(user.parents[2] / "mine.yaml")
    assert load_policy("~/mine.yaml").limits.wall_seconds == 5
    assert "relative" in refusal("~nobody-of-that-name/mine.yaml").what


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a b", "-x", "strict\n", "ü", "x" * 65, "a\0b"]
)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    assert "not a name" in refusal(name).what


def test_an_unknown_name_gets_the_nearest_or_all_of_them(user: Path) -> None:
    write(user / "mine.yaml")
    assert refusal("strikt").hint == "Did you mean 'strict'?"
    assert "default, mine, paranoid, strict, tour, trusted" in refusal("zzzz").hint


# Owner and mode


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o620, 0o602])
def test_a_file_that_others_can_write_is_refused(user: Path, mode: int) -> None:
    path = write(user / "mine.yaml", mode=mode)
    for choice in ("mine", str(path)):
        error = refusal(choice)
        assert f"{path} can be written" in error.what
        assert "chmod go-w" in error.hint


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_file_in_a_directory_that_others_can_write_is_refused(user: Path, mode: int) -> None:
    write(user / "mine.yaml")
    user.chmod(mode)
    assert f"{user} can be written" in refusal("mine").what


def test_a_sticky_directory_is_good_enough_for_an_own_file(user: Path) -> None:
    write(user / "mine.yaml")
    user.chmod(0o1777)
    assert load_policy("mine").limits.wall_seconds == 5


def test_a_sticky_bit_does_not_excuse_a_file(user: Path) -> None:
    write(user / "mine.yaml", mode=0o1666)
    assert "can be written" in refusal("mine").what


@needs_root
@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_belongs_to_another_user_is_refused(system: Path, what: str) -> None:
    path = write(system / "lab.yaml")
    owned = path if what == "file" else system
    os.chown(owned, STRANGER, STRANGER)
    error = refusal("lab")
    assert f"{owned} belongs to another user (uid {STRANGER})" in error.what
    assert "chown" in error.hint


def test_a_file_of_neither_root_nor_this_user_is_refused(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(user / "mine.yaml")
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert "another user" in refusal("mine").what


@needs_root
def test_a_user_s_own_file_and_root_s_are_trusted(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(user / "mine.yaml")
    os.chown(path, STRANGER, STRANGER)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert load_policy("mine").limits.wall_seconds == 5


def test_a_base_is_checked_like_the_policy_that_extends_it(user: Path) -> None:
    base = write(user / "base.yaml", mode=0o666)
    path = write(user / "mine.yaml", "extends: base")
    error = refusal("mine")
    assert f"{path}, line 1: extends: " in error.what
    assert f"{base} can be written" in error.what


def test_shipped_policies_are_as_good_as_the_code_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Jupyter's own images the whole environment can be written by a group."""
    shipped = tmp_path / "policies"
    shutil.copytree(policies_directory(), shipped)
    for file in shipped.iterdir():
        file.chmod(0o664)
    shipped.chmod(0o2775)
    monkeypatch.setattr(paths, "policies_directory", lambda: shipped)
    assert load_policy("strict").limits.wall_seconds == 60


# Links and things that are no files


def test_a_link_in_a_trusted_directory_is_followed(user: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir(mode=0o755)
    (user / "mine.yaml").symlink_to(write(tmp_path / "dotfiles" / "any.yaml"))
    assert load_policy("mine").limits.wall_seconds == 5


@pytest.mark.parametrize("open_to_others", ["link", "file"])
def test_a_link_is_refused_where_others_can_change_either_end(
    user: Path, tmp_path: Path, open_to_others: str
) -> None:
    target = tmp_path / "dotfiles"
    target.mkdir(mode=0o755)
    (user / "mine.yaml").symlink_to(write(target / "any.yaml"))
    directory = user if open_to_others == "link" else target
    directory.chmod(0o777)
    assert f"{directory} can be written" in refusal("mine").what


@pytest.mark.parametrize("target", ["/nonexistent/policy", "strict.yaml"], ids=["dangling", "loop"])
def test_a_link_that_leads_nowhere_is_refused_and_not_passed_over(
    system: Path, target: str
) -> None:
    (system / "strict.yaml").symlink_to(target)
    assert "cannot be read" in refusal("strict").what


@pytest.mark.timeout(10)
def test_a_fifo_is_refused_without_waiting(user: Path) -> None:
    os.mkfifo(user / "mine.yaml", 0o644)
    assert "not a regular file" in refusal("mine").what


def test_a_directory_and_a_device_are_refused(user: Path) -> None:
    (user / "mine.yaml").mkdir()
    assert "Is a directory" in refusal("mine").what
    assert "not a regular file" in refusal("/dev/zero").what


@pytest.mark.parametrize("path", ["/nonexistent/mine.yaml", "/etc/passwd/mine.yaml", "/a\0/b.yaml"])
def test_a_path_that_leads_nowhere_is_refused(path: str) -> None:
    assert "cannot be read" in refusal(path).what


def test_a_system_policy_that_cannot_be_looked_at_is_not_taken_for_none(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lstat(path: Path) -> os.stat_result:
        if path.parent == system:
            raise PermissionError(13, "Permission denied")
        return os.lstat(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    assert "Permission denied" in refusal("strict").what


def test_what_was_checked_is_what_is_read_though_the_file_is_swapped_meanwhile(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(user / "mine.yaml", "limits: {wall: 5s}")
    other = write(user / "other", "limits: {wall: none}", mode=0o666)
    open_file = find._open

    def open_and_swap(directory: int, name: str, flags: int) -> int:
        descriptor = open_file(directory, name, flags)
        if other.exists():
            other.replace(path)
        return descriptor

    monkeypatch.setattr(find, "_open", open_and_swap)
    assert load_policy("mine").limits.wall_seconds == 5
    assert "can be written" in refusal("mine").what


def test_no_descriptor_stays_open(user: Path) -> None:
    (user / "mine.yaml").mkdir()
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    load_policy("strict")
    refusal("mine")
    refusal("/dev/zero")
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
