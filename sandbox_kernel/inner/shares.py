"""The sandbox's share of what Linux counts per user, which it has in common with that user's programs.

Resource limits: since Linux 5.14 the kernel counts pending signals and locked memory per user namespace,
so a hard limit holds for the sandbox as a whole; older kernels compare it with the user's total.
Counts of the user namespace (``/proc/sys/user``): what the sandbox charges there, it also charges to the
user, so a lower maximum in the namespace bounds its part. Only the namespace's own root may write them:
the supervisor does while it still has that capability, and cells never have it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource

# The kernel lets a process send a descriptor over a unix socket as long as the user has no more than this
# many on their way, and a message carries 253. Together that is below 1,024, the usual limit of the user's
# other programs, which therefore can still send theirs. It also bounds the buffers of one process.
OPEN_FILES = 768
# A cell that has used up its descriptors must leave some to the kernel that makes the checkpoint.
RESERVED_FILES = 64
# Signals that wait for delivery, and timers: each timer holds one. An ordinary user has tens of thousands.
PENDING_SIGNALS = 1024
LOCKED_BYTES = 8 << 20

# A user has 128 instances by default, and one watcher takes one.
INOTIFY_INSTANCES = 16
INOTIFY_WATCHES = 8192
USER_COUNTS = {
    "max_inotify_instances": INOTIFY_INSTANCES,
    "max_inotify_watches": INOTIFY_WATCHES,
    # The filter refuses the calls that make these; the counts hold without it.
    "max_fanotify_groups": 0,
    "max_fanotify_marks": 0,
    **{
        f"max_{kind}_namespaces": 0
        for kind in ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
    },
}

COUNTED_PER_USER = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE)


def take_shares() -> None:
    """Bound what this process and all that descend from it may take. Before capabilities are gone."""
    lower(resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES - RESERVED_FILES)
    for kind, most in (
        (resource.RLIMIT_SIGPENDING, PENDING_SIGNALS),
        (resource.RLIMIT_MEMLOCK, LOCKED_BYTES),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        # Linux lets everybody lower their own. gVisor refuses: it has no such limits, and its
        # processes do not count on the host.
        with contextlib.suppress(ValueError):
            lower(kind, most)
    if not in_the_hosts_user_namespace():
        for name, most in USER_COUNTS.items():
            lower_count(name, most)


def in_the_hosts_user_namespace() -> bool:
    """Whether a lower count here would be everybody's: at `restricted`, in an engine's container."""
    with open("/proc/self/uid_map", "rb") as file:
        return file.read().split() == [b"0", b"0", b"4294967295"]


def lower(kind: int, hard: int, soft: int | None = None) -> None:
    """Set a resource limit, unless there is a lower one.

    Linux never refuses to lower a limit. gVisor refuses those that it does not have; what they bound is
    counted by its own kernel, not by the host's per user.
    """
    soft = hard if soft is None else soft
    old_soft, old_hard = (
        hard if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(kind)
    )
    try:
        resource.setrlimit(kind, (min(soft, old_soft, old_hard), min(hard, old_hard)))
    except ValueError:
        if kind not in COUNTED_PER_USER:
            raise


def lower_count(name: str, most: int) -> None:
    """Set a count of this user namespace.

    Where the namespace is not the sandbox's own, as in a container, the kernel refuses: the banner says
    so. A kernel without such a count has nothing to lower.
    """
    try:
        descriptor = os.open(f"/proc/sys/user/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return
        raise
    with contextlib.closing(os.fdopen(descriptor, "wb", buffering=0)) as file:
        file.write(b"%d" % most)
