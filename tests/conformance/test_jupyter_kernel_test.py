"""jupyter_kernel_test, with every sample filled in: what passes on plain passes on ours."""

from __future__ import annotations

import tempfile
import unittest
from contextlib import ExitStack
from pathlib import Path

import jupyter_kernel_test
import pytest

from .kernels import PLAIN, SANDBOXED, STARTUP_TIMEOUT_SECONDS, started

pytestmark = [pytest.mark.conformance, pytest.mark.every_level]

# Named through the module: pytest would collect an imported class.
_TESTS = [name for name in dir(jupyter_kernel_test.KernelTests) if name.startswith("test_")]


class _Samples(jupyter_kernel_test.KernelTests):
    """The samples; a subclass names the kernel."""

    __test__ = False  # run by hand below, once per kernel
    level = "process"

    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [  # noqa: RUF012 - the base class declares them so
        {"text": "zi", "matches": {"zip"}},
        {"text": "pri", "matches": {"print"}},
        {"text": "'a'.isal", "matches": {"isalnum", "isalpha"}},
    ]
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n"]  # noqa: RUF012
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]  # noqa: RUF012
    invalid_code_samples = ["import = 7q"]  # noqa: RUF012
    code_page_something = "zip?"
    code_generate_error = "raise ValueError('on purpose')"
    code_execute_result = [  # noqa: RUF012
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
        {"code": "'é' * 2", "result": "'éé'"},
    ]
    code_display_data = [  # noqa: RUF012
        {
            "code": "from IPython.display import HTML, display; display(HTML('<b>b</b>'))",
            "mime": "text/html",
        },
        {"code": "display({'image/png': 'iVBORw0KGgo='}, raw=True)", "mime": "image/png"},
        {"code": "from IPython.display import Math; display(Math('x'))", "mime": "text/latex"},
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    _running: ExitStack

    @classmethod
    def setUpClass(cls) -> None:
        cls._running = ExitStack()
        home = Path(cls._running.enter_context(tempfile.TemporaryDirectory()))
        cls.km = cls._running.enter_context(started(cls.kernel_name, home, cls.level))
        cls.kc = cls.km.blocking_client()
        cls.kc.start_channels()
        cls._running.callback(cls.kc.stop_channels)
        cls.kc.wait_for_ready(timeout=STARTUP_TIMEOUT_SECONDS)

    @classmethod
    def tearDownClass(cls) -> None:
        cls._running.close()


def _outcomes(kernel: str, level: str = "process") -> dict[str, str]:
    """What became of each test of the class: `passed`, or why not."""
    case = type("Tests", (_Samples,), {"kernel_name": kernel, "level": level})
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    names = [test.id().rsplit(".", 1)[1] for test in suite]
    result = unittest.TestResult()
    suite.run(result)
    outcomes = dict.fromkeys(names, "passed")
    # A subtest's id continues after the name of its test.
    for test, why in (*result.failures, *result.errors):
        outcomes[test.id().rsplit("Tests.", 1)[1].split(" ")[0]] = why
    for test, why in result.skipped:
        outcomes[test.id().rsplit("Tests.", 1)[1].split(" ")[0]] = f"skipped: {why}"
    return outcomes


@pytest.fixture(scope="session")
def plain() -> dict[str, str]:
    return _outcomes(PLAIN)


@pytest.fixture(scope="module")
def sandboxed(level: str) -> dict[str, str]:
    return _outcomes(SANDBOXED, level)


@pytest.mark.parametrize("name", _TESTS)
def test_passes_if_it_passes_on_plain(
    name: str, plain: dict[str, str], sandboxed: dict[str, str]
) -> None:
    if plain[name] != "passed":
        pytest.skip(f"does not pass on plain ipykernel either: {plain[name].splitlines()[-1]}")
    assert sandboxed[name] == "passed", sandboxed[name]


def test_plain_passes_all_but_history(plain: dict[str, str]) -> None:
    # Asked for a range of the current session, ipykernel answers with session 0.
    assert {name for name, became in plain.items() if became != "passed"} <= {"test_history"}
