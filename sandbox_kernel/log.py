"""The wrapper's log: lines on stderr, where Jupyter shows what its kernels say."""

from __future__ import annotations

import contextlib
import sys


def log(line: str) -> None:
    # Nobody may be reading any more; that must not end the kernel.
    with contextlib.suppress(OSError):
        print(f"sandbox-kernel: {line}", file=sys.stderr, flush=True)
