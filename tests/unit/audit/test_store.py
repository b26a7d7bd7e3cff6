"""Many write to one log at once; what cannot be written says why."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from sandbox_kernel.audit import store as store_module
from sandbox_kernel.audit.chain import KEY_NAME
from sandbox_kernel.audit.store import Store
from sandbox_kernel.errors import AuditUnavailable
from tests.unit.audit.logs import (
    a_kernel_comes_and_ends,
    cell_entries,
    change,
    expect_whole,
    fill,
    records,
)

WRITER = """
import pathlib, sys
from sandbox_kernel.audit.store import Store
from tests.unit.audit.logs import cell_entries
store = Store(pathlib.Path(sys.argv[1]), busy_seconds=30)
sys.stdin.read()
for number in range(int(sys.argv[2])):
    store.append(cell_entries(number, kernel=sys.argv[3]))
    store.tidy()
"""


def refusal(store: Store) -> AuditUnavailable:
    with pytest.raises(AuditUnavailable) as caught:
        store.append(cell_entries(0))
    return caught.value


def test_the_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "home" / "audit")
    store.append(cell_entries(1))
    modes = {path.name: path.stat().st_mode & 0o777 for path in store.path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert set(modes) == {"key", "log.db", "log.db-shm", "log.db-wal"}
    assert store.path.parent.stat().st_mode & 0o777 == 0o700
    store.close()


def test_a_directory_that_others_could_enter_is_closed(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    directory.mkdir(mode=0o755)
    fill(directory, 1)
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "audit").symlink_to(real)
    error = refusal(Store(tmp_path / "audit"))
    assert "not a directory of the user" in error.what
    assert not list(real.iterdir())


@pytest.mark.parametrize("mode", ["link", "open", "open above"])
def test_in_a_state_folder_that_is_not_the_users_alone_nothing_is_made(
    tmp_path: Path, mode: str
) -> None:
    home = real = tmp_path / "above" / "home"
    real.mkdir(parents=True)
    if mode == "link":
        home = tmp_path / "link"
        home.symlink_to(real)
    else:
        (real if mode == "open" else real.parent).chmod(0o777)
    error = refusal(Store(home / "audit"))
    assert "It has changed nothing there" in error.what
    assert "SANDBOX_KERNEL_HOME" in error.hint
    assert not list(real.iterdir())


def test_many_writers_make_one_chain(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    repository = Path(__file__).parents[3]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory), "100", f"kernel-{number}"],
            stdin=subprocess.PIPE,
            cwd=repository,
        )
        for number in range(6)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    assert [writer.wait(120) for writer in writers] == [0] * 6
    expect_whole(directory / "log.db", 6 * 200)
    found = records(directory / "log.db")
    assert set(Counter(record.kernel for record in found).values()) == {200}
    for intent, outcome in zip(found[::2], found[1::2], strict=True):
        # What belongs together stands together.
        assert (intent.kind, outcome.kind, intent.cell) == ("intent", "outcome", outcome.cell)


def test_all_of_a_transaction_is_written_or_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "audit")
    store.append(cell_entries(1))
    intent, outcome = cell_entries(2)
    with pytest.raises(AttributeError):
        store.append([intent, outcome._replace(word=None)])  # type: ignore[arg-type]
    assert len(records(store.path)) == 2
    store.append(cell_entries(3))
    store.close()
    expect_whole(store.path, 4)


def test_a_locked_log_is_refused_in_time_and_written_when_it_is_free(tmp_path: Path) -> None:
    store = Store(tmp_path / "audit", busy_seconds=0.3)
    store.append(cell_entries(1))
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        error = refusal(store)
        assert 0.2 < time.monotonic() - begun < 5
        assert "another process has locked it" in error.what
    store.append(cell_entries(2))
    store.close()
    expect_whole(store.path, 4)


def test_a_second_connection_of_a_process_does_not_unlock_the_first(tmp_path: Path) -> None:
    """Who ends last tidies the files away: that must not be another while we are here."""
    store, second = Store(tmp_path / "audit"), Store(tmp_path / "audit")
    store.append(cell_entries(1))
    second.open()
    a_kernel_comes_and_ends(store.path.parent)
    assert Path(f"{store.path}-wal").exists()
    store.append(cell_entries(2))
    second.close()
    store.close()
    expect_whole(store.path, 6)


def test_a_log_that_is_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    path = fill(tmp_path / "audit", 1)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert str(path) in refusal(Store(path.parent)).what


@pytest.mark.parametrize("read", [False, True])
def test_the_log_is_tidied_once_for_much_that_was_written_and_not_after_every_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: bool
) -> None:
    monkeypatch.setattr(store_module, "TIDY_BYTES", 200_000)
    store, statements = Store(tmp_path / "audit"), list[str]()
    store.append(cell_entries(0))
    wal = Path(f"{store.path}-wal")
    assert store._connection is not None
    store._connection.set_trace_callback(statements.append)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
        if read:  # what is in the write-ahead log cannot go as long as this is so
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM record").fetchone()
        written = 0
        for number in range(200):
            before = wal.stat().st_size
            store.append(cell_entries(number))
            after = wal.stat().st_size
            written += after - before if after > before else after
            store.tidy()
    tidied = sum("wal_checkpoint" in each for each in statements)
    assert 2 <= written // 200_000 - 1 <= tidied <= written // 200_000 + 1 < 20
    if not read:
        assert wal.stat().st_size < 400_000
    store.close()
    expect_whole(store.path, 402)


def test_a_log_without_its_key_is_refused(tmp_path: Path) -> None:
    path = fill(tmp_path / "audit", 1)
    (path.parent / KEY_NAME).unlink()
    assert "its key, key, is gone" in refusal(Store(path.parent)).what
    assert not (path.parent / KEY_NAME).exists()


def test_a_log_that_is_cut_while_a_kernel_runs_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "audit")
    store.append(cell_entries(1))
    store.append(cell_entries(2))
    change(store.path, "DELETE FROM record WHERE seq > 2")
    assert "was cut or replaced while this kernel ran" in refusal(store).what
    store.close()


def test_a_log_that_is_moved_away_while_a_kernel_runs_is_refused(tmp_path: Path) -> None:
    """What would be written to a file that is gone would be lost, and nobody would know."""
    store = Store(tmp_path / "audit")
    store.append(cell_entries(1))
    for path in store.path.parent.glob("log.db*"):
        path.rename(tmp_path / path.name)
    assert "was cut or replaced" in refusal(store).what
    store.close()
    for path in store.path.parent.glob("log.db*"):
        path.unlink()
    for path in tmp_path.glob("log.db*"):
        path.rename(store.path.parent / path.name)
    store.append(cell_entries(2))
    store.close()
    expect_whole(store.path, 4)


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_log_of_which_a_part_is_removed_while_a_kernel_runs_is_refused(
    tmp_path: Path, suffix: str
) -> None:
    """The next kernel would not see what is in it, nor this one what the next writes."""
    store = Store(tmp_path / "audit")
    store.append(cell_entries(1))
    Path(f"{store.path}{suffix}").unlink()
    for _ in range(2):
        assert "A part of the audit log" in refusal(store).what
    # Nothing is lost: SQLite has it open still.
    store.close()
    expect_whole(store.path, 2)
    store.append(cell_entries(2))
    store.close()
    expect_whole(store.path, 4)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_that_is_seen_where_the_directory_was_left_alone_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Then its time of change is all that is looked at."""
    monkeypatch.setattr(store_module, "_TIMES_DIFFER_NS", 50_000_000)
    store = Store(tmp_path / "audit")
    store.append(cell_entries(1))
    looks: list[str] = []
    look = store_module._identity
    monkeypatch.setattr(store_module, "_identity", lambda path: (looks.append(path), look(path))[1])
    time.sleep(0.2)  # the directory grows old
    for number in range(2, 5):
        store.append(cell_entries(number))
    assert len(looks) == 3  # each file once
    Path(f"{store.path}{suffix}").rename(tmp_path / "gone")
    for _ in range(2):
        refusal(store)


@pytest.mark.parametrize(
    "head",
    [
        "UPDATE record SET seq = 9223372036854775807 WHERE seq = 2",
        "UPDATE record SET seq = -seq",
        "UPDATE record SET mac = 'text' WHERE seq = 2",
        "UPDATE record SET mac = 5 WHERE seq = 2",
    ],
)
@pytest.mark.parametrize("written", [False, True], ids=["a new kernel", "a running one"])
def test_a_log_whose_last_record_is_none_is_refused(
    tmp_path: Path, head: str, written: bool
) -> None:
    store = Store(tmp_path / "audit")
    if written:
        store.append(cell_entries(1))
    else:
        fill(store.path.parent, 1)
    change(store.path, head)
    error = refusal(store)
    assert "is not what was written" in error.what or "cut or replaced" in error.what
    store.close()


def test_a_file_that_is_no_log_is_refused_and_left_alone(tmp_path: Path) -> None:
    content = b"no database" * 400
    path = fill(tmp_path / "audit", 1)
    path.write_bytes(content)
    error = refusal(Store(path.parent))
    assert str(path) in error.what
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["full", "locked", "malformed", "readonly", "No space"])
def test_the_name_of_a_directory_is_not_taken_for_the_reason(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name / "audit"
    directory.mkdir(parents=True, mode=0o700)
    (directory / "log.db").symlink_to("elsewhere")
    assert "symbolic link" in refusal(Store(directory)).what


def test_a_read_only_place_is_refused(tmp_path: Path) -> None:
    """For root too: on a file system that is mounted for reading."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    fill(tmp_path / "audit", 1)
    script = (
        f"mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path} && "
        f"exec {sys.executable} -c '{WRITER}' {tmp_path / 'audit'} 1 k"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        input=b"",
        capture_output=True,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert done.returncode == 1
    assert b"AuditUnavailable" in done.stderr
    assert b"read-only" in done.stderr
