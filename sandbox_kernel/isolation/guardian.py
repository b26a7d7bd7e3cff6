"""The guardian: a tiny process that cleans up when the wrapper dies by any cause, SIGKILL included."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from typing import Final

# What the lock of a run directory holds: without it a directory was made by somebody else, and stays.
MARK: Final = "sandbox-kernel run directory"


class Guardian:
    """Removes a run directory once the wrapper's end of a pipe closes.

    If the wrapper could not say goodbye, it first kills what carries the directory's name as its last
    argument: bwrap, if killed while it starts, leaves a child that waits for it for ever. In the end
    it removes the wrapper's cgroups, whose paths begin with one of ``cgroups``, and kills what is still
    in them: where there is no pid namespace, a process may have outlived its supervisor.
    A shell of its own session: jupyter_client kills a kernel's whole process group.
    """

    # A service manager's signal goes to all processes at once: this one has its work before it then.
    _SCRIPT = """
        trap '' TERM INT HUP
        name=$1
        mark=$2
        shift 2
        read -r goodbye
        if [ -z "$goodbye" ]; then
            for file in /proc/[0-9]*/cmdline; do
                case "$(tr '\\0' ' ' <"$file" 2>/dev/null)" in
                *"connection.json $name ") pid=${file#/proc/}; kill -9 "${pid%/cmdline}" ;;
                esac
            done
        fi
        # Relative to the folder that it was started in, wherever that is by now. The lock goes last.
        made_by=
        [ ! -L "./$name/lock" ] && read -r made_by <"./$name/lock"
        if [ "$made_by" = "$mark" ]; then
            for entry in "./$name"/*; do
                [ "${entry##*/}" = lock ] || rm -rf -- "$entry"
            done
            rm -rf -- "./$name"
        else
            rmdir -- "./$name"  # made, and not locked yet
        fi
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

    def __init__(self, parent: int, name: str, cgroups: Sequence[str] = ()) -> None:
        """``name`` is the directory's, in the folder that is open as ``parent``."""
        read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                [
                    *("/bin/sh", "-c", self._SCRIPT, "sandbox-kernel-guardian"),
                    *(name, MARK, *cgroups),
                ],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=f"/proc/self/fd/{parent}",
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
