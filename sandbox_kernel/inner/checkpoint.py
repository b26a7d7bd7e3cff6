"""The state before a cell, kept as a fork of the kernel process that can take its place.

The kernel process forks in idle time. The child sleeps; it *is* the state, shared copy-on-write. If
the kernel process is killed, the supervisor wakes the child, which gives itself new sockets and
threads and goes on as the kernel (``bridge``). If it is not needed, it is killed in its sleep.

A fork has one thread only and shares open files: what that loses is noted beside the state.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import gc
import heapq
import os
import random
import select
import signal
import socket
import stat
import sys
import threading
import time
import warnings
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

DESK_DESCRIPTOR = 3
# First choice of the out-of-memory killer is the process that runs cells, never the state it had.
OOM_FIRST = b"1000"
SLEEPING, AWAKE = b"checkpoint", b"python"
PREFIX_BYTES = 256
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MADV_POPULATE_WRITE = 23  # Linux 5.14; older ones say that they do not know it
# An entry of /proc/self/pagemap: in memory, not of a file, mapped by nobody else.
ENTRY_BYTES = 8
EXCLUSIVE = 1 << 63 | 1 << 56
# Large areas are the user's data, and reading about them takes long.
MAX_AREA_PAGES = 1 << 14
MAX_HOT_PAGES = 1 << 12
MAX_GAP_PAGES = 1
PAGES_AT_ONCE = 256
LESSONS = (2, 8)
LESSON_INTERVAL = 64
# Only a process that a cell forks at the same moment could have it take so long.
CLOSE_SECONDS = 1.0
OPENMP = ("libgomp", "libomp", "libiomp5")
# Threads that a zmq context has, which Python does not know of.
ZMQ_THREADS = 2
INTERNET = (socket.AF_INET, socket.AF_INET6)
# Where `multiprocessing` and `mmap` have memory that is shared.
SHARED = ("/dev/shm/", "/dev/zero", "/memfd:", "/tmp/", "/home/")
TRACKERS = (
    "multiprocessing.resource_tracker",
    "joblib.externals.loky.backend.resource_tracker",
)
PR_SET_NAME = 15
# Found before the first fork: to look for it in one would write to many pages.
prctl = ctypes.CDLL(None).prctl
# A debugger puts its own in its place later, which has every child debugged.
plain_fork = os.fork


class Awakening(NamedTuple):
    """What a checkpoint knows when it is told to take over."""

    socket_prefix: str
    lost: dict[str, int]
    random_state: Any


class Checkpoints:
    """Makes checkpoints of this process. Used by the main thread only, outside the event loop."""

    def __init__(self, own_threads: Callable[[], set[threading.Thread]]) -> None:
        self._desk = socket.socket(fileno=DESK_DESCRIPTOR)
        self._own_threads = own_threads
        self._oom_base = Path("/proc/self/oom_score_adj").read_bytes()
        write_about_self("oom_score_adj", OOM_FIRST)
        self._sleeping: list[int] = []
        self._hide_from_wait()

    def take(self, label: int, plumbing: Set[Descriptor], streams: Set[int]) -> Awakening | None:
        """Fork. The parent returns at once with ``None``; the child when it is to take over.

        ``plumbing`` are descriptors of sockets and threads that do not live in a fork; ``streams``
        the numbers of others that are the kernel's.
        """
        descriptors = open_descriptors()
        positions = file_positions(descriptors)
        ends = far_ends(descriptors - plumbing, streams | tracker_descriptors())
        threads = self.foreign_threads()
        has_native_threads = native_threads() > 0
        # The `random` module seeds itself anew in a fork; this one is to go on where it was.
        random_state = random.getstate()
        # What is changed from now on is not in it; the supervisor may hear of it some time later.
        made = time.time_ns()
        wake_read, wake_write = os.pipe()
        closed_read, closed_write = os.pipe()
        try:
            pid = fork()
        except OSError:  # no memory or no process left for it: the cell runs without
            for number in (wake_read, wake_write, closed_read, closed_write):
                os.close(number)
            return None
        if pid:
            os.close(wake_read)
            os.close(closed_write)
            if ends:
                # The next cell may close its own and count on that nobody has them any more.
                select.select([closed_read], [], [], CLOSE_SECONDS)
            os.close(closed_read)
            socket.send_fds(self._desk, [b"checkpoint %d %d %d" % (label, pid, made)], [wake_write])
            os.close(wake_write)
            self._reap()
            self._sleeping.append(pid)
            return None
        # Little is done before the sleep: every cell pays for it, and every page that is written
        # to is a copy.
        set_name(SLEEPING)
        os.close(wake_write)
        os.close(closed_read)
        # Out of reach of interrupts and of a cell that kills its own process group.
        os.setsid()
        write_about_self("oom_score_adj", self._oom_base)
        # The wrapper must see it if a connection is closed, and so must the other end of what a
        # cell closes: these copies must not stay open. The Python objects around the plumbing are
        # kept for ever. A number that was closed before may be another file's.
        for number in (*ends, *(descriptor.number for descriptor in plumbing & descriptors)):
            with contextlib.suppress(OSError):  # closed by what libraries do in a fork
                os.close(number)
        os.close(closed_write)
        processes = count_older_processes()
        prefix = os.read(wake_read, PREFIX_BYTES)
        if not prefix:
            os._exit(0)
        os.close(wake_read)
        write_about_self("oom_score_adj", OOM_FIRST)
        set_name(AWAKE)
        self._sleeping.clear()
        for number, position in positions.items():
            with contextlib.suppress(OSError):  # matplotlib closes its fonts in a fork
                os.lseek(number, position, os.SEEK_SET)
        for number, end in ends.items():
            put(end.again(), number)
        if threads:
            renew_thread_pools()
        lost = {
            "threads": threads,
            "children": processes,
            "sockets": sum(end.is_connection for end in ends.values()),
            "shared": count_shared_memory(),
            "gpu": count_gpus(),
            "openmp": calm_openmp() if has_native_threads else 0,
        }
        return Awakening(prefix.decode(), lost, random_state)

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


class HotPages:
    """Memory that every cell writes to, were it only to count references.

    After a fork each of these pages is copied at the first write, and a cell of one line writes to
    well over a thousand. Between cells they are copied ahead, a few at a time.
    """

    def __init__(self) -> None:
        self._madvise = ctypes.CDLL(None).madvise
        self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        # Without it (gVisor has none) nothing is learned, and so nothing copied ahead.
        self._can_learn = os.path.exists("/proc/self/pagemap")
        self._runs: list[tuple[int, int]] = []
        self._to_copy: list[tuple[int, int]] = []
        self._cells = 0

    def learn(self) -> None:
        """After a cell: what has been copied since the fork is what cells write to."""
        if self._is_lesson:
            self._runs = runs(islice(written_pages(), MAX_HOT_PAGES))
        self._cells += 1

    @property
    def _is_lesson(self) -> bool:
        is_due = self._cells in LESSONS or self._cells % LESSON_INTERVAL == 0
        return self._can_learn and is_due

    def begin(self) -> None:
        """After a fork: all of it is to be copied, but where that would spoil a lesson."""
        self._to_copy = [] if self._is_lesson else self._runs.copy()

    def stop(self) -> None:
        """A cell begins: it copies what it needs itself."""
        self._to_copy.clear()

    def copy_some(self) -> bool:
        """Copy for a millisecond or so; whether there is more."""
        left = PAGES_AT_ONCE
        while self._to_copy and left > 0:
            first, count = self._to_copy.pop()
            # Memory that was freed meanwhile gives an error, which is no matter.
            self._madvise(first * PAGE_BYTES, count * PAGE_BYTES, MADV_POPULATE_WRITE)
            left -= count
        return bool(self._to_copy)


def written_pages() -> Iterator[int]:
    """Numbers of the anonymous pages that are this process's alone."""
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", 0) as pagemap:
        for line in maps.read().splitlines():
            addresses, permissions, *_ = line.split(maxsplit=2)
            first, end = (int(address, 16) // PAGE_BYTES for address in addresses.split("-"))
            if permissions[1] != "w" or permissions[3] != "p" or end - first > MAX_AREA_PAGES:
                continue
            pagemap.seek(first * ENTRY_BYTES)
            entries = array("Q", pagemap.read((end - first) * ENTRY_BYTES))
            for number, entry in enumerate(entries, first):
                if entry & EXCLUSIVE == EXCLUSIVE:
                    yield number


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Where consecutive numbers begin, and how many there are."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number <= sum(found[-1]) + MAX_GAP_PAGES:
            first, _ = found[-1]
            found[-1] = (first, number - first + 1)
        else:
            found.append((number, 1))
    return found


def fork() -> int:
    if sys.version_info < (3, 12):
        return plain_fork()
    with warnings.catch_warnings():
        # It warns that other threads are lost: they are, and the receipt says so.
        warnings.simplefilter("ignore", DeprecationWarning)
        return plain_fork()


def set_name(name: bytes) -> None:
    """Of this process, which has one thread: gVisor has no writable ``/proc/self/comm``."""
    prctl(PR_SET_NAME, name, 0, 0, 0)


def write_about_self(name: str, value: bytes) -> None:
    descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
    os.write(descriptor, value)
    os.close(descriptor)


class Descriptor(NamedTuple):
    """An open file: its number, which file it is, and of what kind."""

    number: int
    inode: int
    mode: int


def open_descriptors() -> set[Descriptor]:
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that listed the directory
            file = os.fstat(int(name))
            descriptors.add(Descriptor(int(name), file.st_ino, file.st_mode))
    return descriptors


def file_positions(descriptors: Iterable[Descriptor]) -> dict[int, int]:
    """Where open files stand: a fork shares the position, so the cell would move it."""
    positions = {}
    for descriptor in descriptors:
        if stat.S_ISREG(descriptor.mode):
            with contextlib.suppress(OSError):  # of a device or a cgroup that is gone
                positions[descriptor.number] = os.lseek(descriptor.number, 0, os.SEEK_CUR)
    return positions


class PipeEnd(NamedTuple):
    """An end of a pipe whose other end is another process's."""

    access: int

    @property
    def is_connection(self) -> bool:
        return False  # the process is what is lost

    def again(self) -> int:
        """The end of a pipe whose other end is closed."""
        read_end, write_end = os.pipe()
        if self.access == os.O_WRONLY:
            read_end, write_end = write_end, read_end
        os.close(write_end)
        return read_end


class InternetSocket(NamedTuple):
    """An internet socket, as far as it can be made again."""

    family: int
    kind: int
    address: Any
    peer: Any
    listens: bool
    blocking: bool

    @classmethod
    def of(cls, number: int) -> InternetSocket | None:
        """That of a descriptor, if it is one."""
        peer = None
        try:
            each = socket.socket(fileno=number)
        except OSError:  # closed meanwhile
            return None
        try:
            if each.family not in INTERNET:
                return None
            listens = bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            with contextlib.suppress(OSError):  # not connected
                peer = each.getpeername()
            blocking = os.get_blocking(number)
            return cls(each.family, each.type, each.getsockname(), peer, listens, blocking)
        finally:
            each.detach()

    @property
    def is_connection(self) -> bool:
        return self.peer is not None and self.kind == socket.SOCK_STREAM

    def again(self) -> int:
        """One like it; if it was connected, one whose other side has hung up."""
        if self.is_connection:
            made, other = socket.socketpair()
            other.close()
        else:
            made = socket.socket(self.family, self.kind)
            with contextlib.suppress(OSError):
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if self.address[1]:
                    made.bind(self.address)
                if self.listens:
                    made.listen()
                elif self.peer is not None:
                    made.connect(self.peer)
        made.setblocking(self.blocking)
        return made.detach()


def far_ends(
    descriptors: Iterable[Descriptor], own: Set[int]
) -> dict[int, PipeEnd | InternetSocket]:
    """The user's internet sockets, and those pipes of which another process has the other end.

    If a sleeping fork had them too, nothing would be told when a cell closes them, and ports would
    stay taken.
    """
    ends: dict[int, PipeEnd | InternetSocket] = {}
    pipes: defaultdict[int, list[int]] = defaultdict(list)
    for number, inode, mode in descriptors:
        if stat.S_ISFIFO(mode):
            pipes[inode].append(number)
        elif stat.S_ISSOCK(mode) and number not in own:
            internet_socket = InternetSocket.of(number)
            if internet_socket is not None:
                ends[number] = internet_socket
    for numbers in pipes.values():
        accesses = {fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE for number in numbers}
        if own.isdisjoint(numbers) and accesses in ({os.O_RDONLY}, {os.O_WRONLY}):
            ends.update((number, PipeEnd(*accesses)) for number in numbers)
    return ends


def tracker_descriptors() -> set[int]:
    """Pipes to processes that remove shared memory when nobody has their other end any more."""
    modules = filter(None, map(sys.modules.get, TRACKERS))
    numbers = {module._resource_tracker._fd for module in modules}
    return numbers - {None}


def put(made: int, number: int) -> None:
    """Give a descriptor another number."""
    if made != number:
        os.dup2(made, number, inheritable=False)
        os.close(made)


def connections_to(prefix: str) -> set[Descriptor]:
    """Unix sockets that are connected to files whose names, in whatever directory, begin so."""
    found = set()
    for descriptor in open_descriptors():
        if stat.S_ISSOCK(descriptor.mode):
            with (
                contextlib.suppress(OSError),
                socket.socket(fileno=os.dup(descriptor.number)) as each,
            ):
                name = each.getpeername() if each.family == socket.AF_UNIX else ""
                if os.path.basename(str(name)).startswith(prefix):
                    found.add(descriptor)
    return found


def is_over(pid: int) -> bool:
    """Whether a child has ended; if so, it is collected."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # by a cell that waits for all, or ignores SIGCHLD
        return True


def count_older_processes() -> int:
    """How many processes cells have left running, whoever they are children of by now."""
    kernel, this = os.getppid(), os.getpid()
    return sum(is_users(pid) for pid in all_pids() - {1, kernel} if pid < this)


def all_pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def parent_of(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[1])


def is_users(pid: int) -> bool:
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return rest.split()[0] not in "ZX" and not name.endswith(f"({SLEEPING.decode()}")


def children_of(pid: int) -> set[int]:
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):  # gVisor
        return {child for child in all_pids() if parent_of(child) == pid}
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            children.update(map(int, (task / "children").read_text().split()))
    return children


def native_threads() -> int:
    """How many threads libraries have started, past Python."""
    return len(os.listdir("/proc/self/task")) - threading.active_count() - ZMQ_THREADS


def count_gpus() -> int:
    links = (f"/proc/self/fd/{descriptor.number}" for descriptor in open_descriptors())
    gpus = ("/dev/nvidia", "/dev/dri", "/dev/kfd")
    return sum(os.readlink(link).startswith(gpus) for link in links)


def count_shared_memory() -> int:
    """Blocks of memory that are shared with whoever maps them: this fork has not its own."""
    inodes = set()
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        _, permissions, _, _, inode, *name = line.split(maxsplit=5)
        # Locks of `multiprocessing` are no data.
        is_data = name and name[0].startswith(SHARED) and not name[0].startswith("/dev/shm/sem.")
        if permissions == "rw-s" and is_data:
            inodes.add(inode)
    return len(inodes)


def renew_thread_pools() -> None:
    """Let thread pools start threads again: they count on those that the fork has lost."""
    module = sys.modules.get("concurrent.futures.thread")
    if module is None or not module._threads_queues:
        return
    # By type: `isinstance` asks the objects, and some would answer with code of the user's.
    pools = [each for each in gc.get_objects() if issubclass(type(each), module.ThreadPoolExecutor)]
    for pool in pools:
        pool._threads.clear()
        pool._idle_semaphore = threading.Semaphore(0)
        pool._shutdown_lock = threading.Lock()
        if not pool._work_queue.empty() and not pool._shutdown:
            pool._adjust_thread_count()


def calm_openmp() -> int:
    """One thread for OpenMP libraries: GNU's waits for ever for the pool that the fork lost."""
    libraries = {
        line.split(maxsplit=5)[5].strip()
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines()
        if any(f"/{name}" in line for name in OPENMP)
    }
    for library in libraries:
        ctypes.CDLL(library).omp_set_num_threads(1)
    return len(libraries)


def renew_event_loop(loop: Any, dropped: Collection[int]) -> None:
    """Give ``loop`` a selector of its own; its tasks, timers and callbacks stay as they are.

    A fork shares the old one's epoll instance with its parent. ``dropped`` are descriptors whose
    handlers belong to dead sockets.
    """
    old = loop._selector
    own_pipe = loop._ssock.fileno()
    loop._selector = type(old)()
    for descriptor, key in list(old.get_map().items()):
        if descriptor not in dropped and descriptor != own_pipe:
            with contextlib.suppress(OSError):  # closed by what libraries do in a fork
                loop._selector.register(descriptor, key.events, key.data)
    old.close()
    # A callback of a dead socket would end the process: libzmq checks what it reads.
    loop._ready = type(loop._ready)(h for h in loop._ready if not is_for_zmq(h))
    loop._scheduled = [h for h in loop._scheduled if not is_for_zmq(h)]
    heapq.heapify(loop._scheduled)
    loop._ssock.close()
    loop._csock.close()
    loop._internal_fds -= 1
    loop._make_self_pipe()
    wake_for_signals(loop)
    asyncio.set_event_loop(loop)


def wake_for_signals(loop: Any) -> None:
    """Let signals wake ``loop``: a cell that awaits is to hear of an interrupt at once."""
    signal.set_wakeup_fd(loop._csock.fileno(), warn_on_full_buffer=False)


def is_for_zmq(handle: Any) -> bool:
    """Whether an event loop's handle calls into a zmq stream, by way of tornado or not."""
    parts = [handle._callback, *(handle._args or ())]
    parts += [part.func for part in parts if isinstance(part, partial)]
    return any(module_of(part).startswith("zmq.") for part in parts)


def module_of(part: Any) -> str:
    try:
        return str(part.__module__)
    except Exception:  # an object of the user's may do anything
        return ""
