"""The ``restricted`` level: a process of the host with as much taken away as needs no privilege.

For hosts that have nothing better, and only where a policy names it. No namespace: what holds a cell is
the check of its code, then Landlock, system call filters and limits (``confinement``), then what Python
itself can be made to refuse (``inner/restricted.py``). What that leaves open is in the facts.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandbox_kernel import children
from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation import confinement, hiding, landlock, probe, view
from sandbox_kernel.isolation.base import Sandbox, SandboxFacts, SandboxSpec
from sandbox_kernel.isolation.process import effective_capabilities, unrelated_uid
from sandbox_kernel.limits.cgroup import Cgroup
from sandbox_kernel.limits.files import stat_fields

if TYPE_CHECKING:
    from sandbox_kernel.policy.model import Names

_SELF: Final = Path("/proc/self")
# What root needs to hand files to another user, become that user, and end its processes.
_CAP_CHOWN, _CAP_KILL, _CAP_SETGID, _CAP_SETUID = 1 << 0, 1 << 5, 1 << 6, 1 << 7
_CAPABILITIES: Final = _CAP_CHOWN | _CAP_KILL | _CAP_SETGID | _CAP_SETUID
_PR_SET_CHILD_SUBREAPER: Final = 36
_KILL_SECONDS: Final = 1.0
# Above the descriptors that the supervisor gives a meaning to.
_FIRST_DESCRIPTOR: Final = 10
_SAID_LIMIT: Final = 600


class RestrictedSandbox(Sandbox):
    """A supervisor on the host, and the processes below it."""

    def __init__(self, spec: SandboxSpec, imports: Names, stand_in: int | None) -> None:
        self._spec = spec
        self._imports = imports
        # Root's; what cells run as.
        self._stand_in = stand_in
        # Landlock opens folders whole: nothing in them can be hidden.
        self._view = view.plan_view(
            spec.working_directory, spec.secrets, view.homes(), os.environ, hides=False
        )
        self._landlock = landlock.version()
        # Once: the folder may be renamed or removed while the sandbox runs.
        self._notes = tuple(self._find_notes())
        # The run directory: another user could not get there by its path.
        self._descriptor = -1
        self._home = ""
        # What the wrapper had started before.
        self._unrelated: set[int] = set()
        self._cgroup: Cgroup | None = None

    @property
    def facts(self) -> SandboxFacts:
        shares_user = self._stand_in is None
        return SandboxFacts(
            level="restricted",
            engine=confinement.engine(self._landlock),
            network="none",
            working_directory=str(self._spec.working_directory),
            notes=(*self.remarks, *self._notes),
            folder_shown=view.shows(self._view, self._spec.working_directory),
            not_protected=tuple(confinement.not_protected(self._landlock, shares_user=shares_user)),
        )

    def _find_notes(self) -> Iterable[str]:
        if self._landlock:
            yield from self._view.notes
            if self._view.hidden:
                names = hiding.listed(self._view.hidden, self._spec.working_directory)
                yield f"credentials that cannot be hidden at this level, and that cells can read: {names}"
        if self._stand_in is None:
            yield "cells run as the user who started the kernel"
            return
        yield f"cells run as uid {self._stand_in}, whom nothing on this host belongs to"
        folder = self._spec.working_directory
        if closed := closed_to_others([folder]):
            yield (
                f"{folder} cannot be read: {closed} is closed to other users; move the notebook to a "
                "folder that they may enter"
            )

    def place(self, run_directory: Path) -> str:
        opened = os.open(run_directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
        finally:
            os.close(opened)
        place = f"/proc/self/fd/{self._descriptor}"
        self._home = f"{place if self._stand_in is not None else run_directory}/home"
        return place

    def settings(self) -> dict[str, Any]:
        place = f"/proc/self/fd/{self._descriptor}"
        confined = confinement.plan(self._landlock, self._view.read_only, place, self._home)
        return {
            "run_descriptor": self._descriptor,
            "shares_user": self._stand_in is None,
            "confinement": confined,
            "imports": self._imports._asdict(),
        }

    def start(self, run_directory: Path) -> None:
        try:
            outer = self._start(run_directory)
        except BaseException:
            self._close()
            raise
        if self._cgroup is not None and not self._cgroup.keeps(outer.pid):
            self._cgroup.close()
            self._cgroup = None
        self._watch(outer)

    def _start(self, run_directory: Path) -> subprocess.Popen[bytes]:
        # Should the supervisor be killed, those below it become the wrapper's children, not init's.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._unrelated = descendants(os.getpid())
        (run_directory / confinement.FILTER).write_bytes(confinement.compile_filter())
        self._make_home(run_directory / "home")
        place = f"/proc/self/fd/{self._descriptor}"
        self._cgroup = Cgroup.create()
        try:
            return subprocess.Popen(
                [
                    str(self._spec.python),
                    f"{place}/{view.INNER}/boot.py",
                    f"{place}/connection.json",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[self._descriptor],
                cwd="/",
                env=self._environment(),
                umask=0o077,
                # jupyter_client kills a kernel's whole process group: the supervisor sees to its own.
                start_new_session=True,
                preexec_fn=self._before_exec,
            )
        except (OSError, subprocess.SubprocessError) as error:
            what = f"The sandbox's Python cannot be started: {error}."
            hint = "See that the Python environment is whole and, as root, that every user may read it."
            raise SandboxUnavailable(what, hint=hint) from error

    def _make_home(self, home: Path) -> None:
        profile = home / ".ipython" / "profile_default"
        for folder in (home, home / "tmp", profile.parent, profile, profile / "startup"):
            folder.mkdir(mode=0o700)
            self.give(folder)
        # Else IPython copies one there, with its mode, which nobody inside may set.
        (profile / "startup" / "README").touch()

    def _before_exec(self) -> None:
        if self._cgroup is not None:
            self._cgroup.join()  # as the wrapper's user: the sandbox's may not
        if self._stand_in is not None:
            os.setgroups([])
            os.setresgid(self._stand_in, self._stand_in, self._stand_in)
            os.setresuid(self._stand_in, self._stand_in, self._stand_in)

    def _environment(self) -> dict[str, str]:
        passed = self._spec.passed
        return view.plan_environment(os.environ, self._view.read_only, passed) | {
            "HOME": self._home,
            "TMPDIR": f"{self._home}/tmp",
            "IPYTHONDIR": f"{self._home}/.ipython",
        }

    @property
    def root_pid(self) -> int:
        assert self._outer is not None
        return self._outer.pid

    @property
    def supervisor_pid(self) -> int | None:
        return self.root_pid

    @property
    def cgroup(self) -> Cgroup | None:
        return self._cgroup

    def explain(self, console: str) -> SandboxUnavailable:
        said = "".join(c if c.isprintable() else " " for c in console[-_SAID_LIMIT:]).strip()
        quoted = f"It said: {said!r}." if said else "It said nothing."
        if "in confine" in console:
            what = f"The sandbox could not give up what it must not have. {quoted}"
            hint = "It needs x86-64 or ARM64, and a Linux with filters (CONFIG_SECCOMP_FILTER)."
            return SandboxUnavailable(what, hint=hint)
        return SandboxUnavailable(
            f"The sandbox ended before its kernel was ready. {quoted}",
            hint="If the message names a Python module, mend that installation (`pip check`); as root, "
            "see that every user may read it. Then run the cell again.",
        )

    def kill(self) -> None:
        if self._outer is not None:
            # The supervisor last: who loses their parent becomes its child, and this process need not
            # collect them.
            deadline = time.monotonic() + _KILL_SECONDS
            while (pids := self._others()) and time.monotonic() < deadline:
                for number in (signal.SIGSTOP, signal.SIGKILL):
                    for pid in pids:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, number)
            self._outer.kill()
            self._outer.wait()
            for pid in self._related():
                with contextlib.suppress(ChildProcessError):  # not one's own child, but its
                    os.waitpid(pid, os.WNOHANG)
            if self._outer.stdout is not None:
                self._outer.stdout.close()
            os.close(self._exit_descriptor)
            self._outer = None
        self._close()

    def _others(self) -> list[int]:
        """Those that live, but for the supervisor."""
        from sandbox_kernel.limits.proc import read_status  # not on the way to a start

        assert self._outer is not None
        found = self._related()
        if self._cgroup is not None:
            found |= {*self._cgroup.pids()}
        return [pid for pid in found - {self._outer.pid} if read_status(pid) is not None]

    def _related(self) -> set[int]:
        """Those below the wrapper that it did not have before, nor has started for itself since."""
        return descendants(os.getpid(), but=children.OWN) - self._unrelated

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._cgroup is not None:
            self._cgroup.close()
            self._cgroup = None


def descendants(root: int, but: Collection[int] = ()) -> set[int]:
    """All processes below ``root``, however many; also where no process lists its children.

    Not ``but`` these, and those below them.
    """
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - hundreds of them
        if name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                below.setdefault(int(stat_fields(int(name))[1]), []).append(int(name))
    found = [pid for pid in below.get(root, ()) if pid not in but]
    for pid in found:
        found += below.get(pid, [])
    return set(found)


def find_stand_in(about: Path = _SELF, uid: int | None = None) -> int | None:
    """Whom root becomes; ``None`` if the wrapper is not root. Never stays root.

    Root without capabilities still owns root's files and the sockets of root's services. Raises
    ``SandboxUnavailable`` where root cannot become anybody else, or that one could not run Python.
    """
    if (os.geteuid() if uid is None else uid) != 0:
        return None
    if effective_capabilities(about) & _CAPABILITIES != _CAPABILITIES:
        raise probe.root_cannot_change_user()
    if closed := closed_to_others(python_paths()):
        raise probe.environment_closed(closed)
    return unrelated_uid(about)


def python_paths() -> list[Path]:
    """Where this Python and its packages are."""
    executable = Path(sys.executable)
    return [executable, executable.resolve(), *map(Path, filter(None, sys.path))]


def closed_to_others(paths: Iterable[Path]) -> Path | None:
    """What keeps other users from one of ``paths``: itself, or a folder above it."""
    for path in paths:
        for place in (*reversed(path.parents), path):
            try:
                mode = place.stat().st_mode
            except FileNotFoundError:
                break  # a path that Python lists in vain
            needed = stat.S_IXOTH | (stat.S_IROTH if place == path else 0)
            if stat.S_ISDIR(mode) and mode & needed != needed:
                return place
    return None
