"""Whatever is done to a log, it is found, and where; and a log that nobody touched is never accused."""

from __future__ import annotations

import dataclasses
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.audit.anchor import Anchor, new_anchor
from sandbox_kernel.audit.chain import Keyed, in_bytes, read_key
from sandbox_kernel.audit.records import Head, Record
from sandbox_kernel.audit.store import Store
from sandbox_kernel.audit.table import COLUMNS
from sandbox_kernel.audit.verify import verify
from tests.unit.audit.logs import accused, cell_entries, change, expect_whole, fill, records

CELLS = 500
RECORDS = 2 * CELLS
NUMBERS = ("seq", "time_us", "day", "wall_us", "cpu_us", "memory_bytes")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("audit") / "audit", CELLS)


@pytest.fixture
def log(whole: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    shutil.copytree(whole.parent, tmp_path / "copy")
    return tmp_path / "copy" / whole.name


def anchor_of(log: Path, seq: int) -> Anchor:
    found = records(log)[seq - 1]
    return new_anchor(Head(found.seq, found.mac))


def test_a_log_that_nobody_touched_is_not_accused(whole: Path) -> None:
    report = expect_whole(whole, RECORDS)
    assert (report.first, report.head.seq) == (1, RECORDS)
    assert verify(whole, [anchor_of(whole, seq) for seq in (1, 2, 500, RECORDS)]).good


def test_every_byte_of_every_stored_field_of_every_record_counts(whole: Path) -> None:
    keyed = Keyed(read_key(whole.parent))
    mutations = 0
    for record in records(whole):
        fields = list(in_bytes(record))
        assert keyed.mac_of(fields) == record.mac
        for place, name in enumerate(Record._fields):
            for changed in mutated(fields[place]):
                mutations += 1
                damaged = [*fields[:place], changed, *fields[place + 1 :]]
                assert keyed.mac_of(damaged) != damaged[-1], (record.seq, name)
    assert mutations > 200_000


def test_every_record_of_the_file_is_looked_at(log: Path) -> None:
    """All of them changed at once, each in another field: each is accused."""
    names = [name for name in Record._fields if name != "seq"]
    connection = sqlite3.connect(log, isolation_level=None)
    with closing(connection):
        connection.execute("BEGIN")
        for record in records(log):
            name = names[record.seq % len(names)]
            changed = changed_in_file(getattr(record, name))[0]
            connection.execute(f"UPDATE record SET {name} = ? WHERE seq = ?", (changed, record.seq))
        connection.execute("COMMIT")
    assert {problem.seq for problem in verify(log).problems} >= set(range(1, RECORDS + 1))


def mutated(value: Any) -> list[Any]:
    """The value with each of its bytes changed, and a byte shorter and longer."""
    if isinstance(value, int):
        return [_signed(value % 2**64 ^ 1 << 8 * byte) for byte in range(8)]
    changed = [value[:i] + bytes([value[i] ^ 0x01]) + value[i + 1 :] for i in range(len(value))]
    return [*changed, value + b"x", *([value[:-1]] if value else [])]


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def changed_in_file(value: Any) -> list[Any]:
    """What a field may be changed to, of its type: a bit of its first, middle and last byte, longer, shorter."""
    if isinstance(value, int):
        return mutated(value)
    text = isinstance(value, str)
    data = value.encode() if text else value
    places = sorted({0, len(data) // 2, len(data) - 1}) if data else []
    changed = [data[:i] + bytes([data[i] ^ 0x01]) + data[i + 1 :] for i in places]
    changed += [data + b"x", *([data[:-1], b""] if data else [])]
    return [each.decode() for each in changed] if text else changed


@pytest.mark.parametrize("seq", [1, 2, 500, RECORDS - 1, RECORDS])
def test_every_field_counts_for_verify_wherever_its_record_stands(log: Path, seq: int) -> None:
    """Through the file, one change at a time, each of which is taken back."""
    whole, tried = records(log)[seq - 1]._asdict(), 0
    connection = sqlite3.connect(log, isolation_level=None)
    with closing(connection):
        for column in Record._fields:
            for value in (values := changed_in_file(whole[column])):
                if column == "seq" and 1 <= value <= RECORDS:
                    continue  # its place is taken
                connection.execute("BEGIN")
                connection.execute(f"UPDATE record SET {column} = ? WHERE seq = ?", (value, seq))
                connection.execute("COMMIT")
                found = accused(log)
                if column == "seq":
                    # It is missed where it was, unless it was the last, and does not fit where it is.
                    assert found[0] in (seq, seq + 1, value), (value, found)
                else:
                    assert found[0] == seq, (column, value, found)
                place = value if column == "seq" else seq
                connection.execute(
                    f"UPDATE record SET {column} = ? WHERE seq = ?", (whole[column], place)
                )
                tried += 1
            assert values
    expect_whole(log, RECORDS)
    assert tried > 80


@pytest.mark.parametrize("column", [name for name in Record._fields if name != "seq"])
def test_a_change_in_the_file_is_located(log: Path, column: str) -> None:
    seq = random.Random(column).randint(2, RECORDS - 1)
    found = records(log)[seq - 1]._asdict()[column]
    if isinstance(found, int):
        value: Any = found + 1
    else:
        value = found + ("x" if isinstance(found, str) else b"x")
    change(log, (f"UPDATE record SET {column} = ? WHERE seq = ?", (value, seq)))
    assert accused(log)[0] == seq


@pytest.mark.parametrize(
    ("column", "value"), [("body", "{}"), ("time_us", "now"), ("mac", 5), ("kind", b"intent")]
)
def test_a_field_of_another_type_is_located(log: Path, column: str, value: Any) -> None:
    change(log, (f"UPDATE record SET {column} = ? WHERE seq = 7", (value,)))
    assert accused(log)[0] == 7


def test_any_deleted_record_is_located(whole: Path, log: Path) -> None:
    for seq in (1, 2, 500, RECORDS - 1):
        shutil.copy(whole, log)
        change(log, ("DELETE FROM record WHERE seq = ?", (seq,)))
        assert accused(log) == [seq]
    shutil.copy(whole, log)
    change(log, "DELETE FROM record WHERE seq BETWEEN 10 AND 20")
    (problem,) = verify(log).problems
    assert problem.what == "records 10 to 20 are missing"


def test_a_deleted_record_is_located_when_the_rest_is_numbered_anew(log: Path) -> None:
    change(
        log,
        "DELETE FROM record WHERE seq = 10",
        "UPDATE record SET seq = -seq WHERE seq > 10",
        "UPDATE record SET seq = -seq - 1 WHERE seq < 0",
    )
    assert accused(log)[0] == 10


def test_an_inserted_record_is_located(log: Path) -> None:
    columns = COLUMNS.replace("seq", f"{RECORDS + 1}", 1)
    change(log, f"INSERT INTO record SELECT {columns} FROM record WHERE seq = 5")
    assert accused(log) == [RECORDS + 1]
    change(
        log,
        f"DELETE FROM record WHERE seq > {RECORDS}",
        f"INSERT INTO record SELECT {COLUMNS.replace('seq', '0', 1)} FROM record WHERE seq = 5",
    )
    assert accused(log)[0] <= 1


def test_records_in_another_order_are_located(log: Path) -> None:
    change(
        log,
        "UPDATE record SET seq = -1 WHERE seq = 20",
        "UPDATE record SET seq = 20 WHERE seq = 30",
        "UPDATE record SET seq = 30 WHERE seq = -1",
    )
    assert accused(log) == [20, 30]


def test_records_of_a_fork_are_located(log: Path, tmp_path: Path) -> None:
    """Two logs that go on from the same records, with the same key, and are put together."""
    shutil.copytree(log.parent, tmp_path / "fork")
    for directory in (log.parent, tmp_path / "fork"):
        store = Store(directory)
        for number in range(3):
            store.append(cell_entries(number))
        store.close()
    assert verify(tmp_path / "fork" / log.name).good
    last = RECORDS + 4
    change(
        log,
        f"ATTACH '{tmp_path / 'fork' / log.name}' AS fork",
        f"DELETE FROM record WHERE seq >= {last}",
        f"INSERT INTO record SELECT * FROM fork.record WHERE seq >= {last}",
    )
    (problem,) = verify(log).problems
    assert problem.seq == last
    assert "written after another record" in problem.what


def test_a_cut_end_is_found_by_an_anchor_and_by_nothing_else(log: Path) -> None:
    anchor = anchor_of(log, RECORDS)
    change(log, "DELETE FROM record WHERE seq > 990")
    assert verify(log).good
    (problem,) = verify(log, [anchor]).problems
    assert problem.seq == 991
    assert "the log was cut" in problem.what


def test_a_log_that_was_replaced_is_found_by_an_anchor(log: Path) -> None:
    """Whoever has the key can write a whole new log, which fits."""
    anchors = [anchor_of(log, 10), anchor_of(log, 900)]
    log.unlink()
    fill(log.parent, CELLS)
    assert verify(log).good
    assert accused(log, *anchors) == [10, 900]
    assert "replaced" in verify(log, anchors).problems[0].what


def test_a_log_of_another_key_is_not_taken_for_this_one(log: Path, tmp_path: Path) -> None:
    other = fill(tmp_path / "other", 3)
    shutil.copy(other, log)
    assert accused(log) == [1, 2, 3, 4, 5, 6]


def test_an_emptied_log_is_found_by_an_anchor(log: Path) -> None:
    anchor = anchor_of(log, 4)
    change(log, "DELETE FROM record")
    assert accused(log, anchor) == [1]


def test_records_said_to_be_pruned_by_who_has_no_key_are_missed(log: Path) -> None:
    mac = records(log)[49].mac
    change(
        log,
        "DELETE FROM record WHERE seq < 50",
        (
            "UPDATE record SET kind = 'pruned', body = ? WHERE seq = 50",
            (f'{{"mac":"{mac.hex()}"}}'.encode(),),
        ),
    )
    assert accused(log)[0] == 50


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON record BEGIN DELETE FROM record WHERE seq = 1; END",
        "CREATE TABLE more (x)",
        "DROP INDEX cells",
        "CREATE VIEW v AS SELECT * FROM record",
    ],
)
def test_another_schema_is_found(log: Path, statement: str) -> None:
    change(log, statement)
    (problem,) = verify(log).problems
    assert (problem.seq, problem.what[:16]) == (0, "the file's table")


@pytest.mark.parametrize("content", ["", "PRAGMA user_version = 1"])
def test_a_log_whose_first_kernel_was_killed_as_it_made_it_is_empty(
    whole: Path, tmp_path: Path, content: str
) -> None:
    path = fill(tmp_path / "audit", 1)
    path.unlink()
    change(path, *([content] if content else []))
    path.touch()
    report = expect_whole(path, 0)
    assert report.first == 0
    assert accused(path, anchor_of(whole, 4)) == [1]
    fill(path.parent, 2)
    expect_whole(path, 4)


def test_an_index_that_hides_a_record_is_found(log: Path) -> None:
    """It would be in no list, though the table has it."""
    change(
        log,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, \"cell <> ''\", \"cell > 'f'\") WHERE name = 'cells'",
    )
    change(log, "REINDEX cells")
    change(
        log,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, \"cell > 'f'\", \"cell <> ''\") WHERE name = 'cells'",
    )
    (problem,) = verify(log).problems
    assert "damaged" in problem.what


def test_a_damaged_file_is_accused_and_not_raised(log: Path) -> None:
    data = bytearray(log.read_bytes())
    rng = random.Random(1)
    for _ in range(200):
        data[rng.randrange(4096, len(data))] ^= 0xFF
    log.write_bytes(data)
    assert not verify(log).good


def page_of(log: Path, seq: int) -> tuple[int, int]:
    """Where in the file the page of the table begins that holds a record, and its first record."""
    found, data = records(log), log.read_bytes()
    size = int.from_bytes(data[16:18], "big")
    start = data.index(found[seq - 1].previous + found[seq - 1].mac) // size * size
    page = data[start : start + size]
    return start, min(each.seq for each in found if each.previous + each.mac in page)


def test_a_damaged_page_is_located_and_hides_nothing_before_it(log: Path) -> None:
    anchors = [dataclasses.replace(anchor_of(log, 20), mac=bytes(32)), anchor_of(log, RECORDS)]
    start, first = page_of(log, 800)
    assert 790 < first <= 800
    change(log, "UPDATE record SET user = 'eve' WHERE seq = 10")
    data = bytearray(log.read_bytes())
    data[start] = 0xFF
    log.write_bytes(data)
    problems = verify(log).problems
    assert [each.seq for each in problems] == [10, first]
    assert "damaged here" in problems[1].what
    # Of what is behind it, nobody knows whether it is there.
    assert accused(log, *anchors) == [10, 20, first]


def test_a_damaged_index_is_no_record(log: Path) -> None:
    with closing(sqlite3.connect(log)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'daily'"
        ).fetchone()
    data = bytearray(log.read_bytes())
    data[(root - 1) * int.from_bytes(data[16:18], "big")] = 0xFF
    log.write_bytes(data)
    report = verify(log)
    assert [each.seq for each in report.problems] == [0]
    assert report.records == RECORDS
