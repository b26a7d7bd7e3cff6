"""The open files of a kernel process: which are whose, and how they are made again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import sys
from collections import defaultdict
from collections.abc import Iterable, Set
from typing import Any, NamedTuple

# No access that an open file can have.
CLOSED = -1
INTERNET = (socket.AF_INET, socket.AF_INET6)
TRACKERS = (
    "multiprocessing.resource_tracker",
    "joblib.externals.loky.backend.resource_tracker",
)


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
        except OSError:  # closed meanwhile, by a thread
            return None
        try:
            if each.family not in INTERNET:
                return None
            listens = bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            with contextlib.suppress(OSError):  # not connected
                peer = each.getpeername()
            blocking = os.get_blocking(number)
            return cls(each.family, each.type, each.getsockname(), peer, listens, blocking)
        except OSError:  # the same
            return None
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
        accesses = {number: access_of(number) for number in numbers}
        accesses = {number: access for number, access in accesses.items() if access != CLOSED}
        if own.isdisjoint(numbers) and set(accesses.values()) in ({os.O_RDONLY}, {os.O_WRONLY}):
            ends.update((number, PipeEnd(access)) for number, access in accesses.items())
    return ends


def access_of(number: int) -> int:
    """Whether a descriptor is for reading, writing or both."""
    try:
        return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:  # a thread has closed it since it was listed
        return CLOSED


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
