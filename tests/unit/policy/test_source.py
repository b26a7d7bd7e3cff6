"""A cell is read exactly as IPython reads it, and every place in it is found again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_kernel.policy.source import LINE_MAGICS, Unreadable, read_cell
from tests.corpora import BENIGN, corpus
from tests.tiers import sample

Transform = Callable[[str], str | None]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """The shell of a fresh kernel."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        from ipykernel.zmqshell import ZMQInteractiveShell

        shell = ZMQInteractiveShell.instance()
        yield shell
        shell.history_manager.end_session()
        ZMQInteractiveShell.clear_instance()


@pytest.fixture(scope="module")
def transform(shell) -> Transform:  # type: ignore[no-untyped-def]
    """What IPython makes of a cell, or None if it refuses to run it."""

    def transformed(text: str) -> str | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                code: str = shell.transform_cell(text)
            except Exception:
                return None
        return code if parses(code) else None

    return transformed


def parses(code: str) -> bool:
    flags = 0x2400  # only the tree, and await at the top
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(code, "", "exec", flags, dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
            return False
    return True


def read(text: str) -> str | None:
    try:
        code = read_cell(text).code
    except Unreadable:
        return None
    return code if parses(code) else None


CELLS = [
    "",
    "\n",
    "   ",
    "x = 1",
    "x = 1\n\n\n",
    "\n\n  x = 1\n  y = 2",
    "def f():\n    \n    return '''\n   \n'''",
    "!ls -l",
    "!!ls",
    "y = !ls\nz = %sx ls\nx = 1",
    "if 1:\n    !ls\n    %cd x",
    "%%bash\nls\n",
    "\n\n%%bash -s\nls\n",
    "%%script bash\n%%time\nx",
    ">>> !ls\n... x",
    ">>> if 1:\n...     x = 2\n",
    "In [1]: !ls\n   ...: x = 1",
    "[nav] In [12]: x\n",
    ";exec import os",
    ",print a b",
    "/print 1 2",
    "/ exit",
    "x?",
    "??x.y",
    "x.y[0]??",
    "%timeit?",
    "*int*?",
    "pwd",
    "  ls -l  ",
    "ls = 1",
    "ls, x = 1, 2",
    "ls.x",
    "pip install x",
    "time",
    "time f()",
    "rm -rf x # y",
    "cat",
    "exit",
    "quit 1",
    "exit;",
    "exit()",
    "exit = 1",
    "print 1",
    "a = 1; b = %time",
    "%a \\\n b \\\n c",
    "!a \\\n b",
    "x = '''\n%a\n!b\n?'''",
    "f(\n%x\n)",
    "x = 5 \\\n% 3",
    "a\r\n%cd b\r\n",
    "a = 1\x0c\n%cd b",
    "'a\x0c    b\x0c  c'",
    "x = 'a\u2028b'\n%cd x",
    "a\rb",
    "# what?",
    "x = (\n  1?\n",
    "x = !",
    "%",
    "!",
    "?",
    "/",
    "x = %",
    "\ufeff%cd x",
    "a = =%b",
    "f'{x = !r}'",
    "f(a=%b)",
    "x == %b",
    "await x",
    "  %%bash\nls",
    "%cd x\n%cd y\n\n!z\n",
    "if x:\n%cd y",
    "x = (!ls)",
    "…",
    "$x",
    "\t!ls\n\tx = 1",
]


@pytest.mark.parametrize("text", CELLS)
def test_a_cell_is_read_as_ipython_reads_it(text: str, transform: Transform) -> None:
    assert read(text) == transform(text)


def test_the_magics_known_are_those_of_the_kernel(shell) -> None:  # type: ignore[no-untyped-def]
    assert set(shell.magics_manager.magics["line"]) == set(LINE_MAGICS)


FRAGMENTS = st.sampled_from(
    [
        "%",
        "%%",
        "!",
        "!!",
        "?",
        "??",
        "/",
        ",",
        ";",
        "=",
        " ",
        "  ",
        "\t",
        "\n",
        "\n\n",
        "\\\n",
        "\r",
        "\r\n",
        "\x0c",
        "\x0b",
        "\u2028",
        "\x85",
        "\xa0",
        "ls",
        "x",
        "cd",
        "time",
        "exit",
        "print",
        "1",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "'",
        '"',
        "'''",
        '"""',
        "#",
        ":",
        ".",
        ">>> ",
        "... ",
        "...: ",
        "In [1]: ",
        "[nav] ",
        "if x:",
        "def f():\n  ",
        "f'",
        "\\",
        "*",
        "-l",
        "é",
        "lambda:",
        "\0",
        "$",
        "\n%",
        "\n!",
        "= !",
        "= %",
        "?\n",
        "\n>>> ",
        "\n  ",
    ]
)


@settings(max_examples=600)
@given(st.lists(FRAGMENTS, max_size=14).map("".join))
def test_any_text_is_read_as_ipython_reads_it(transform: Transform, text: str) -> None:
    assert read(text) == transform(text)


# Names of earlier cells ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["ls", "time", "exit", "pwd  "])
def test_a_name_of_an_earlier_cell_is_no_magic(text: str) -> None:
    assert read_cell(text, known_names={text.strip()}).code == text + "\n"


# Places --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "marker"),
    [
        ("a = 1\nb = MARK\n", "MARK"),
        ("\n\n  a = 1\n  b = MARK\n", "MARK"),
        ("%cd x\n\n!ls \\\n  -l\nb = MARK", "MARK"),
        (">>> a = 1\n>>> b = MARK", "MARK"),
        ("In [1]: if 1:\n   ...:     MARK", "MARK"),
        ("\n    %cd x\n    y = !ls\n    MARK", "MARK"),
        ("x = 'a\x0cb'\n%cd x\nMARK", "MARK"),
    ],
)
def test_what_stays_is_found_where_it_stood(text: str, marker: str) -> None:
    source = read_cell(text)
    before = source.code[: source.code.index(marker)]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n") - 1
    written = text[: text.index(marker)]
    expected = written.count("\n") + 1, len(written) - written.rfind("\n") - 1
    assert source.locate(line, column) == expected


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("x = 1\n  !ls", (2, 30), (2, 2)),
        ("a\n\nb = %time f()", (3, 25), (3, 4)),
        ("\n\n%%bash\nls", (1, 40), (3, 0)),
        ("  pip install x", (1, 60), (1, 2)),
        ("x", (99, 0), (99, 0)),
        ("%x", (99, 5), (1, 0)),
    ],
)
def test_what_is_rewritten_is_found_where_it_began(
    text: str, place: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert read_cell(text).locate(*place) == expected


# Bounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "%cd x\n" * 200,
        "%cd x\n" * 100_000,
        "%cd x\n" + "x = 1\n" * 150_000,
        "a" * 1_000_000 + " ?",
        "x + " * 250_000 + "?",
        "(" + "a.b[0]" * 100_000 + "?",
        "?\n" * 300_000,
        "\n" * 1_000_000 + "%x",
        "%x \\\n" * 150_000,
        ">>> " * 200_000,
        "'" * 1_000_000 + "?",
        "%" * 1_000_000,
    ],
)
def test_reading_ends_soon_after_the_deadline(text: str) -> None:
    began = time.thread_time()
    with contextlib.suppress(Unreadable):
        read_cell(text, deadline=began + 0.25)
    assert time.thread_time() - began < 2


def test_ipython_itself_is_not_imported_for_it() -> None:
    program = """
import sys
from sandbox_kernel.policy.source import read_cell
assert read_cell('x = 1').code == 'x = 1\\n'
assert 'IPython' not in sys.modules
assert 'get_ipython' in read_cell('%cd x').code
assert 'get_ipython' in read_cell('pwd').code
assert not [name for name in sys.modules if name.startswith('IPython')]
import IPython
assert IPython.version_info
from IPython.core.inputtransformer2 import TransformerManager
assert TransformerManager().transform_cell('%cd x') == read_cell('%cd x').code
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# All that real notebooks hold ----------------------------------------------------------------------


@pytest.mark.slow
def test_real_notebooks_are_read_as_ipython_reads_them(transform: Transform) -> None:
    notebooks = sample(corpus(BENIGN), every=4)
    cells = {cell for notebook in notebooks for cell in notebook["cells"]}
    wrong = [cell for cell in cells if read(cell) != transform(cell)]
    assert not wrong, f"{len(wrong)} of {len(cells)}: {wrong[0]!r}"
