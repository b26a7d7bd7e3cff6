from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation import credentials, hiding, view
from sandbox_kernel.isolation.hiding import MOST

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\n"


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)


def names(paths: object) -> set[str]:
    return {path.name for path in paths}  # type: ignore[attr-defined]


def test_credentials_of_other_programs_are_found_in_a_folder(tmp_path: Path) -> None:
    put(tmp_path, **{".netrc": "", ".pypirc": "", "pip.conf": "", "jupyter_server_config.json": ""})
    put(tmp_path, **{"server.pem": KEY, "id_rsa": KEY, "tls.key": KEY})
    put(tmp_path, **{"ca.pem": CERTIFICATE, "id_list": "1 2 3", "id_rsa.pub": "ssh-rsa"})
    put(tmp_path, **{".env": "", "data_config.json": "", "a.key": "C major", "sub/.netrc": ""})
    (tmp_path / ".ssh").mkdir()
    assert names(credentials.in_folder(tmp_path)) == {
        *(".netrc", ".pypirc", "pip.conf", "jupyter_server_config.json"),
        *("server.pem", "id_rsa", "tls.key", ".ssh"),
    }


def test_every_name_is_a_name(tmp_path: Path) -> None:
    assert [name for name in credentials.NAMES if len(name) < 2] == []
    assert "pip.ini" in credentials.NAMES
    (tmp_path / "n").mkdir()
    assert not list(credentials.in_folder(tmp_path))


def test_a_key_that_comes_last_is_found_and_a_long_chain_of_certificates_is_not(
    tmp_path: Path,
) -> None:
    put(tmp_path, **{"combined.pem": CERTIFICATE * 2000 + KEY, "chain.pem": CERTIFICATE * 20_000})
    put(tmp_path, **{"id_rsa.old": KEY, "id_list.csv": KEY, "UPPER.PEM": KEY, "apple.p8": KEY})
    assert names(credentials.in_folder(tmp_path)) == {
        *("combined.pem", "id_rsa.old", "UPPER.PEM", "apple.p8")
    }


@pytest.mark.parametrize("ending", ["ppk", "p12", "pfx", "jks", "keystore", "PFX"])
def test_stores_of_keys_are_found_by_their_names(tmp_path: Path, ending: str) -> None:
    put(tmp_path, **{f"mine.{ending}": ""})
    assert names(credentials.in_folder(tmp_path)) == {f"mine.{ending}"}


def test_what_a_symlink_leads_to_is_hidden_where_it_shows(tmp_path: Path) -> None:
    put(tmp_path, **{"netrc": "", "ssh/id_rsa": KEY, "keys/server": KEY, "sub/data": ""})
    (tmp_path / ".netrc").symlink_to("netrc")
    (tmp_path / ".ssh").symlink_to(tmp_path / "ssh")
    (tmp_path / "server.pem").symlink_to("keys/server")
    (tmp_path / "pip.conf").symlink_to("/etc/passwd")
    (tmp_path / ".pypirc").symlink_to("/nonexistent")
    (tmp_path / ".pgpass").symlink_to(".pgpass")
    hidden = view.plan_folder(tmp_path, (), set()).hidden
    assert {*hidden} == {tmp_path / name for name in ("netrc", "ssh", "keys/server")}


@pytest.mark.parametrize("target", [".", "..", "/", "/usr/bin/env", sys.executable, sys.prefix])
def test_a_symlink_cannot_hide_the_folder_the_system_or_python(tmp_path: Path, target: str) -> None:
    (tmp_path / ".ssh").symlink_to(target)
    planned = view.plan_view(tmp_path, (), set(), {})
    hidden = {path for path in planned.hidden if not path.is_relative_to("/usr/local")}
    assert not [path for path in hidden if Path(sys.executable).is_relative_to(path)]
    assert tmp_path in planned.read_only
    assert not {tmp_path, Path("/"), Path("/usr/bin/env")} & hidden


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert not list(credentials.in_environment(tmp_path / "missing"))


def test_configuration_of_servers_and_private_files_are_found_in_an_environment(
    tmp_path: Path,
) -> None:
    put(tmp_path, **{"pip.conf": "", "etc/jupyter/x.json": "", "etc/app/token": "", "token": ""})
    put(tmp_path, **{"pyvenv.cfg": "", "etc/app/open": "", "lib/module.py": ""})
    tmp_path.chmod(0o755)
    for path in ("token", "etc/app/token"):
        (tmp_path / path).chmod(0o600)
    assert set(credentials.in_environment(tmp_path)) == {
        tmp_path / path for path in ("pip.conf", "etc/jupyter", "etc/app/token", "token")
    }


def test_a_private_folder_in_an_open_environment_is_hidden_whole(tmp_path: Path) -> None:
    put(tmp_path, **{"etc/vault/token": "", "secrets/token": "", "etc/open/file": ""})
    put(tmp_path, **{"lib/module.py": "", "bin/python": "", "pyvenv.cfg": ""})
    tmp_path.chmod(0o755)
    (tmp_path / "etc" / "vault" / "token").chmod(0o600)
    for folder in ("etc/vault", "secrets", "lib", "bin"):
        (tmp_path / folder).chmod(0o700)
    # What the environment does not run without.
    (tmp_path / "pyvenv.cfg").chmod(0o600)
    found = {tmp_path / "etc" / "vault", tmp_path / "secrets"}
    assert set(credentials.in_environment(tmp_path)) == found


def test_an_entry_that_vanishes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, **{"etc/gone": "", "etc/token": "", "gone": "", ".netrc": ""})
    tmp_path.chmod(0o755)
    for path in ("etc/gone", "etc/token", "gone"):
        (tmp_path / path).chmod(0o600)
    scandir = os.scandir

    class Listing(list[os.DirEntry[str]]):
        def __enter__(self) -> Listing:
            return self

        def __exit__(self, *_: object) -> None: ...

    def listing(folder: Path) -> Listing:
        entries = Listing(scandir(folder))
        (folder / "gone").unlink(missing_ok=True)
        return entries

    monkeypatch.setattr(os, "scandir", listing)
    assert set(credentials.in_environment(tmp_path)) == {
        tmp_path / ".netrc",
        tmp_path / "etc" / "token",
    }


def test_in_an_environment_that_is_closed_as_a_whole_names_alone_decide(tmp_path: Path) -> None:
    put(tmp_path, **{"pip.conf": "", "pyvenv.cfg": ""})
    for path in tmp_path.iterdir():
        path.chmod(0o600)
    tmp_path.chmod(0o700)
    assert names(credentials.in_environment(tmp_path)) == {"pip.conf"}


def test_what_is_found_is_hidden_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, folder = tmp_path / "prefix", tmp_path / "folder"
    put(prefix, **{"pip.conf": "", "bin/python": ""})
    put(folder, **{".netrc": "", "data.csv": ""})
    for name in ("prefix", "exec_prefix", "base_prefix"):
        monkeypatch.setattr(sys, name, str(prefix))
    planned = view.plan_view(folder, (), set(), {})
    assert {prefix / "pip.conf", folder / ".netrc"} <= set(planned.hidden)
    assert any(".netrc" in note for note in planned.notes)
    alone = view.plan_folder(folder, (), set())
    assert alone.hidden == (folder / ".netrc",)


def test_in_a_home_folder_files_that_are_credentials_are_not_shown(tmp_path: Path) -> None:
    put(tmp_path, **{"kaggle.json": "", "id_rsa_old": KEY, "aws-key.pem": KEY, "ca.pem": ""})
    put(tmp_path, **{"jupyter_server_config.json": "", "notes.txt": "", "work/pip.conf": ""})
    put(tmp_path, **{"dotfiles/netrc": "", "dotfiles/vimrc": ""})
    (tmp_path / ".netrc").symlink_to("dotfiles/netrc")
    planned = view.plan_folder(tmp_path, (), {tmp_path})
    assert names(planned.read_only) == {"ca.pem", "notes.txt", "work", "dotfiles"}
    assert {*planned.hidden} == {tmp_path / "work/pip.conf", tmp_path / "dotfiles/netrc"}
    note = next(note for note in planned.notes if "credentials" in note)
    assert note == (
        "hidden, as they look like credentials: aws-key.pem, dotfiles/netrc, id_rsa_old, "
        "jupyter_server_config.json, kaggle.json, work/pip.conf"
    )


def test_a_file_on_the_python_path_is_not_shown_if_it_is_a_credential(tmp_path: Path) -> None:
    put(tmp_path, **{"keys/server.pem": KEY, "work/data.csv": ""})
    environ = {"PYTHONPATH": str(tmp_path / "keys" / "server.pem")}
    planned = view.plan_view(tmp_path / "work", (), set(), environ)
    assert tmp_path / "keys" / "server.pem" not in planned.read_only


def test_environments_beside_the_notebook_are_treated_as_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mark in ((".venv", "pyvenv.cfg"), ("conda", "conda-meta/history"), ("other", "x")):
        put(tmp_path, **{f"{name}/{mark}": "", f"{name}/pip.conf": ""})
        put(tmp_path, **{f"{name}/etc/jupyter/x.json": ""})
    put(tmp_path, **{"deep/prefix/etc/jupyter/x.json": "", "deep/prefix/bin/python": ""})
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "deep" / "prefix"))
    hidden = {
        str(path.relative_to(tmp_path)) for path in view.plan_folder(tmp_path, (), set()).hidden
    }
    assert hidden == {
        *(f"{name}/{what}" for name in (".venv", "conda") for what in ("pip.conf", "etc/jupyter")),
        "deep/prefix/etc/jupyter",
    }


def test_what_is_hidden_is_hidden_by_every_name_it_has_inside(tmp_path: Path) -> None:
    put(tmp_path, **{"real/state/key": "", "real/module.py": "", "work/data.csv": ""})
    (tmp_path / "link").symlink_to("real")
    secret, environ = tmp_path / "real" / "state", {"PYTHONPATH": str(tmp_path / "link")}
    hidden = view.plan_view(tmp_path / "work", (secret,), set(), environ).hidden
    assert {secret, tmp_path / "link" / "state"} <= {*hidden}


def test_nothing_is_hidden_in_what_is_hidden(tmp_path: Path) -> None:
    put(tmp_path, **{".venv/pyvenv.cfg": "", ".venv/etc/jupyter/pip.conf": ""})
    hidden = view.plan_folder(
        tmp_path, (tmp_path / ".venv" / "etc" / "jupyter" / "x",), set()
    ).hidden
    assert hidden == (tmp_path / ".venv" / "etc" / "jupyter",)


def test_a_level_that_hides_nothing_does_not_say_so(tmp_path: Path) -> None:
    put(tmp_path, **{".netrc": "", "data.csv": ""})
    planned = view.plan_view(tmp_path, (), set(), {}, hides=False)
    assert tmp_path / ".netrc" in planned.hidden
    assert not [note for note in planned.notes if "hidden" in note]


def test_more_credentials_than_can_be_hidden_hide_their_folder(tmp_path: Path) -> None:
    for number in range(hiding.MOST + 1):
        put(tmp_path, **{f".venv/etc/app/token-{number}": ""})
        (tmp_path / f".venv/etc/app/token-{number}").chmod(0o600)
    put(tmp_path, **{".venv/pyvenv.cfg": "", ".netrc": ""})
    (tmp_path / ".venv").chmod(0o755)
    planned = view.plan_folder(tmp_path, (), set())
    assert {*planned.hidden} == {tmp_path / ".venv/etc/app", tmp_path / ".netrc"}
    assert any("hidden as a whole" in note for note in planned.notes)


def test_a_notebooks_folder_full_of_keys_is_not_shown(tmp_path: Path) -> None:
    for number in range(hiding.MOST + 1):
        put(tmp_path, **{f"{number}.ppk": ""})
    planned = view.plan_folder(tmp_path, (), set())
    assert (planned.read_only, planned.hidden, planned.stand_in) == ((), (), tmp_path)
    assert any("hidden as a whole" in note for note in planned.notes)


def test_a_python_among_too_many_credentials_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(hiding.MOST + 1):
        put(tmp_path, **{f"prefix/{number}.ppk": ""})
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    with pytest.raises(SandboxUnavailable, match="than can be hidden"):
        view.plan_view(tmp_path / "work", (), set(), {})


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_roots_files_in_a_python_stay_roots_unless_it_is_closed(tmp_path: Path, mode: int) -> None:
    (tmp_path / "lib").mkdir()
    tmp_path.chmod(mode)
    keeps = view.keeps_roots_files(tmp_path, set(), Path("/elsewhere"))
    assert keeps is (mode == 0o755)


def test_roots_files_are_shown_in_roots_own_folder_and_never_in_the_systems() -> None:
    home = {Path("/root"), Path("/var/roothome")}
    for shown in ("/root/work", "/work", "/var/tmp/work", "/var/roothome/work"):
        assert not view.keeps_roots_files(Path(shown), home, Path(shown)), shown
    for kept in ("/var", "/var/lib/app", "/opt/app", "/srv/data", "/usr/share", "/etc/app"):
        assert view.keeps_roots_files(Path(kept), home, Path(kept)), kept


OPENED = """
import sys
from pathlib import Path
from sandbox_kernel.isolation import credentials
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
folder = Path(sys.argv[1])
assert not list(credentials.in_folder(folder))
print([path for path in opened if path.startswith(str(folder))])
"""


def test_a_large_folder_costs_next_to_nothing(tmp_path: Path) -> None:
    for number in range(2000):
        os.mknod(tmp_path / f"data-{number}.csv")
    # A process of its own: an audit hook stays for ever.
    command = [sys.executable, "-c", OPENED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_folder_of_many_environments_is_looked_through_quickly(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"env{number}").mkdir()
        (tmp_path / f"env{number}" / "pyvenv.cfg").touch()
    assert len(list(credentials.environments_in(tmp_path))) == 8


def test_a_folder_of_more_credentials_than_can_be_hidden_is_one(tmp_path: Path) -> None:
    for number in range(MOST + 20):
        (tmp_path / f"{number}.p12").touch()
    found = list(credentials.in_folder(tmp_path))
    assert len(found) == MOST + 1
    assert hiding.bounded(found, []) == [tmp_path]


def test_what_is_nested_is_found_in_time_that_grows_with_the_number_of_paths() -> None:
    paths = [Path(f"/a/{number}/b") for number in range(20_000)]
    began = time.process_time()
    assert len(hiding.without_nested([*paths, Path("/a/7")])) == 20_000
    assert time.process_time() - began < 2
