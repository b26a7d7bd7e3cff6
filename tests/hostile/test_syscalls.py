"""The seccomp filter, asked by real system calls inside bubblewrap.

Every probe is made three times in the same sandbox, which gives the process every capability over
its own namespaces so that little but the filter stands in its way:

* *filtered*: with the profile as it is shipped; the call must fail;
* *marked*: with the same rules but an error number no kernel code path returns here; getting that
  number back shows that the filter answered, and not the kernel behind it;
* *open*: without a filter; the kernel's own answer must be another one than the filtered answer.

A probe the kernel refuses in the same words without a filter proves nothing by itself. Those are
listed in `REFUSED_BY_THE_KERNEL_TOO`, are shown as skipped, and do not count as blocked.

Arguments are chosen to be harmless where the call is let through: bad descriptors, unmapped
pointers, invalid flags, an invalid socket type (which fails before a module is loaded).

Run as a script, this file is the program inside the sandbox.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import mmap
import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sandbox_kernel.isolation import seccomp

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "policies" / "seccomp.json"
X86_64 = os.uname().machine == "x86_64"
MARK = errno.EXFULL

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]

BAD_FD, BAD_POINTER, NO_PID, ALL_BITS = -1, 1, 0x7FFFFFFF, 0xFFFFFFFF
BAD_TYPE = 15  # no such socket type: fails before the kernel looks for the family's module
HIGH_BIT, HIGH_BITS = 1 << 32, 0xFFFFFFFF << 32
S_IFCHR, S_IFBLK = 0o020000, 0o060000
TIOCSTI, TIOCLINUX, TIOCSETD, FS_IOC_SETFLAGS, SIOCETHTOOL = (
    *(0x5412, 0x541C, 0x5423),
    *(0x40086602, 0x8946),
)
NAMESPACES = {
    "NEWNS": 0x00020000,
    "NEWCGROUP": 0x02000000,
    "NEWUTS": 0x04000000,
    "NEWIPC": 0x08000000,
    "NEWUSER": 0x10000000,
    "NEWPID": 0x20000000,
    "NEWNET": 0x40000000,
}
FAMILIES = {
    "AF_KEY": 15,
    "AF_PACKET": 17,
    "AF_RDS": 21,
    "AF_IB": 27,
    "AF_CAN": 29,
    "AF_TIPC": 30,
    "AF_BLUETOOTH": 31,
    "AF_ALG": 38,
    "AF_VSOCK": 40,
    "AF_QIPCRTR": 42,
    "AF_SMC": 43,
    "AF_XDP": 44,
}


class Probe(NamedTuple):
    """One call: by name (numbers differ between architectures) or by number."""

    label: str
    call: str | int
    args: tuple[int, ...] = ()
    entry: str = "syscall"
    answers: tuple[str, ...] = ("EPERM",)


def plain(name: str, *args: int, label: str = "", answers: tuple[str, ...] = ("EPERM",)) -> Probe:
    return Probe(label or name, name, args, answers=answers)


PROBES = [
    # Kernel objects with a long record of holes.
    plain("keyctl", 9999),
    plain("add_key", 0, 0, 0, 0, 0),
    plain("request_key", 0, 0, 0, 0),
    plain("bpf", 0, 0, 1 << 20),
    plain("userfaultfd", 1 | 1 << 30),
    plain("io_uring_setup", 0, 0),
    plain("io_uring_enter", BAD_FD, 0, 0, 0, 0, 0),
    plain("io_uring_register", BAD_FD, 0, 0, 0),
    plain("perf_event_open", 0, 0, -1, -1, ALL_BITS),
    plain("vmsplice", BAD_FD, 0, 0, 0),
    plain("tee", BAD_FD, BAD_FD, 1, 0),
    plain("io_setup", 0, 0),
    plain("remap_file_pages", 1, 0, 1, 0, 0),
    plain("memfd_secret", ALL_BITS),
    plain("mq_open", BAD_POINTER, 0, 0, 0),
    plain("shmget", 0, 0, 0),
    plain("semget", 0, -1, 0),
    plain("msgget", 4242, 0),
    plain("pkey_alloc", ALL_BITS, 0),
    # Other processes.
    plain("ptrace", 16, NO_PID, 0, 0, label="ptrace ATTACH"),
    plain("ptrace", 0x4206, NO_PID, 0, 0, label="ptrace SEIZE"),
    plain("process_vm_readv", NO_PID, 0, 0, 0, 0, 1),
    plain("process_vm_writev", NO_PID, 0, 0, 0, 0, 1),
    Probe("process_madvise", 440, (BAD_FD, 0, 0, 0, 0)),
    plain("pidfd_getfd", BAD_FD, -1, 0),
    Probe("process_mrelease", 448, (BAD_FD, 1)),
    plain("kcmp", NO_PID, NO_PID, 0, 0, 0),
    plain("move_pages", NO_PID, 0, 0, 0, 0, 0),
    plain("migrate_pages", NO_PID, 0, 0, 0),
    # Files by handle, mounts by the old and the new interface.
    plain("open_by_handle_at", BAD_FD, 0, 0),
    plain("name_to_handle_at", BAD_FD, 0, 0, 0, 0xFFFF0000),
    plain("fanotify_init", 0x200, ALL_BITS),
    plain("fanotify_mark", BAD_FD, ALL_BITS, 0, -1, 0),
    plain("fsopen", BAD_POINTER, ALL_BITS),
    plain("fsmount", BAD_FD, ALL_BITS, 0),
    plain("fsconfig", BAD_FD, 0, 0, 0, 0),
    plain("fspick", BAD_FD, BAD_POINTER, ALL_BITS),
    plain("open_tree", BAD_FD, BAD_POINTER, ALL_BITS),
    Probe("open_tree_attr", 467, (BAD_FD, BAD_POINTER, ALL_BITS, 0, 0)),
    plain("move_mount", BAD_FD, 0, -1, 0, ALL_BITS),
    Probe("mount_setattr", 442, (BAD_FD, 0, ALL_BITS, 0, 0)),
    Probe("statmount", 457, (0, 0, 0, ALL_BITS)),
    Probe("listmount", 458, (0, 0, 0, ALL_BITS)),
    plain("mount", BAD_POINTER, BAD_POINTER, BAD_POINTER, 0, 0),
    plain("umount2", BAD_POINTER, ALL_BITS),
    plain("pivot_root", BAD_POINTER, BAD_POINTER),
    plain("chroot", BAD_POINTER),
    plain("mknodat", -100, BAD_POINTER, S_IFCHR | 0o600, 0x103, label="mknodat character device"),
    plain("mknodat", -100, BAD_POINTER, S_IFBLK | 0o600, 0x800, label="mknodat block device"),
    # Namespaces.
    *(plain("unshare", flag, label=f"unshare {name}") for name, flag in NAMESPACES.items()),
    plain("unshare", 0x80, label="unshare NEWTIME"),
    plain("setns", BAD_FD, 0),
    *(
        plain("clone", flag | signal.SIGCHLD, 0, 0, 0, 0, label=f"clone {name}")
        for name, flag in NAMESPACES.items()
    ),
    plain("clone3", 0, 0, answers=("ENOSYS",)),
    # The machine.
    plain("kexec_load", 0, 17, 0, ALL_BITS),
    plain("kexec_file_load", BAD_FD, BAD_FD, 0, 0, ALL_BITS),
    plain("init_module", BAD_POINTER, 0, BAD_POINTER),
    plain("finit_module", BAD_FD, BAD_POINTER, ALL_BITS),
    plain("delete_module", BAD_POINTER, 0),
    plain("reboot", 0, 0, 0, 0),
    plain("swapon", BAD_POINTER, ALL_BITS),
    plain("swapoff", BAD_POINTER),
    plain("acct", BAD_POINTER),
    plain("quotactl", ALL_BITS, 0, 0, 0),
    Probe("quotactl_fd", 443, (BAD_FD, ALL_BITS, 0, 0)),
    plain("settimeofday", BAD_POINTER, 0),
    plain("clock_settime", 9999, 0),
    plain("adjtimex", BAD_POINTER),
    plain("clock_adjtime", 0, BAD_POINTER),
    plain("syslog", 10, 0, 0),
    plain("vhangup"),
    plain("sethostname", BAD_POINTER, 9999),
    plain("setdomainname", BAD_POINTER, 9999),
    plain("personality", 0x0040000, label="personality ADDR_NO_RANDOMIZE"),
    plain("personality", 0x0400000, label="personality READ_IMPLIES_EXEC"),
    plain("personality", 8, label="personality PER_LINUX32"),
    plain("mbind", 0, 0, 9999, 0, 0, ALL_BITS),
    plain("set_mempolicy", 9999, 0, 0),
    plain("get_mempolicy", 0, 0, 0, 0, ALL_BITS),
    plain("nfsservctl", 9999, 0, 0),
    Probe("a number without a call", 1023),
    # Sockets.
    *(plain("socket", f, BAD_TYPE, 0, label=f"socket {name}") for name, f in FAMILIES.items()),
    plain("socket", 38 | HIGH_BIT, BAD_TYPE, 0, label="socket AF_ALG, high bit set"),
    plain("socket", 40 | HIGH_BITS, BAD_TYPE, 0, label="socket AF_VSOCK, high bits set"),
    plain("socket", 16, BAD_TYPE, 6, label="socket AF_NETLINK xfrm"),
    plain("socket", 16, BAD_TYPE, 9, label="socket AF_NETLINK audit"),
    plain("socket", 16, BAD_TYPE, 12, label="socket AF_NETLINK netfilter"),
    plain("socketpair", 30, BAD_TYPE, 0, BAD_POINTER, label="socketpair AF_TIPC"),
    # Device controls; the kernel cuts the request to 32 bits.
    plain("ioctl", BAD_FD, TIOCSTI, 0, label="ioctl TIOCSTI"),
    plain("ioctl", BAD_FD, TIOCSTI | HIGH_BIT, 0, label="ioctl TIOCSTI, high bit set"),
    plain("ioctl", BAD_FD, TIOCSTI | HIGH_BITS, 0, label="ioctl TIOCSTI, high bits set"),
    plain("ioctl", BAD_FD, TIOCLINUX, 0, label="ioctl TIOCLINUX"),
    plain("ioctl", BAD_FD, TIOCLINUX | HIGH_BITS, 0, label="ioctl TIOCLINUX, high bits set"),
    plain("ioctl", BAD_FD, TIOCSETD, 0, label="ioctl TIOCSETD"),
    plain("ioctl", BAD_FD, FS_IOC_SETFLAGS, 0, label="ioctl FS_IOC_SETFLAGS"),
    plain("ioctl", BAD_FD, SIOCETHTOOL, 0, label="ioctl SIOCETHTOOL", answers=("ENOTSUP",)),
]
if X86_64:
    PROBES += [
        plain("iopl", 99),
        plain("ioperm", 0, 0, 1),
        plain("modify_ldt", 99, 0, 0),
        plain("lookup_dcookie", 0, 0, 0),
        plain("uselib", BAD_POINTER),
        plain("ustat", 0, 0),
        plain("sysfs", 99, 0, 0),
        plain("mknod", BAD_POINTER, S_IFCHR | 0o600, 0x103, label="mknod character device"),
        # Numbers of the x32 table, with and without the bit that marks it.
        Probe("x32 getpid", 39 | 1 << 30, answers=("SIGSYS",)),
        Probe("x32 execve", 520 | 1 << 30, answers=("SIGSYS",)),
        Probe("x32 ptrace", 521 | 1 << 30, (16, NO_PID), answers=("SIGSYS",)),
        Probe("x32 ptrace, bit not set", 521, (16, NO_PID)),
        # The i386 entry, whose numbers mean other calls.
        Probe("int 0x80 getpid", 20, entry="int80", answers=("SIGSYS",)),
        Probe("int 0x80 mount", 21, entry="int80", answers=("SIGSYS",)),
        Probe("int 0x80 ptrace", 26, entry="int80", answers=("SIGSYS",)),
        Probe("int 0x80 socketcall", 102, entry="int80", answers=("SIGSYS",)),
    ]

# The kernel looks for a capability over the whole machine before it looks at any argument, and
# says EPERM like the filter. No namespace gives that capability, so there is no open answer to
# compare with unless the test is given power over the host, which it must not have.
REFUSED_BY_THE_KERNEL_TOO = {
    "kexec_load": "CAP_SYS_BOOT over the machine comes first",
    "kexec_file_load": "CAP_SYS_BOOT over the machine comes first",
    "init_module": "CAP_SYS_MODULE over the machine comes first",
    "finit_module": "CAP_SYS_MODULE over the machine comes first",
    "delete_module": "CAP_SYS_MODULE over the machine comes first",
    "swapoff": "CAP_SYS_ADMIN over the machine comes first",
    "acct": "CAP_SYS_PACCT over the machine comes first",
    "vhangup": "CAP_SYS_TTY_CONFIG over the machine comes first",
    "syslog": "kernel.dmesg_restrict asks for CAP_SYSLOG over the machine first",
}


def sandboxed(program: bytes | None, *argv: str, stdin: str = "") -> str:
    """Run this file in bubblewrap under the BPF `program` and return what it printed."""
    command = ["bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--uid", "0", "--gid", "0", "--cap-add", "ALL", "--ro-bind", "/", "/"]
    command += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for visible in (sys.base_prefix, sys.prefix, str(ROOT)):
        command += ["--ro-bind", visible, visible]  # it may lie in the /tmp just covered
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLCONFIGDIR": "/tmp",
        "TMPDIR": "/tmp",
        "HOME": "/tmp",
    }
    with open(os.memfd_create("seccomp"), "wb") as file:  # noqa: PTH123 - a descriptor
        if program is not None:
            file.write(program)
            file.flush()
            file.seek(0)
            command += ["--seccomp", str(file.fileno())]
        done = subprocess.run(
            [*command, "--", sys.executable, "-X", "faulthandler", __file__, *argv],
            input=stdin,
            capture_output=True,
            text=True,
            pass_fds=[file.fileno()],
            env=environment,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def call_number(probe: Probe) -> int:
    if isinstance(probe.call, int):
        return probe.call
    return int(seccomp._libseccomp().seccomp_syscall_resolve_name(probe.call.encode()))


def answers_under(program: bytes | None) -> dict[str, str]:
    calls = [[p.label, call_number(p), p.args, p.entry] for p in PROBES]
    answers: dict[str, str] = json.loads(sandboxed(program, "probe", stdin=json.dumps(calls)))
    return answers


@pytest.fixture(scope="module")
def filtered() -> dict[str, str]:
    return answers_under(seccomp.compile_profile(PROFILE.read_bytes()))


@pytest.fixture(scope="module")
def marked() -> dict[str, str]:
    profile = json.loads(PROFILE.read_bytes()) | {"defaultErrnoRet": MARK}
    return answers_under(seccomp.compile_profile(json.dumps(profile).encode()))


@pytest.fixture(scope="module")
def unfiltered() -> dict[str, str]:
    return answers_under(None)


def test_there_are_enough_probes_and_each_has_its_own_name() -> None:
    labels = [probe.label for probe in PROBES]
    assert len(labels) == len(set(labels))
    assert len(labels) >= 60
    assert set(REFUSED_BY_THE_KERNEL_TOO) < set(labels)


def test_the_filter_is_on_in_one_sandbox_only(
    filtered: dict[str, str], unfiltered: dict[str, str]
) -> None:
    assert filtered["Seccomp"] == "2"
    assert unfiltered["Seccomp"] != filtered["Seccomp"] or (
        unfiltered["Seccomp_filters"] < filtered["Seccomp_filters"]
    )


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.label)
def test_probe_is_blocked_by_the_filter(
    probe: Probe,
    filtered: dict[str, str],
    marked: dict[str, str],
    unfiltered: dict[str, str],
) -> None:
    answer = filtered[probe.label]
    assert answer in probe.answers
    # Rules with an answer of their own do not take the default's mark.
    assert marked[probe.label] == (errno.errorcode[MARK] if answer == "EPERM" else answer)
    if unfiltered[probe.label] == answer and probe.label in REFUSED_BY_THE_KERNEL_TOO:
        pytest.skip(f"not counted: {REFUSED_BY_THE_KERNEL_TOO[probe.label]}")
    assert unfiltered[probe.label] != answer, "the kernel says the same: the probe shows nothing"


def test_an_everyday_workload_runs_to_its_end() -> None:
    program = seccomp.compile_profile(PROFILE.read_bytes())
    lines = sandboxed(program, "workload").splitlines()
    assert lines == [f"{name} ok" for name in WORKLOAD]


# --- from here on: the program inside the sandbox ---------------------------------------------


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


def square(value: int) -> int:
    return value * value


def fill(name: str) -> None:
    block = shared_memory.SharedMemory(name)
    block.buf[:3] = b"abc"
    block.close()


def use_threads() -> None:
    seen: list[int] = []
    lock = threading.Lock()

    def work(value: int) -> None:
        with lock:
            seen.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(16))


def use_subprocess() -> None:
    shell = subprocess.run("echo a | tr a b; ls -l / | wc -l", shell=True, capture_output=True)
    assert shell.returncode == 0, shell.stderr
    assert shell.stdout.startswith(b"b\n")
    own_session = subprocess.run(["true"], start_new_session=True, preexec_fn=os.getpid)
    assert own_session.returncode == 0


def use_multiprocessing() -> None:
    for method in ("fork", "forkserver", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
        with context.Semaphore(1), context.Lock():
            pass
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("forkserver")) as executor:
        assert list(executor.map(square, [3])) == [9]


def use_shared_memory() -> None:
    block = shared_memory.SharedMemory(create=True, size=4096)
    process = multiprocessing.get_context("fork").Process(target=fill, args=(block.name,))
    process.start()
    process.join()
    assert bytes(block.buf[:3]) == b"abc"
    block.close()
    block.unlink()


def use_terminals() -> None:
    import pexpect

    shell = pexpect.spawn("/bin/sh", ["-c", "read x; tty; stty size; echo got $x"], timeout=20)
    shell.setwinsize(31, 77)
    shell.sendline("word")
    shell.expect("/dev/pts/.*31 77.*got word")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 0


def use_numpy() -> None:
    import numpy as np

    matrix = np.random.default_rng(0).random((300, 300))
    assert (matrix @ np.linalg.inv(matrix)).trace() == pytest.approx(300)
    assert np.linalg.eig(matrix)[0].shape == (300,)
    with tempfile.NamedTemporaryFile() as file:
        mapped = np.memmap(file, dtype="f8", mode="w+", shape=(10,))
        mapped[:] = 1
        mapped.flush()


def use_pandas() -> None:
    import pandas as pd

    frame = pd.DataFrame({"key": ["a", "b", "a"], "value": [1, 2, 3]})
    assert frame.groupby("key")["value"].sum().to_dict() == {"a": 4, "b": 2}
    frame.to_csv("frame.csv")
    assert len(pd.read_csv("frame.csv")) == 3


def use_matplotlib() -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.plot([1, 2, 3])
    plt.savefig("figure.png")
    assert Path("figure.png").stat().st_size > 1000


def use_asyncio() -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
        assert (await process.communicate(b"text"))[0] == b"text"
        assert await asyncio.to_thread(square, 4) == 16

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"line\n")
        assert await reader.read() == b"line\n"
        writer.close()
        server.close()

    asyncio.run(main())


def use_sockets() -> None:
    left, right = socket.socketpair()
    left.send(b"x")
    assert right.recv(1) == b"x"
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        socket.create_connection(server.getsockname()[:2]).close()
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("unix.sock")
        unix.listen()
    assert socket.getaddrinfo("127.0.0.1", 80)
    assert (1, "lo") in socket.if_nameindex()
    assert socket.if_nametoindex("lo") == 1
    assert socket.if_indextoname(1) == "lo"
    uuid.uuid1()


def use_zmq() -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.REP) as rep, context.socket(zmq.REQ) as req:
        rep.bind("ipc://zmq.sock")
        req.connect("ipc://zmq.sock")
        req.send(b"question")
        assert rep.recv() == b"question"


def use_psutil() -> None:
    import psutil

    assert "lo" in psutil.net_if_addrs()
    assert "lo" in psutil.net_if_stats()
    process = psutil.Process()
    process.as_dict(["cpu_affinity", "ionice", "memory_full_info", "nice", "num_fds", "open_files"])
    process.cpu_affinity([min(process.cpu_affinity())])
    process.nice(5)
    assert psutil.virtual_memory().total


def use_files() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        (path / "a").write_bytes(b"a" * 100_000)
        shutil.copy2(path / "a", path / "b")
        (path / "b").rename(path / "c")
        (path / "link").symlink_to("c")
        os.link(path / "a", path / "hard")
        os.utime(path / "a", (1, 2))
        os.chown(path / "a", os.getuid(), os.getgid())
        os.truncate(path / "a", 10)
        os.statvfs(path)
        os.mkfifo(path / "fifo")
        os.mknod(path / "regular")
        assert len(list(path.iterdir())) == 6
    with open(os.memfd_create("memory"), "w+b") as file:  # noqa: PTH123 - a descriptor
        os.posix_fallocate(file.fileno(), 0, 4096)
    event = os.eventfd(1)
    assert os.eventfd_read(event) == 1


def use_sqlite() -> None:
    with sqlite3.connect("base.sqlite") as base:
        base.execute("pragma journal_mode=wal")
        base.execute("create table t (a)")
        base.execute("insert into t values (1)")
        assert base.execute("select a from t").fetchall() == [(1,)]
    base.close()


def use_signals() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.sigtimedwait([signal.SIGUSR2], 0.1)
    assert seen == [signal.SIGUSR1, signal.SIGALRM]
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        signal.pidfd_send_signal(os.pidfd_open(sleeper.pid), signal.SIGKILL)
    assert sleeper.returncode == -signal.SIGKILL


def give_up_privileges() -> None:
    """What a supervisor does once the filter is on; last, because there is no way back."""
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    pr_set_no_new_privs, pr_capbset_drop, version_3 = 38, 24, 0x20080522
    assert libc.prctl(pr_capbset_drop, 21, 0, 0, 0) == 0
    assert libc.prctl(pr_set_no_new_privs, 1, 0, 0, 0) == 0
    header = (ctypes.c_uint32 * 2)(version_3, 0)
    assert libc.capset(header, (ctypes.c_uint32 * 6)()) == 0
    assert "CapEff:\t0000000000000000" in Path("/proc/self/status").read_text()


WORKLOAD: dict[str, Callable[[], None]] = {
    step.__name__: step
    for step in (
        use_threads,
        use_subprocess,
        use_multiprocessing,
        use_shared_memory,
        use_terminals,
        use_numpy,
        use_pandas,
        use_matplotlib,
        use_asyncio,
        use_sockets,
        use_zmq,
        use_psutil,
        use_files,
        use_sqlite,
        use_signals,
        give_up_privileges,
    )
}


def main(job: str) -> Any:
    if job == "probe":
        print(json.dumps(run_probes(json.load(sys.stdin))))
    else:
        for name, step in WORKLOAD.items():
            step()
            print(name, "ok", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
