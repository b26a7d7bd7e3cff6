"""The state before a cell, kept as a fork of the kernel process that can take its place.

The kernel process forks in idle time. The child sleeps; it *is* the state, shared copy-on-write. If
the kernel process is killed, the supervisor wakes the child, which gives itself new sockets and
threads and goes on as the kernel (``bridge``). If it is not needed, it is killed in its sleep.

A fork has one thread only and shares open files: what that loses is noted beside the state. Where
there is no room for one, the kernel goes on without, and says so (``NotMade``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import random
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Set
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from .descriptors import (
    Descriptor,
    far_ends,
    file_positions,
    open_descriptors,
    put,
    tracker_descriptors,
)
from .processes import SLEEPING, all_pids, children_of, is_users, kill
from .renewal import (
    calm_openmp,
    count_gpus,
    count_shared_memory,
    native_threads,
    renew_thread_pools,
    threads_come_again,
)

DESK_DESCRIPTOR = 3
# First choice of the out-of-memory killer is the process that runs cells, never the state it had.
OOM_FIRST = b"1000"
ORDER_BYTES = 256
# Only a process that a cell forks at the same moment could have it take so long.
CLOSE_MILLISECONDS = 1000
PR_SET_NAME = 15
PR_GET_NAME = 16
NAME_BYTES = 16
# Found before the first fork: to look for it in one would write to many pages.
prctl = ctypes.CDLL(None).prctl
# A debugger puts its own in its place later, which has every child debugged.
plain_fork = os.fork


class NotMade(Exception):
    """No checkpoint could be made, for want of memory, processes or descriptors."""


class Pipes(NamedTuple):
    """Between the kernel process and a checkpoint: one wakes it, one tells what it has closed."""

    wake_read: int
    wake_write: int
    closed_read: int
    closed_write: int

    @classmethod
    def make(cls) -> Pipes:
        wake = os.pipe()
        try:
            return cls(*wake, *os.pipe())
        except OSError:
            for number in wake:
                os.close(number)
            raise


class Awakening(NamedTuple):
    """What a checkpoint knows when it is told to take over."""

    socket_prefix: str
    lost: dict[str, int]
    random_state: Any


class Checkpoints:
    """Makes checkpoints of this process. Used by the main thread only, outside the event loop."""

    def __init__(self, own_threads: Callable[[], set[threading.Thread]]) -> None:
        self._desk = socket.socket(fileno=DESK_DESCRIPTOR)
        self._supervisor = os.getppid()
        self._own_threads = own_threads
        self._oom_base = Path("/proc/self/oom_score_adj").read_bytes()
        write_about_self("oom_score_adj", OOM_FIRST)
        self._sleeping: list[int] = []
        # Pipes that the supervisor opens by their numbers: see `_hand_over`.
        self._held: list[int] = []
        self._hide_from_wait()

    def take(self, label: int, plumbing: Set[Descriptor], streams: Set[int]) -> Awakening | None:
        """Fork. The parent returns at once with ``None``; the child when it is to take over.

        ``plumbing`` are descriptors of sockets and threads that do not live in a fork; ``streams``
        the numbers of others that are the kernel's. ``NotMade`` is raised in the parent only.
        """
        kernel_pid = os.getpid()
        while self._held:
            with contextlib.suppress(OSError):  # a cell has closed it
                os.close(self._held.pop())
        try:
            return self._take(label, plumbing, streams)
        except OSError as error:
            if os.getpid() != kernel_pid:
                raise
            with contextlib.suppress(OSError):  # a cell has closed the desk
                self._desk.send(b"unmade %d" % label)
            raise NotMade(error.strerror or str(error)) from error

    def _take(self, label: int, plumbing: Set[Descriptor], streams: Set[int]) -> Awakening | None:
        descriptors = open_descriptors()
        positions = file_positions(descriptors)
        ends = far_ends(descriptors - plumbing, streams | tracker_descriptors())
        threads = self.foreign_threads()
        # The `random` module seeds itself anew in a fork; this one is to go on where it was.
        random_state = random.getstate()
        # What is changed from now on is not in it; the supervisor may hear of it some time later.
        made = time.time_ns()
        pipes = Pipes.make()
        name = get_name()
        # The child has its name from its first moment on: who looks takes it for what it is.
        set_name(SLEEPING)
        try:
            pid = fork()
        except OSError:  # no memory or no process left for it
            set_name(name)
            for number in pipes:
                os.close(number)
            raise
        if pid:
            set_name(name)
            self._reap()
            self._sleeping.append(pid)
            self._hand_over(label, pid, made, pipes, waits=bool(ends))
            return None
        # Little is done before the sleep: every cell pays for it, and every page that is written
        # to is a copy.
        os.close(pipes.wake_write)
        os.close(pipes.closed_read)
        # Out of reach of interrupts and of a cell that kills its own process group.
        os.setsid()
        write_about_self("oom_score_adj", self._oom_base)
        # The wrapper must see it if a connection is closed, and so must the other end of what a
        # cell closes: these copies must not stay open. The Python objects around the plumbing are
        # kept for ever. A number that was closed before may be another file's.
        for number in (*ends, *(descriptor.number for descriptor in plumbing & descriptors)):
            with contextlib.suppress(OSError):  # closed by what libraries do in a fork
                os.close(number)
        os.close(pipes.closed_write)
        processes = count_older_processes(self._supervisor)
        order = os.read(pipes.wake_read, ORDER_BYTES)
        if not order:
            os._exit(0)
        os.close(pipes.wake_read)
        prefix, _, native = order.decode().partition(" ")
        has_native_threads = native.isdecimal() and int(native) > 0
        write_about_self("oom_score_adj", OOM_FIRST)
        set_name(name)
        make_objects_old()
        self._sleeping.clear()
        for number, position in positions.items():
            with contextlib.suppress(OSError):  # matplotlib closes its fonts in a fork
                os.lseek(number, position, os.SEEK_SET)
        for number, end in ends.items():
            put(end.again(), number)
        if threads:
            renew_thread_pools()
        openmp = calm_openmp() if has_native_threads else 0
        # Those of OpenMP are said to be lost as a pool.
        if has_native_threads and not openmp and not threads_come_again():
            threads += int(native)
        lost = {
            "threads": threads,
            "children": processes,
            "sockets": sum(end.is_connection for end in ends.values()),
            "shared": count_shared_memory(),
            "gpu": count_gpus(),
            "openmp": openmp,
        }
        return Awakening(prefix, lost, random_state)

    def _hand_over(self, label: int, pid: int, made: int, pipes: Pipes, *, waits: bool) -> None:
        """Let the supervisor have the checkpoint that has just been forked."""
        os.close(pipes.wake_read)
        os.close(pipes.closed_write)
        try:
            if waits:
                # The next cell may close its own and count on that nobody has them any more. By poll:
                # the number may be too large for select.
                closed = select.poll()
                closed.register(pipes.closed_read, select.POLLIN)
                closed.poll(CLOSE_MILLISECONDS)
            # Now, not before the fork: libraries that start theirs again have ended them for it.
            word = b"checkpoint %d %d %d %d" % (label, pid, made, max(0, native_threads()))
            try:
                socket.send_fds(self._desk, [word], [pipes.wake_write])
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                # The user, whose other programs send descriptors too, has too many on their way. The
                # supervisor can open it by its number here, for as long as it is open.
                held = os.dup(pipes.wake_write)
                self._held.append(held)
                self._desk.send(word + b" %d" % held)
        except OSError:  # a cell has closed the desk
            kill(pid, signal.SIGKILL)
            raise
        finally:
            os.close(pipes.closed_read)
            os.close(pipes.wake_write)

    def announce(self, label: int, lost: dict[str, int]) -> None:
        """Tell the supervisor that this process is the kernel now, and what a fork could not keep."""
        words = [f"{name}={count}" for name, count in lost.items() if count]
        self._desk.send(" ".join(["restored", str(label), *words]).encode())

    def foreign_threads(self) -> int:
        """How many threads are not the kernel's own: they may change the state at any time."""
        return len(set(threading.enumerate()) - self._own_threads())

    def _reap(self) -> None:
        """Collect checkpoints that the supervisor has ended."""
        self._sleeping = [pid for pid in self._sleeping if not is_over(pid)]

    def _hide_from_wait(self) -> None:
        """``os.wait`` is for the user's children: it never tells of ours, nor waits for them alone."""

        def hiding(wait: Any, is_for_all: Any, pid_of: Any) -> Any:
            @wraps(wait)
            def wait_for_others(*args: Any, **kwargs: Any) -> Any:
                if not is_for_all(args):
                    return wait(*args, **kwargs)
                while True:
                    self._reap()
                    sleeping = set(self._sleeping)
                    if not children_of(os.getpid()) - sleeping:
                        raise ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))
                    found = wait(*args, **kwargs)
                    if pid_of(found) not in sleeping:
                        return found

            return wait_for_others

        def first(found: Any) -> Any:
            return found[0]

        os.wait = hiding(os.wait, lambda _: True, first)
        os.wait3 = hiding(os.wait3, lambda _: True, first)
        os.waitpid = hiding(os.waitpid, lambda args: args[:1] == (-1,), first)
        os.wait4 = hiding(os.wait4, lambda args: args[:1] == (-1,), first)
        os.waitid = hiding(
            os.waitid, lambda args: args[:1] == (os.P_ALL,), lambda found: found and found.si_pid
        )


def fork() -> int:
    if sys.version_info < (3, 12):
        return plain_fork()
    with warnings.catch_warnings():
        # It warns that other threads are lost: they are, and the receipt says so.
        warnings.simplefilter("ignore", DeprecationWarning)
        return plain_fork()


def get_name() -> bytes:
    name = ctypes.create_string_buffer(NAME_BYTES)
    prctl(PR_GET_NAME, name, 0, 0, 0)
    return name.value


def set_name(name: bytes) -> None:
    """Of this process, by its main thread: gVisor has no writable ``/proc/self/comm``."""
    prctl(PR_SET_NAME, name, 0, 0, 0)


def write_about_self(name: str, value: bytes) -> None:
    with contextlib.suppress(PermissionError):  # at `restricted` /proc is for reading only
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(descriptor, value)
        os.close(descriptor)


def make_objects_old() -> None:
    """Without a look at them. As young ones they are walked through as soon as this process makes
    objects of its own, and a list may have millions of items that somebody waits for."""
    if not gc.get_freeze_count():  # what a cell has frozen stays so
        gc.freeze()
        gc.unfreeze()


def is_over(pid: int) -> bool:
    """Whether a child has ended; if so, it is collected."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # by a cell that waits for all, or ignores SIGCHLD
        return True


def count_older_processes(supervisor: int) -> int:
    """How many processes cells have left running, whoever they are children of by now."""
    kernel, this = os.getppid(), os.getpid()
    return sum(is_users(pid) for pid in all_pids(supervisor) - {kernel} if pid < this)
