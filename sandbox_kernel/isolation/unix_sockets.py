"""Unix sockets on the host that a sandbox connects to."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

# Since Linux 6.16; Python has no name for it.
_SO_PASSRIGHTS: Final = 83


def without_descriptors() -> socket.socket:
    """A unix socket that takes bytes only, and so do the connections that it accepts.

    Whoever receives a descriptor closes it, and may be the last to have it: closing can take long. Older
    kernels cannot refuse descriptors. There the filter of system calls denies what would make it long.
    """
    made = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):  # an older kernel
        made.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    return made
