"""What Python refuses to code of cells. In processes of their own: it changes the interpreter."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import sandbox_kernel.inner

INNER = Path(sandbox_kernel.inner.__file__).parent
SETUP = f"""
import sys
sys.path.insert(0, {str(INNER)!r})
from restricted import Guard
entries = {{"math": "allow", "json": "allow", "json.tool": "deny", "io": "ask", "email.header": "allow"}}
namespace = {{"__name__": "__main__"}}
guard = Guard(namespace, {{"otherwise": "deny", "entries": entries}})
run_as_python = exec
def cell(code):
    guard.renew()
    try:
        run_as_python(compile(code, "<cell>", "exec"), namespace)
    except Exception as error:
        print(type(error).__name__, error)
"""


def run(*cells: str, after: str = "") -> list[str]:
    """What these cells print, one after another, and then Python outside of them."""
    calls = "\n".join(f"cell({textwrap.dedent(code)!r})" for code in cells)
    done = subprocess.run(
        [sys.executable, "-c", f"{SETUP}\n{calls}\n{after}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "import os.path",
        "from os import path",
        "import json.tool",
        "from json import tool",
        "from json.tool import main",
        "__import__('o' + 's')",
        "__import__('os', {'__name__': 'json'})",
        "__name__ = 'json'\nimport os",
        "def f():\n    import os\nf()",
        "class A:\n    import os",
        "(lambda: __import__('os'))()",
        "import email",
    ],
)
def test_a_cell_cannot_import_what_is_denied(code: str) -> None:
    assert run(code)[0].startswith("ImportError cells may not import")


@pytest.mark.parametrize(
    "code",
    [
        "import math; print(math.floor(1.5))",
        "from json import dumps; print(dumps(1))",
        "from json import *; print(dumps(1))",
        "import io; print(io.StringIO('1').read())",  # the user has been asked
        "from email import header; print(header.Header('1'))",
        "from email.header import Header; print(Header('1'))",
        "import email.header; print(email.header.Header('1'))",
    ],
)
def test_a_cell_can_import_the_rest(code: str) -> None:
    assert run(code) == ["1"]


def test_a_library_imports_what_it_needs_and_so_do_functions_of_it() -> None:
    cells = ["from email.header import Header\nHeader('ä').encode(); print('encoded')"]
    # Which cells may not have.
    loaded = "print('email.charset' in sys.modules)"
    assert run("print(1)", after=loaded) == ["1", "False"]
    assert run(*cells, after=loaded) == ["encoded", "True"]


def test_what_the_interpreter_imports_in_the_name_of_a_cell_can_be_had() -> None:
    code = "import math\nprint(strptime('2020', '%Y').tm_year)"
    setup = "import time; namespace['strptime'] = time.strptime"
    done = subprocess.run(
        [sys.executable, "-c", f"{SETUP}\n{setup}\ncell({code!r})"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "2020\n"


@pytest.mark.parametrize(
    "code",
    [
        "__builtins__['len'] = 1",
        "del __builtins__['len']",
        "__builtins__.update(len=1)",
        "__builtins__ |= {'len': 1}",
        "__builtins__.setdefault('l', 1)",
        "__builtins__.pop('__import__')",
        "__builtins__.clear()",
    ],
)
def test_builtins_cannot_be_rebound(code: str) -> None:
    refused, length = run(code, "print(len('four'))")
    assert refused.startswith("TypeError builtins cannot be changed")
    assert length == "4"


def test_builtins_that_a_cell_has_swapped_are_back_for_the_next() -> None:
    assert run("__builtins__ = {'print': print}", "print(len('four'))") == ["4"]
    # Who has found the way to Python's own harms one cell, not the next.
    cells = ["import math", "own['len'] = print", "print(len('four'))"]
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"{SETUP}\nimport builtins\nnamespace['own'] = vars(builtins)\n"
            + "\n".join(f"cell({code!r})" for code in cells),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "4\n"


@pytest.mark.parametrize("name", ["eval", "exec", "compile"])
def test_text_is_not_run(name: str) -> None:
    assert run(f"{name}('print(1)')")[0].startswith(f"PermissionError `{name}` is not there")


def test_the_rest_of_python_is_as_it_was() -> None:
    code = """
        from json import dumps
        class A:
            total = sum(range(4))
        def f(*items):
            return [len(item) for item in items]
        try:
            undefined
        except NameError:
            print(dumps([A.total, f("ab"), sorted({2, 1}), isinstance(1, int)]))
    """
    assert run(code) == ["[6, [2], [1, 2], true]"]
