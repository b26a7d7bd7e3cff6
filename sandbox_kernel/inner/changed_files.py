"""What a rollback does not undo: files that were written since the state that it goes back to."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from itertools import chain, islice

from .processes import FIRST

FILES_LOOKED_AT = 20_000
# Where file systems are the sandbox's own; else only its home is.
WRITABLE = ("/tmp", "/dev/shm", "/home/sandbox")


def count_files_changed(since: int) -> int:
    """Files and folders that were made or written after ``since``: a rollback does not undo them."""
    roots = WRITABLE if os.getpid() == FIRST else (os.environ["HOME"],)
    files = chain.from_iterable(map(files_below, roots))
    return sum(about.st_ctime_ns > since for about in islice(files, FILES_LOOKED_AT))


def files_below(root: str) -> Iterator[os.stat_result]:
    """What is known of each file and folder. A cell has made them: as deep and as closed as it likes."""
    device = os.lstat(root).st_dev
    folders = [root]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            yield os.lstat(folder)
            for entry in entries:
                about = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(about.st_mode):
                    yield about
                elif about.st_dev == device:  # else it is the notebook's: that is the host's
                    folders.append(entry.path)
