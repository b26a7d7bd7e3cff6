"""The table of sensitive system calls, with arguments that are harmless where the call is let through: bad
descriptors, unmapped pointers, invalid flags, an invalid socket type (which fails before a module is
loaded)."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from sandbox_kernel.isolation import seccomp

X86_64 = os.uname().machine == "x86_64"

BAD_FD, BAD_POINTER, NO_PID, ALL_BITS = -1, 1, 0x7FFFFFFF, 0xFFFFFFFF
BAD_TYPE = 15  # no such socket type: fails before the kernel looks for the family's module
HIGH_BIT, HIGH_BITS = 1 << 32, 0xFFFFFFFF << 32
F_SETLEASE = 1024
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
    plain("prlimit64", NO_PID, 99, BAD_POINTER, 0, label="prlimit64 of another, new limits"),
    plain("kcmp", NO_PID, NO_PID, 0, 0, 0),
    plain("move_pages", NO_PID, 0, 0, 0, 0, 0),
    plain("migrate_pages", NO_PID, 0, 0, 0),
    # Files by handle, mounts by the old and the new interface.
    plain("open_by_handle_at", BAD_FD, 0, 0),
    plain("name_to_handle_at", BAD_FD, 0, 0, 0, 0xFFFF0000),
    plain("fanotify_init", 0x200, ALL_BITS),
    plain("fanotify_mark", BAD_FD, ALL_BITS, 0, -1, 0),
    plain("fcntl", BAD_FD, F_SETLEASE, 0, label="fcntl F_SETLEASE"),
    plain("fcntl", BAD_FD, F_SETLEASE | HIGH_BIT, 0, label="fcntl F_SETLEASE, high bit set"),
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


# Sensitive as well, and open: each with the reason. Arguments are as harmless.
LET_THROUGH = {
    plain("socket", 16, BAD_TYPE, 0, label="socket AF_NETLINK route"): (
        "getifaddrs and if_nameindex need it; it sees and changes the sandbox's own network only"
    ),
    plain("memfd_create", BAD_POINTER, 0): (
        "shared memory of multiprocessing and numpy; counted with the sandbox's memory. Programs can "
        "be run from it, as from /tmp"
    ),
    plain("execveat", BAD_FD, BAD_POINTER, 0, 0, 0): (
        "runs by a descriptor what could be run by its name; no program has more rights than its caller"
    ),
    plain("pidfd_open", NO_PID, 0): (
        "asyncio waits for children with it; it finds the sandbox's own processes only"
    ),
    plain("splice", BAD_FD, 0, BAD_FD, 0, 1, 0): (
        "coreutils copy with it; vmsplice and tee, which the attacks on pipes need, are denied"
    ),
    plain("seccomp", 99, 0, 0): "a second filter can only take away",
    plain("prctl", 99999, 0, 0, 0, 0): (
        "names of threads, no_new_privs; what gives rights needs capabilities, and there are none"
    ),
    plain("sched_setscheduler", NO_PID, 0, 0): (
        "psutil and os; better classes than the ordinary need a capability"
    ),
    plain("inotify_add_watch", BAD_FD, BAD_POINTER, 0): (
        "watchers of files; it sees what happens to files that can be read anyhow"
    ),
}

# How gVisor says that it does not have a call, or not for cells.
REFUSED_BY_GVISOR = (
    *("EPERM", "EACCES", "ENOSYS", "ENOTSUP", "ENODEV", "EAFNOSUPPORT", "ESOCKTNOSUPPORT"),
    "SIGSYS",
)
_OBJECTS = "an object of gVisor's own kernel, in the sandbox's memory"
_PROCESSES = "finds processes of the same sandbox only"
_NAMESPACES = (
    "a namespace of gVisor's own kernel, in which its rights are over nothing of the host's"
)
_NUMBERS = "looked at by gVisor's own kernel, which has nothing behind it"
_OTHER_ENTRY = "every way in leads to gVisor, which takes the number for one of its own table"
# The rest gVisor's kernel does itself: in the sandbox's own process on the host, never by that call.
ANSWERED_BY_GVISOR = {
    **dict.fromkeys(("io_uring_setup", "io_setup", "tee", "mq_open"), _OBJECTS),
    **dict.fromkeys(("shmget", "semget", "msgget"), _OBJECTS),
    **dict.fromkeys(("mknodat character device", "mknodat block device"), _OBJECTS),
    "mknod character device": _OBJECTS,
    **dict.fromkeys(("ptrace ATTACH", "ptrace SEIZE"), _PROCESSES),
    "prlimit64 of another, new limits": _PROCESSES,
    **{f"unshare {name}": _NAMESPACES for name in (*NAMESPACES, "NEWTIME")},
    **{f"clone {name}": _NAMESPACES for name in NAMESPACES},
    "syslog": "a text that gVisor makes up",
    **{p.label: _NUMBERS for p in PROBES if p.call in ("ioctl", "fcntl", "personality")},
    **dict.fromkeys(("mbind", "set_mempolicy", "get_mempolicy"), _NUMBERS),
    **{p.label: _OTHER_ENTRY for p in PROBES if p.entry == "int80"},
}


def call_number(probe: Probe) -> int:
    if isinstance(probe.call, int):
        return probe.call
    return int(seccomp._libseccomp().seccomp_syscall_resolve_name(probe.call.encode()))
