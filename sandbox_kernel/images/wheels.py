"""The wheels of an image, fetched on the host by its own pip: for the image's Python, not the host's."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sandbox_kernel.errors import ImageError
from sandbox_kernel.images import Report
from sandbox_kernel.images.lock import Pin, pins_of

_OLDEST_GLIBC: Final = 5  # manylinux_2_5, the first there was
_OLD_NAMES: Final = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
_SAID_LINES: Final = 6
# Pip, in a process that starts no other. A file of requirements can ask for what is not a wheel (a path, an
# address, `--no-binary`), and so can a package of an index; whatever is built runs code of its own, on the host.
_FETCHER: Final = """
import runpy, sys

def refuse(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"):
        # An OSError, which pip takes for a program that is not there where it can do without one.
        raise PermissionError("nothing but wheels is fetched, as nothing is built on the host")

sys.addaudithook(refuse)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
# A package of an index, or a file of a folder.
_BEGUN: Final = re.compile(r"(?:Collecting |Processing (?:\S*/)?)([\w.]+(?:-[a-zA-Z][\w.]*)*)")


class Target(NamedTuple):
    """The Python that wheels must fit."""

    python: str  # 3.11.2
    abi: str  # cp311
    machine: str  # x86_64
    glibc_minor: int  # of glibc 2.

    @property
    def platforms(self) -> Iterator[str]:
        """Every tag a wheel may have, the newest first; pip does not know that they include others."""
        for minor in range(self.glibc_minor, _OLDEST_GLIBC - 1, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            if minor in _OLD_NAMES:
                yield f"{_OLD_NAMES[minor]}_{self.machine}"
        yield f"linux_{self.machine}"


def fetch(
    target: Target, lock: Path, pins: list[Pin], extra: Path | None, folder: Path, report: Report
) -> list[Pin]:
    """Fill ``folder``; return the pins of what ``extra`` asks for on top of the flavour's ``pins``."""
    report("fetching wheels", 0, len(pins))
    _download(target, ["--no-deps", "--require-hashes", "-r", str(lock)], folder, len(pins), report)
    if extra is None:
        return []
    constraints = folder.parent / "constraints.txt"
    constraints.write_text("".join(f"{pin.name}=={pin.version}\n" for pin in pins))
    # From the same folder, so that a package of the flavour is not fetched twice.
    wanted = ["-r", str(extra), "-c", str(constraints), "--find-links", str(folder)]
    _download(target, wanted, folder, 0, report)
    names = {pin.name for pin in pins}
    return [pin for pin in pins_of(folder.glob("*.whl")) if pin.name not in names]


def download_command(target: Target, wanted: list[str], folder: Path) -> list[str]:
    return [
        # Without the current folder on its path, which may have modules of any name.
        *(sys.executable, "-P", "-c", _FETCHER),
        *("download", "--no-input", "--disable-pip-version-check"),
        *("--progress-bar", "off", "--only-binary", ":all:", "--dest", str(folder)),
        *("--implementation", "cp", "--python-version", target.python, "--abi", target.abi),
        *(argument for name in target.platforms for argument in ("--platform", name)),
        *wanted,
    ]


def _download(target: Target, wanted: list[str], folder: Path, total: int, report: Report) -> None:
    command = download_command(target, wanted, folder)
    said: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        fetched = 0
        for line in pip.stdout:
            said = [*said[1 - _SAID_LINES :], line.strip()]
            if found := _BEGUN.match(line):
                fetched += 1
                report(f"fetching {found[1]}", fetched, max(total, fetched))
    if pip.returncode != 0:
        raise _refused(target, " ".join(said))


def _refused(target: Target, said: str) -> ImageError:
    if "No module named pip" in said:
        return ImageError(
            f"{sys.executable} has no pip, which fetches the packages of an image.",
            hint=f"Install it: `{sys.executable} -m ensurepip`.",
        )
    return ImageError(
        f"pip could not fetch the packages. It said: {said!r}.",
        hint=f"Every package, also one that is named by a path or an address, must be there as a wheel for Python {target.python} on "
        f"{target.machine}, and agree with the flavour's versions (`python-minimal` has the "
        "fewest); pip's own settings, such as PIP_INDEX_URL and PIP_FIND_LINKS, hold.",
    )
