"""A writer that is killed at any point, and a disk that is full, leave a log that verifies.

No record is lost that a writer was told is written.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.audit.logs import expect_whole, fill, records

REPOSITORY = Path(__file__).parents[3]
# What a writer does with its connection, from the first record on.
POINTS = 35

KILLED = """
import os, pathlib, signal, sqlite3, sys
from sandbox_kernel.audit import table
from sandbox_kernel.audit.store import Store
from tests.unit.audit.logs import cell_entries

directory, point, moment = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
done = 0

class Connection(sqlite3.Connection):
    "One that ends its process before or after a chosen statement."
    def execute(self, *arguments):
        global done
        done += 1
        if done == point and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = super().execute(*arguments)
        if done == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

connect = sqlite3.connect
table.sqlite3.connect = lambda *a, **k: connect(*a, factory=Connection, **k)
store = Store(directory, sys.argv[4])
for number in range(4):
    written = store.append(cell_entries(number))
    print(written[-1].seq, flush=True)
    store._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
print("end", flush=True)
"""

KEPT = """
import json, os, pathlib, shutil, signal, sqlite3, sys
from sandbox_kernel.audit import keep, table
from sandbox_kernel.audit.store import Store
from tests.unit.audit.logs import cell_entries
whole, place, what, cut = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
keep._STEP = 4
connect = sqlite3.connect

class Connection(sqlite3.Connection):
    "One that ends its process before or after a chosen statement."
    done, point, moment = 0, 0, ""
    def _at(self, moment):
        if (Connection.done, moment) == (Connection.point, Connection.moment):
            os.kill(os.getpid(), signal.SIGKILL)
    def _run(self, call, arguments):
        Connection.done += 1
        self._at("before")
        result = call(*arguments)
        self._at("after")
        return result
    def execute(self, *arguments):
        return self._run(super().execute, arguments)
    def executemany(self, *arguments):
        return self._run(super().executemany, arguments)

def shorten(directory):
    return keep.rotate(directory) if what == "rotate" else keep.prune(directory, cut)

def in_a_process(work):
    "Its exit status. It is forked: what is loaded is loaded."
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def killed(directory, point, moment):
    Connection.point, Connection.moment = point, moment
    table.sqlite3.connect = lambda *a, **k: connect(*a, factory=Connection, **k)
    shorten(directory)

def written(directory):
    "What a kernel does that has the log open and writes on when somebody was killed."
    store = Store(directory)
    store.append(cell_entries(100))
    store.close()

point, moments, seen = 0, ("before", "after"), []
while True:
    point += 1
    statuses = []
    for moment in moments:
        directory = place / f"{point}-{moment}"
        shutil.copytree(whole, directory)
        statuses.append(in_a_process(lambda: killed(directory, point, moment)))
        if statuses[-1] == 0:
            shutil.rmtree(directory)
        else:
            seen.append(directory.name)
            # Another goes on where this one was killed.
            shutil.copytree(directory, place / f"{directory.name}-again")
            assert in_a_process(lambda: written(place / f"{directory.name}-again")) == 0
            assert in_a_process(lambda: shorten(place / f"{directory.name}-again")) == 0
    if statuses == [0, 0]:
        break
    assert statuses == [-signal.SIGKILL] * 2, statuses
print(json.dumps(seen))
"""

ENDLESS = """
import pathlib, sys
from sandbox_kernel.audit.store import Store
from tests.unit.audit.logs import cell_entries
store = Store(pathlib.Path(sys.argv[1]))
number = 0
while True:
    print(store.append(cell_entries(number))[-1].seq, flush=True)
    number += 1
    store.tidy()
"""

FULL = """
import json, os, pathlib, sys
from sandbox_kernel.audit.store import Store
from sandbox_kernel.audit.verify import verify
from sandbox_kernel.errors import AuditUnavailable
from tests.unit.audit.logs import cell_entries
place = pathlib.Path(sys.argv[1])
ballast = place / "ballast"
ballast.write_bytes(bytes(256 * 1024))
store = Store(place / "audit")
acknowledged, errors = [], []
def write(cells):
    for number in range(cells):
        try:
            acknowledged.append(store.append(cell_entries(number))[-1].seq)
        except AuditUnavailable as error:
            errors.append(error.what)
            return
write(10_000)
write(1)  # still full, and still said
full = verify(store.path)
ballast.unlink()
write(20)
store.close()
after = verify(store.path)
print(json.dumps({"acknowledged": acknowledged, "errors": errors,
    "good": [full.good, after.good], "records": [full.records, after.records]}))
"""


def run_killed(directory: Path, point: int, moment: str, durability: str) -> list[str]:
    """What the writer was told is written, before it was killed."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(directory), str(point), moment, durability],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert (done.returncode == 0) == done.stdout.endswith("end\n")
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["normal", "full"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_writer_that_is_killed_at_any_statement_leaves_a_log_that_verifies(
    tmp_path: Path, moment: str, durability: str
) -> None:
    killed = 0
    for point in range(1, POINTS + 1):
        directory = tmp_path / str(point)
        told = run_killed(directory, point, moment, durability)
        killed += "end" not in told
        acknowledged = int(told[-1]) if told and told[-1] != "end" else 0
        found = expect_whole(directory / "log.db").records
        assert acknowledged <= found <= acknowledged + 2
        fill(directory, 4)  # the next writer goes on
        report = expect_whole(directory / "log.db")
        # The last transaction may have been committed without anybody having been told.
        assert acknowledged + 8 <= report.records <= acknowledged + 2 + 8
        assert report.records % 2 == 0
    assert killed == POINTS


@pytest.mark.parametrize("what", ["prune", "rotate"])
def test_who_prunes_or_rotates_and_is_killed_at_any_statement_loses_nothing(
    tmp_path: Path, what: str
) -> None:
    path = fill(tmp_path / "whole", 10)
    before = {record.seq: record for record in records(path)}
    cut = before[11].time_us
    (tmp_path / "killed").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KEPT, str(path.parent), str(tmp_path / "killed"), what, str(cut)],
        capture_output=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    names = json.loads(done.stdout)
    # Begin, read, delete, insert and commit of each step, and more.
    assert len(names) > 2 * 5 * (20 // 4)
    for name in [*names, *(f"{name}-again" for name in names)]:
        directory = tmp_path / "killed" / name
        log = directory / "log.db"
        expect_whole(log)
        found = {record.seq: record for record in records(log) if record.kind != "pruned"}
        for archive in directory.glob("log-*.db"):
            expect_whole(archive)
            found |= {each.seq: each for each in records(archive) if each.kind != "pruned"}
        kept = [seq for seq in before if what == "rotate" or before[seq].time_us >= cut]
        assert {seq: found.get(seq) for seq in kept} == {seq: before[seq] for seq in kept}, name
        if name.endswith("again"):
            assert min(each.seq for each in records(log)) >= (20 if what == "rotate" else 10)
            assert not list(directory.glob("*.draft*"))


def test_writers_that_are_killed_at_any_moment_lose_nothing(tmp_path: Path) -> None:
    directory, rng, acknowledged = tmp_path / "audit", random.Random(7), 0
    for _ in range(10):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", ENDLESS, str(directory)],
                stdout=subprocess.PIPE,
                cwd=REPOSITORY,
            )
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline()
        time.sleep(rng.random() / 10)  # any moment
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            assert writer.stdout is not None
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
            writer.stdout.close()
            writer.wait()
        assert expect_whole(directory / "log.db").records >= acknowledged
    assert acknowledged > 50


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_loses_no_record_and_the_log_goes_on_when_there_is_room(tmp_path: Path) -> None:
    script = (
        f"mount -t tmpfs -o size=1m,mode=0700 none {tmp_path} "
        f"&& exec {sys.executable} -c '{FULL}' {tmp_path}"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    said: dict[str, Any] = json.loads(done.stdout)
    assert len(said["errors"]) >= 2
    assert all("the disk is full" in error for error in said["errors"][:2])
    assert said["good"] == [True, True]
    # Two records each, none twice and none lost.
    acknowledged = said["acknowledged"]
    assert len(acknowledged) > 100
    assert acknowledged == list(range(2, 2 * len(acknowledged) + 1, 2))
    assert said["records"][1] == acknowledged[-1]
    # Twenty cells more when there was room.
    assert said["records"][1] == said["records"][0] + 40


def test_a_reader_sees_whole_transactions_only(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    writer = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(directory)], stdout=subprocess.PIPE, cwd=REPOSITORY
    )
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline()
        for _ in range(20):
            assert len(records(directory / "log.db")) % 2 == 0
            expect_whole(directory / "log.db")
    finally:
        writer.kill()
        writer.stdout.close()
        writer.wait()
