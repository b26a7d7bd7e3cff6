"""What the kernel process of a ``restricted`` sandbox gives up for good, before anything of ipykernel.

Without namespaces this is all that the operating system holds it with: Landlock (what may be opened),
a system call filter, a second one that keeps the supervisor out of reach, limits. Whatever cannot be
put on ends the process: nothing runs with less than the wrapper says. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
OPEN_FILES = 4096

# Landlock: access to files, in the order of their bits, with the version that each is known since.
ACCESS = (
    *(("execute", 1), ("write", 1), ("read", 1), ("list", 1), ("remove_dir", 1)),
    *(("remove_file", 1), ("make_char", 1), ("make_dir", 1), ("make_reg", 1), ("make_sock", 1)),
    *(("make_fifo", 1), ("make_block", 1), ("make_sym", 1), ("refer", 2), ("truncate", 3)),
    ("ioctl_dev", 5),
)
READ = {"execute", "read", "list"}
NEVER = {"make_char", "make_block", "ioctl_dev"}
DEVICE = {"read", "write"}
TCP_SINCE, TCP = 4, 0b11  # bind and connect
SCOPES_SINCE, SCOPES = 6, 0b11  # abstract unix sockets and signals
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1

# The supervisor has the same user, so its pid must not be the first argument of any of these (kill,
# tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo), nor may all processes be named at once.
SIGNALLING = {"x86_64": (62, 200, 234, 129, 297), "aarch64": (129, 130, 131, 138, 240)}
FCNTL = {"x86_64": 72, "aarch64": 25}
# fcntl's ways to have the kernel send a signal: F_SETOWN, F_SETSIG, F_SETOWN_EX.
SIGNALS_BY_FILE = (8, 10, 15)
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
ARGUMENTS_OFFSET = 16


def confine(settings: Mapping[str, Any], supervisor: int) -> None:
    """Put on all of it; raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    # It cleans up when the wrapper has gone; if it is gone itself, so is this process.
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != supervisor:
        raise ProcessLookupError(errno.ESRCH, "the supervisor has ended")
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with open(settings["filter"], "rb") as file:
        profile = file.read()
    if settings["landlock"]:
        restrict_files(libc, settings)
    load_filter(libc, guard(supervisor))
    load_filter(libc, profile)


def checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


# -- Landlock --------------------------------------------------------------------------------------


def bits(names: Iterable[str], version: int) -> int:
    wanted = set(names)
    return sum(
        1 << place
        for place, (name, since) in enumerate(ACCESS)
        if name in wanted and since <= version
    )


def restrict_files(libc: Any, settings: Mapping[str, Any]) -> None:
    version = settings["landlock"]
    every = {name for name, _ in ACCESS}
    handled = struct.pack(
        "QQQ",
        bits(every, version),
        TCP if version >= TCP_SINCE else 0,
        SCOPES if version >= SCOPES_SINCE else 0,
    )
    # Older kernels know a shorter structure, and take a longer one whose end is empty.
    ruleset = checked(libc.syscall(CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0))
    try:
        for paths, names in (
            (settings["read"], READ),
            (settings["write"], every - NEVER),
            (settings["devices"], DEVICE),
        ):
            for path in paths:
                add_rule(libc, ruleset, path, names, version)
        checked(libc.syscall(RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def add_rule(libc: Any, ruleset: int, path: str, names: set[str], version: int) -> None:
    # Not there, or closed to this user: then it is not to be opened anyhow.
    with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(f"/proc/self/fd/{place}"):
                names = names & {"execute", "read", "write", "truncate"}
            rule = struct.pack("=Qi", bits(names, version), place)
            checked(libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, rule, 0))
        finally:
            os.close(place)


# -- system calls ----------------------------------------------------------------------------------


class Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def load_filter(libc: Any, program: bytes) -> None:
    loaded = Program(len(program) // 8, program)
    checked(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(loaded), 0, 0))


def guard(supervisor: int) -> bytes:
    """A program that refuses calls which name the supervisor, or every process there is.

    It does not look at the architecture: the other program ends what comes from another.
    """
    machine = os.uname().machine
    if machine not in SIGNALLING:
        raise OSError(errno.ENOSYS, f"no numbers of system calls for {machine}")
    checks = [(number, 0, (supervisor, -supervisor, -1)) for number in SIGNALLING[machine]]
    checks.append((FCNTL[machine], 1, SIGNALS_BY_FILE))
    program = [instruction(LOAD, 0)]
    for number, argument, refused in checks:
        block = list(refusing(argument, refused))
        # Over the block if it is another call, of which the number is still loaded.
        program += [instruction(JUMP_IF_EQUAL, number, 0, len(block)), *block]
    return b"".join([*program, instruction(RETURN, ALLOW)])


def refusing(argument: int, values: Iterable[int]) -> Iterator[bytes]:
    # The lower half, as these machines have it: pids and commands have 32 bits.
    yield instruction(LOAD, ARGUMENTS_OFFSET + 8 * argument)
    for value in values:
        yield instruction(JUMP_IF_EQUAL, value & 0xFFFFFFFF, 0, 1)
        yield instruction(RETURN, REFUSE)
    yield instruction(RETURN, ALLOW)


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """``struct sock_filter``."""
    return struct.pack("HBBI", code, if_true, if_false, value)
