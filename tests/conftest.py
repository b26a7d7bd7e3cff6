"""Fixtures: a private state directory per test, and kernels started the way Jupyter starts them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, settings

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.engine import connect
from sandbox_kernel.policy.effective import as_document
from sandbox_kernel.policy.load import load_policy
from tests.kernel import UNCHECKED, Kernel, running_kernel

# The level that tests run at unless they choose another.
LEVEL_VARIABLE = "SANDBOX_KERNEL_TEST_LEVEL"
IMAGE = "sandbox-kernel-python-minimal:latest"

# A busy machine is not a reason to fail.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")


def process_problem() -> str | None:
    """Why the `process` level cannot run here, or None."""
    if shutil.which("bwrap") is None:
        return "bwrap is not installed"
    probe = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip()


def browser_problem() -> str | None:
    return None if shutil.which("chromium") else "chromium is not installed"


def container_problem() -> str | None:
    """An engine is used only where one is named: tests fill it with containers and images."""
    if "DOCKER_HOST" not in os.environ:
        return "DOCKER_HOST is not set; `scripts/ensure-engine DIRECTORY` makes an engine"
    try:
        connect().close()
    except SandboxUnavailable as error:
        return str(error)
    return None


PROBLEMS = {
    "process": process_problem,
    "browser": browser_problem,
    "container": container_problem,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What this machine cannot run is skipped visibly; where it must run, nothing is."""
    required = os.environ.get("SANDBOX_KERNEL_REQUIRE", "").split(",")
    for level, find_problem in PROBLEMS.items():
        needs = [item for item in items if item.get_closest_marker(level)]
        problem = find_problem() if needs else None
        if problem is None:
            continue
        if level in required:
            msg = f"{level} tests must run here, but: {problem}"
            raise pytest.UsageError(msg)
        for item in needs:
            item.add_marker(pytest.mark.skip(reason=f"{level} tests not run: {problem}"))


@pytest.fixture(scope="session", autouse=True)
def config_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's configuration with the policy that tests run under unless they choose another.

    It is `default` without its check of the code: what is tested must hold for code that gets past.
    """
    home = tmp_path_factory.mktemp("config")
    policies = home / "sandbox-kernel" / "policies"
    policies.mkdir(parents=True)
    level = os.environ.get(LEVEL_VARIABLE, "process")
    document = as_document(load_policy("default")) | {
        "code": as_document(load_policy("trusted"))["code"],
        "isolation": {
            "prefer": [level],
            "require": level,
            "image": IMAGE,
            "runtime": "runsc",
        },
    }
    (policies / f"{UNCHECKED}.yaml").write_text(yaml.safe_dump(document))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(home))
        patch.setenv("SANDBOX_KERNEL_POLICY", UNCHECKED)
        yield home


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own run directories and connection files, so that leftovers show."""
    home = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("SANDBOX_KERNEL_HOME", str(home))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    # A shell of ipykernel's, made in another test, sets it for good.
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return home


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    """A sandboxed kernel whose notebook folder is `tmp_path`."""
    with running_kernel(cwd=tmp_path) as running:
        yield running


@pytest.fixture
def run_directories(state_home: Path) -> Callable[[], list[Path]]:
    def listing() -> list[Path]:
        run = state_home / "run"
        return sorted(run.iterdir()) if run.exists() else []

    return listing
