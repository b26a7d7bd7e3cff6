"""The wrapper's log: lines on stderr, where Jupyter shows what its kernels say."""

from __future__ import annotations

import contextlib
import sys

from sandbox_kernel.text import printable_lines


def log(line: str) -> None:
    """Say ``line``; it may hold words of the sandbox, and stderr may be a terminal."""
    # Nobody may be reading any more; that must not end the kernel.
    with contextlib.suppress(OSError):
        print(f"sandbox-kernel: {printable_lines(line)}", file=sys.stderr, flush=True)
