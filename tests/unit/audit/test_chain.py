"""The MAC of a record, and the key that it is made with."""

from __future__ import annotations

import hmac
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.audit import chain
from sandbox_kernel.audit.chain import KEY_NAME, Keyed, in_bytes, make_key, read_key
from sandbox_kernel.audit.records import Record
from sandbox_kernel.errors import AuditUnavailable

NUMBER = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.builds(
    Record,
    *[NUMBER] * 6,
    *[st.text(max_size=5)] * 6,
    *[st.binary(max_size=5)] * 3,
)


@given(st.binary(min_size=32, max_size=32), RECORDS)
def test_it_is_hmac_sha256_over_all_that_is_stored(key: bytes, record: Record) -> None:
    fields = in_bytes(record)
    framed = b"".join(
        [
            chain._LABEL,
            *(number.to_bytes(8, "big", signed=True) for number in fields[:6]),
            *(len(text).to_bytes(4, "big") for text in fields[6:14]),
            *fields[6:14],
        ]
    )
    assert Keyed(key).mac_of(fields) == hmac.digest(key, framed, "sha256")


@given(RECORDS, RECORDS)
def test_two_records_have_one_mac_only_if_they_are_the_same(one: Record, other: Record) -> None:
    keyed = Keyed(bytes(32))
    same = keyed.mac_of(in_bytes(one)) == keyed.mac_of(in_bytes(other))
    assert same == (one[:-1] == other[:-1])


def test_bytes_that_move_to_the_next_field_change_the_mac() -> None:
    one = Record(1, 2, 3, 4, 5, 6, "kind", "kernel", "a", "bc", "p", "w", b"body", b"prev", b"")
    other = one._replace(cell="ab", user="c")
    assert Keyed(bytes(32)).mac_of(in_bytes(one)) != Keyed(bytes(32)).mac_of(in_bytes(other))


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    os.umask(os.umask(0o022))
    key = make_key(tmp_path)
    assert make_key(tmp_path) == key == read_key(tmp_path)
    assert (tmp_path / KEY_NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [KEY_NAME]


def test_many_who_make_the_key_at_once_get_the_same(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from sandbox_kernel.audit.chain import make_key\n"
        "sys.stdin.read(); print(make_key(pathlib.Path(sys.argv[1])).hex())"
    )
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(6)
    ]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.close()
    keys = set()
    for maker in makers:
        assert maker.stdout is not None
        keys.add(maker.stdout.read())
        maker.stdout.close()
        assert maker.wait() == 0
    assert len(keys) == 1


def test_a_key_of_another_user_is_for_who_verifies_and_not_for_who_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_key(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / KEY_NAME).stat().st_uid + 1)
    assert read_key(tmp_path, to_write=False) == key
    with pytest.raises(AuditUnavailable, match="belongs to another user"):
        read_key(tmp_path)


def test_the_name_of_a_new_key_is_on_the_disk_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that outlive their key in a power cut could not be verified any more."""
    synced, fsync = list[bool](), os.fsync

    def fsync_noted(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append(is_directory and (tmp_path / KEY_NAME).exists())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_noted)
    make_key(tmp_path)
    assert synced == [False, True]


@pytest.mark.parametrize(
    ("mode", "content"), [(0o644, bytes(32)), (0o620, bytes(32)), (0o600, b"x")]
)
def test_a_key_that_others_know_or_that_is_none_is_refused(
    tmp_path: Path, mode: int, content: bytes
) -> None:
    path = tmp_path / KEY_NAME
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(AuditUnavailable) as caught:
        read_key(tmp_path)
    assert str(path) in caught.value.what
