"""Reads cells in processes that can do nothing else: parsers of other languages are native code.

``main`` is a program of its own, which never had the frontend's key, nor the wrapper's environment. It loads
the parsers and then forks once for each cell. It reads nothing of a cell itself: the fork does, after it has
given up files, sockets, processes, descriptors and most system calls. What comes back is what a hostile
parser may say: ``apart`` believes none of its forms.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import Final

from sandbox_kernel.inner.confine import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, checked, load_filter
from sandbox_kernel.inner.supervisor import PR_SET_DUMPABLE, give_up_capabilities
from sandbox_kernel.isolation.seccomp import SeccompError, compile_profile
from sandbox_kernel.paths import PARSER_SECCOMP, policies_directory
from sandbox_kernel.policy.judge import SECONDS, answer_apart, rehearse

READY: Final = b"ready"
FORKED: Final = b"forked"
REFUSED: Final = b"refused"
# The fork's only descriptor.
CHANNEL: Final = 0
MEMORY_BYTES: Final = 1 << 30
# The check's own clock ends it far sooner, if nobody has turned that off.
CPU_SECONDS: Final = 2
# To unpack the question and pack the answer: what was read in time is answered.
PACKING_SECONDS: Final = 0.1
_READ_BYTES: Final = 1 << 20

Answer = Callable[[bytes], bytes]


def main(control: int, answer: Answer | None = None) -> None:
    """Serve until the wrapper closes its end of the socket ``control``."""
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(fileno=control) as wrapper:
        try:
            program = compile_profile((policies_directory() / PARSER_SECCOMP).read_bytes())
            answer = answer or prepared()
        except (SeccompError, OSError, ImportError) as error:
            wrapper.send(str(error).encode())
            return
        libc = ctypes.CDLL(None, use_errno=True)
        wrapper.send(READY)
        while True:
            word, channels, _, _ = socket.recv_fds(wrapper, 16, 1)
            if not word:
                return
            try:
                pid = os.fork()
            except OSError as error:
                wrapper.send(REFUSED + str(error).encode())
            else:
                if not pid:
                    serve_one(libc, program, channels[0], answer)
                # Not its number, which may be another's by the time that somebody uses it.
                process = os.pidfd_open(pid)
                socket.send_fds(wrapper, [FORKED], [process])
                os.close(process)
            for channel in channels:
                os.close(channel)


def prepared() -> Answer:
    """What answers, with all loaded that it will need: a fork can open no file."""
    rehearse()
    return answer_apart


def serve_one(libc: ctypes.CDLL, program: bytes, channel: int, answer: Answer) -> None:
    """In the fork: never returns."""
    status = 1
    try:
        confine(libc, program, channel)
        pieces = []
        while piece := os.read(CHANNEL, _READ_BYTES):
            pieces.append(piece)
        answered = memoryview(answer(b"".join(pieces)))
        while answered:
            answered = answered[os.write(CHANNEL, answered) :]
        status = 0
    except BaseException as error:
        # Nothing else may leave this process, not even a traceback: its stderr is closed.
        os.write(CHANNEL, json.dumps({"failed": repr(error)[:1000]}).encode())
    finally:
        os._exit(status)


def confine(libc: ctypes.CDLL, program: bytes, channel: int) -> None:
    """Give up all but memory and ``channel``, for good; raises ``OSError``."""
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    os.dup2(channel, CHANNEL)
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers
        if number != CHANNEL:
            try:
                os.close(number)
            except OSError:
                continue  # that of the listing itself
    checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    give_up_capabilities()
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (value, value))
    # What the check is given; from here on nobody can set it anew.
    signal.setitimer(signal.ITIMER_PROF, SECONDS + PACKING_SECONDS)
    load_filter(libc, program)
