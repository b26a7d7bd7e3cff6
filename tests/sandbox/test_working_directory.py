"""The notebook's folder is there, read-only, at the same path; what is around it is not."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.kernel import Kernel, running_kernel

pytestmark = pytest.mark.process


def test_data_and_helper_modules_beside_the_notebook_work(tmp_path: Path, kernel: Kernel) -> None:
    (tmp_path / "data.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "helper.py").write_text("def answer():\n    return 42\n")
    assert kernel.run("import pandas as pd; int(pd.read_csv('data.csv').b.sum())").result == "6"
    assert kernel.run("import helper; helper.answer()").result == "42"
    assert kernel.value("__import__('os').getcwd()") == str(tmp_path)


def test_the_folder_cannot_be_written(tmp_path: Path, kernel: Kernel) -> None:
    (tmp_path / "data.csv").write_text("precious")
    for code in (
        "open('new.txt', 'w')",
        "open('data.csv', 'a')",
        "import os; os.remove('data.csv')",
        "import os; os.rename('data.csv', 'other.csv')",
        "import os; os.chmod('data.csv', 0o777)",
    ):
        assert kernel.run(code).ename in ("OSError", "PermissionError"), code
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]
    assert (tmp_path / "data.csv").read_text() == "precious"


def test_folders_only_their_owner_may_enter_work(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "data.txt").write_text("mine")
    (private / "data.txt").chmod(0o600)
    with running_kernel(cwd=private) as kernel:
        assert kernel.run("open('data.txt').read()").result == "'mine'"


def test_a_folder_below_var_tmp_is_like_any_other() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder, "data.txt").write_text("mine")
        with running_kernel(cwd=folder) as kernel:
            assert kernel.run("open('data.txt').read()").result == "'mine'"
            assert kernel.value("__import__('os').getcwd()") == folder
            assert kernel.run("open('/var/tmp/own', 'w').write('x')").result == "1"
        assert not Path("/var/tmp/own").exists()


def test_in_the_home_folder_hidden_files_stay_hidden(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("secret")
    (home / ".netrc").write_text("secret")
    (home / "project").mkdir()
    (home / "project" / "data.txt").write_text("data")
    (home / "notes.txt").write_text("notes")
    with running_kernel(cwd=home, env={"HOME": str(home)}) as kernel:
        assert kernel.value("sorted(__import__('os').listdir())") == ["notes.txt", "project"]
        assert kernel.run("open('project/data.txt').read()").result == "'data'"
        assert kernel.run("open('.ssh/id_ed25519')").ename == "FileNotFoundError"
        assert kernel.run(f"open({str(home / '.netrc')!r})").ename == "FileNotFoundError"
        banner = kernel.client.kernel_info(reply=True, timeout=10)["content"]["banner"]
        assert "home folder" in banner
    assert (home / ".ssh" / "id_ed25519").read_text() == "secret"


def test_a_folder_above_the_home_folder_is_not_shown(tmp_path: Path) -> None:
    home = tmp_path / "users" / "me"
    home.mkdir(parents=True)
    (home.parent / "other.txt").write_text("somebody else's")
    with running_kernel(cwd=home.parent, env={"HOME": str(home)}) as kernel:
        assert kernel.value("__import__('os').listdir()") == []
        assert kernel.value("__import__('os').getcwd()") == str(home.parent)


def test_a_shared_temporary_folder_is_not_shown(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "other.txt").write_text("somebody else's")
    with running_kernel(cwd=shared) as kernel:
        assert kernel.value("__import__('os').listdir()") == []


def test_names_with_spaces_and_symbols_work(tmp_path: Path) -> None:
    folder = tmp_path / "mein Ordner -- ü'\"$x"
    folder.mkdir()
    (folder / "data.txt").write_text("here")
    with running_kernel(cwd=folder) as kernel:
        assert kernel.run("open('data.txt').read()").result == "'here'"


def test_a_folder_reached_through_a_symlink_works(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "data.txt").write_text("here")
    (tmp_path / "link").symlink_to("real")
    with running_kernel(cwd=tmp_path / "link") as kernel:
        assert kernel.run("open('data.txt').read()").result == "'here'"


def test_a_symlink_out_of_the_folder_leads_nowhere(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside.txt", tmp_path / "folder"
    outside.write_text("secret")
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    assert (inside / "link").read_text() == "secret"
    with running_kernel(cwd=inside) as kernel:
        assert kernel.run("open('link').read()").ename == "FileNotFoundError"


def test_extra_packages_on_pythonpath_can_be_imported(tmp_path: Path) -> None:
    packages, work = tmp_path / "packages", tmp_path / "work"
    packages.mkdir()
    work.mkdir()
    (packages / "extra_module.py").write_text("value = 7\n")
    with running_kernel(cwd=work, env={"PYTHONPATH": str(packages)}) as kernel:
        assert kernel.run("import extra_module; extra_module.value").result == "7"
        child = "import subprocess, sys; subprocess.check_output([sys.executable, '-c', 'import extra_module; print(extra_module.value)'])"
        assert kernel.run(child).result == r"b'7\n'"


def test_the_state_directory_stays_hidden_even_inside_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("SANDBOX_KERNEL_HOME", str(state))
    with running_kernel(cwd=tmp_path) as kernel:
        assert {path.name for path in state.iterdir()} == {"audit", "run", "run.lock"}
        assert kernel.value(f"__import__('os').listdir({str(state)!r})") == []
