"""Fixtures: a private state directory per test, and kernels started the way Jupyter starts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, settings
from jupyter_client.connect import LocalPortCache

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.engine import connect
from sandbox_kernel.policy.effective import as_document
from sandbox_kernel.policy.load import load_policy
from tests.kernel import LEVELS, UNCHECKED, Kernel, at, running_kernel
from tests.lender import Lender
from tests.ports import free_port
from tests.sandbox.ordinary_user import UID
from tests.tiers import FULL, SEED, full_only

QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# A busy machine is not a reason to fail. A push repeats its examples; `full` looks for new ones.
settings.register_profile("push", QUIET, derandomize=True)
settings.register_profile("full", QUIET, max_examples=1000)
settings.load_profile("full" if FULL else "push")


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


def gvisor_problem() -> str | None:
    if (problem := container_problem()) is not None:
        return problem
    client = connect()
    try:
        return None if "runsc" in client.info()["Runtimes"] else "the engine has no runtime runsc"
    finally:
        client.close()


def podman_problem() -> str | None:
    if os.geteuid() != 0:
        return "a Podman with storage of its own is started as root"
    if shutil.which("podman") is None or shutil.which("runc") is None:
        return "podman and runc are not installed"
    return container_problem()  # it is given the image of that engine


LEFT_TO_FULL = full_only()
PROBLEMS = {
    "process": process_problem,
    "browser": browser_problem,
    "container": container_problem,
    "gvisor": gvisor_problem,
    "podman": podman_problem,
}


def required() -> list[str]:
    """What must run here, and may not be skipped."""
    return [name for name in os.environ.get("SANDBOX_KERNEL_REQUIRE", "").split(",") if name]


def pytest_configure(config: pytest.Config) -> None:
    """What must run here can, whichever tests are chosen.

    Said before there are workers: what one of them says so early, nobody is shown.
    """
    if hasattr(config, "workerinput"):
        return
    for name in required():
        if name not in PROBLEMS:
            msg = f"SANDBOX_KERNEL_REQUIRE: there is no {name!r}, only {', '.join(PROBLEMS)}"
            raise pytest.UsageError(msg)
        if (problem := PROBLEMS[name]()) is not None:
            msg = f"{name} tests must run here, but: {problem}"
            raise pytest.UsageError(msg)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is marked ``every_level`` and has a kernel runs once at each.

    ``@pytest.mark.process`` on the function is for what is about bubblewrap, in such a module too.
    """
    test = metafunc.definition
    marker = test.get_closest_marker("every_level")
    only_process = any(mark.name == "process" for mark in test.own_markers)
    chosen = any("level" in mark.args[0] for mark in test.iter_markers("parametrize"))
    if marker is None or only_process or chosen:
        return
    if "level" in metafunc.fixturenames:
        levels = [at(level, exception=marker.kwargs.get(level)) for level in LEVELS]
        metafunc.parametrize("level", levels, scope="module")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--alone",
        action="store_true",
        help="only tests that need the machine to themselves; workers (-n) run all others",
    )


def pytest_report_header() -> str:
    return f"tier: {'full' if FULL else 'push'}, SANDBOX_KERNEL_SEED={SEED}"


def level_of(item: pytest.Item) -> str | None:
    return item.callspec.params.get("level") if hasattr(item, "callspec") else None


def has_its_turn(item: pytest.Item) -> bool:
    """What is promised in seconds, or for the whole machine, is tested with nothing else beside it."""
    alone = item.get_closest_marker("alone") is not None
    if hasattr(item.config, "workerinput"):
        return not alone
    return alone or not item.config.getoption("--alone")


def is_chosen(item: pytest.Item) -> bool:
    """The suites take long at every level: SANDBOX_KERNEL_LEVELS says at which, the tier how much."""
    if not has_its_turn(item):
        return False
    marker, level = item.get_closest_marker("every_level"), level_of(item)
    if not FULL and any(entry.has(item.nodeid, level) for entry in LEFT_TO_FULL):
        return False
    if marker is None or marker.kwargs.get("always") or level not in LEVELS:
        return True
    return level in os.environ.get("SANDBOX_KERNEL_LEVELS", "process").split(",")


def needs(item: pytest.Item, what: str) -> bool:
    level = level_of(item)
    if what not in LEVELS:
        return item.get_closest_marker(what) is not None
    if level in LEVELS:
        return bool(level == what)
    default = what == "process" and item.get_closest_marker("every_level") is not None
    return default or item.get_closest_marker(what) is not None


def long_ones_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Tests in an order in which each of so many workers begins with some that take long.

    Each worker gets a piece of the list; a long one at the end would keep all others waiting.
    """
    long = [item for item in items if item.get_closest_marker("slow") is not None]
    others = [item for item in items if item.get_closest_marker("slow") is None]
    size = -(-len(items) // workers)
    ordered: list[pytest.Item] = []
    for number in range(workers):
        mine = long[number::workers]
        ordered += mine
        taken = max(0, size - len(mine))
        ordered += others[:taken]
        others = others[taken:]
    return ordered + others


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What this machine cannot run is skipped visibly; what it must, fails if it comes to that."""
    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = filter(is_chosen, items)
    if hasattr(config, "workerinput"):
        items[:] = long_ones_first(items, config.workerinput["workercount"])
    for level, find_problem in PROBLEMS.items():
        concerned = [item for item in items if needs(item, level)]
        problem = find_problem() if concerned and level not in required() else None
        if problem is not None:
            for item in concerned:
                item.add_marker(pytest.mark.skip(reason=f"{level} tests not run: {problem}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests have recorded as ``figures``; a worker's own prints are shown to nobody."""
    for category in ("passed", "failed"):
        for report in terminalreporter.stats.get(category, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == "figures":
                    terminalreporter.section(report.nodeid)
                    terminalreporter.line(str(value))


@pytest.fixture(scope="session", autouse=True)
def ports() -> Iterator[None]:
    """Kernels that Jupyter starts get ports of ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPortCache, "find_available_port", lambda _, ip: free_port(ip))
        yield


@pytest.fixture(scope="session", autouse=True)
def config_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's configuration with the policy that tests run under unless they choose another.

    It is `default` without its check of the code: what is tested must hold for code that gets past.
    """
    home = tmp_path_factory.mktemp("config")
    policies = home / "sandbox-kernel" / "policies"
    policies.mkdir(parents=True)
    document = as_document(load_policy("default")) | {
        "code": as_document(load_policy("trusted"))["code"]
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


@pytest.fixture(scope="session")
def level() -> str:
    """The level of ``kernel``."""
    return "process"


@pytest.fixture(scope="session")
def lenders(
    tmp_path_factory: pytest.TempPathFactory, config_home: Path
) -> Iterator[dict[str, Lender]]:
    """One of each level, for all tests of a worker."""
    with ExitStack() as stack:
        lent = tmp_path_factory.mktemp("lent")
        yield {level: stack.enter_context(Lender(level, lent / level)) for level in LEVELS}


@pytest.fixture
def lender(level: str, lenders: dict[str, Lender]) -> Lender:
    """Has a kernel for tests that need no new one."""
    return lenders[level]


@pytest.fixture
def kernel(
    request: pytest.FixtureRequest, tmp_path: Path, level: str, lender: Lender
) -> Iterator[Kernel]:
    """A sandboxed kernel: lent if the test is ``every_level``, unless that says ``fresh=True``."""
    marker = request.node.get_closest_marker("every_level")
    if marker is None or marker.kwargs.get("fresh"):
        if level != "process":
            tmp_path.chmod(0o755)  # cells run as another user
        with running_kernel(cwd=tmp_path, level=level) as running:
            yield running
    else:
        with lender.lend() as lent:
            assert lent.level == level
            yield lent


@pytest.fixture
def home() -> Iterator[Path]:
    """The home folder of an ordinary user, where that can reach it."""
    path = Path(tempfile.mkdtemp(prefix="sandbox-user-"))
    os.chown(path, UID, UID)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def run_directories(state_home: Path) -> Callable[[], list[Path]]:
    def listing() -> list[Path]:
        run = state_home / "run"
        return sorted(run.iterdir()) if run.exists() else []

    return listing
