"""Rights that the process itself could get: another user, capabilities."""

from __future__ import annotations

import ctypes
import os
import struct

from tests.hostile.probes.attack import call, in_child, probe, read

RIGHTS = "rights of the process"

# Rights -------------------------------------------------------------------------------------------


@probe(RIGHTS, witness="kernel:rights")
def another_user() -> bool:
    return in_child(lambda: os.setresuid(0, 0, 0) is None and os.getuid() == 0)


@probe(RIGHTS, witness="kernel:rights")
def another_group() -> bool:
    return in_child(lambda: os.setresgid(0, 0, 0) is None and os.getgid() == 0)


@probe(RIGHTS, witness="kernel:rights")
def more_groups() -> bool:
    return in_child(lambda: os.setgroups([0, 6]) is None)


@probe(RIGHTS, witness="kernel:rights")
def another_user_for_files() -> bool:
    libc = ctypes.CDLL(None)
    return in_child(lambda: bool(libc.setfsuid(7) is not None and libc.setfsuid(7) == 7))


@probe(RIGHTS, witness="kernel:rights")
def capabilities_are_raised() -> bool:
    header = struct.pack("=Ii", 0x20080522, 0)
    admin = 1 << 21
    wanted = struct.pack("=IIIIII", admin, admin, 0, 0, 0, 0)
    return in_child(lambda: call("capset", header, wanted) == 0)


@probe(RIGHTS, witness="kernel:rights")
def capabilities_are_kept_for_programs() -> bool:
    ambient, is_set, raise_it, inheritable = 47, 1, 2, struct.pack("=Ii", 0x20080522, 0)

    def keep() -> bool:
        admin = 1 << 21
        call("capset", inheritable, struct.pack("=IIIIII", admin, admin, admin, 0, 0, 0))
        call("prctl", ambient, raise_it, 21, 0, 0)
        return call("prctl", ambient, is_set, 21, 0, 0) == 1

    return in_child(keep)


@probe(RIGHTS, witness="kernel:rights")
def the_rules_for_roots_rights_are_changed() -> bool:
    set_securebits, keep_caps = 28, 1 << 4
    return in_child(lambda: call("prctl", set_securebits, keep_caps, 0, 0, 0) == 0)


@probe(RIGHTS, witness="kernel:rights")
def capabilities_as_they_are() -> bool:
    status = dict(line.split(":", 1) for line in read("/proc/self/status").decode().splitlines())
    return any(
        int(status.get(f"Cap{which}", "0"), 16) for which in ("Inh", "Prm", "Eff", "Bnd", "Amb")
    )


@probe(RIGHTS, witness="kernel:rights")
def new_programs_may_have_more_rights() -> bool:
    get_no_new_privileges = 39
    return call("prctl", get_no_new_privileges, 0, 0, 0, 0) == 0
