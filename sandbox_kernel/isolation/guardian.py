"""The guardian: a tiny process that cleans up when the wrapper dies by any cause, SIGKILL included."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


class Guardian:
    """Removes a directory once the wrapper's end of a pipe closes.

    If the wrapper could not say goodbye, it first kills what carries the directory's name as its last
    argument: bwrap, if killed while it starts, leaves a child that waits for it for ever. In the end
    it removes the wrapper's cgroups, whose paths begin with one of ``cgroups``, and kills what is still
    in them: where there is no pid namespace, a process may have outlived its supervisor.
    A shell of its own session: jupyter_client kills a kernel's whole process group.
    """

    # A service manager's signal goes to all processes at once: this one has its work before it then.
    _SCRIPT = """
        trap '' TERM INT HUP
        directory=$1
        shift
        read -r goodbye
        if [ -z "$goodbye" ]; then
            for file in /proc/[0-9]*/cmdline; do
                case "$(tr '\\0' ' ' <"$file" 2>/dev/null)" in
                *"connection.json ${directory##*/} ") pid=${file#/proc/}; kill -9 "${pid%/cmdline}" ;;
                esac
            done
        fi
        rm -rf -- "$directory"
        [ -z "$goodbye" ] || exit 0
        for prefix; do
            for cgroup in "$prefix"*; do
                tries=0
                # Busy as long as the last of its processes takes to end.
                while [ -d "$cgroup" ] && ! rmdir "$cgroup" && [ $((tries += 1)) -lt 50 ]; do
                    kill -9 $(cat "$cgroup/cgroup.procs")
                    sleep 0.1
                done
            done
        done
    """

    def __init__(self, directory: Path, cgroups: Sequence[str] = ()) -> None:
        read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                [
                    *("/bin/sh", "-c", self._SCRIPT, "sandbox-kernel-guardian"),
                    *(str(directory), *cgroups),
                ],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,
            )
        finally:
            os.close(read_end)

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._write_end, b"goodbye\n")
        os.close(self._write_end)
        self._process.wait()
