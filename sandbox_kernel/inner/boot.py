"""The sandbox's first process: a supervisor that starts the kernel process and outlives it.

It holds the lifeline, a stream socket to the wrapper; when that closes, the supervisor ends, and with
it every process of its pid namespace. It keeps the list of checkpoints: sleeping forks of the kernel
process, each of which can take its place (``checkpoint``). The kernel process and its checkpoints
report to a desk, a datagram socket; cells can write there too, and harm their own state by it.

Over the lifeline come lines of words:

    interrupt                        SIGINT to the kernel process and its group
    sweep TICKS                      kill what was started since TICKS, but the kernel process
    rollback LABEL|previous PREFIX   kill all but checkpoints, wake one: it connects to PREFIX
    forget                           end the previous checkpoint, to have its memory back

    count                            say how many checkpoints there are

and these go back: ``clock TICKS`` (the time in here, at first), ``exited STATUS``, ``swept COUNT``, ``restored LABEL LOST``, ``nothing`` (to roll
back to), ``checkpoints COUNT``.

Runs as ``python boot.py CONNECTION_FILE``; imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
HIGHEST_CAPABILITY = 63
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CAPABILITY_VERSION_3 = 0x20080522

# Where `checkpoint` finds the desk.
DESK_DESCRIPTOR = 3
# The one before the next cell, and the one before the last cell, for undo.
CHECKPOINTS_KEPT = 2
# A killed process may be stuck in the kernel; the wrapper replaces the sandbox if this is not enough.
DEATH_SECONDS = 5.0
DESK_MESSAGES_AT_ONCE = 64
FILES_LOOKED_AT = 20_000
WRITABLE = ("/tmp", "/dev/shm", "/home/sandbox")


def libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def give_up_capabilities() -> None:
    """Empty every capability set, the bounding set included, for good."""
    c = libc()
    for capability in range(HIGHEST_CAPABILITY + 1):
        c.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    c.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if c.capset(struct.pack("Ii", CAPABILITY_VERSION_3, 0), bytes(24)) != 0:
        msg = "cannot give up the capabilities"
        raise OSError(msg)


def load(name: str, directory: str) -> ModuleType:
    """Import a module that lies beside this file, which is not on the path of cells."""
    spec = importlib.util.spec_from_file_location(f"_sandbox_{name}", f"{directory}/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start_kernel(connection_file: str, desk: socket.socket) -> int:
    """Fork the kernel process, which has one end of ``desk``; it never returns from here."""
    pid = os.fork()
    if pid:
        return pid
    os.dup2(desk.fileno(), DESK_DESCRIPTOR, inheritable=False)
    # The lifeline and the desk's other end among them.
    os.closerange(DESK_DESCRIPTOR + 1, 1 << 10)
    # Its own session and group, as jupyter_client starts kernels: an interrupt reaches the cell's
    # children, never the supervisor.
    os.setsid()
    # Thousands of objects are about to be made and kept: `bridge` turns collection on again.
    gc.disable()
    # The directory of this file must not shadow the user's modules.
    here = sys.path.pop(0)
    load("checkpoint", here)
    load("bridge", here).main(connection_file)
    os._exit(0)


class Checkpoint(NamedTuple):
    """A sleeping fork of the kernel process: wakes at a word on ``wake``, ends when it closes."""

    label: int  # the last cell whose effects are in it
    pid: int
    wake: int
    made: int  # in nanoseconds since the epoch

    def end(self) -> None:
        os.close(self.wake)
        kill(self.pid, signal.SIGKILL)


class Supervisor:
    """Serves the lifeline and the desk, and reaps, until the lifeline closes."""

    def __init__(self, kernel_pid: int, lifeline: socket.socket, desk: socket.socket) -> None:
        self._kernel_pid = kernel_pid
        self._lifeline = lifeline
        self._desk = desk
        desk.setblocking(False)
        self._checkpoints: list[Checkpoint] = []
        # Of the last rollback: processes that were there when the checkpoint was made, and files that
        # were changed since.
        self._processes_lost = 0
        self._files_changed = 0
        self._pending = b""
        self._wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        # The first process of a namespace gets only signals it handles: cells cannot end it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        self._say(f"clock {int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_SECOND)}")
        self._reap()
        while True:
            sources = [self._lifeline.fileno(), self._desk.fileno(), self._wakeup]
            readable, _, _ = select.select(sources, [], [])
            if self._wakeup in readable:
                self._drain_wakeup()
                self._reap()
            if self._desk.fileno() in readable:
                self._read_desk()
            if self._lifeline.fileno() in readable:
                self._read_lifeline()

    def _say(self, line: str) -> None:
        self._lifeline.sendall(line.encode("ascii", "replace") + b"\n")

    def _reap(self) -> None:
        """Collect every ended child; tell of the kernel process if it is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._kernel_pid:
                self._kernel_pid = 0
                self._say(f"exited {status}")

    def _read_lifeline(self) -> None:
        received = self._lifeline.recv(4096)
        if not received:
            os._exit(0)
        *lines, self._pending = (self._pending + received).split(b"\n")
        for line in lines:
            command, *words = line.decode("ascii").split()
            if command == "interrupt" and self._kernel_pid:
                killpg(self._kernel_pid, signal.SIGINT)
            elif command == "sweep":
                self._say(f"swept {self._sweep(int(words[0]))}")
            elif command == "rollback":
                self._roll_back(words[0], words[1])
            elif command == "forget":
                self._read_desk()
                self._forget_beyond(1)
            elif command == "count":
                self._read_desk()
                self._say(f"checkpoints {len(self._checkpoints)}")

    # -- checkpoints -------------------------------------------------------------------------------

    def _read_desk(self) -> None:
        for _ in range(DESK_MESSAGES_AT_ONCE):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._desk, 1024, 8)
            except BlockingIOError:
                return
            word, _, rest = data.decode("ascii", "replace").partition(" ")
            numbers = [int(number) for number in rest.split() if number.isdecimal()]
            if word == "checkpoint" and len(numbers) == 3 and len(descriptors) == 1:
                label, pid, made = numbers
                self._add(Checkpoint(label, pid, descriptors[0], made))
                continue
            for descriptor in descriptors:
                os.close(descriptor)
            if word == "restored":
                self._tell_restored(rest)

    def _add(self, checkpoint: Checkpoint) -> None:
        if self._checkpoints and self._checkpoints[-1].label == checkpoint.label:
            self._forget_newest()
        self._checkpoints.append(checkpoint)
        self._forget_beyond(CHECKPOINTS_KEPT)

    def _tell_restored(self, words: str) -> None:
        """Pass on what a checkpoint says, with what can be seen from here only."""
        label, _, lost = words.partition(" ")
        counts = dict(item.split("=", 1) for item in lost.split() if "=" in item)
        # It counts in its own time: a rollback may come first and end what it would have counted.
        said = counts.get("children", "0")
        children = max(self._processes_lost, int(said) if said.isdecimal() else 0)
        counts |= {"children": str(children), "files": str(self._files_changed)}
        self._say(" ".join(["restored", label, *(f"{k}={v}" for k, v in counts.items())]))

    def _forget_newest(self) -> None:
        if self._checkpoints:
            self._checkpoints.pop().end()

    def _forget_beyond(self, kept: int) -> None:
        while len(self._checkpoints) > kept:
            self._checkpoints.pop(0).end()

    def _roll_back(self, to: str, prefix: str) -> None:
        """Let a checkpoint take the kernel process's place, with nothing left of what came since."""
        self._read_desk()
        if to == "previous":
            self._forget_newest()
        else:
            # A cell may end, and its state be kept, just before the wrapper has it killed.
            while len(self._checkpoints) > 1 and self._checkpoints[-1].label > int(to):
                self._forget_newest()
        spared = {checkpoint.pid for checkpoint in self._checkpoints}
        users = [pid for pid in pids() if pid != self._kernel_pid and is_users(pid)]
        self._kernel_pid = 0
        self._kill(lambda pid: pid not in spared)
        while self._checkpoints:
            checkpoint = self._checkpoints.pop()
            self._files_changed = count_files_changed(checkpoint.made)
            self._processes_lost = sum(pid < checkpoint.pid for pid in users)
            if wake(checkpoint, prefix):
                self._kernel_pid = checkpoint.pid
                return
        self._say("nothing")

    # -- processes ---------------------------------------------------------------------------------

    def _sweep(self, ticks: int) -> int:
        """Kill processes started at ``ticks`` (since boot) or later; how many there were."""
        self._read_desk()
        spared = {self._kernel_pid, *(checkpoint.pid for checkpoint in self._checkpoints)}
        return self._kill(lambda pid: pid not in spared and started(pid) >= ticks)

    def _kill(self, is_doomed: Callable[[int], bool]) -> int:
        """Kill these processes; how many there were."""
        # Stopped first, all at once, and looked for until there are none: a process that was in the
        # middle of a fork ends up with a child that the first look did not see.
        signal_all(signal.SIGSTOP)
        killed = 0
        deadline = time.monotonic() + DEATH_SECONDS
        while doomed := [pid for pid in pids() if alive(pid) and is_doomed(pid)]:
            killed += len(doomed)
            for pid in doomed:
                kill(pid, signal.SIGKILL)
            self._await_death(doomed, deadline)
            if time.monotonic() > deadline:
                break
        signal_all(signal.SIGCONT)
        return killed

    def _await_death(self, doomed: list[int], deadline: float) -> None:
        # A zombie whose parent lives is as dead as it gets.
        while any(map(alive, doomed)) and time.monotonic() < deadline:
            select.select([self._wakeup], [], [], 0.01)
            self._drain_wakeup()
            self._reap()

    def _drain_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 4096)


def wake(checkpoint: Checkpoint, prefix: str) -> bool:
    try:
        os.write(checkpoint.wake, prefix.encode())
    except BrokenPipeError:  # a cell has killed it
        return False
    finally:
        os.close(checkpoint.wake)
    return True


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def killpg(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def signal_all(number: int) -> None:
    """To every process of the namespace but this one."""
    with contextlib.suppress(ProcessLookupError):  # there is none
        os.kill(-1, number)


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]


def stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def started(pid: int) -> int:
    fields = stat(pid)
    return int(fields[19]) if fields else 0


def alive(pid: int) -> bool:
    fields = stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def is_users(pid: int) -> bool:
    """Whether it runs and is no checkpoint, not even one that is about to end."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return name != "checkpoint" and alive(pid)


def count_files_changed(since: int) -> int:
    """Files and folders that were made or written after ``since``: a rollback does not undo them."""
    changed = looked_at = 0
    for root in WRITABLE:
        device = os.lstat(root).st_dev
        for directory, folders, files in os.walk(root):
            # The notebook's folder may be below: that is the host's.
            folders[:] = [name for name in folders if device_of(f"{directory}/{name}") == device]
            for name in (".", *files):
                looked_at += 1
                if looked_at > FILES_LOOKED_AT:
                    return changed
                with contextlib.suppress(FileNotFoundError):
                    changed += os.lstat(f"{directory}/{name}").st_ctime_ns > since
    return changed


def device_of(path: str) -> int:
    try:
        return os.lstat(path).st_dev
    except FileNotFoundError:
        return 0


def main(connection_file: str) -> None:
    # Whatever was open on the host stays out.
    os.closerange(3, 1 << 20)
    settings = json.loads(Path(connection_file).read_text())["sandbox"]
    give_up_capabilities()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        os.chdir(settings["working_directory"])
    except PermissionError:
        # A folder of root's on a file system that cannot show it to another user; the banner says.
        os.chdir(os.environ["HOME"])
    # Descriptor 3, which the kernel process puts its end of the desk on, must be free for that.
    reserved = os.open("/dev/null", os.O_RDONLY)
    lifeline = socket.socket(socket.AF_UNIX)
    lifeline.connect(settings["lifeline"])
    desk, kernel_desk = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    kernel_pid = start_kernel(connection_file, kernel_desk)
    # Same user as the cells: without this a cell could read or trace the supervisor.
    libc().prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.close(reserved)
    kernel_desk.close()
    Supervisor(kernel_pid, lifeline, desk).serve()


if __name__ == "__main__":
    main(sys.argv[1])
