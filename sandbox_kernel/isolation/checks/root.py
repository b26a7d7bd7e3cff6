"""Whether root can leave root, as it must before bubblewrap starts. Tried, in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation import descent, probe
from sandbox_kernel.isolation.checks.base import Check, Host, failed, run
from sandbox_kernel.isolation.process import stand_in_for_root
from sandbox_kernel.isolation.restricted import find_stand_in

LEAVING_ROOT: Final = "leaving root"
IDMAPPED: Final = "idmapped mounts"
CHANGING_USER: Final = "changing user"
# Appended to the path: where this package is, some other may have the name of a standard module.
_CHILD: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    f"from {__name__} import main; sys.exit(main(sys.argv[2:]))"
)
_PACKAGES: Final = Path(__file__).parents[3]


def check_root(host: Host) -> list[Check]:
    if host.uid != 0:
        found = f"not needed: uid {host.uid} is not root"
        return [Check(name, "ok", found) for name in (LEAVING_ROOT, CHANGING_USER)]
    return [*_leaving(host), _changing(host)]


def _changing(host: Host) -> Check:
    """What `restricted` needs: another user who can run this Python as it is."""
    try:
        return Check(CHANGING_USER, "ok", f"to uid {find_stand_in(host.about, host.uid)}")
    except SandboxUnavailable as error:
        return failed(CHANGING_USER, "refused", error)


def _leaving(host: Host) -> list[Check]:
    try:
        uid = stand_in_for_root(host.about)
    except SandboxUnavailable as error:
        return [failed(LEAVING_ROOT, "refused", error)]
    left = _try(LEAVING_ROOT, "leave", uid, host) or Check(LEAVING_ROOT, "ok", f"for uid {uid}")
    mapped = _try(IDMAPPED, "map", uid, host)
    if mapped is None:
        return [left, Check(IDMAPPED, "ok", f"on {' and '.join(map(str, _visible()))}")]
    if mapped.status == "refused":
        # Not the end of it: only what root alone may read is then not seen by cells.
        found = f"{mapped.found} Cells cannot read what only root may."
        mapped = Check(IDMAPPED, "missing", found, mapped.fix)
    return [left, mapped]


def _try(name: str, stage: str, uid: int, host: Host) -> Check | None:
    """What is wrong, if anything is."""
    # Not in this process: it has threads, and leaving root is for good.
    command = [sys.executable, "-P", "-c", _CHILD, str(_PACKAGES), stage, str(uid)]
    ran = run(command, host, environ=host.environ)
    if ran.code == 0:
        return None
    if ran.code is None:
        return Check(name, "unknown", "the attempt did not end in time")
    number = ran.said.rpartition("\n")[2]
    if not number.isdecimal():
        return Check(name, "unknown", f"the attempt failed: {ran.said[-300:]!r}")
    error = OSError(int(number), os.strerror(int(number)))
    return failed(name, "refused", probe.descent_failed(error))


def _visible() -> list[Path]:
    """Some of what a sandbox sees: the Python environment, which may be root's alone."""
    return sorted({Path(sys.prefix), Path(sys.base_prefix).resolve()})


def main(arguments: Sequence[str]) -> int:
    """Do what a start does; the number of the error is the last that is printed."""
    stage, uid = arguments[0], int(arguments[1])
    try:
        views = [descent.take_hold(path, str(n)) for n, path in enumerate(_visible())]
        if stage == "leave":
            descent.descent(views, uid, uid)()
        else:
            namespace = descent.namespace_mapping_root_to(uid, uid)
            for view in views:
                descent.give_to(view, namespace)
    except OSError as error:
        print(error.errno or 0)
        return 1
    return 0
