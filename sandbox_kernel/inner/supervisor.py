"""The sandbox's first process: a supervisor that starts the kernel process and outlives it.

It holds the lifeline, a stream socket to the wrapper; when that closes, the supervisor ends, and with
it every process of its pid namespace. Where it has none (``restricted``), it adopts whoever loses their
parent, and kills all below it first. It keeps the list of checkpoints: sleeping forks of the kernel
process, each of which can take its place (``checkpoint``). The kernel process and its checkpoints
report to a desk, a datagram socket; cells can write there too, and harm their own state by it.

Over the lifeline come lines of words:

    interrupt                        SIGINT to the kernel process and its group
    sweep TICKS [BEFORE]             kill what was started since TICKS (and before BEFORE), but the
                                     kernel process
    rollback LABEL|previous PREFIX   kill all but checkpoints, wake one: it connects to PREFIX
    forget                           end the previous checkpoint, to have its memory back
    count                            say how many checkpoints there are, and of which cell

and these go back: ``clock TICKS`` (the time in here, at first), ``exited STATUS``, ``swept COUNT THREADS``
(processes, ended; threads of the kernel process that were started since, and are left),
``restored LABEL LOST`` (``unmade`` among LOST: what came after it could not be kept), ``nothing`` (to roll
back to), ``checkpoints COUNT LABEL`` (those that follow each other cell by cell, up to the newest).

Imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from .changed_files import count_files_changed
from .processes import (
    FIRST,
    alive,
    all_pids,
    forbid_forks,
    is_users,
    kill,
    killpg,
    parent_of,
    signal_all,
    started,
    threads_of,
    will_live,
)
from .shares import take_shares

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
HIGHEST_CAPABILITY = 63
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CAPABILITY_VERSION_3 = 0x20080522

# Where `checkpoint` finds the desk.
DESK_DESCRIPTOR = 3
# The one before the next cell, and the one before the last cell, for undo.
CHECKPOINTS_KEPT = 2
# A killed process may be stuck in the kernel; the wrapper replaces the sandbox if this is not enough.
DEATH_SECONDS = 10.0
DESK_MESSAGES_AT_ONCE = 64
# What a checkpoint says it lacks, as `checkpoint` counts it.
LOST = ("threads", "children", "sockets", "gpu", "openmp", "shared")
# More of one thing is said to be so many.
MOST = 999_999
# By so much the wrapper's word on when a cell began may be wrong; gVisor has a clock of its own.
SAME_MOMENT_TICKS = 10


def libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def give_up_capabilities() -> None:
    """Empty every capability set, the bounding set included, for good."""
    c = libc()
    for capability in range(HIGHEST_CAPABILITY + 1):
        c.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    c.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if c.capset(struct.pack("Ii", CAPABILITY_VERSION_3, 0), bytes(24)) != 0:
        msg = "cannot give up the capabilities"
        raise OSError(msg)


def close_from(first: int, end: int, kept: int | None) -> None:
    """Close every descriptor from ``first`` to ``end`` but one."""
    if kept is not None:
        os.closerange(first, kept)
        first = kept + 1
    os.closerange(first, end)


def start_kernel(connection_file: str, settings: dict[str, Any], desk: socket.socket) -> int:
    """Fork the kernel process, which has one end of ``desk``; it never returns from here."""
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    os.dup2(desk.fileno(), DESK_DESCRIPTOR, inheritable=False)
    # The lifeline and the desk's other end among them.
    close_from(DESK_DESCRIPTOR + 1, 1 << 10, settings.get("run_descriptor"))
    # Its own session and group, as jupyter_client starts kernels: an interrupt reaches the cell's
    # children, never the supervisor.
    os.setsid()
    # Thousands of objects are about to be made and kept: `bridge` turns collection on again.
    gc.disable()
    if "confinement" in settings:
        import_module(".confine", __package__).confine(settings["confinement"], supervisor)
    import_module(".bridge", __package__).main(connection_file)
    os._exit(0)


class Checkpoint(NamedTuple):
    """A sleeping fork of the kernel process: wakes at a word on ``wake``, ends when it closes."""

    label: int  # the last cell whose effects are in it
    pid: int
    wake: int
    made: int  # in nanoseconds since the epoch
    native_threads: int  # which libraries had started, and it has not
    # The first state that came after it and could not be kept, by the last cell in it.
    unmade: int | None = None

    def end(self, supervisor: Supervisor) -> None:
        os.close(self.wake)
        # It may have ended, and its number be another's by now.
        if supervisor.may_have(self.pid):
            kill(self.pid, signal.SIGKILL)


class Supervisor:
    """Serves the lifeline and the desk, and reaps, until the lifeline closes."""

    def __init__(self, kernel_pid: int, lifeline: socket.socket, desk: socket.socket) -> None:
        self._kernel_pid = kernel_pid
        self._lifeline = lifeline
        self._desk = desk
        desk.setblocking(False)
        self._checkpoints: list[Checkpoint] = []
        # Of the last rollback: processes that were there when the checkpoint was made, and files that
        # were changed since.
        self._processes_lost = 0
        self._files_changed = 0
        # Of one under way: the user's processes it ended, and where the checkpoint is to connect to.
        self._ended: list[int] = []
        self._waking = ""
        # The cell whose state was asked for, and whether the checkpoint that was woken is older.
        self._wanted = 0
        self._is_older = False
        self._pending = b""
        self._wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        # The first process of a namespace gets only signals it handles: cells cannot end it. Any other
        # would leave processes behind if it ended of one.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        self._say("clock", int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_SECOND))
        self._reap()
        while True:
            sources = [self._lifeline.fileno(), self._desk.fileno(), self._wakeup]
            readable, _, _ = select.select(sources, [], [])
            if self._wakeup in readable:
                self._drain_wakeup()
                self._reap()
            if self._desk.fileno() in readable:
                self._read_desk()
            if self._lifeline.fileno() in readable:
                self._read_lifeline()

    def end(self) -> None:
        """Leave nothing behind. Without a namespace that would be those whom nobody ends."""
        if os.getpid() != FIRST:
            self._kill(lambda _: True)

    def _say(self, word: str, *numbers: int, **counts: int) -> None:
        """Say a line. Only numbers go into it: a cell may have made up what it is about."""
        values = [b"%d" % number for number in numbers]
        values += [b"%s=%d" % (name.encode("ascii"), count) for name, count in counts.items()]
        self._lifeline.sendall(b" ".join([word.encode("ascii"), *values]) + b"\n")

    def _reap(self) -> None:
        """Collect every ended child; tell of the kernel process if it is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._kernel_pid:
                self._kernel_pid = 0
                if self._waking:
                    # It was dying already, by a cell's hand: perhaps there is an older one.
                    self._wake_newest()
                else:
                    self._say("exited", status)

    def _read_lifeline(self) -> None:
        received = self._lifeline.recv(4096)
        if not received:
            self.end()
            os._exit(0)
        *lines, self._pending = (self._pending + received).split(b"\n")
        for line in lines:
            command, *words = line.decode("ascii").split()
            if command == "interrupt" and self._kernel_pid:
                killpg(self._kernel_pid, signal.SIGINT)
            elif command == "sweep":
                self._say("swept", *self._sweep(*map(int, words)))
            elif command == "rollback":
                self._roll_back(words[0], words[1])
            elif command == "forget":
                self._read_desk()
                self._forget_beyond(1)
            elif command == "count":
                self._read_desk()
                self._forget_dead()
                self._say("checkpoints", self._count_in_a_row(), self._newest_label())

    # -- checkpoints -------------------------------------------------------------------------------

    def _read_desk(self) -> None:
        for _ in range(DESK_MESSAGES_AT_ONCE):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._desk, 1024, 8)
            except BlockingIOError:
                return
            word, _, rest = data.decode("ascii", "replace").partition(" ")
            numbers = [int(number) for number in rest.split() if is_number(number)]
            if word == "checkpoint" and len(numbers) == 5:
                descriptors += self._open_pipe(numbers.pop())
            if word == "checkpoint" and len(numbers) == 4 and len(descriptors) == 1:
                label, pid, made, native_threads = numbers
                if self.may_have(pid):
                    self._add(Checkpoint(label, pid, descriptors[0], made, native_threads))
                    continue
            for descriptor in descriptors:
                os.close(descriptor)
            if word == "restored" and self._waking and rest.split():
                self._tell_restored(rest)
            elif word == "unmade" and len(numbers) == 1:
                self._note_unmade(*numbers)

    def _open_pipe(self, number: int) -> list[int]:
        """The end to write to of a pipe that the kernel process has open; none if it is no pipe."""
        path = f"/proc/{self._kernel_pid}/fd/{number}"
        try:
            # Anything else may do something when it is opened.
            if not stat.S_ISFIFO(os.stat(path).st_mode):
                return []
            return [os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)]
        except OSError:  # closed meanwhile
            return []

    def may_have(self, pid: int) -> bool:
        """Whether it can be a checkpoint. Cells can write at the desk too, and what is said there to be
        one is killed some time: it must not be a process of somebody else's."""
        return parent_of(pid) in (self._kernel_pid, os.getpid())

    def _add(self, checkpoint: Checkpoint) -> None:
        if self._checkpoints and self._checkpoints[-1].label == checkpoint.label:
            self._forget_newest()
        self._checkpoints.append(checkpoint)
        self._forget_beyond(CHECKPOINTS_KEPT)

    def _note_unmade(self, label: int) -> None:
        """The newest checkpoint is of an earlier state than the one there is now."""
        if self._checkpoints and self._checkpoints[-1].unmade is None:
            self._checkpoints[-1] = self._checkpoints[-1]._replace(unmade=label)

    def _count_in_a_row(self) -> int:
        """How many checkpoints there are, up to the newest, with no state missing between them."""
        count = min(1, len(self._checkpoints))
        for newer, older in pairwise(reversed(self._checkpoints)):
            if older.unmade not in (None, newer.label):
                break
            count += 1
        return count

    def _newest_label(self) -> int:
        return self._checkpoints[-1].label if self._checkpoints else 0

    def _tell_restored(self, words: str) -> None:
        """Pass on what a checkpoint says, with what can be seen from here only."""
        label, *items = words.split()
        if not is_number(label):
            return  # not said by a checkpoint: it is still waited for
        self._waking = ""
        said = dict(item.split("=", 1) for item in items if "=" in item)
        counts = {name: int(said.get(name, "0")) for name in LOST if is_number(said.get(name, "0"))}
        # It counts in its own time: a rollback may come first and end what it would have counted.
        counts["children"] = max(self._processes_lost, counts.get("children", 0))
        counts |= {"files": self._files_changed, "unmade": int(self._is_older)}
        self._say("restored", int(label), **{name: min(n, MOST) for name, n in counts.items()})

    def _forget_dead(self) -> None:
        """A cell, or the out-of-memory killer, may have ended some."""
        for checkpoint in [each for each in self._checkpoints if not will_live(each.pid)]:
            self._checkpoints.remove(checkpoint)
            os.close(checkpoint.wake)

    def _forget_newest(self) -> None:
        if self._checkpoints:
            self._checkpoints.pop().end(self)

    def _forget_beyond(self, kept: int) -> None:
        while len(self._checkpoints) > kept:
            self._checkpoints.pop(0).end(self)

    def _roll_back(self, to: str, prefix: str) -> None:
        """Let a checkpoint take the kernel process's place, with nothing left of what came since."""
        # Before all else: whatever takes time here, a storm of forks has as well.
        signal_all(signal.SIGSTOP)
        self._read_desk()
        if to == "previous":
            self._forget_newest()
            self._wanted = self._newest_label()
        else:
            self._wanted = int(to)
            # A cell may end, and its state be kept, just before the wrapper has it killed.
            while len(self._checkpoints) > 1 and self._newest_label() > self._wanted:
                self._forget_newest()
        spared = {checkpoint.pid for checkpoint in self._checkpoints}
        deadline = time.monotonic() + DEATH_SECONDS
        forbid_forks(lambda pid: pid not in spared, deadline)
        others = all_pids(os.getpid()) - {self._kernel_pid}
        self._ended = [pid for pid in others if is_users(pid)]
        self._kernel_pid = 0
        self._kill_stopped(lambda pid: pid not in spared, deadline)
        self._waking = prefix
        self._wake_newest()

    def _wake_newest(self) -> None:
        while self._checkpoints:
            checkpoint = self._checkpoints.pop()
            self._files_changed = count_files_changed(checkpoint.made)
            self._processes_lost = sum(pid < checkpoint.pid for pid in self._ended)
            unmade = checkpoint.unmade
            self._is_older = unmade is not None and unmade <= self._wanted
            if wake(checkpoint, self._waking):
                self._kernel_pid = checkpoint.pid
                return
        self._waking = ""
        self._say("nothing")

    # -- processes ---------------------------------------------------------------------------------

    def _sweep(self, ticks: int, end: int | None = None) -> tuple[int, int]:
        """Kill processes started at ``ticks`` (since boot) or later, up to ``end``; how many there were.

        And how many threads of the kernel process were, which nobody can kill.
        """
        self._read_desk()
        spared = {self._kernel_pid, *(checkpoint.pid for checkpoint in self._checkpoints)}
        # A cell may begin in the same tick in which the one before it has started something: that is
        # older than the checkpoint between the two, and not to be swept away with the second.
        before = self._checkpoints[-2].pid if len(self._checkpoints) > 1 else 0

        def is_new(number: int, at: int) -> bool:
            if end is not None and at > end:
                return False
            # Much later, a low number means that all have been used and it begins again.
            return at >= ticks and not (number < before and at <= ticks + SAME_MOMENT_TICKS)

        killed = self._kill(lambda pid: pid not in spared and is_new(pid, started(pid)))
        return killed, sum(is_new(*thread) for thread in threads_of(self._kernel_pid))

    def _kill(self, is_doomed: Callable[[int], bool]) -> int:
        """Kill these processes, stopped first, all at once; how many there were."""
        signal_all(signal.SIGSTOP)
        deadline = time.monotonic() + DEATH_SECONDS
        forbid_forks(is_doomed, deadline)
        return self._kill_stopped(is_doomed, deadline)

    def _kill_stopped(self, is_doomed: Callable[[int], bool], deadline: float) -> int:
        # Looked for until there are none: a process that was in the middle of a fork ends up with a
        # child that the first look did not see.
        killed = 0
        while doomed := [pid for pid in all_pids(os.getpid()) if alive(pid) and is_doomed(pid)]:
            killed += len(doomed)
            for pid in doomed:
                kill(pid, signal.SIGKILL)
            self._await_death(doomed, deadline)
            if time.monotonic() > deadline:
                break
            signal_all(signal.SIGSTOP)
        signal_all(signal.SIGCONT)
        return killed

    def _await_death(self, doomed: list[int], deadline: float) -> None:
        # A zombie whose parent lives is as dead as it gets.
        while any(map(alive, doomed)) and time.monotonic() < deadline:
            select.select([self._wakeup], [], [], 0.01)
            self._drain_wakeup()
            self._reap()

    def _drain_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 4096)


def is_number(word: str) -> bool:
    """Whether ``word`` is a whole number that fits 64 bits; a cell may have written it."""
    return word.isascii() and word.isdecimal() and len(word) <= 19


def wake(checkpoint: Checkpoint, prefix: str) -> bool:
    try:
        os.write(checkpoint.wake, f"{prefix} {checkpoint.native_threads}".encode())
    except BrokenPipeError:  # a cell has killed it
        return False
    finally:
        os.close(checkpoint.wake)
    return True


def main(connection_file: str) -> None:
    settings = json.loads(Path(connection_file).read_text())["sandbox"]
    # Whatever was open on the host stays out.
    close_from(DESK_DESCRIPTOR, 1 << 20, settings.get("run_descriptor"))
    take_shares()
    give_up_capabilities()
    if os.getpid() != FIRST:
        # Who loses their parent is adopted here. A supervisor that was stopped goes on when the wrapper
        # ends, and finds the lifeline closed.
        libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc().prctl(PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        os.chdir(settings["working_directory"])
    except OSError:
        # A folder of root's on a file system that cannot show it to another user; the banner says. Not
        # to a place that can be written: what is saved in it would be lost.
        os.chdir("/")
    # Descriptor 3, which the kernel process puts its end of the desk on, must be free for that.
    reserved = os.open("/dev/null", os.O_RDONLY)
    lifeline = socket.socket(socket.AF_UNIX)
    lifeline.connect(settings["lifeline"])
    desk, kernel_desk = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    kernel_pid = start_kernel(connection_file, settings, kernel_desk)
    # Same user as the cells: without this a cell could read or trace the supervisor.
    libc().prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.close(reserved)
    kernel_desk.close()
    supervisor = Supervisor(kernel_pid, lifeline, desk)
    try:
        supervisor.serve()
    finally:
        supervisor.end()
