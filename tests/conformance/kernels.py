"""Starting the two kernels that are compared, each with nothing of this user's in it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from jupyter_core.utils import ensure_event_loop

from tests.kernel import isolation

PLAIN = "python3"
SANDBOXED = "sandboxed-python"

REPOSITORY = Path(__file__).resolve().parents[2]
STARTUP_TIMEOUT_SECONDS = 60


def write_sandboxed_spec(kernels: Path, name: str) -> None:
    """Offer this repository's kernel as `name`, run by the interpreter that runs the tests.

    The repository's own kernel.json is used, not an installed copy, so that a test
    never passes because an older version happens to be installed.
    """
    spec = json.loads((REPOSITORY / "kernelspec" / "kernel.json").read_text())
    spec["argv"][0] = sys.executable
    folder = kernels / name
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))


def private_environment(home: Path, level: str = "process") -> dict[str, str]:
    """The environment for a kernel whose settings, history and state live under `home`."""
    policy = home / "metadata.yaml"
    # A receipt after each cell is an output that the plain kernel does not have.
    text = "annotate: metadata\n"
    policy.write_text(text if level == "process" else text + isolation(level))
    policy.chmod(0o600)
    # ipykernel does not catch the output of subprocesses when it is run by pytest.
    inherited = {name: os.environ[name] for name in os.environ if name != "PYTEST_CURRENT_TEST"}
    return {
        **inherited,
        # The kernel is started in an empty folder; it is found here even if not installed.
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH")))
        ),
        # IPython writes ~ for the home folder, and the sandbox has another one: neither side
        # may have its Python in there.
        "HOME": str(home),
        "IPYTHONDIR": str(home / "ipython"),
        "SANDBOX_KERNEL_HOME": str(home / "sandbox-kernel"),
        "SANDBOX_KERNEL_POLICY": str(policy),
    }


@contextmanager
def started(name: str, home: Path, level: str = "process") -> Iterator[KernelManager]:
    """A running kernel called `name`; it has ended when the block is left."""
    kernels, notebooks = home / "kernels", home / "notebooks"
    write_sandboxed_spec(kernels, SANDBOXED)
    notebooks.mkdir()
    # In a container cells run as another user.
    notebooks.chmod(0o755)
    specs = KernelSpecManager()
    specs.kernel_dirs.insert(0, str(kernels))
    manager = KernelManager(kernel_name=name, kernel_spec_manager=specs)
    # The script makes kernels complain on purpose; that is not for the one who runs it.
    with (home / "kernel.log").open("w") as log:
        manager.start_kernel(
            env=private_environment(home, level),
            cwd=str(notebooks),
            stdout=log,
            stderr=log,
            # A history of its own: both sides then number and remember the same cells.
            extra_arguments=["--HistoryManager.hist_file=:memory:"],
        )
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        # jupyter_client has an event loop in each thread that uses it, and leaves it open.
        ensure_event_loop().close()
