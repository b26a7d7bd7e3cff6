"""`sandbox-kernel audit` as auditors and scripts use it: exit codes, places for reading only, exact questions."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sandbox_kernel.audit import query
from sandbox_kernel.audit.anchor import new_anchor, signing_key
from sandbox_kernel.audit.keep import rotate
from sandbox_kernel.audit.query import AuditReader, Wanted
from sandbox_kernel.audit.records import MICROSECONDS_PER_DAY, Entry, Head, body_of, now_us
from sandbox_kernel.audit.store import Store
from sandbox_kernel.audit.table import archive_name
from sandbox_kernel.audit.verify import verify
from sandbox_kernel.cli.audit import main
from tests.unit.audit.logs import REPOSITORY, cell_entries, change, fill, records

COMMAND = (sys.executable, "-m", "sandbox_kernel", "audit")


def anchored(log: Path, place: Path, *seqs: int) -> None:
    """Anchors of these records, at a place."""
    key = signing_key(log.parent)
    lines = [new_anchor(Head(each.seq, each.mac)).to_line(key) for each in records(log)]
    with place.open("ab") as file:
        file.writelines(lines[seq - 1] + b"\n" for seq in seqs)


# -- verify --------------------------------------------------------------------------------------


def test_an_archive_that_no_anchor_is_about_is_not_vouched_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, place = fill(tmp_path / "audit", 50), tmp_path / "anchors"
    anchored(log, place, 90)
    archive = rotate(log.parent).archive
    assert archive is not None
    verifying = ["verify", "--anchor", str(place), "--log"]
    assert main([*verifying, str(archive)]) == 0
    assert "1 anchor of it fit" in capsys.readouterr().out
    change(archive, "DELETE FROM record WHERE seq > 60")
    shorter = archive.rename(archive.with_name(archive_name(60)))
    assert main([*verifying, str(shorter)]) == 1
    assert "✘ record 61: the archive was cut" in capsys.readouterr().out
    log.unlink()  # nothing says any more where it ended
    assert main([*verifying, str(shorter)]) == 2
    said = capsys.readouterr().out
    assert "? no anchor is about what is here, records 1 to 60." in said
    assert "of it fit" not in said
    assert main([*verifying, str(shorter), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["good"] is False


@pytest.mark.parametrize("command", ["verify", "verify --json"])
@pytest.mark.parametrize("changed", [False, True])
def test_the_verdict_is_the_exit_code_whatever_became_of_the_reader(
    tmp_path: Path, command: str, changed: bool
) -> None:
    log = fill(tmp_path / "audit", 300)
    if changed:
        change(log, "UPDATE record SET user = 'eve'")  # more is said than a pipe takes at once
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *command.split(), "--log", str(log)],
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (int(changed), b"")


def test_a_log_that_cannot_be_looked_at_is_not_said_to_be_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = fill(tmp_path / "audit", 2)
    key = log.parent / "key"
    key.chmod(0o644)
    assert main(["verify", "--log", str(log)]) == 2
    assert "can be read by others" in capsys.readouterr().err
    key.unlink()
    assert main(["verify", "--log", str(log)]) == 2
    assert main(["verify", "--log", str(log), "--anchor", "/nonexistent"]) == 2
    # What is gone as a whole does not verify.
    log.unlink()
    assert main(["verify", "--log", str(log)]) == 1


def at_a_place_for_reading(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command where the directory is mounted for reading, for root too."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mounted = f"mount --bind {directory} {directory} && mount -o remount,bind,ro {directory}"
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mounted} && exec "$@"', "sh", *COMMAND, *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )


def test_a_log_on_a_disk_that_is_mounted_for_reading_can_be_read(tmp_path: Path) -> None:
    log = fill(tmp_path / "audit", 2)
    os.chown(log.parent / "key", 4321, 4321)  # an auditor is not its owner
    for command in ("verify", "list", "stats", "export"):
        done = at_a_place_for_reading(log.parent, command, "--log", str(log))
        assert (done.returncode, done.stderr) == (0, ""), command
    assert sorted(path.name for path in log.parent.iterdir()) == ["key", "log.db"]
    change(log, "UPDATE record SET user = 'eve' WHERE seq = 3")
    done = at_a_place_for_reading(log.parent, "verify", "--log", str(log))
    assert done.returncode == 1
    assert "record 3" in done.stdout


def test_what_is_not_in_the_main_file_yet_is_never_passed_over(tmp_path: Path) -> None:
    """Nothing could be looked at is true; that all is well, without the last records, is not."""
    log = fill(tmp_path / "audit", 2)
    store = Store(log.parent)
    store.append(cell_entries(3))
    shutil.copytree(log.parent, tmp_path / "copy")  # as a kernel leaves it that is killed
    store.close()
    copy = tmp_path / "copy" / log.name
    Path(f"{copy}-shm").unlink()
    done = at_a_place_for_reading(copy.parent, "verify", "--log", str(copy))
    assert done.returncode == 2
    assert "copy of its whole directory" in done.stderr


# -- memory --------------------------------------------------------------------------------------


def test_large_cells_are_not_held_in_memory_together(tmp_path: Path) -> None:
    size, number = 1 << 18, 40
    store = Store(tmp_path / "audit")
    for _ in range(number):
        (intent, _) = cell_entries(0, body=body_of({"code": "x" * size}))
        store.append([intent])
    store.close()
    tracemalloc.start()
    try:
        assert verify(store.path).records == number
        with AuditReader(store.path) as reader:
            assert sum(1 for _ in reader.records()) == number
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * size


# -- questions -----------------------------------------------------------------------------------


def test_numbers_since_a_moment_are_exact(tmp_path: Path) -> None:
    noon = (now_us() // MICROSECONDS_PER_DAY - 3) * MICROSECONDS_PER_DAY + MICROSECONDS_PER_DAY // 2
    store = Store(tmp_path / "audit")
    hour = MICROSECONDS_PER_DAY // 24
    for hours in (-24, -3, -1, 0, 1, 24):
        store.append(cell_entries(0, time_us=noon + hours * hour))
    store.close()
    with AuditReader(store.path) as reader:
        for since, cells in (
            (noon - 2 * hour, [3, 1]),
            (noon, [2, 1]),
            (noon + 1, [1, 1]),
            (noon - 30 * hour, [1, 4, 1]),
            (noon + 13 * hour, [1]),
        ):
            assert [total.cells for total in reader.totals("day", since)] == cells
            assert sum(total.cells for total in reader.totals("user", since)) == sum(cells)


def asked(store: Store, answer: str | None) -> str:
    """A cell that the policy asks about; its id."""
    intent, outcome = cell_entries(0)
    approval = intent._replace(kind="approval", word=answer or "", body=b"{}")
    answered = [] if answer is None else [approval]
    store.append([intent._replace(word="ask"), *answered, outcome])
    return intent.cell


def test_a_cell_is_listed_by_what_the_user_has_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "audit")
    open_ = asked(store, None)
    approved = [asked(store, answer) for answer in ("yes", "always", "earlier")]
    refused = [asked(store, answer) for answer in ("no", "nobody", "withdrawn")]
    intent, outcome = cell_entries(0)
    store.append([intent._replace(word="deny"), outcome])
    store.close()
    for verdict, cells in (
        ("ask", [open_]),
        ("approved", approved),
        ("deny", [*refused, intent.cell]),
        ("allow", []),
    ):
        assert main(["list", "--log", str(store.path), "--verdict", verdict, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert sorted(each["id"] for each in found) == sorted(cells)
        assert {each["verdict"] for each in found} <= {verdict}
    with AuditReader(store.path) as reader:
        assert len(reader.cells(Wanted())) == 8
        assert reader.show(refused[0]).entry.verdict == "deny"


def test_an_age_that_no_date_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["stats", "--since", "999999d"])
    assert caught.value.code == 2
    assert "longer ago than there are dates" in capsys.readouterr().err


def test_the_start_of_a_kernel_is_not_looked_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "_START_RECORDS", 20)
    store = Store(tmp_path / "audit")
    for kernel, between in (("near", 5), ("far", 15)):
        store.append([Entry("start", now_us(), kernel, "", "ada", "default", "process", b"{}")])
        for number in range(between):
            store.append(cell_entries(number))
        store.append(cell_entries(0, kernel=kernel))
    store.close()
    found = {}
    with AuditReader(store.path) as reader:
        for kernel in ("near", "far"):
            (cell,) = reader.cells(Wanted(kernel=kernel))
            found[kernel] = reader.show(cell.id).start is not None
    assert found == {"near": True, "far": False}


# -- what it costs -------------------------------------------------------------------------------


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    directory = REPOSITORY / "benchmarks"
    monkeypatch.syspath_prepend(str(directory))
    spec = importlib.util.spec_from_file_location("audit_benchmark", directory / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("added", "missed"), [(0.06, 1), (0.04, 0)])
def test_the_benchmark_checks_the_cost_itself_and_not_the_least_it_may_be(
    benchmark: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    added: float,
    missed: int,
) -> None:
    """Of samples as few and as far apart as these, the least is far below any target."""

    def measured(_groups: int, _visits: int) -> list[list[dict[str, Any]]]:
        costs = (added - 0.5, added, added + 0.5)
        same = dict.fromkeys([benchmark.PLAIN, *benchmark.AUDITS], 1.0)
        return [[{**same, "durability: normal": 1.0 + cost} for cost in costs]]

    monkeypatch.setattr(benchmark, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["audit.py", "--check"])
    assert benchmark.main() == missed
    capsys.readouterr()
