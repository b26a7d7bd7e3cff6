"""Make system calls and say how each ends. Run in sandboxes: the standard library only."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import struct
import sys
from pathlib import Path


def run_probes(calls: list[tuple[str, int, list[int], str]]) -> dict[str, str]:
    """Make every call in a child of its own and return how each ended."""
    status = Path("/proc/self/status").read_text().splitlines()
    answers = dict(line.split(":\t") for line in status if line.startswith("Seccomp"))
    for label, number, args, entry in calls:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os.write(writer, make_call(number, args, entry).encode())
            os._exit(0)
        os.close(writer)
        with open(reader) as pipe:  # noqa: PTH123 - a descriptor
            answers[label] = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            answers[label] = signal.Signals(-code).name
    return answers


def make_call(number: int, args: list[int], entry: str) -> str:
    if entry == "int80":
        return "ok" if int80(number) >= 0 else "refused"
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    parent = os.getpid()
    padded = [*args, *[0] * (6 - len(args))]
    result = syscall(ctypes.c_long(number), *[ctypes.c_ulong(value) for value in padded])
    if result < 0:
        return errno.errorcode[ctypes.get_errno()]
    if os.getpid() != parent:  # the child that clone made
        os._exit(0)
    return "ok"


def int80(number: int) -> int:
    """Enter the kernel as a 32-bit program does, with three zero arguments."""
    code = b"\x53\xb8" + struct.pack("<I", number)  # push rbx; mov eax, number
    code += b"\x31\xdb\x31\xc9\x31\xd2\xcd\x80\x5b\xc3"  # ebx = ecx = edx = 0; int 0x80; pop; ret
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())


if __name__ == "__main__":
    print(json.dumps(run_probes(json.load(sys.stdin))))
