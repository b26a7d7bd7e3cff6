"""The seccomp profile says what it should, and the compiled program does what the profile says."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.isolation import seccomp
from sandbox_kernel.isolation.seccomp import SeccompError, compile_profile

PROFILE = Path(__file__).parents[3] / "policies" / "seccomp.json"
DOCKER_DEFAULT = Path(__file__).with_name("docker_default_syscalls.txt")
DOCKER_PERSONALITIES = {0, 8, 0x20000, 0x20008, 0xFFFFFFFF}

ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
LOW_32 = 0xFFFFFFFF

# What must never be let through, whatever its arguments.
FORBIDDEN_TEXT = """
    mount umount umount2 fsopen fsmount fsconfig fspick open_tree open_tree_attr move_mount
    mount_setattr pivot_root chroot unshare setns clone3 ptrace process_vm_readv process_vm_writev
    process_madvise kcmp pidfd_getfd keyctl add_key request_key bpf perf_event_open userfaultfd
    io_uring_setup io_uring_enter io_uring_register open_by_handle_at name_to_handle_at
    fanotify_init fanotify_mark kexec_load kexec_file_load init_module finit_module delete_module
    create_module reboot swapon swapoff acct quotactl quotactl_fd settimeofday clock_settime
    adjtimex clock_adjtime stime iopl ioperm vmsplice lookup_dcookie nfsservctl modify_ldt
    move_pages mbind set_mempolicy set_mempolicy_home_node get_mempolicy migrate_pages syslog
    vhangup sethostname setdomainname uselib ustat sysfs memfd_secret
"""
FORBIDDEN = FORBIDDEN_TEXT.split()

FORBIDDEN_IOCTLS = {
    "TIOCSTI": 0x5412,
    "TIOCLINUX": 0x541C,
    "TIOCSETD": 0x5423,
    "TIOCCONS": 0x541D,
    "FS_IOC_SETFLAGS": 0x40086602,
    "FIBMAP": 1,
    "SIOCSIFFLAGS": 0x8914,
    "SIOCETHTOOL": 0x8946,
}


def minimal(**changes: Any) -> dict[str, Any]:
    profile: dict[str, Any] = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": [{"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"}],
    }
    return profile | changes


def rule(**changes: Any) -> dict[str, Any]:
    return minimal(syscalls=[{"names": ["socket"], "action": "SCMP_ACT_ALLOW"} | changes])


def arg(**changes: Any) -> dict[str, Any]:
    return rule(args=[{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"} | changes])


def compiled(profile: dict[str, Any]) -> bytes:
    return compile_profile(json.dumps(profile).encode())


def number(name: str) -> int:
    return int(seccomp._libseccomp().seccomp_syscall_resolve_name(name.encode()))


def audit_arch() -> int:
    return int(seccomp._libseccomp().seccomp_arch_native())


def decide(program: bytes, call: int, *args: int, arch: int | None = None) -> int:
    """Run the classic BPF `program` on one system call, as the kernel does."""
    padded = [value & (2**64 - 1) for value in (*args, *[0] * (6 - len(args)))]
    data = struct.pack("<IIQ6Q", call & LOW_32, audit_arch() if arch is None else arch, 0, *padded)
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator, pc = 0, 0
    while True:
        operation, if_true, if_false, k = code[pc]
        pc += 1
        match operation:
            case 0x20:  # load a word
                accumulator = int(struct.unpack_from("<I", data, k)[0])
            case 0x54:  # and
                accumulator &= k
            case 0x05:  # jump
                pc += k
            case 0x15:
                pc += if_true if accumulator == k else if_false
            case 0x25:
                pc += if_true if accumulator > k else if_false
            case 0x35:
                pc += if_true if accumulator >= k else if_false
            case 0x06:  # return
                return int(k)
            case _:
                pytest.fail(f"instruction {operation:#x} is not one libseccomp writes")


@pytest.fixture(scope="module")
def profile() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(PROFILE.read_bytes())
    return loaded


@pytest.fixture(scope="module")
def program() -> bytes:
    return compile_profile(PROFILE.read_bytes())


def allowed_names(profile: dict[str, Any]) -> set[str]:
    return {
        name
        for entry in profile["syscalls"]
        if entry["action"] == "SCMP_ACT_ALLOW"
        for name in entry["names"]
    }


class TestProfile:
    def test_denies_by_default_and_says_so_with_eperm(self, profile: dict[str, Any]) -> None:
        assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
        assert profile["defaultErrnoRet"] == errno.EPERM

    def test_no_second_architecture_can_be_entered(self, profile: dict[str, Any]) -> None:
        assert [entry["architecture"] for entry in profile["archMap"]] == [
            "SCMP_ARCH_X86_64",
            "SCMP_ARCH_AARCH64",
        ]
        assert not any(entry["subArchitectures"] for entry in profile["archMap"])

    def test_is_a_strict_subset_of_dockers_default(
        self, profile: dict[str, Any], record_property: Callable[[str, object], None]
    ) -> None:
        header, *names_of_docker = DOCKER_DEFAULT.read_text().splitlines()
        assert header.startswith("#")
        ours, names = allowed_names(profile), set(names_of_docker)
        taken_away = ", ".join(sorted(names - ours))
        record_property(
            "figures",
            f"{len(ours)} calls are allowed, of {len(names)} that Docker's default allows; not: {taken_away}",
        )
        assert ours < names

    def test_conditions_are_not_wider_than_dockers(self, profile: dict[str, Any]) -> None:
        personalities = [e for e in profile["syscalls"] if e["names"] == ["personality"]]
        assert {e["args"][0]["op"] for e in personalities} == {"SCMP_CMP_EQ"}
        assert {e["args"][0]["value"] for e in personalities} <= DOCKER_PERSONALITIES

    @pytest.mark.parametrize("name", FORBIDDEN)
    def test_forbidden_call_is_not_allowed(self, profile: dict[str, Any], name: str) -> None:
        assert name not in allowed_names(profile)

    def test_every_entry_says_why(self, profile: dict[str, Any]) -> None:
        assert all(entry["comment"].strip() for entry in profile["syscalls"])

    def test_a_name_is_in_one_unconditional_group_only(self, profile: dict[str, Any]) -> None:
        plain = [n for e in profile["syscalls"] if "args" not in e for n in e["names"]]
        conditional = {n for e in profile["syscalls"] if "args" in e for n in e["names"]}
        assert len(plain) == len(set(plain))
        # An unconditional entry would make the conditions of the others void.
        assert not conditional & set(plain)


class TestProgram:
    """The program is run by a small interpreter, so every call number can be asked about."""

    def test_is_whole_instructions_that_a_kernel_loads(self, program: bytes) -> None:
        assert len(program) % 8 == 0
        assert 0 < len(program) // 8 <= 4096

    def test_every_call_number_is_decided_as_the_profile_says(
        self, profile: dict[str, Any], program: bytes
    ) -> None:
        conditional = {n for e in profile["syscalls"] if "args" in e for n in e["names"]}
        plain = {number(n) for n in allowed_names(profile) - conditional}
        skipped = {number(n) for n in conditional | {"clone3"}}
        wrong = [
            call
            for call in range(1024)
            if call not in skipped
            and decide(program, call) != (ALLOW if call in plain else ERRNO | errno.EPERM)
        ]
        assert wrong == []

    @pytest.mark.skipif(os.uname().machine != "x86_64", reason="i386 and x32 are x86 entries")
    def test_other_entries_kill(self, program: bytes) -> None:
        i386, x32_bit = 0x40000003, 0x40000000
        assert decide(program, 20, arch=i386) == KILL_PROCESS
        assert decide(program, number("getpid") | x32_bit) == KILL_PROCESS
        assert decide(program, number("read") | x32_bit) == KILL_PROCESS

    def test_clone_makes_threads_and_children_but_no_namespace(self, program: bytes) -> None:
        clone, thread, sigchld = number("clone"), 0x3D0F00, 17
        assert decide(program, clone, thread) == ALLOW
        assert decide(program, clone, sigchld) == ALLOW
        for bit in (17, 25, 26, 27, 28, 29, 30):
            assert decide(program, clone, 1 << bit | sigchld) == ERRNO | errno.EPERM
        assert decide(program, number("clone3")) == ERRNO | errno.ENOSYS

    @pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32])
    def test_socket_families(self, program: bytes, high: int) -> None:
        """The kernel cuts the family to 32 bits, so high bits must not change the answer."""
        families = {f for f in range(64) if decide(program, number("socket"), f | high) == ALLOW}
        assert families == {1, 2, 10, 16}
        pairs = {f for f in range(64) if decide(program, number("socketpair"), f | high) == ALLOW}
        assert pairs == {1}

    def test_netlink_is_for_routes_only(self, program: bytes) -> None:
        protocols = {p for p in range(32) if decide(program, number("socket"), 16, 3, p) == ALLOW}
        assert protocols == {0}

    @pytest.mark.parametrize("request_name", FORBIDDEN_IOCTLS)
    @pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32])
    def test_forbidden_ioctl(self, program: bytes, request_name: str, high: int) -> None:
        request = FORBIDDEN_IOCTLS[request_name] | high
        assert decide(program, number("ioctl"), 0, request) & ~0xFFFF == ERRNO

    @pytest.mark.parametrize("request_number", [0x5401, 0x5413, 0x5421, 0x5451, 0x80045430])
    def test_terminal_ioctl_as_libcs_write_it(self, program: bytes, request_number: int) -> None:
        """musl passes a request as an int, which sets the high bits of the larger ones."""
        for value in (request_number, request_number | 0xFFFFFFFF << 32):
            assert decide(program, number("ioctl"), 0, value) == ALLOW

    @pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32])
    def test_fcntl_takes_no_lease_and_leaves_no_note(self, program: bytes, high: int) -> None:
        """Leases hold up whoever opens the file, on the host too."""
        denied = {c for c in range(2048) if decide(program, number("fcntl"), 0, c | high) != ALLOW}
        set_lease, notify, set_pipe_size = 1024, 1026, 1031
        assert {set_lease, notify, set_pipe_size} <= denied
        used = {getattr(fcntl, name) for name in dir(fcntl) if name.startswith("F_")}
        ordinary = used & set(range(2048)) - {set_lease, notify, set_pipe_size}
        assert not ordinary & denied

    @pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32])
    def test_no_socket_gets_larger_buffers_or_a_filter_program_or_lingers(
        self, program: bytes, high: int
    ) -> None:
        call, sol_socket = number("setsockopt"), 1
        denied = {
            option
            for option in range(128)
            if decide(program, call, 0, sol_socket | high, option | high) != ALLOW
        }
        buffers = {"SO_SNDBUF": 7, "SO_RCVBUF": 8, "SO_SNDBUFFORCE": 32, "SO_RCVBUFFORCE": 33}
        # SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF and _EBPF.
        filters = {26, 50, 51, 52}
        assert denied == {*buffers.values(), *filters, socket.SO_LINGER}
        levels = {n for n in range(512) if decide(program, call, 0, n | high, 7) == ALLOW}
        assert {socket.SOL_IP, socket.SOL_TCP, socket.SOL_UDP, socket.IPPROTO_IPV6} <= levels
        assert sol_socket not in levels

    def test_limits_are_set_for_oneself_only(self, program: bytes) -> None:
        prlimit, supervisor, new_limit = number("prlimit64"), 1, 0x7000_0000_1000
        assert decide(program, prlimit, 0, 0, new_limit) == ALLOW
        assert decide(program, prlimit, supervisor, 0, 0) == ALLOW  # only looks
        assert decide(program, prlimit, supervisor, 0, new_limit) == ERRNO | errno.EPERM
        assert decide(program, prlimit, supervisor | 1 << 32, 0, new_limit) == ERRNO | errno.EPERM

    def test_mknod_makes_fifos_and_files_only(self, program: bytes) -> None:
        mknodat = number("mknodat")
        kinds = {k for k in range(16) if decide(program, mknodat, 0, 0, k << 12 | 0o644) == ALLOW}
        assert kinds == {0o00, 0o01, 0o10}  # none (a regular file), S_IFIFO, S_IFREG


class TestErrors:
    @pytest.mark.parametrize(
        ("profile", "message"),
        [
            (minimal(architectures=[]), "architectures"),
            (minimal(defaultAction="SCMP_ACT_ALLOW", defaultErrnoRet=None), "deny by default"),
            (minimal(defaultAction="SCMP_ACT_WISH"), "SCMP_ACT_WISH"),
            (minimal(defaultAction="SCMP_ACT_KILL"), "defaultErrnoRet"),
            (minimal(defaultErrnoRet=-1), "defaultErrnoRet"),
            (minimal(defaultErrnoRet=True), "defaultErrnoRet"),
            (minimal(syscalls={}), "syscalls"),
            (minimal(syscalls=["read"]), r"syscalls\[0\]"),
            (minimal(archMap=[]), os.uname().machine),
            (rule(action="SCMP_ACT_NOTIFY"), "SCMP_ACT_NOTIFY"),
            (rule(action="SCMP_ACT_LOG"), "SCMP_ACT_LOG"),
            (rule(action=["SCMP_ACT_ALLOW"]), "unknown action"),
            (rule(errnoRet=5), "errnoRet"),
            (rule(includes={"caps": ["CAP_SYS_ADMIN"]}), "includes"),
            (rule(excludes={"arches": ["s390x"]}), "excludes"),
            (rule(name="read"), "name"),
            (rule(names="read"), "expected a list"),
            (rule(names=["no_such"], action="SCMP_ACT_KILL_PROCESS"), "no_such"),
            (arg(op="SCMP_CMP_LIKE"), "SCMP_CMP_LIKE"),
            (arg(index=6), "index"),
            (arg(value=2**64), "value"),
            (arg(value="1"), "value"),
            (arg(valueTwo=-1), "valueTwo"),
            (arg(argument=1), "argument"),
            (rule(args=[{"index": 0, "value": 1}]), "missing op"),
            (
                rule(args=[{"index": 0, "value": v, "op": "SCMP_CMP_EQ"} for v in (1, 2)]),
                "two conditions on one argument",
            ),
            # The same answer as the default: libseccomp's own refusal is passed on.
            (rule(action="SCMP_ACT_ERRNO"), "libseccomp refused socket"),
            (
                minimal(
                    archMap=[
                        {
                            "architecture": "SCMP_ARCH_X86_64",
                            "subArchitectures": ["SCMP_ARCH_X86"],
                        }
                    ]
                ),
                "subArchitectures",
            ),
        ],
    )
    def test_refused_by_name(self, profile: dict[str, Any], message: str) -> None:
        with pytest.raises(SeccompError, match=message):
            compiled(profile)

    @pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[]", b"null"])
    def test_not_a_profile(self, text: bytes) -> None:
        with pytest.raises(SeccompError):
            compile_profile(text)

    def test_missing_key_is_named(self) -> None:
        profile = minimal()
        del profile["archMap"]
        with pytest.raises(SeccompError, match="archMap"):
            compiled(profile)

    def test_unknown_allowed_name_is_skipped_and_stays_denied(self) -> None:
        entry = {"names": ["read", "call_of_the_future"], "action": "SCMP_ACT_ALLOW"}
        with_unknown = compiled(minimal(syscalls=[entry]))
        assert with_unknown == compiled(minimal(syscalls=[entry | {"names": ["read"]}]))

    def test_errno_defaults_to_eperm(self) -> None:
        profile = minimal()
        del profile["defaultErrnoRet"]
        assert decide(compiled(profile), number("socket")) == ERRNO | errno.EPERM

    def test_missing_library_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def absent(name: str) -> None:
            raise OSError(name)

        seccomp._libseccomp.cache_clear()
        try:
            with monkeypatch.context() as patch:
                patch.setattr(ctypes, "CDLL", absent)
                with pytest.raises(SeccompError, match=r"apt-get install libseccomp2.*dnf"):
                    compiled(minimal())
        finally:
            seccomp._libseccomp.cache_clear()


@pytest.mark.parametrize(
    ("operator", "matching"),
    [
        ("SCMP_CMP_NE", {0, 1, 2, 4}),
        ("SCMP_CMP_LT", {0, 1, 2}),
        ("SCMP_CMP_LE", {0, 1, 2, 3}),
        ("SCMP_CMP_EQ", {3}),
        ("SCMP_CMP_GE", {3, 4}),
        ("SCMP_CMP_GT", {4}),
    ],
)
def test_operators_compare_as_their_names_say(operator: str, matching: set[int]) -> None:
    program = compiled(arg(op=operator, value=3))
    assert {v for v in range(5) if decide(program, number("socket"), v) == ALLOW} == matching


def test_masked_operator_takes_the_mask_first() -> None:
    program = compiled(arg(op="SCMP_CMP_MASKED_EQ", value=0b110, valueTwo=0b100))
    assert {v for v in range(8) if decide(program, number("socket"), v) == ALLOW} == {4, 5}
