"""Old records can go, and what is left can be verified."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.audit import keep, table
from sandbox_kernel.audit.anchor import Anchor, new_anchor
from sandbox_kernel.audit.keep import Kept, prune, rotate
from sandbox_kernel.audit.records import MICROSECONDS_PER_DAY, Head, now_us
from sandbox_kernel.audit.store import Store
from sandbox_kernel.audit.verify import verify
from sandbox_kernel.errors import AuditUnavailable
from sandbox_kernel.relay.wire import decode_object
from tests.unit.audit.logs import (
    a_kernel_comes_and_ends,
    accused,
    cell_entries,
    change,
    expect_whole,
    records,
)


def fill_days(directory: Path, days: int, cells_a_day: int = 5) -> Path:
    """A log whose first cell is so many days old."""
    store = Store(directory)
    for day in range(days, 0, -1):
        for number in range(cells_a_day):
            then = now_us() - day * MICROSECONDS_PER_DAY + number
            store.append(cell_entries(number, time_us=then))
    store.close()
    return store.path


def days_ago(days: float) -> int:
    return now_us() - int(days * MICROSECONDS_PER_DAY)


@pytest.mark.parametrize("step", [1, 3, 7, 2000])
def test_pruned_records_are_gone_and_the_rest_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(keep, "_STEP", step)
    path = fill_days(tmp_path / "audit", 10)
    kept = prune(path.parent, days_ago(3.5))
    assert (kept.pruned, kept.through) == (70, 70)
    report = expect_whole(path)
    assert (report.first, report.head.seq, report.pruned_through) == (70, 101, 70)
    last = records(path)[-1]
    assert (last.kind, last.word) == ("event", "pruned")
    assert decode_object(last.body)["through"] == 70


def test_the_text_of_pruned_records_is_not_in_the_file(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 1)
    assert b'"x = 3"' in path.read_bytes()
    prune(path.parent, days_ago(0))
    assert b'"x = 3"' not in b"".join(each.read_bytes() for each in path.parent.iterdir())


def test_the_text_of_pruned_records_is_overwritten_while_a_kernel_runs(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 1)
    store = Store(path.parent)
    store.append(cell_entries(3, time_us=days_ago(1)))
    assert b'"x = 3"' in Path(f"{path}-wal").read_bytes()
    assert prune(path.parent, days_ago(0.5)).overwritten
    for file in (path, Path(f"{path}-wal")):
        assert b'"x = 3"' not in file.read_bytes()
    store.append(cell_entries(4))
    store.close()
    expect_whole(path)


def test_somebody_who_reads_all_the_time_delays_that_and_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep, "_OVERWRITE_MILLISECONDS", 1)
    path = fill_days(tmp_path / "audit", 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM record").fetchone()
        kept = prune(path.parent, days_ago(0))
        assert not kept.overwritten
    expect_whole(path)


@pytest.mark.parametrize("second", [lambda place: prune(place, days_ago(0)), rotate])
def test_a_second_one_who_prunes_or_rotates_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: Callable[[Path], Kept]
) -> None:
    monkeypatch.setattr(keep, "_STEP", 4)
    path = fill_days(tmp_path / "audit", 2)
    refused = 0

    def meanwhile(done: int, total: int) -> None:
        nonlocal refused
        with pytest.raises(AuditUnavailable, match="prunes or rotates the audit log"):
            second(path.parent)
        refused += 1

    prune(path.parent, days_ago(1.5), meanwhile)
    assert refused == 3
    expect_whole(path)
    second(path.parent)
    expect_whole(path)


def test_a_record_that_somebody_else_has_pruned_is_not_pruned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record in its place has no successor: the chain would be broken for good."""
    monkeypatch.setattr(keep, "_lock", lambda directory: os.open(directory, os.O_RDONLY))
    monkeypatch.setattr(keep, "_STEP", 4)
    path = fill_days(tmp_path / "audit", 2)

    def meanwhile(done: int, total: int) -> None:
        if done == 4:
            prune(path.parent, days_ago(1.5))

    with pytest.raises(AuditUnavailable, match="was pruned by somebody else"):
        prune(path.parent, days_ago(1.5), meanwhile)
    expect_whole(path)


@pytest.mark.parametrize("keep_days", [0.0, 1.5])
def test_what_is_recorded_between_any_two_statements_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_days: float
) -> None:
    path = fill_days(tmp_path / "audit", 2)
    before, kernel, written = days_ago(keep_days), Store(path.parent), list[int]()
    asked = False

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            nonlocal asked
            if not self.in_transaction and "FROM record" in statement:
                if asked:  # what is there at the first question is not meanwhile
                    written.append(kernel.append(cell_entries(9))[-1].seq)
                asked = True
            return super().execute(statement, *values)

    connect = sqlite3.connect
    kernel.open()
    with monkeypatch.context() as patch:
        patch.setattr(
            table.sqlite3, "connect", lambda *a, **k: connect(*a, factory=Connection, **k)
        )
        prune(path.parent, before)
    kernel.close()
    assert written
    expect_whole(path)
    assert {record.seq for record in records(path)} >= {seq - 1 for seq in written} | {*written}


def test_drafts_of_an_archive_that_a_killed_process_left_are_removed(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 1)
    for name in ("log-000000000010.draft", "log-000000000010.draft-journal"):
        (path.parent / name).write_bytes(b"cut")
    archive = rotate(path.parent).archive
    assert archive is not None
    expect_whole(archive, 10)
    assert not list(path.parent.glob("*.draft*"))


def test_a_damaged_log_is_not_pruned_and_says_so(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 1)
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(AuditUnavailable, match="not a database"):
        prune(path.parent, days_ago(0))


def test_what_somebody_has_changed_is_not_pruned_from_sight(tmp_path: Path) -> None:
    """A record made old by who has no key would take all before it away, under the key."""
    path = fill_days(tmp_path / "audit", 4)
    change(path, "UPDATE record SET time_us = 0")
    for shorten in (lambda: prune(path.parent, days_ago(90)), lambda: rotate(path.parent)):
        with pytest.raises(AuditUnavailable, match="record 1"):
            shorten()
    assert len(records(path)) == 40
    assert not list(path.parent.glob("log-*"))


def test_a_log_can_be_pruned_again_and_again_while_it_grows(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 4)
    store = Store(path.parent)
    store.append(cell_entries(0))
    for days in (3.5, 2.5, 2.5, 0):
        prune(path.parent, days_ago(days))
        store.append(cell_entries(1))
        expect_whole(path)
    store.close()


def test_kernels_that_end_while_a_log_is_pruned_take_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep, "_STEP", 4)
    path = fill_days(tmp_path / "audit", 2)
    ended = 0

    def between_steps(done: int, total: int) -> None:
        nonlocal ended
        a_kernel_comes_and_ends(path.parent)
        ended += 1

    prune(path.parent, days_ago(1.5), between_steps)
    assert ended == 3
    report = expect_whole(path)
    assert report.head.seq == 20 + 1 + 2 * ended


def test_nothing_to_prune_changes_nothing(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 2)
    assert prune(path.parent, days_ago(30)).pruned == 0
    expect_whole(path, 20)


def test_an_archive_and_what_comes_after_it_both_verify(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 2)
    head = records(path)[-1]
    store = Store(path.parent)
    store.append(cell_entries(0))
    kept = rotate(path.parent)
    assert kept.archive is not None
    store.append(cell_entries(1))
    store.close()
    archived = expect_whole(kept.archive, 22)
    report = expect_whole(path)
    assert (archived.head.seq, report.pruned_through) == (22, 22)
    # The new part says where the old one ended.
    assert decode_object(records(path)[0].body) == {
        "through": 22,
        "mac": archived.head.mac.hex(),
        "archive": kept.archive.name,
    }
    assert kept.archive.stat().st_mode & 0o777 == 0o600
    assert verify(kept.archive, [new_anchor(Head(head.seq, head.mac))]).good


def test_several_archives_make_one_chain(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 1)
    ends = []
    for number in range(3):
        archive = rotate(path.parent).archive
        assert archive is not None
        ends.append(expect_whole(archive).head)
        store = Store(path.parent)
        store.append(cell_entries(number))
        store.close()
    for end, archive in zip(ends, sorted(path.parent.glob("log-*.db"))[1:], strict=False):
        assert decode_object(records(archive)[0].body)["mac"] == end.mac.hex()


def test_what_was_pruned_by_hand_is_still_found(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 4)
    prune(path.parent, days_ago(3.5))
    change(path, "DELETE FROM record WHERE seq = 11")
    assert accused(path) == [11]
    change(path, "DELETE FROM record WHERE seq = 10")
    assert accused(path)[0] == 1


def test_anchors_hold_across_pruning(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 4)
    anchors = [new_anchor(Head(each.seq, each.mac)) for each in records(path)]
    prune(path.parent, days_ago(2.5))
    report = verify(path, anchors)
    assert report.good
    assert report.anchors_checked == 40 - 20 + 1
    change(path, "DELETE FROM record WHERE seq > 35")
    assert not verify(path, anchors).good


def test_a_log_that_no_anchor_is_about_is_not_vouched_for(tmp_path: Path) -> None:
    """Who has the key could have replaced all of it."""
    path = fill_days(tmp_path / "audit", 1)
    old = records(path)[3]
    rotate(path.parent)
    (problem,) = verify(path, [new_anchor(Head(old.seq, old.mac))]).problems
    assert "no anchor is about what is here" in problem.what


def test_an_archive_is_never_written_over(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 1)
    archive = rotate(path.parent).archive
    assert archive is not None
    taken = path.parent / "log-000000000011.db"
    shutil.copy(archive, taken)
    with pytest.raises(AuditUnavailable, match="already"):
        rotate(path.parent)
    assert taken.read_bytes() == archive.read_bytes()


def test_a_rotation_that_was_stopped_before_it_pruned_can_be_called_again(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 1)
    archive = path.parent / "log-000000000010.db"
    shutil.copy(path, archive)
    kept = rotate(path.parent)
    assert (kept.archive, kept.pruned) == (archive, 10)
    expect_whole(archive, 10)
    expect_whole(path)


def test_anchors_of_what_came_later_do_not_accuse_an_archive(tmp_path: Path) -> None:
    path = fill_days(tmp_path / "audit", 1)
    anchors = [new_anchor(Head(each.seq, each.mac)) for each in records(path)]
    archive = rotate(path.parent).archive
    assert archive is not None
    later = [new_anchor(Head(each.seq, each.mac)) for each in records(path)[1:]]
    report = verify(archive, [*anchors, *later])
    assert report.good
    assert report.anchors_checked == 10
    # The control: an archive that lacks its end, which no anchor need tell.
    change(archive, "DELETE FROM record WHERE seq > 7")
    assert accused(archive) == [8]
    assert not verify(archive, anchors).good


def archived(tmp_path: Path) -> tuple[Path, list[Anchor]]:
    """An archive of 100 records with its log beside it, and anchors of records 30, 90 and 101."""
    path = fill_days(tmp_path / "audit", 10)
    found = records(path)
    archive = rotate(path.parent).archive
    assert archive is not None
    wanted = [found[29], found[89], records(path)[1]]
    return archive, [new_anchor(Head(each.seq, each.mac)) for each in wanted]


def cut(archive: Path, last: int) -> Path:
    """The archive without its end, under the name that one of that length has."""
    change(archive, f"DELETE FROM record WHERE seq > {last}")
    return archive.rename(archive.with_name(table.archive_name(last)))


@pytest.mark.parametrize("last", [60, 20])
def test_an_archive_that_was_cut_and_renamed_is_found_by_the_log_beside_it(
    tmp_path: Path, last: int
) -> None:
    archive, anchors = archived(tmp_path)
    shorter = cut(archive, last)
    for given in ((), anchors):
        problem, *_ = verify(shorter, given).problems
        assert problem.seq == last + 1
        assert "log.db says that it ended with record 100" in problem.what


def test_an_archive_that_was_cut_is_found_by_the_next_archive(tmp_path: Path) -> None:
    archive, _ = archived(tmp_path)
    second = rotate(archive.parent).archive
    assert second is not None
    (archive.parent / "log.db").unlink()
    (problem,) = verify(cut(archive, 60)).problems
    assert f"{second.name} says that it ended with record 100" in problem.what


@pytest.mark.parametrize("name", ["copy.db", "log-000000000099.db", "log-old.db"])
def test_an_untouched_archive_is_vouched_for_under_any_name(tmp_path: Path, name: str) -> None:
    archive, anchors = archived(tmp_path)
    shutil.copy(archive, archive.with_name(name))
    report = verify(archive.with_name(name), anchors)
    assert report.good
    assert report.anchors_checked == 2


def test_an_archive_with_another_last_record_is_found_by_the_log_beside_it(tmp_path: Path) -> None:
    """Who has the key could have written another one."""
    archive, _ = archived(tmp_path)
    (tmp_path / "other").mkdir(mode=0o700)
    shutil.copy(archive.parent / "key", tmp_path / "other")
    shutil.copy(fill_days(tmp_path / "other", 10), archive)
    assert accused(archive) == [100]


def test_of_an_archive_alone_the_anchors_say_what_they_can(tmp_path: Path) -> None:
    archive, anchors = archived(tmp_path)
    (archive.parent / "log.db").unlink()
    assert verify(archive).good
    assert verify(archive, anchors[:2]).good
    # With one of a later record, nobody knows whether it was cut there.
    for given, doubt in ((anchors, "is not known"), (anchors[2:], "no anchor is about")):
        report = verify(archive, given)
        assert not report.good
        assert report.problems == []
        assert doubt in report.doubts[0]
    assert accused(archive, dataclasses.replace(anchors[0], mac=bytes(32))) == [30]
    emptied = cut(archive, 0)
    assert verify(emptied, anchors).doubts


def test_an_older_archive_is_not_taken_for_a_part_of_a_later_one(tmp_path: Path) -> None:
    """Neither where what came between them was pruned, nor where a rotation was stopped."""
    archive, anchors = archived(tmp_path)
    store = Store(archive.parent)
    store.append(cell_entries(1))
    store.close()
    prune(archive.parent, now_us())
    second = rotate(archive.parent).archive
    assert second is not None
    for present in (True, False):
        if not present:
            second.unlink()
        assert accused(archive, *anchors) == []
    stopped = tmp_path / "stopped"
    path = fill_days(stopped, 1)
    left = path.with_name(table.archive_name(10))
    shutil.copy(path, left)
    store = Store(stopped)
    store.append(cell_entries(1))
    store.close()
    rotate(stopped)
    assert accused(left) == []


def test_an_archive_that_cannot_be_made_is_an_error_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fill_days(tmp_path / "audit", 1)

    def no_room(at: Path, **_: Any) -> sqlite3.Connection:
        if at.suffix == ".draft":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(at))
        return table.connect(at, timeout_seconds=1)

    monkeypatch.setattr(keep, "connect", no_room)
    with pytest.raises(AuditUnavailable, match="the disk is full"):
        rotate(path.parent)
    expect_whole(path, 10)


def test_there_must_be_a_log(tmp_path: Path) -> None:
    with pytest.raises(AuditUnavailable, match="no audit log"):
        prune(tmp_path, 0)
    assert not list(tmp_path.iterdir())
