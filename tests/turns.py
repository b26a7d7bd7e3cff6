"""Who may run now: tests of what is promised in seconds have the machine to themselves.

Workers run side by side, and on two processors each makes the other slow. A test that is marked ``alone``
waits until no other runs, and no other begins before it has ended.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """The time in which a test of this run may go on; without workers, always."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        yield
        return
    room = Path(tempfile.gettempdir(), f"sandbox-kernel-tests-{run}")
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    with ExitStack() as stack:
        # Who waits to be alone stands in the door: else others would come and go for ever.
        with _locked(room.with_suffix(".door"), kind):
            stack.enter_context(_locked(room.with_suffix(".room"), kind))
        yield


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        # Not by closing it alone: a fork that a test has left would have the lock still.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
