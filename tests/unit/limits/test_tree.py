from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from sandbox_kernel.limits import tree as module
from sandbox_kernel.limits.cgroup import Memory
from sandbox_kernel.limits.proc import NO_FILES, Rollup, Stat, Status
from sandbox_kernel.limits.tree import Tree, TreeMemory

MIB = 1 << 20


class World:
    """Processes of a made-up host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stats: dict[int, Stat] = {1: Stat(0, 0, 0, 0, 1, 0)}
        self.unseen: set[int] = set()
        self.burnt = 0
        self._next = 2
        monkeypatch.setattr(module, "process_tree", lambda _: sorted(set(self.stats) - self.unseen))
        monkeypatch.setattr(module, "read_stat", self.stats.get)
        monkeypatch.setattr(module, "start_ticks", lambda pid: self.stats[pid].start)

    def fork(self, parent: int = 1) -> int:
        pid = self._next
        self._next += 1
        self.stats[pid] = Stat(parent, 0, 0, 0, 1, pid)
        return pid

    def burn(self, pid: int, ticks: int) -> None:
        self.burnt += ticks
        stat = self.stats[pid]
        self.stats[pid] = stat._replace(own_ticks=stat.own_ticks + ticks)

    def end(self, pid: int, *, waited: bool = True) -> None:
        stat = self.stats.pop(pid)
        for child, other in list(self.stats.items()):
            if other.parent == pid:
                self.stats[child] = other._replace(parent=1)
        if waited:
            self.collect(stat)

    def collect(self, stat: Stat) -> None:
        parent = self.stats[stat.parent]
        waited_ticks = parent.waited_ticks + stat.own_ticks + stat.waited_ticks
        self.stats[stat.parent] = parent._replace(waited_ticks=waited_ticks)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def ticks(tree: Tree) -> int:
    tree.look()
    return round(tree.cpu_seconds * module.TICKS_PER_SECOND)


@pytest.mark.parametrize("waited", [True, False])
def test_time_of_a_process_that_has_ended_stays(world: World, waited: bool) -> None:
    tree = Tree(1)
    pid = world.fork()
    world.burn(pid, 100)
    assert ticks(tree) == 100
    world.end(pid, waited=waited)
    world.burn(1, 5)
    assert [ticks(tree) for _ in range(4)] == [105] * 4


def test_time_of_children_that_nobody_saw_is_the_parents(world: World) -> None:
    tree = Tree(1)
    assert ticks(tree) == 0
    pid = world.fork()
    world.burn(pid, 7)
    world.end(pid)
    assert ticks(tree) == 7


def test_a_parent_read_just_before_it_waits_is_not_charged_twice(world: World) -> None:
    tree = Tree(1)
    pid = world.fork()
    world.burn(pid, 100)
    assert ticks(tree) == 100
    stat = world.stats[pid]
    world.end(pid, waited=False)  # the look sees the parent as it was before, the child no more
    assert ticks(tree) == 100
    world.collect(stat)
    assert [ticks(tree) for _ in range(3)] == [100] * 3


def test_a_process_left_out_of_a_list_of_children_is_asked_itself(world: World) -> None:
    tree = Tree(1)
    pid = world.fork()
    world.burn(pid, 100)
    assert ticks(tree) == 100
    world.unseen.add(pid)
    assert [ticks(tree) for _ in range(3)] == [100] * 3
    world.unseen.clear()
    assert [ticks(tree) for _ in range(3)] == [100] * 3


def test_a_root_that_is_another_process_is_not_the_sandbox(world: World) -> None:
    tree = Tree(1)
    world.burn(1, 100)
    assert ticks(tree) == 100
    world.stats[1] = Stat(0, 0, 5000, 0, 1, start=99)
    assert tree.look() == {}
    assert ticks(tree) == 100


def test_a_pid_used_again_is_another_process(world: World) -> None:
    tree = Tree(1)
    pid = world.fork()
    world.burn(pid, 100)
    assert ticks(tree) == 100
    world.end(pid, waited=False)
    world.stats[pid] = Stat(1, 0, 3, 0, 1, start=99)
    assert [ticks(tree) for _ in range(3)] == [103] * 3


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("unwaited", [0.0, 0.5])
def test_time_never_runs_backwards_and_is_never_made_up(
    world: World, seed: int, unwaited: float
) -> None:
    chance = random.Random(seed)
    tree = Tree(1)
    before = 0
    for _ in range(400):
        pids = list(world.stats)
        match chance.choice(["fork", "burn", "burn", "end", "look"]):
            case "fork":
                world.fork(chance.choice(pids))
            case "burn":
                world.burn(chance.choice(pids), chance.randrange(50))
            case "end" if len(pids) > 1:
                world.end(chance.choice(pids[1:]), waited=chance.random() >= unwaited)
            case "look":
                now = ticks(tree)
                assert before <= now <= world.burnt
                assert unwaited or now == world.burnt
                before = now


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.mark.parametrize(("between", "life"), [(0.5, 0.02), (0.05, 0.002), (0.5, 0.4)])
@pytest.mark.parametrize("waited", [True, False])
def test_processes_that_are_seen_once_at_most_are_estimated(
    world: World, monkeypatch: pytest.MonkeyPatch, between: float, life: float, waited: bool
) -> None:
    """One after the other, each at work for all of its life; in every other second there is none."""
    chance, clock = random.Random(1), Clock(monkeypatch)
    tree, burnt, next_look = Tree(1), 0.0, between

    def pass_time(seconds: float) -> None:
        nonlocal next_look
        end = clock.now + seconds
        while next_look <= end:
            clock.now = next_look
            tree.look()
            tree.look()  # one look is made of several
            next_look += between * chance.uniform(0.9, 1.1)
        clock.now = end

    while clock.now < 120:
        pid = world.fork()
        world.stats[pid] = world.stats[pid]._replace(running=True)
        pass_time(life)
        world.burn(pid, round(life * 100))
        burnt += life
        world.end(pid, waited=waited)
        if int(clock.now) % 2:
            pass_time(1)
    tree.look()
    if not waited:
        assert tree.cpu_seconds == pytest.approx(burnt, rel=0.2)
    elif life > 0.01:  # else no clock has a tick for it
        assert burnt * 0.9 < tree.cpu_seconds < burnt * 1.2


# -- memory ----------------------------------------------------------------------------------------


def status(anon: int, shmem: int = 0) -> Status:
    return Status(b"python", 1, 2, 2, 1, 0, 0, anon * MIB, shmem * MIB, 0)


@pytest.fixture
def rollups(monkeypatch: pytest.MonkeyPatch) -> dict[int, Rollup]:
    known: dict[int, Rollup] = {}
    monkeypatch.setattr(module, "read_rollup", known.get)
    monkeypatch.setattr(module, "open_files", lambda _: NO_FILES)
    return known


def share(anon: float, private: float, shmem: float = 0) -> Rollup:
    return Rollup(int(anon * MIB), int(shmem * MIB), int(private * MIB))


def forked(memory: TreeMemory, statuses: dict[int, Status], kernel: int) -> float:
    memory.read(statuses, None)
    return memory.forked_bytes(statuses, kernel * MIB) / MIB


def test_forks_are_not_charged_with_what_they_inherit(rollups: dict[int, Rollup]) -> None:
    """Four workers of a kernel process with 900 MiB, which a checkpoint shares too."""
    rollups.update({pid: share(900 / 6 + 10, 10) for pid in range(4)})
    statuses = {pid: status(910) for pid in range(4)}
    assert forked(TreeMemory(), statuses, 900) == 40


def test_forks_of_a_fork_hide_no_more_than_there_was_to_inherit(
    rollups: dict[int, Rollup],
) -> None:
    """1,000 MiB made by a fork and shared with a fork of its own; the kernel process has 60."""
    rollups.update({1: share(500, 0), 2: share(500, 0)})
    assert forked(TreeMemory(), {1: status(1000), 2: status(1000)}, 60) == 960


def test_a_share_that_cannot_be_read_is_all_that_is_resident(rollups: dict[int, Rollup]) -> None:
    assert forked(TreeMemory(), {1: status(100)}, 60) == 100


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look takes a second."""
    clock = (float(second) for second in range(1000))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))


def test_between_two_exact_looks_a_share_grows_with_the_resident_size(
    rollups: dict[int, Rollup], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch)
    memory = TreeMemory()
    rollups[1] = share(10, 10)
    assert forked(memory, {1: status(100)}, 0) == 10
    rollups[1] = share(50, 50)
    assert forked(memory, {1: status(120)}, 0) == 30


def test_processes_there_was_no_time_for_are_like_the_others(
    rollups: dict[int, Rollup], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch)
    memory = TreeMemory()
    rollups.update({pid: share(30, 10) for pid in range(9)})
    statuses = {pid: status(100) for pid in range(9)}
    assert forked(memory, statuses, 1000) == pytest.approx(90, abs=1)
    assert len(memory._shares) == 1
    forked(memory, statuses, 1000)
    assert len(memory._shares) == 2


def test_a_sandbox_has_at_least_what_its_largest_process_has(rollups: dict[int, Rollup]) -> None:
    """A fork that was not there for the look has a share of the large one's memory already."""
    rollups.update({1: share(200, 0), 2: share(10, 10)})
    memory, statuses = TreeMemory(), {1: status(400), 2: status(10)}
    assert memory.exact(statuses, memory.read(statuses, None)).anon == 400 * MIB


def test_shared_memory_mapped_by_many_counts_once(rollups: dict[int, Rollup]) -> None:
    rollups.update({pid: share(0, 0, shmem=25) for pid in range(4)})
    memory = TreeMemory().read({pid: status(1, shmem=100) for pid in range(4)}, None)
    assert memory == Memory(anon=4 * MIB, shmem=100 * MIB, kernel=0)
