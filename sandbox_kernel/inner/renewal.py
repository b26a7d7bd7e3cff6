"""What a fork of the kernel process has lost, and how it works again without."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import heapq
import os
import signal
import sys
import threading
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from .descriptors import open_descriptors

OPENMP = ("libgomp", "libomp", "libiomp5")
# Starts its threads again in a fork. OpenBLAS has ended its own before one, and is not counted.
STARTED_AGAIN = ("/libarrow",)
# Threads that a zmq context has, which Python does not know of.
ZMQ_THREADS = 2
DEBUGGER = "_pydevd_bundle"
# Where `multiprocessing` and `mmap` have memory that is shared.
SHARED = ("/dev/shm/", "/dev/zero", "/memfd:", "/tmp/", "/home/")


def native_threads() -> int:
    """How many threads libraries have started, past Python."""
    return len(os.listdir("/proc/self/task")) - threading.active_count() - ZMQ_THREADS


def threads_come_again() -> bool:
    """Whether there is a library that starts its threads again: they cannot be told from others."""
    if DEBUGGER in sys.modules:  # whose threads Python is not told of
        return True
    maps = Path("/proc/self/maps").read_text(errors="replace")
    return any(name in maps for name in STARTED_AGAIN)


def count_gpus() -> int:
    links = (f"/proc/self/fd/{descriptor.number}" for descriptor in open_descriptors())
    gpus = ("/dev/nvidia", "/dev/dri", "/dev/kfd")
    return sum(os.readlink(link).startswith(gpus) for link in links)


def count_shared_memory() -> int:
    """Blocks of memory that are shared with whoever maps them: this fork has not its own."""
    inodes = set()
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        _, permissions, _, _, inode, *name = line.split(maxsplit=5)
        # Locks of `multiprocessing` are no data.
        is_data = name and name[0].startswith(SHARED) and not name[0].startswith("/dev/shm/sem.")
        if permissions == "rw-s" and is_data:
            inodes.add(inode)
    return len(inodes)


def renew_thread_pools() -> None:
    """Let thread pools start threads again: they count on those that the fork has lost."""
    module = sys.modules.get("concurrent.futures.thread")
    if module is None or not module._threads_queues:
        return
    # By type: `isinstance` asks the objects, and some would answer with code of the user's.
    pools = [each for each in gc.get_objects() if issubclass(type(each), module.ThreadPoolExecutor)]
    for pool in pools:
        pool._threads.clear()
        pool._idle_semaphore = threading.Semaphore(0)
        pool._shutdown_lock = threading.Lock()
        if not pool._work_queue.empty() and not pool._shutdown:
            pool._adjust_thread_count()


def calm_openmp() -> int:
    """One thread for OpenMP libraries: GNU's waits for ever for the pool that the fork lost."""
    libraries = {
        line.split(maxsplit=5)[5].strip()
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines()
        if any(f"/{name}" in line for name in OPENMP)
    }
    for library in libraries:
        ctypes.CDLL(library).omp_set_num_threads(1)
    return len(libraries)


def renew_event_loop(loop: Any, dropped: Collection[int]) -> None:
    """Give ``loop`` a selector of its own; its tasks, timers and callbacks stay as they are.

    A fork shares the old one's epoll instance with its parent. ``dropped`` are descriptors whose
    handlers belong to dead sockets.
    """
    old = loop._selector
    own_pipe = loop._ssock.fileno()
    loop._selector = type(old)()
    for descriptor, key in list(old.get_map().items()):
        if descriptor not in dropped and descriptor != own_pipe:
            with contextlib.suppress(OSError):  # closed by what libraries do in a fork
                loop._selector.register(descriptor, key.events, key.data)
    old.close()
    # A callback of a dead socket would end the process: libzmq checks what it reads.
    loop._ready = type(loop._ready)(h for h in loop._ready if not is_for_zmq(h))
    loop._scheduled = [h for h in loop._scheduled if not is_for_zmq(h)]
    heapq.heapify(loop._scheduled)
    loop._ssock.close()
    loop._csock.close()
    loop._internal_fds -= 1
    loop._make_self_pipe()
    wake_for_signals(loop)
    asyncio.set_event_loop(loop)


def wake_for_signals(loop: Any) -> None:
    """Let signals wake ``loop``: a cell that awaits is to hear of an interrupt at once."""
    signal.set_wakeup_fd(loop._csock.fileno(), warn_on_full_buffer=False)


def is_for_zmq(handle: Any) -> bool:
    """Whether an event loop's handle calls into a zmq stream, by way of tornado or not."""
    parts = [handle._callback, *(handle._args or ())]
    parts += [part.func for part in parts if isinstance(part, partial)]
    return any(module_of(part).startswith("zmq.") for part in parts)


def module_of(part: Any) -> str:
    try:
        return str(part.__module__)
    except Exception:  # an object of the user's may do anything
        return ""
