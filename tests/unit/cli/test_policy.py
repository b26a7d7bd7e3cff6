"""`sandbox-kernel policy`: what it prints, and how it exits."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from sandbox_kernel.cli import main
from sandbox_kernel.policy import find, levels
from sandbox_kernel.policy.model import Code
from sandbox_kernel.policy.rules import all_ids, rule
from sandbox_kernel.policy.source import FAILED, TOO_LONG
from sandbox_kernel.policy.verdict import DECISIONS, Finding, Verdict

REPOSITORY = Path(__file__).parents[3]
SHIPPED = ["trusted", "default", "strict", "paranoid"]


WORDS = {
    "frames": "python.frames",
    "broken": "cell.unreadable",
    TOO_LONG: "cell.unreadable",
    FAILED: "cell.unreadable",
}


class FakeJudge:
    """Finds words instead of forms of code; remembers how many cells it has seen."""

    made = 0

    def __init__(self, code: Code) -> None:
        self.code = code
        self.cells = 0
        type(self).made += 1

    def judge(self, text: str) -> Verdict:
        self.cells += 1
        findings = []
        for number, line in enumerate(text.split("\n"), 1):
            for word, id in WORDS.items():
                decision = self.code.decide(id, word)
                if word in line and decision != "allow":
                    place = (number, line.index(word))
                    found = rule(id)
                    findings.append(
                        Finding(id, decision, found.risk, word, *place, found.reason, found.instead)
                    )
        decisions = [finding.decision for finding in findings]
        return Verdict(max(decisions, key=DECISIONS.index, default="allow"), tuple(findings))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No policies but the shipped ones, no settings, and a judge that is easy to foresee."""
    monkeypatch.setattr(find, "SYSTEM_DIRECTORY", tmp_path / "etc")
    monkeypatch.setattr(levels, "SYSTEM_CONFIG", ())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", levels.POLICY_VARIABLE, levels.TRUST_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    judge = SimpleNamespace(Judge=FakeJudge)
    monkeypatch.setitem(sys.modules, "sandbox_kernel.policy.judge", judge)  # type: ignore[misc]
    monkeypatch.setenv("COLUMNS", "200")
    FakeJudge.made = 0


def run(*arguments: object) -> int:
    try:
        return main(["policy", *map(str, arguments)])
    except SystemExit as error:  # argparse
        return int(error.code or 0)


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def notebook(path: Path, *cells: str, **more: Any) -> Path:
    sources = [
        {"cell_type": "markdown", "source": "frames"},
        *({"cell_type": "code", "source": text.splitlines(keepends=True)} for text in cells),
    ]
    path.write_text(json.dumps({"nbformat": 4, "cells": sources, **more}))
    return path


# list


def test_list_names_every_policy_and_the_one_that_holds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(levels.TRUST_VARIABLE, "untrusted")
    assert run("list", "--json") == 0
    listed = printed(capsys)
    by_name = {entry["name"]: entry for entry in listed["policies"]}
    assert set(by_name) == {*SHIPPED, "tour"}
    assert by_name["strict"]["trust"] == "untrusted"
    assert by_name["strict"]["from"] == "shipped"
    assert by_name["strict"]["summary"].startswith("For code you do not trust")
    assert listed["chosen"] == {
        "policy": "strict",
        "said_by": "SANDBOX_KERNEL_TRUST of the environment",
    }
    assert run("list") == 0
    assert "strict is what a kernel gets" in capsys.readouterr().out


def test_list_shows_a_policy_that_cannot_be_used_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "home" / ".config" / "sandbox-kernel" / "policies"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("limits: {wal: 5s}")
    (own / "mine.yaml").chmod(0o644)
    assert run("list", "--json") == 0
    (mine,) = [entry for entry in printed(capsys)["policies"] if entry["name"] == "mine"]
    assert "'wall'" in mine["error"]


# show


@pytest.mark.parametrize("name", [*SHIPPED, "tour"])
def test_show_prints_the_files_a_policy_is_made_of(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", name) == 0
    text = capsys.readouterr().out
    assert (REPOSITORY / "policies" / f"{name}.yaml").read_text() in text
    assert "default.yaml" in text


@pytest.mark.parametrize("name", SHIPPED)
def test_show_effective_is_a_whole_policy_in_yaml_or_json(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", name, "--effective") == 0
    document = yaml.load(capsys.readouterr().out, yaml.BaseLoader)
    assert run("show", name, "--effective", "--json") == 0
    shown = printed(capsys)
    assert shown["name"] == name
    assert shown["effective"] == document
    assert list(document["code"]) == ["max_size", "python", "shell", "magics", "javascript"]


def test_an_unknown_policy_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "strikt") == 2
    assert "'strict'" in capsys.readouterr().err


# check


def test_check_passes_what_the_policy_allows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", notebook(tmp_path / "a.ipynb", "1 + 1", "2")) == 0
    assert "a.ipynb" in capsys.readouterr().out


def test_check_says_where_what_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = notebook(tmp_path / "a.ipynb", "x = 1", "y = 2\nz = the.frames[0]")
    assert run("check", path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path}: cell 2, line 2, column 9: deny python.frames (high risk)")
    assert lines[1] == "    z = the.frames[0]"
    assert lines[2] == "            ^^^^^^"
    assert rule("python.frames").reason in lines[3]
    assert rule("python.frames").instead in lines[3]


def test_check_as_json_has_the_findings_of_each_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = notebook(tmp_path / "good.ipynb", "1")
    bad = notebook(tmp_path / "bad.ipynb", "1", "frames")
    assert run("check", good, bad, "--json") == 1
    report = printed(capsys)
    assert report["policy"]["name"] == "default"
    first, second = report["files"]
    assert first == {"file": str(good), "decision": "allow", "cells": 1, "found": []}
    assert second["decision"] == "deny"
    (cell,) = second["found"]
    assert (cell["cell"], cell["decision"], cell["findings"][0]["rule"]) == (
        2,
        "deny",
        "python.frames",
    )


def test_check_asks_the_policy_that_is_named_or_else_the_kernel_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = notebook(tmp_path / "a.ipynb", "frames")
    assert run("check", path, "--policy", "trusted") == 0
    monkeypatch.setenv(levels.TRUST_VARIABLE, "trusted")
    assert run("check", path) == 0
    assert run("check", path, "-p", "strict") == 1
    assert run("check", path, "--policy", "strikt") == 2


def test_every_notebook_has_a_judge_of_its_own(tmp_path: Path) -> None:
    paths = [notebook(tmp_path / f"{n}.ipynb", "1", "2") for n in range(3)]
    run("check", *paths)
    assert FakeJudge.made == 3


def test_a_script_is_one_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.py"
    path.write_text("\n\nframes\n")
    assert run("check", path, "--json") == 1
    assert printed(capsys)["files"][0]["found"][0]["findings"][0]["line"] == 3


def test_an_old_notebook_with_worksheets_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    cells = [{"cell_type": "code", "input": ["frames"]}, {"cell_type": "heading", "source": "x"}]
    path.write_text(json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}))
    assert run("check", path) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"cells"',
        b"{}",
        b'{"cells": {}}',
        b'{"cells": [3]}',
        b'{"cells": [{"cell_type": "code"}]}',
        b'{"cells": [{"cell_type": "code", "source": [3]}]}',
        b'{"worksheets": 3}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_what_is_no_notebook_is_said_and_the_others_are_checked_all_the_same(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.ipynb"
    broken.write_bytes(content)
    assert run("check", broken, notebook(tmp_path / "a.ipynb", "frames")) == 2
    output = capsys.readouterr()
    assert str(broken) in output.err
    assert "python.frames" in output.out


def test_files_that_are_not_there_or_of_another_kind_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", tmp_path / "none.ipynb") == 2
    (tmp_path / "a.txt").write_text("")
    assert run("check", tmp_path / "a.txt") == 2
    assert "No such file" in (text := capsys.readouterr().err)
    assert "neither .ipynb nor .py" in text


def test_bad_usage_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("check") == 2
    assert run("check", "a.ipynb", "--corpus", "b") == 2
    assert run() == 2
    assert run("chek") == 2
    assert run("show") == 2


def test_a_hostile_notebook_cannot_paint_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = notebook(tmp_path / "a\x1b[2J.ipynb", "\x1b[2J\x9b\u202e\udcff frames [red]", "[bold]")
    assert run("check", path) == 1
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]" in text


def test_a_long_line_is_cut_around_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("check", notebook(tmp_path / "a.ipynb", "x" * 10_000 + "frames" + "y" * 10_000))
    lines = capsys.readouterr().out.splitlines()
    assert "frames" in lines[1]
    assert len(lines[1]) < 120
    assert lines[2].index("^") == lines[1].index("frames")


def test_the_pre_commit_hook_is_this_command() -> None:
    (hook,) = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "sandbox-kernel policy check"
    assert hook["language"] == "python"
    assert hook["types_or"] == ["jupyter"]


# check --corpus


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl"])
def test_a_corpus_is_counted_with_what_is_no_code_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    entries = [
        {"cells": ["1", "frames", "frames frames"]},
        {"cells": ["1", "broken frames"]},
        {"cells": [TOO_LONG, FAILED]},
        {"code": "frames", "language": "python"},
    ]
    data = "\n".join(map(json.dumps, entries)).encode()
    path = tmp_path / f"corpus{suffix}"
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    assert run("check", "--corpus", path, "--policy", "default", "--json") == 0
    assert printed(capsys) == {
        "policy": "default",
        "cells": 8,
        "notebooks": 4,
        "denied_cells": 5,
        "denied_notebooks": 3,
        "not_read_in_time_cells": 1,
        "unparseable_cells": 1,
        "asked_cells": 0,
        "warned_cells": 0,
        "by_rule": {"python.frames": 3, "cell.unreadable": 2},
    }
    assert run("check", "--corpus", path) == 0
    assert "denied notebooks" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [b"{", b"3", b'{"cells": 3}', b'{"cells": [3]}', b'{"code": 3}']
)
def test_a_corpus_that_is_none_is_refused_with_the_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"cells": []}\n' + content)
    assert run("check", "--corpus", path, "--json") == 2
    assert "line 2" in capsys.readouterr().err
    path.rename(tmp_path / "corpus.gz")
    assert run("check", "--corpus", tmp_path / "corpus.gz") == 2
    assert run("check", "--corpus", tmp_path / "none.gz") == 2


# explain


@pytest.mark.parametrize("id", all_ids())
def test_every_rule_is_explained(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", id, "--json") == 0
    explained = printed(capsys)
    assert {key: explained[key] for key in rule(id)._fields} == rule(id)._asdict()
    assert list(explained["decisions"]) == SHIPPED


def test_a_rule_is_explained_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "python.frames") == 0
    text = capsys.readouterr().out
    found = rule("python.frames")
    for word in (found.id, found.risk, found.instead, found.backstop[1:], "paranoid", "deny"):
        assert word in text


def test_a_name_is_decided_by_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "python.import", "os.path", "--json") == 0
    assert printed(capsys)["decisions"] == {
        "trusted": "allow",
        "default": "allow",
        "strict": "deny",
        "paranoid": "deny",
    }
    assert run("explain", "python.frames", "os") == 2


def test_without_a_rule_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "--json") == 0
    assert [found["id"] for found in printed(capsys)] == list(all_ids())
    assert run("explain") == 0
    text = capsys.readouterr().out
    assert [id for id in all_ids() if id not in text] == []


def test_an_unknown_rule_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "python.frmes") == 2
    assert "python.frames" in capsys.readouterr().err
