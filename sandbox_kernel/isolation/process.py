"""The ``process`` level: bubblewrap, all namespaces, no network, seccomp, the user's own Python.

Everything happens in a user namespace of an ordinary user: the wrapper's own, or, if that is root, an
unrelated uid that root changes to before bubblewrap starts (``descent``). So a cell never is root on
the host, not even an unprivileged one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation import base, descent, probe, view
from sandbox_kernel.isolation.base import Sandbox, SandboxFacts, SandboxSpec
from sandbox_kernel.isolation.seccomp import SeccompError, compile_profile
from sandbox_kernel.limits.cgroup import Cgroup
from sandbox_kernel.paths import policies_directory
from sandbox_kernel.text import printable

INNER_UID: Final = 1000
_CAP_SYS_ADMIN: Final = 1 << 21
_TMPFS_BYTES: Final = 1 << 30
# What bwrap is asked for in every sandbox, and when it is tried whether that can be had.
NAMESPACES: Final = (
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
    *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1"),
    *("--unshare-user", "--uid", str(INNER_UID), "--gid", str(INNER_UID)),
    # Only so that the supervisor can lower its user namespace's counts (`inner.shares`) and empty the
    # bounding set; it keeps nothing.
    *("--cap-add", "CAP_SYS_RESOURCE", "--cap-add", "CAP_SETPCAP"),
)
# What Linux counts per user and no namespace separates: see docs/threats.md.
SHARED_COUNTS: Final = (
    "cells have your uid: of what Linux counts per user they can take up to 1,021 descriptors in flight, 512 "
    "pipes and all epoll watches from your other programs"
)
_SELF: Final = Path("/proc/self")
_USR: Final = Path("/usr")
# What bwrap says where it should mount something over a file or folder that is not there.
_PLACE_IS_GONE: Final = ("bwrap: Can't create file at ", "bwrap: Can't mkdir ")


class ProcessSandbox(Sandbox):
    """A bubblewrap process and what runs in it."""

    def __init__(self, spec: SandboxSpec) -> None:
        self._bwrap = find_bwrap()
        self._spec = spec
        # Root's stand-in; the uid bubblewrap runs as.
        self._stand_in = stand_in_for_root() if os.geteuid() == 0 else None
        self._view = view.plan_view(spec.working_directory, spec.secrets, view.homes(), os.environ)
        self._notes = list(self._view.notes)
        if self._stand_in is None:
            self._notes.append(SHARED_COUNTS)
        # Where bwrap finds a visible path, if not at the path itself.
        self._sources: dict[Path, Path] = {}
        # Visible paths in which root's files are the stand-in's.
        self._given: set[Path] = set()
        self._cgroup: Cgroup | None = None

    @property
    def facts(self) -> SandboxFacts:
        return SandboxFacts(
            level="process",
            engine="bwrap",
            network="none",
            working_directory=str(self._spec.working_directory),
            notes=(*self.remarks, *self._notes),
            folder_shown=view.shows(self._view, self._spec.working_directory),
        )

    def start(self, run_directory: Path) -> None:
        try:
            program = compile_profile((policies_directory() / "seccomp.json").read_bytes())
        except (SeccompError, OSError) as error:
            raise probe.filter_impossible(error) from error
        self._write_accounts(run_directory)
        with contextlib.ExitStack() as stack:
            seccomp = _file_of(program, stack)
            # By descriptor: the uid that root changes to may not reach it by its path.
            program_file = os.open(self._bwrap, os.O_PATH)
            stack.callback(os.close, program_file)
            self._cgroup = Cgroup.create()
            try:
                before_exec = self._before_exec(self._descent(run_directory, stack))
                # Not on the command line, which every user of the host can read: values of variables
                # that are passed on are among them.
                options = _file_of(
                    b"".join(
                        os.fsencode(each) + b"\0" for each in self._options(run_directory, seccomp)
                    ),
                    stack,
                )
                # The only Python thread (libzmq has its own), so a function before exec is safe;
                # and the parent-death signal is tied to the thread that forks, the main one.
                outer = subprocess.Popen(
                    [self._bwrap, "--args", str(options), "--", *self._command(run_directory)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    executable=f"/proc/self/fd/{program_file}",
                    pass_fds=[options, seccomp, program_file],
                    cwd="/",
                    env={"PATH": "/usr/bin:/bin"},
                    preexec_fn=before_exec,
                )
            except (OSError, subprocess.SubprocessError) as error:
                self._close_cgroup()
                raise probe.descent_failed(error) from error
        if self._cgroup is not None and not self._cgroup.keeps(outer.pid):
            self._close_cgroup()
        self._watch(outer)

    def _before_exec(self, descend: Callable[[], None] | None) -> Callable[[], None] | None:
        cgroup = self._cgroup
        if cgroup is None:
            return descend

        def join_and_descend() -> None:
            cgroup.join()  # as the wrapper's user: the sandbox's may not
            if descend is not None:
                descend()

        return join_and_descend

    def _descent(
        self, run_directory: Path, stack: contextlib.ExitStack
    ) -> Callable[[], None] | None:
        """What root does before bwrap: hand everything visible to the stand-in and become it."""
        uid = self._stand_in
        if uid is None:
            return None
        namespace = descent.namespace_mapping_root_to(uid, uid)
        stack.callback(os.close, namespace)
        views = []
        for number, path in enumerate((run_directory, *self._view.read_only)):
            source = path
            if path == self._spec.working_directory:
                # By descriptor: whoever owns the folder's parent could swap it for another one,
                # which root would then show.
                source = Path(f"/proc/self/fd/{self._spec.working_descriptor}")
            held = descent.take_hold(source, str(number))
            stack.callback(held.close)
            views.append(held)
            self._sources[path] = held.place
            if path == run_directory:
                continue  # its files have the right owners already
            if view.keeps_roots_files(path, view.homes(), self._spec.working_directory):
                if path == self._spec.working_directory:
                    self._notes.append(f"what only root may read in {path} is not readable")
                continue
            try:
                descent.give_to(held, namespace)
                self._given.add(path)
            except OSError as error:
                self._notes.append(f"what only root may read in {path} is not readable: {error}")
        return descent.descent(views, uid, uid)

    def _write_accounts(self, run_directory: Path) -> None:
        (run_directory / "passwd").write_text(
            f"sandbox:x:{INNER_UID}:{INNER_UID}:Sandbox:{view.HOME}:/bin/sh\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
        )
        (run_directory / "group").write_text(f"sandbox:x:{INNER_UID}:\nnogroup:x:65534:\n")
        (run_directory / "hosts").write_text("127.0.0.1 localhost sandbox\n::1 localhost\n")

    def _options(self, run_directory: Path, seccomp: int) -> list[str]:
        """What bwrap makes the sandbox of."""
        arguments = [*NAMESPACES, "--clearenv", "--hostname", "sandbox"]
        environment = view.plan_environment(os.environ, self._view.read_only, self._spec.passed)
        environment |= view.own_places(self._view)
        for name, value in environment.items():
            arguments += ["--setenv", name, value]
        run_source = self._sources.get(run_directory, run_directory)
        return [
            *arguments,
            *_system_mounts(),
            *_account_mounts(run_source),
            *self._view_mounts(),
            *_directories(Path(view.RUN)),
            *("--ro-bind", str(run_source), view.RUN),
            *("--remount-ro", "/"),
            *("--seccomp", str(seccomp)),
        ]

    def _command(self, run_directory: Path) -> list[str]:
        return [
            *(str(self._spec.python), view.BOOT, f"{view.RUN}/connection.json"),
            run_directory.parent.name,  # for the guardian to know it by
        ]

    def _view_mounts(self) -> list[str]:
        stand_in = self._view.stand_in
        # It must exist, empty if need be: the kernel starts in it (`boot` goes there).
        arguments = _directories(self._spec.working_directory)
        if stand_in is not None:
            # A mount of its own: it may lie in, or be, a place that cells can write to.
            arguments += ["--perms", "0755", "--tmpfs", str(stand_in)]
        if stand_in == Path(view.HOME):
            arguments += [
                "--perms",
                "0777",
                "--size",
                str(_TMPFS_BYTES),
                "--tmpfs",
                view.OTHER_HOME,
            ]
        # Once each: bwrap takes 9,000 arguments, and a home folder may have many entries.
        for parent in dict.fromkeys(path.parent for path in self._view.read_only):
            arguments += _directories(parent)
        for path in self._view.read_only:
            source = self._sources.get(path, path)
            arguments += ["--ro-bind", str(source), str(path)]
        if stand_in is not None:
            arguments += ["--remount-ro", str(stand_in)]
        for path in self._view.hidden:
            arguments += self._hiding(path)
        return arguments

    def _hiding(self, path: Path) -> list[str]:
        """What makes ``path`` look empty.

        Nothing where there is no such file by now, or cells cannot get there: bwrap, which has the same
        user, would fail at it. If a file vanishes in the milliseconds before bwrap comes to it, that
        start fails, as bwrap cannot make its place in a read-only folder, and the next cell starts another.
        """
        try:
            mode = path.lstat().st_mode
            if self._stand_in is not None and not self._stand_in_enters(path):
                return []
        except OSError:
            return []
        if stat.S_ISDIR(mode):
            return ["--perms", "0555", "--tmpfs", str(path), "--remount-ro", str(path)]
        # A symlink shows nothing: what it leads to is hidden by its own name.
        return [] if stat.S_ISLNK(mode) else ["--ro-bind", "/dev/null", str(path)]

    def _stand_in_enters(self, path: Path) -> bool:
        """Whether root's stand-in can pass all folders from the visible one down to ``path``."""
        roots = [root for root in (*self._view.read_only, _USR) if path.is_relative_to(root)]
        root = max(roots, key=lambda root: len(root.parts))
        for folder in path.parents:
            if not folder.is_relative_to(root):
                break
            if not may_enter(folder.stat(), given=root in self._given):
                return False
        return True

    @property
    def root_pid(self) -> int:
        assert self._outer is not None
        return self._outer.pid

    @property
    def cgroup(self) -> Cgroup | None:
        return self._cgroup

    def explain(self, console: str) -> SandboxUnavailable:
        if console.startswith(_PLACE_IS_GONE):
            return SandboxUnavailable(
                "A file that the sandbox hides went away while the sandbox was made. bwrap said: "
                f"{printable(console.strip())!r}.",
                hint="Run the cell again.",
            )
        return probe.explain_bwrap(console)

    def kill(self) -> None:
        if self._outer is None:
            return
        from sandbox_kernel.limits.proc import process_tree  # not on the way to a start

        # The first process of the namespace takes all others with it. Before bwrap itself: that,
        # killed while it starts, would leave a child behind that waits for it.
        for pid in reversed(list(process_tree(self._outer.pid))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._outer.wait()
        if self._outer.stdout is not None:
            self._outer.stdout.close()
        os.close(self._exit_descriptor)
        self._outer = None
        self._close_cgroup()

    def _close_cgroup(self) -> None:
        if self._cgroup is not None:
            self._cgroup.close()
            self._cgroup = None


def _file_of(data: bytes, stack: contextlib.ExitStack) -> int:
    """A descriptor of a file that has no name, to be read from its beginning."""
    file = os.memfd_create("bwrap")
    stack.callback(os.close, file)
    os.write(file, data)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _system_mounts() -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in view.SYSTEM_DIRECTORIES:
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            arguments += ["--ro-bind", name, name]
    arguments += _directories(Path("/etc"))
    for entry in view.ETC_ENTRIES:
        arguments += _directories(Path("/etc", entry).parent)
        arguments += ["--ro-bind-try", f"/etc/{entry}", f"/etc/{entry}"]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    arguments += _directories(Path("/var"))
    places = (("/dev/shm", "1777"), ("/tmp", "1777"), ("/var/tmp", "1777"), (view.HOME, "0777"))
    for place, mode in places:
        arguments += ["--perms", mode, "--size", str(_TMPFS_BYTES), "--tmpfs", place]
    # bwrap makes it a tmpfs of no size. What is mounted in it (devices, shm, pts) stays as it is.
    return [*arguments, "--remount-ro", "/dev"]


def _directories(path: Path) -> list[str]:
    """Make ``path`` and what is above it; by itself bwrap makes them for their owner alone."""
    arguments = []
    for directory in (*reversed(path.parents), path):
        if directory != Path("/"):
            arguments += ["--perms", "0755", "--dir", str(directory)]
    return arguments


def _account_mounts(run_directory: Path) -> list[str]:
    arguments: list[str] = []
    for name in ("passwd", "group", "hosts"):
        arguments += ["--ro-bind", str(run_directory / name), f"/etc/{name}"]
    return arguments


def may_enter(folder: os.stat_result, *, given: bool) -> bool:
    """Whether root's stand-in may, whom nothing belongs to; ``given``: but what was root's here."""
    if given and folder.st_uid == 0:
        return bool(folder.st_mode & stat.S_IXUSR)
    if given and folder.st_gid == 0:
        return bool(folder.st_mode & stat.S_IXGRP)
    return bool(folder.st_mode & stat.S_IXOTH)


def find_bwrap(environment: Mapping[str, str] | None = None) -> str:
    """Its path, by the ``PATH`` of ``environment`` or else our own; or ``SandboxUnavailable``."""
    for directory in os.get_exec_path(environment):
        # A relative entry of PATH would find one in the notebook's folder.
        path = os.path.join(directory, "bwrap")  # noqa: PTH118 - called on every start
        if path.startswith("/") and os.access(path, os.X_OK):
            return path
    raise probe.bwrap_missing()


def stand_in_for_root(about: Path = _SELF) -> int:
    """The uid that bubblewrap runs as where the wrapper is root; ``about``: this process's files.

    Raises ``SandboxUnavailable`` where root cannot become anybody else.
    """
    if not effective_capabilities(about) & _CAP_SYS_ADMIN:
        raise probe.root_without_privileges()
    return unrelated_uid(about)


def effective_capabilities(about: Path) -> int:
    """Those of the process that ``about`` has the files of, as bits."""
    for line in (about / "status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def unrelated_uid(about: Path) -> int:
    """A uid that belongs to nobody on this host and that this user namespace can change to."""
    pid = os.getpid()
    ranges = [
        range(int(first), int(first) + int(length))
        for first, _, length in map(str.split, (about / "uid_map").read_text().splitlines())
    ]
    for uid in (base.unrelated_uid(), 60_000 + pid % 5_000, 65_534):
        if any(uid in mapped for mapped in ranges):
            return uid
    raise probe.root_of_a_lone_namespace()
