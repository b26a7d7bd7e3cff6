"""The installation itself: Python, kernelspec, state, policies."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from pathlib import Path
from typing import Final

from sandbox_kernel.errors import PolicyError
from sandbox_kernel.isolation import probe
from sandbox_kernel.isolation.checks.base import Check, Host, failed, run
from sandbox_kernel.paths import KERNEL_NAME

PYTHON: Final = "Python inside"
KERNELSPEC: Final = "kernelspec"
HOME: Final = "state home"
HOME_MODE: Final = "state home's mode"
POLICIES: Final = "policies"
# As in pyproject.toml.
_FIRST, _BEYOND = (7, 4), (8, 0)
_IMPORT: Final = "import ipykernel, ipykernel.kernelapp; print(ipykernel.__version__)"


def check_installation(host: Host) -> list[Check]:
    return [
        python_inside(host),
        kernelspec(host),
        state_home(host.home),
        state_home_mode(host),
        policies(),
    ]


def python_inside(host: Host, python: str = sys.executable) -> Check:
    """Whether the Python that sandboxes use has the kernel they run."""
    fix = f"Install it there: `{python} -m pip install 'ipykernel>=7.4,<8'`."
    ran = run([python, "-P", "-c", _IMPORT], host, environ=host.environ)
    if ran.code is None:
        return Check(PYTHON, "unknown", f"{python} did not import ipykernel in time")
    last = ran.said.rpartition("\n")[2]
    version = re.match(r"(\d+)\.(\d+)", last)
    if ran.code != 0 or version is None:
        return Check(PYTHON, "missing", f"{python} cannot import ipykernel: {last[:200]}", fix)
    if not _FIRST <= (int(version[1]), int(version[2])) < _BEYOND:
        return Check(PYTHON, "refused", f"{python} has ipykernel {last}", fix)
    return Check(PYTHON, "ok", f"{python} with ipykernel {last}")


def kernelspec(host: Host) -> Check:
    """Whether Jupyter offers the kernel, and can start it."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    fix = "Install it again, in its checkout: `pip install --force-reinstall --no-deps .`."
    manager = KernelSpecManager()
    if host.kernel_directories is not None:
        manager.kernel_dirs = list(host.kernel_directories)
    try:
        spec = manager.get_kernel_spec(KERNEL_NAME)
    except NoSuchKernel:
        return Check(KERNELSPEC, "missing", f"Jupyter finds no kernel {KERNEL_NAME}", fix)
    except (OSError, ValueError, TypeError) as error:
        return Check(KERNELSPEC, "refused", f"{KERNEL_NAME} cannot be read: {error}", fix)
    where = spec.resource_dir
    if "sandbox_kernel" not in spec.argv:
        return Check(KERNELSPEC, "refused", f"{where} starts something else", fix)
    # Jupyter puts its own Python in the place of this word.
    if spec.argv[0] != "python" and shutil.which(spec.argv[0]) is None:
        return Check(KERNELSPEC, "refused", f"{where} starts {spec.argv[0]}, which is gone", fix)
    return Check(KERNELSPEC, "ok", f"{KERNEL_NAME}, {where}")


def state_home(home: Path) -> Check:
    """Whether state can be kept. Nothing is made: it is enough that it could be."""
    place = next(path for path in (home, *home.parents) if os.path.lexists(path))
    if not place.is_dir():
        return failed(HOME, "refused", probe.home_not_writable(place, "not a directory"))
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
        return failed(HOME, "refused", probe.home_not_writable(place, "not writable"))
    return Check(HOME, "ok", f"{home}" if place == home else f"{home}, made at the first start")


def state_home_mode(host: Host) -> Check:
    """Whether only this user can put something in the place of what is kept there."""
    try:
        status = host.home.stat()
    except FileNotFoundError:
        return Check(HOME_MODE, "ok", "made at the first start")
    except OSError as error:
        return Check(HOME_MODE, "unknown", f"{host.home}: {error.strerror}")
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if status.st_uid != host.uid:
        found = f"{host.home} belongs to uid {status.st_uid}"
        fix = f"`chown -R {host.uid} {host.home}`, or set SANDBOX_KERNEL_HOME to one of your own."
        return Check(HOME_MODE, "refused", found, fix)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        found = f"{mode}: others may write to it"
        return Check(HOME_MODE, "refused", found, f"`chmod go-w {host.home}`")
    return Check(HOME_MODE, "ok", mode)


def policies() -> Check:
    """Whether all policies can be used, as they are written and as to who could have written them."""
    from sandbox_kernel.policy.find import policy_names
    from sandbox_kernel.policy.levels import choose
    from sandbox_kernel.policy.load import load_policy

    names = policy_names()
    try:
        chosen = choose(None, os.environ).policy
        for name in dict.fromkeys([*names, chosen]):
            load_policy(name)
    except PolicyError as error:
        return failed(POLICIES, "refused", error)
    return Check(POLICIES, "ok", f"{', '.join(names)}; a kernel gets {chosen}")
