"""What grows around a sandbox counts as its own only if nothing else explains it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox_kernel.limits import surroundings as module
from sandbox_kernel.limits.surroundings import (
    SLACK_BYTES,
    Held,
    Surroundings,
    Unseen,
    cgroup_held,
    host_held,
)

MIB = 1 << 20
MEMINFO = {
    "MemTotal": 8000,
    "MemFree": 4000,
    "Buffers": 100,
    "Cached": 1000,
    "SwapCached": 0,
    "AnonPages": 1500,
    "Shmem": 200,
    "SReclaimable": 300,
}


def host(tmp_path: Path, at_hand_pages: int = 0, **gained: int) -> int:
    """What the host holds if these lines of ``meminfo`` gain so many MiB."""
    values = {name: value + gained.get(name, 0) for name, value in MEMINFO.items()}
    meminfo, zoneinfo = tmp_path / "meminfo", tmp_path / "zoneinfo"
    meminfo.write_text("".join(f"{name}: {value * 1024} kB\n" for name, value in values.items()))
    zoneinfo.write_text(f"Node 0\n    cpu: 0\n              count:    {at_hand_pages}\n")
    return host_held(str(meminfo), str(zoneinfo))


@pytest.mark.parametrize(
    ("what", "counts"),
    [
        ({"MemFree": -500, "AnonPages": 500}, 0),
        ({"MemFree": -500, "Cached": 500}, 0),
        ({"MemFree": -500, "SReclaimable": 500}, 0),
        ({"MemFree": -500, "Cached": 500, "Shmem": 500}, 500),
        ({"MemFree": -500}, 500),  # pages in the buffers of pipes and sockets
        ({"MemFree": -500, "at_hand_pages": 500 * 256}, 0),
    ],
)
def test_only_memory_that_a_cell_can_hide_counts(
    tmp_path: Path, what: dict[str, int], counts: int
) -> None:
    assert host(tmp_path, **what) - host(tmp_path) == counts * MIB


def test_a_cgroup_of_version_2_counts_what_cannot_be_taken_back(tmp_path: Path) -> None:
    (tmp_path / "memory.stat").write_text(
        "anon 1000\nfile 500\nkernel 300\nsock 20\nshmem 7\nslab_reclaimable 100\n"
    )
    assert cgroup_held(tmp_path) == 7 + 300 + 20 - 100


def test_a_cgroup_of_version_1_has_tcp_buffers_apart(tmp_path: Path) -> None:
    (tmp_path / "memory.stat").write_text("total_rss 1000\ntotal_shmem 7\n")
    (tmp_path / "memory.kmem.usage_in_bytes").write_text("300\n")
    (tmp_path / "memory.kmem.tcp.usage_in_bytes").write_text("20\n")
    assert cgroup_held(tmp_path) == 327


def test_of_several_totals_the_one_that_gained_least_counts() -> None:
    assert Held((1000, 500), 0).gained_since(Held((100, 450), 0)) == 50


def test_files_of_the_host_explain_themselves() -> None:
    assert Held((1000,), 600).gained_since(Held((100,), 0)) == 300
    assert Held((1000,), 0).gained_since(Held((100,), 600)) == 900


class Around(Surroundings):
    """Surroundings that a test makes up."""

    def __init__(self) -> None:
        self.held = self.neighbours = 0

    def read(self) -> Held:
        return Held((self.held,), 0)

    def neighbours_bytes(self, own: object) -> int:
        return self.neighbours


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Around:
    monkeypatch.setattr(module, "free_again", lambda _: 0.0)
    return Around()


def test_what_nothing_explains_is_the_sandboxs_beyond_noise(around: Around) -> None:
    unseen = Unseen(around)
    around.held = SLACK_BYTES
    assert unseen.look(0, (), ran=True) == 0
    around.held += 300 * MIB
    assert unseen.look(0, (), ran=True) == 300 * MIB
    # What is measured of it is not unseen, and what is freed is gone.
    assert unseen.look(200 * MIB, (), ran=True) == 100 * MIB
    around.held -= 100 * MIB
    assert unseen.look(200 * MIB, (), ran=True) == 0


def test_a_sandbox_that_sleeps_takes_nothing(around: Around) -> None:
    unseen = Unseen(around)
    around.held = 1000 * MIB
    assert unseen.look(0, (), ran=False) == 0
    assert unseen.look(0, (), ran=True) == 0


def test_neighbours_may_have_what_they_hold(around: Around) -> None:
    unseen = Unseen(around)
    around.held, around.neighbours = SLACK_BYTES + 500 * MIB, 400 * MIB
    assert unseen.look(0, (), ran=True) == 100 * MIB


def test_what_is_freed_before_it_is_measured_again_counts_for_nobody(around: Around) -> None:
    unseen = Unseen(around)
    around.held = 400 * MIB
    assert unseen.look(400 * MIB, (), ran=True) == 0
    around.held = 0
    assert unseen.look(400 * MIB, (), ran=True) == 0, "it is measured now and then only"
    assert unseen.look(0, (), ran=True) == 0
    around.held = SLACK_BYTES + 300 * MIB
    assert unseen.look(0, (), ran=True) == 300 * MIB, "and it is not forgiven for ever"
