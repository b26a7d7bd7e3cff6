from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sandbox_kernel.inner
from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation import confinement, landlock
from sandbox_kernel.isolation.restricted import closed_to_others, find_stand_in
from sandbox_kernel.paths import policies_directory

PROFILE = (policies_directory() / "seccomp.json").read_bytes()
INNER = Path(sandbox_kernel.inner.__file__).parent


def calls(profile: bytes) -> dict[str, list[list[dict[str, int]]]]:
    found: dict[str, list[list[dict[str, int]]]] = {}
    for entry in json.loads(profile)["syscalls"]:
        for name in entry["names"]:
            found.setdefault(name, []).append(entry.get("args") or [])
    return found


def test_the_filter_allows_nothing_that_the_other_levels_do_not() -> None:
    before, after = calls(PROFILE), calls(confinement.narrowed(PROFILE))
    assert set(after) < set(before)
    for name in after:
        assert all(args in before[name] for args in after[name]), name


def test_the_filter_knows_no_sockets_but_those_of_unix() -> None:
    before, after = calls(PROFILE), calls(confinement.narrowed(PROFILE))
    assert len(before["socket"]) > 1
    assert [arg["valueTwo"] for args in after["socket"] for arg in args] == [1]
    assert [arg["valueTwo"] for args in after["socketpair"] for arg in args] == [1]


def test_files_cannot_be_changed_past_landlock() -> None:
    after = calls(confinement.narrowed(PROFILE))
    assert not {"chmod", "fchmodat", "chown", "utimensat", "setxattr", "truncate"} & set(after)
    assert {"openat", "read", "write", "kill", "clone"} <= set(after)


def test_a_profile_that_cannot_be_used_is_told() -> None:
    with pytest.raises(SandboxUnavailable, match="filter cannot be made"):
        confinement.compile_filter(b"{")


def test_less_protection_is_said_with_more_words() -> None:
    said = {
        (version, shares_user): list(confinement.not_protected(version, shares_user=shares_user))
        for version in (0, 1, landlock.TRUNCATION, landlock.SIGNALS)
        for shares_user in (True, False)
    }
    assert "no Landlock" in said[0, True][0]
    assert "your other processes" in said[0, True][0]
    assert "your" not in " ".join(said[0, False])
    assert "emptied" in said[1, True][0]
    assert "signals" in " ".join(said[landlock.TRUNCATION, True])
    assert "signals" not in " ".join(said[landlock.SIGNALS, True])
    assert all("unix sockets" in " ".join(each) for each in said.values())


def test_the_supervisor_is_out_of_reach_by_every_call_that_signals() -> None:
    # A parent that a child of the same user cannot signal; it can signal itself and its own child.
    script = """
import errno, os, resource, signal, sys
sys.path.insert(0, sys.argv[1])
import confine, ctypes, fcntl
supervisor = os.getpid()
pid = os.fork()
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
libc = ctypes.CDLL(None, use_errno=True)
os.kill(supervisor, 0)
libc.prctl(confine.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
confine.load_filter(libc, confine.guard(supervisor))
def refused(number, *args):
    return libc.syscall(number, *args) == -1 and ctypes.get_errno() == errno.EPERM
kill, tkill, tgkill, queue, queue_thread = confine.SIGNALLING[os.uname().machine]
info = ctypes.create_string_buffer(128)
assert refused(kill, supervisor, 0) and refused(kill, -supervisor, 0) and refused(kill, -1, 0)
assert refused(tkill, supervisor, 0) and refused(tgkill, supervisor, supervisor, 0)
assert refused(queue, supervisor, 0, info) and refused(queue_thread, supervisor, supervisor, 0, info)
own, _ = os.pipe()
for command in confine.SIGNALS_BY_FILE:
    try:
        fcntl.fcntl(own, command, supervisor)
    except PermissionError:
        continue
    raise SystemExit(f"fcntl {command}")
fcntl.fcntl(own, fcntl.F_GETFL)
os.kill(os.getpid(), 0)
child = os.fork()
if not child:
    signal.pause()
os.kill(child, signal.SIGKILL)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(INNER)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_closed_to_others_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "open" / "folder"
    folder.mkdir(parents=True)
    for place in (tmp_path / "open", folder):
        place.chmod(0o700)
        assert closed_to_others([folder]) in (place, tmp_path, *tmp_path.parents)
        place.chmod(0o755)
    assert closed_to_others([Path("/usr/bin"), Path("/usr/nowhere")]) is None


def test_an_ordinary_user_needs_no_stand_in() -> None:
    assert find_stand_in(uid=1000) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="root's own")
def test_root_is_refused_where_another_user_could_not_run_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SandboxUnavailable, match="closed to others") as caught:
        find_stand_in()
    assert "chmod" not in caught.value.hint, "what is closed may be root's home"
    assert "where every user may read" in caught.value.hint
