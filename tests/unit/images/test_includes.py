from __future__ import annotations

from pathlib import Path

import pytest

from sandbox_kernel.errors import ImageError
from sandbox_kernel.images.includes import included, read_all


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("-r a.txt", ["a.txt"]),
        ("-ra.txt", ["a.txt"]),
        ("  --requirement a.txt", ["a.txt"]),
        ("--requirement=a.txt", ["a.txt"]),
        ("-c ../a.txt  # why", ["../a.txt"]),
        ("--constraint=a.txt", ["a.txt"]),
        ("-r 'a b.txt'", ["a b.txt"]),
        ("-r \\\na.txt", ["a.txt"]),
        ("-r ${PLACE}/a.txt", ["here/a.txt"]),
        ("-r ${NOWHERE}/a.txt", ["${NOWHERE}/a.txt"]),
        ("numpy\n-r a.txt\n-c b.txt\n", ["a.txt", "b.txt"]),
        ("-r https://example.org/a.txt", []),
        ("--require-hashes", []),
        ("-r", []),
        ("-r 'a", []),
        ("# -r a.txt", []),
        ("numpy # -r a.txt", []),
        ("--index-url https://example.org", []),
    ],
)
def test_what_is_taken_in_is_read_as_pip_reads_it(
    monkeypatch: pytest.MonkeyPatch, line: str, named: list[str]
) -> None:
    monkeypatch.setenv("PLACE", "here")
    monkeypatch.delenv("NOWHERE", raising=False)
    assert list(included(line)) == named


def test_files_are_looked_for_beside_the_one_that_names_them_and_read_once(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("-r below/b.txt\n-c below/b.txt")
    (tmp_path / "below" / "b.txt").write_text("-r ../a.txt\n-r c.txt")
    (tmp_path / "below" / "c.txt").write_text("numpy")
    assert list(read_all(tmp_path / "a.txt")) == [
        b"-r below/b.txt\n-c below/b.txt",
        b"-r ../a.txt\n-r c.txt",
        b"numpy",
    ]


def test_a_file_that_is_taken_in_and_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r none.txt")
    with pytest.raises(ImageError, match=r"none\.txt cannot be read"):
        list(read_all(tmp_path / "a.txt"))
