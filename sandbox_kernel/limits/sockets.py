"""Memory in the buffers of a sandbox's sockets, by the kernel's own list (``sock_diag``).

A process's resident size does not have it, nor does any file in ``/proc``. The list is of one network
namespace, and a netlink socket stays in the namespace that it was made in: a child of ours goes into the
sandbox's, makes the socket there and hands it back. Sockets that no process has open, because they are on
their way over another one, are in the list too.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import warnings
import weakref
from contextlib import ExitStack
from typing import Final

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_NS_GET_USERNS: Final = 0xB701
_ALL_STATES: Final = 0xFFFFFFFF
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_RECEIVE_BYTES: Final = 1 << 18
_HAND_BACK_SECONDS: Final = 2.0
# The attribute with the sizes of buffers (SK_MEMINFO), by family, and where attributes begin.
_UNIX_DIAG_MEMINFO, _UNIX_BYTES = 5, 16
_INET_DIAG_SKMEMINFO, _INET_BYTES = 7, 72
_NETLINK_DIAG_MEMINFO, _NETLINK_BYTES = 0, 28
_UDIAG_SHOW_MEMINFO, _NDIAG_SHOW_MEMINFO, _NDIAG_ALL = 0x20, 0x1, 0xFF
# In SK_MEMINFO: received and not read, sent and not received, backlog. Forward allocation is memory of the
# protocol's that is reserved for this socket.
_RMEM, _WMEM, _FORWARD, _WMEM_QUEUED, _BACKLOG = 0, 2, 4, 5, 7
_SIZES: Final = struct.Struct("=8I")
_TCP, _UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP


def _inet_request(family: int, protocol: int) -> bytes:
    extensions = 1 << (_INET_DIAG_SKMEMINFO - 1)
    return struct.pack("=BBBBI", family, protocol, extensions, 0, _ALL_STATES) + bytes(48)


_REQUESTS: Final = (
    struct.pack("=BBHIIIQ", socket.AF_UNIX, 0, 0, _ALL_STATES, 0, _UDIAG_SHOW_MEMINFO, 0),
    struct.pack("=BBHIIQ", socket.AF_NETLINK, _NDIAG_ALL, 0, 0, _NDIAG_SHOW_MEMINFO, 0),
    *(
        _inet_request(family, protocol)
        for family in (socket.AF_INET, socket.AF_INET6)
        for protocol in (_TCP, _UDP)
    ),
)
_ATTRIBUTES: Final[dict[int, tuple[int, int]]] = {
    socket.AF_UNIX: (_UNIX_BYTES, _UNIX_DIAG_MEMINFO),
    socket.AF_NETLINK: (_NETLINK_BYTES, _NETLINK_DIAG_MEMINFO),
}


class SocketList:
    """The sockets of the network namespace that a process is in; raises ``OSError`` if it has none."""

    def __init__(self, pid: int) -> None:
        self._socket = _socket_in_namespace_of(pid)
        # It ends with its meter, which nobody closes.
        weakref.finalize(self, self._socket.close)
        # Protocols that this kernel cannot list: a module that is missing.
        self._requests = list(_REQUESTS)

    def buffered_bytes(self) -> int:
        """What all of them hold."""
        total = 0
        for request in list(self._requests):
            try:
                total += self._dump(request)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT):
                    raise
                self._requests.remove(request)
        return total

    def _dump(self, request: bytes) -> int:
        size = _HEADER.size + len(request)
        self._socket.send(
            _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, 0, 0) + request
        )
        fixed, wanted = _ATTRIBUTES.get(request[0], (_INET_BYTES, _INET_DIAG_SKMEMINFO))
        total = 0
        while True:
            data = self._socket.recv(_RECEIVE_BYTES)
            position = 0
            while position + _HEADER.size <= len(data):
                length, kind, *_ = _HEADER.unpack_from(data, position)
                if kind == _DONE:
                    return total
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", data, position + _HEADER.size)
                    raise OSError(-code, os.strerror(-code))
                start = position + _HEADER.size + fixed
                total += _held(data, start, position + length, wanted)
                position += (length + 3) & ~3


def _held(data: bytes, position: int, end: int, wanted: int) -> int:
    """Bytes in the buffers of the socket whose attributes these are.

    What was sent over a unix socket or loopback counts with its sender (``wmem``) or its receiver
    (``rmem``), never with both.
    """
    while position + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        if kind == wanted and length >= _ATTRIBUTE.size + _SIZES.size:
            sizes = _SIZES.unpack_from(data, position + _ATTRIBUTE.size)
            sent = max(sizes[_WMEM], sizes[_WMEM_QUEUED])
            return int(sizes[_RMEM] + sent + sizes[_FORWARD] + sizes[_BACKLOG])
        position += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return 0


def _socket_in_namespace_of(pid: int) -> socket.socket:
    """A netlink socket that lists sockets of that process's network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as stack:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, namespace)
        owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
        stack.callback(os.close, owner)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.enter_context(here)
        with there:
            with warnings.catch_warnings():
                # It warns that other threads are not in the child, which ends in a moment.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                try:
                    _hand_back_a_socket(libc, owner, namespace, there)
                finally:
                    os._exit(0)  # never into the wrapper's code
        here.settimeout(_HAND_BACK_SECONDS)
        try:
            word, descriptors, _, _ = socket.recv_fds(here, 4, 1)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if not descriptors:
        code = struct.unpack("=i", word)[0] if len(word) == 4 else errno.EIO
        raise OSError(code, f"the sandbox's sockets cannot be listed: {os.strerror(code)}")
    return socket.socket(fileno=descriptors[0])


def _hand_back_a_socket(
    libc: ctypes.CDLL, owner: int, namespace: int, there: socket.socket
) -> None:
    """In the child: nothing but system calls."""
    # Root may go in as it is; for anybody else it takes the rights of the namespace's owner.
    if libc.setns(namespace, _CLONE_NEWNET) and (
        libc.setns(owner, _CLONE_NEWUSER) or libc.setns(namespace, _CLONE_NEWNET)
    ):
        there.send(struct.pack("=i", ctypes.get_errno()))
        return
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    socket.send_fds(there, [bytes(4)], [made.fileno()])
