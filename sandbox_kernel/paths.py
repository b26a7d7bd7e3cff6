"""Where the product keeps its state and finds its shipped data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

HOME_VARIABLE: Final = "SANDBOX_KERNEL_HOME"
KERNEL_NAME: Final = "sandboxed-python"  # of the kernelspec
SECCOMP: Final = "seccomp.json"  # in the directory of shipped policies
PARSER_SECCOMP: Final = "seccomp-parser.json"  # beside it: for the process that reads cells
_PACKAGE: Final = Path(__file__).parent


def state_home() -> Path:
    """``SANDBOX_KERNEL_HOME``, else the platform's data directory for this user."""
    chosen = os.environ.get(HOME_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base).absolute() / "sandbox-kernel"


def policies_directory() -> Path:
    """The shipped policies: inside the package when installed, beside it in a source checkout."""
    installed = _PACKAGE / "policies"
    return installed if installed.is_dir() else _PACKAGE.parent / "policies"


def policy_directories(system: Path = Path("/etc/sandbox-kernel/policies")) -> list[Path]:
    """The system's, the shipped one, the user's. Never anything below the current directory."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    own = [Path(home, "sandbox-kernel", "policies")] if home.startswith("/") else []
    return [system, policies_directory(), *own]


def images_directory() -> Path:
    """What images are built from: inside the package when installed, else beside it."""
    installed = _PACKAGE / "images"
    return installed if (installed / "Dockerfile").is_file() else _PACKAGE.parent / "images"
