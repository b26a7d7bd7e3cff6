"""`sandbox-kernel audit`, as an operator types it."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.audit.chain import Keyed, read_key
from sandbox_kernel.audit.query import AuditReader, Wanted
from sandbox_kernel.audit.records import MICROSECONDS_PER_DAY, Record, body_of, now_us
from sandbox_kernel.audit.store import Store
from sandbox_kernel.cli.audit import main, moment
from sandbox_kernel.cli.audit_stats import bar
from tests.unit.audit.logs import cell_entries, change, fill


@pytest.fixture
def log(state_home: Path) -> Path:
    """Four cells: one of another kernel and user, one denied, one that failed a week ago."""
    store = Store(state_home / "audit")
    week_ago = now_us() - 7 * MICROSECONDS_PER_DAY
    store.append(
        [
            each._replace(word=word)
            for each, word in zip(
                cell_entries(1, time_us=week_ago), ("allow", "error"), strict=True
            )
        ]
    )
    store.append(cell_entries(2))
    store.append(cell_entries(3, kernel="kernel-2", user="bob"))
    intent, outcome = cell_entries(4)
    body = body_of(
        {
            "code": "import ctypes\n\x1b[2Jx",
            "findings": [
                {"rule": "python.import", "decision": "deny", "line": 1, "about": "ctypes"}
            ],
        }
    )
    store.append([intent._replace(word="deny", body=body), outcome._replace(word="denied")])
    store.close()
    return store.path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    return capsys.readouterr().out


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(said(capsys, "list", "--json", *arguments))
    return found


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        ([], ["x = 1", "x = 2", "x = 3", "import ctypes\n\x1b[2Jx"]),
        (["--limit", "2"], ["x = 3", "import ctypes\n\x1b[2Jx"]),
        (["--kernel", "kernel-2"], ["x = 3"]),
        (["--user", "bob"], ["x = 3"]),
        (["--user", "eve"], []),
        (["--verdict", "deny"], ["import ctypes\n\x1b[2Jx"]),
        (["--outcome", "error"], ["x = 1"]),
        (["--verdict", "allow", "--outcome", "ok", "--user", "ada"], ["x = 2"]),
        (["--verdict", "approved"], []),
        (
            ["--since", "2020-01-01", "--limit", "0"],
            ["x = 1", "x = 2", "x = 3", "import ctypes\n\x1b[2Jx"],
        ),
        (["--since", "2999-01-01"], []),
    ],
)
def test_list_shows_the_cells_that_are_asked_for(
    capsys: pytest.CaptureFixture[str], arguments: list[str], codes: list[str]
) -> None:
    assert [each["code"] for each in listed(capsys, *arguments)] == codes


@pytest.mark.usefixtures("log")
def test_list_is_a_table_whose_ids_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "list")
    assert "\x1b[2J" not in text
    for cell in listed(capsys):
        assert cell["id"][:18] in text
        assert cell["id"] in said(capsys, "show", cell["id"][:18])


@pytest.mark.usefixtures("log")
def test_show_has_code_findings_records_and_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    before, _, cell = (
        each for each in listed(capsys) if each["user"] != "eve" and each["code"] != "x = 1"
    )
    text = said(capsys, "show", cell["id"])
    for part in ("import ctypes", "python.import in line 1", "denied", before["id"]):
        assert part in text
    assert "\x1b[2J" not in text
    detail = json.loads(said(capsys, "show", "--json", cell["id"]))
    assert detail["before"] == before["id"]
    assert [each["kind"] for each in detail["records"]] == ["intent", "outcome"]


@pytest.mark.usefixtures("log")
def test_show_refuses_an_id_of_no_or_several_cells(capsys: pytest.CaptureFixture[str]) -> None:
    for id in ("0", "ffffffff", "%"):
        assert main(["show", id]) == 1
        assert "audit id" in capsys.readouterr().err


def test_show_says_whether_a_file_is_what_ran(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "password = 'hunter22'"
    said_of = {"code": "password = '[redacted:password]'"}
    said_of["hmac"] = Keyed(read_key(log.parent)).hash_of(code)
    intent, _ = cell_entries(5, body=body_of(said_of))
    store = Store(log.parent)
    store.append([intent])
    store.close()
    file = tmp_path / "cell.py"
    for text, exit_code in ((code, 0), (f"{code}\n", 0), (said_of["code"], 1)):
        file.write_text(text)
        said(capsys, "show", intent.cell, "--code", str(file), code=exit_code)
    plain = listed(capsys)[1]
    file.write_text(plain["code"])
    said(capsys, "show", plain["id"], "--code", str(file))


def test_verify_says_yes_and_what_it_has_not_looked_at(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "verify")
    assert "8 records" in text
    assert "takes an anchor" in text
    assert json.loads(said(capsys, "verify", "--json"))["good"] is True


def test_verify_exits_with_1_and_names_the_first_bad_record(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(log, "UPDATE record SET user = 'eve' WHERE seq IN (3, 5)")
    assert said(capsys, "verify", code=1).startswith("✘ record 3: ")
    report = json.loads(said(capsys, "verify", "--json", code=1))
    assert [each["record"] for each in report["problems"]] == [3, 5]


def test_anchors_find_a_cut_log(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anchors = str(tmp_path / "anchors")
    said(capsys, "anchor", "--to", f"file:{anchors}")
    assert "1 anchor of it fit" in said(capsys, "verify", "--anchor", anchors)
    change(log, "DELETE FROM record WHERE seq > 4")
    said(capsys, "verify")
    assert "✘ record 5: the log was cut" in said(capsys, "verify", "--anchor", anchors, code=1)


@pytest.mark.parametrize("command", ["anchor", "rotate"])
def test_what_is_anchored_is_on_the_disk_before(
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    """After a power cut, the anchor of a record that is not there would accuse the log."""
    kernel = Store(log.parent)
    kernel.append(cell_entries(5))
    anchors, synced, fsync = tmp_path / "anchors", list[int](), os.fsync

    def fsync_in_order(descriptor: int) -> None:
        if not anchors.exists():
            synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_in_order)
    said(capsys, command, "--to", f"file:{anchors}")
    files = [Path(f"{log}-wal").stat().st_ino, log.stat().st_ino, log.parent.stat().st_ino]
    assert [each for each in synced if each in files][-3:] == files
    kernel.close()


def test_anchors_of_other_logs_in_the_same_place_are_said(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anchors = tmp_path / "anchors"
    other = fill(tmp_path / "other", 1)
    said(capsys, "anchor", "--log", str(other), "--to", f"file:{anchors}")
    said(capsys, "anchor", "--to", f"file:{tmp_path / 'own'}")
    assert main(["verify", "--anchor", str(anchors)]) == 1
    assert "There is no anchor of this log" in capsys.readouterr().err
    said(capsys, "anchor", "--to", f"file:{anchors}")
    text = said(capsys, "verify", "--anchor", str(anchors))
    assert "1 anchor of it fit; 1 anchor of other logs passed over" in text
    with anchors.open("a") as file:
        file.write(anchors.read_text().splitlines()[-1].replace('"seq": 8', '"seq": 9') + "\n")
    text = said(capsys, "verify", "--anchor", str(anchors))
    assert "! 1 line in the anchors' file" in text
    assert "1 anchor of it fit" in text


@pytest.mark.usefixtures("log")
def test_a_place_must_say_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("anchor", "rotate"):
        with pytest.raises(SystemExit) as caught:
            main([command, "--to", str(tmp_path / "anchors")])
        assert caught.value.code == 2
        assert "neither syslog nor file:/PATH" in capsys.readouterr().err


@pytest.mark.usefixtures("log")
def test_an_anchor_needs_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["anchor"]) == 2
    assert "give --to" in capsys.readouterr().err


@pytest.mark.usefixtures("log")
def test_export_has_every_record(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in said(capsys, "export").splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, 9))
    rows = list(csv.DictReader(io.StringIO(said(capsys, "export", "--format", "csv"))))
    assert [row["mac"] for row in rows] == [line["mac"] for line in lines]
    assert json.loads(rows[6]["body"]) == lines[6]["body"]


@pytest.mark.usefixtures("log")
def test_stats_count_cells_denials_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    by_user = {
        each["user"]: each for each in json.loads(said(capsys, "stats", "--by", "user", "--json"))
    }
    ada = by_user["ada"]
    assert (ada["cells"], ada["denied"], ada["failed"]) == (3, 1, 1)
    assert ada["wall_seconds"] == pytest.approx(0.126)
    assert by_user["bob"]["memory_peak_bytes"] == 1 << 26
    assert len(json.loads(said(capsys, "stats", "--json"))) == 2
    assert len(json.loads(said(capsys, "stats", "--json", "--since", "2d"))) == 1
    assert "█" in said(capsys, "stats")


@pytest.mark.usefixtures("log")
def test_prune_and_rotate_keep_the_log_verifiable(
    state_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anchors = str(tmp_path / "anchors")
    pruned = json.loads(said(capsys, "prune", "--keep-days", "3", "--json"))
    assert pruned["pruned"] == 2
    said(capsys, "verify")
    text = said(capsys, "rotate", "--to", f"file:{anchors}")
    (archive,) = (state_home / "audit").glob("log-*.db")
    assert str(archive) in text.replace("\n", "")
    assert "1 anchor of it fit" in said(capsys, "verify", "--anchor", anchors)
    said(capsys, "verify", "--log", str(archive))
    # An archive stays as it is, and so does the log beside it.
    for command in (["rotate"], ["prune", "--keep-days", "0"]):
        assert main([*command, "--log", str(archive)]) == 1
        assert "is not a log that grows" in capsys.readouterr().err
    said(capsys, "verify", "--anchor", anchors)
    assert json.loads(said(capsys, "list", "--json")) == []
    assert len(json.loads(said(capsys, "list", "--json", "--log", str(archive)))) == 3


@pytest.mark.parametrize("command", ["list", "show x", "verify", "export", "stats", "rotate"])
def test_without_a_log_every_command_says_so(
    command: str, capsys: pytest.CaptureFixture[str], state_home: Path
) -> None:
    assert main(command.split()) == 1
    assert "There is no audit log" in capsys.readouterr().err
    assert not list(state_home.iterdir())


@pytest.mark.parametrize("command", ["list", "show x", "export", "stats", "anchor --to file:/x"])
def test_of_a_log_without_records_every_command_says_so(
    command: str, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fill(state_home / "audit", 1)
    path.write_bytes(b"")
    assert main(command.split()) == 1
    assert "Nothing was recorded yet" in capsys.readouterr().err
    assert "0 records" in said(capsys, "verify")


def test_a_damaged_log_is_an_error_and_no_traceback(
    state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fill(state_home / "audit", 1)
    path.write_bytes(b"no database" * 1000)
    assert main(["list"]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main(["verify"]) == 1


COMMANDS = (
    *("list", "list --json", "stats", "stats --by user", "stats --by policy", "stats --json"),
    *("export", "export --format csv", "verify", "verify --json"),
)


def expect_no_commands_for_the_terminal(capsys: pytest.CaptureFixture[str], log: Path) -> str:
    """All that every command says of a log that is not what was written."""
    output = ""
    with AuditReader(log) as reader:
        ids = [cell.id for cell in reader.cells(Wanted())]
    for command in (*COMMANDS, *(f"show {id}" for id in ids), *(f"show --json {id}" for id in ids)):
        main(command.split())
        captured = capsys.readouterr()
        text = captured.out + captured.err
        assert text
        controls = {each for each in text if not each.isprintable()} - {"\n", "\r"}
        assert not controls, (command, controls)
        output += text
    return output


@pytest.mark.parametrize("value", ["\x1b[2J[red]", b"\xff\x1b[2J", 5, 2.5, -(2**63)], ids=repr)
@pytest.mark.parametrize("column", [name for name in Record._fields if name != "seq"])
def test_no_field_that_was_tampered_with_breaks_a_command_or_reaches_the_terminal(
    log: Path, capsys: pytest.CaptureFixture[str], column: str, value: Any
) -> None:
    change(log, ("UPDATE OR IGNORE record SET " + column + " = ? WHERE seq IN (7, 8)", (value,)))
    expect_no_commands_for_the_terminal(capsys, log)
    assert main(["verify"]) == 1


@pytest.mark.parametrize("value", ["caf\xe9", "\x1b[2J"])
def test_text_that_is_no_utf8_is_shown_as_such(
    log: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    text = f"CAST(X'{value.encode('latin-1').hex()}' AS TEXT)"
    change(log, f"UPDATE record SET user = {text}, policy = {text}, word = {text} WHERE seq = 7")
    expect_no_commands_for_the_terminal(capsys, log)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"a":"\\udcff"}',
        b"[" * 100_000,
        b'{"code":5,"findings":5,"receipt":5}',
        b'{"findings":[5,{},{"rule":"\\u001b[2J","line":[]}],"receipt":[]}',
        b'{"code":"\xff"}',
    ],
    ids=lambda body: repr(body)[:30],
)
def test_one_body_that_nobody_can_read_breaks_no_command(
    log: Path, capsys: pytest.CaptureFixture[str], body: bytes
) -> None:
    change(log, ("UPDATE record SET body = ? WHERE seq IN (3, 4)", (body,)))
    text = expect_no_commands_for_the_terminal(capsys, log)
    assert "x = 1" in text
    assert "x = 3" in text
    if b"findings" not in body:
        assert "(unreadable)" in text


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE '\x1b[2J' (x)", "CREATE VIEW v AS SELECT '\x1b[2J' FROM record"]
)
def test_verify_sends_no_commands_to_the_terminal(
    log: Path, capsys: pytest.CaptureFixture[str], statement: str
) -> None:
    change(log, statement)
    text = said(capsys, "verify", code=1)
    assert "tables are not those of a log" in text
    assert "\x1b" not in text


def test_an_error_sends_no_commands_to_the_terminal(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(
        log,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET name = '\x1b[2J', sql = 'nothing' WHERE name = 'cells'",
    )
    for command in ("list", "verify"):
        assert main(command.split()) == 1
        captured = capsys.readouterr()
        assert "[2J" in captured.out + captured.err
        assert "\x1b" not in captured.out + captured.err


def test_csv_has_nothing_that_a_spreadsheet_would_run(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seq, user in enumerate(("=1+1", "+1", "-1", "@x", "a=b"), 1):
        change(log, ("UPDATE record SET user = ? WHERE seq = ?", (user, seq)))
    rows = list(csv.DictReader(io.StringIO(said(capsys, "export", "--format", "csv"))))
    assert [row["user"] for row in rows[:5]] == ["'=1+1", "'+1", "'-1", "'@x", "a=b"]


@pytest.mark.parametrize("text", ["", "yesterday", "5", "-5d", "2026-13-01", "9999999d"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["list", f"--since={text}"])
    assert caught.value.code == 2


def test_times_are_dates_or_ages() -> None:
    assert moment("1970-01-02") == MICROSECONDS_PER_DAY
    assert moment("1970-01-02T00:00:00+01:00") == MICROSECONDS_PER_DAY - 3_600_000_000
    assert moment("2h") == pytest.approx(now_us() - 7_200_000_000, abs=5_000_000)


@pytest.mark.parametrize(("value", "drawn"), [(0, ""), (12, "█" * 12), (6, "█" * 6), (0.5, "▌")])
def test_bars_are_drawn_in_eighths(value: float, drawn: str) -> None:
    assert bar(value, 12) == drawn
