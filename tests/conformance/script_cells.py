"""The part of the script that runs cells."""

from __future__ import annotations

from .exchange import cell

CELLS = (
    cell("an expression gives a result", "1 + 1"),
    cell("a statement gives no result", "x = 6 * 7"),
    cell("a variable is kept", "x"),
    cell("an empty cell is answered", ""),
    cell("several lines show the last expression", "y = x + 1\nfor _ in range(3):\n    y += 1\ny"),
    cell("a function and a class can be defined", "def f(a: int) -> int:\n    return a\nf(3)"),
    cell("unicode survives", "print('naïve ☃ 🐍'); 'Ünï\\t\\x1b[1mcode'"),
    cell("an error has a traceback", "def g():\n    return 1 / 0\n\ng()"),
    cell(
        "an error's cause is told",
        "try:\n    {}['k']\nexcept KeyError as e:\n    raise OSError(5, 'b') from e",
    ),
    cell("a syntax error is told", "for\n  x ="),
    cell("an indentation error is told", "if 1:\nprint(2)"),
    cell("a magic that is not there is told", "%no_such_magic"),
    cell("a name that is not there is told", "no_such_name"),
    cell("an import that fails is told", "import no_such_module"),
    cell(
        "an error in a repr is told",
        "class R:\n    def __repr__(self):\n        raise ValueError('r')\nR()",
    ),
    cell("SystemExit does not end the kernel", "raise SystemExit(3)"),
    cell("quit may keep the kernel", "quit(keep_kernel=True)"),
    cell("an assertion is told", "assert x == 1, 'not one'"),
    cell(
        "a group of errors is told", "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])"
    ),
    cell("a silent cell shows nothing and is not counted", "print('shown?'); 5", silent=True),
    cell("a silent error shows nothing", "1/0", silent=True),
    cell("a cell may stay out of the history", "'unremembered'", store_history=False),
    cell("user expressions are evaluated", "z = 2", user_expressions={"a": "z + 1", "b": "'é'"}),
    cell(
        "a user expression may fail", "z", user_expressions={"ok": "z", "bad": "1/0", "syntax": "("}
    ),
    cell("user expressions are left out after an error", "1/0", user_expressions={"a": "1"}),
    cell("In, Out and _ are kept", "'kept'"),
    cell("In, Out and _ can be used", "(_, __, In[-2], Out[max(Out)], _i, len(In))"),
    cell(
        "a cell sees the metadata of its request",
        "get_ipython().kernel.get_parent()['metadata']",
        metadata={"cellId": "5d7f-cell", "tags": ["a", "b"], "deletedCells": []},
    ),
    cell("await works", "import asyncio\nawait asyncio.sleep(0.01, result='awaited')"),
    cell(
        "async for and gather work",
        "await asyncio.gather(*(asyncio.sleep(0, n) for n in range(3)))",
    ),
    cell("an awaited error is told", "async def h():\n    raise LookupError('awaited')\nawait h()"),
)

FILES = (
    cell("the notebook's folder can be read", "import os\nos.listdir()"),
    cell("the notebook's folder can be written", "open('beside the notebook', 'w').close()"),
)

INPUT = (
    cell("input asks and gets its answer", "input('name? ')", answers=("Ada",)),
    cell("input can be asked for twice", "[input('a'), input('b')]", answers=("1", "zwei ☃")),
    cell(
        "getpass asks for a password",
        "import getpass\nlen(getpass.getpass('secret: '))",
        answers=("12345",),
    ),
    cell("output comes before the question", "print('before')\ninput()", answers=("",)),
    cell("an end of file is an error", "input()", answers=("\x04",)),
    cell("input without stdin is an error", "input('nobody')", allow_stdin=False),
)

BACKGROUND = (
    cell(
        "an error in a thread is shown",
        "import threading\ndef t():\n    raise OSError('in a thread')\nthread = threading.Thread(target=t, name='T')\nthread.start(); thread.join()",
    ),
    cell(
        "a thread's output is shown",
        "thread = threading.Thread(target=print, args=('threaded',))\nthread.start(); thread.join()",
    ),
    cell(
        "a thread may print after its cell",
        "timer = threading.Timer(0.2, print, ('late output',))\ntimer.start()",
        until="late output",
        output_at_any_time=True,
    ),
    cell(
        "a task may print after its cell",
        "async def later():\n    await asyncio.sleep(0.1)\n    print('late task')\ntask = asyncio.create_task(later())",
        until="late task",
        output_at_any_time=True,
    ),
    cell(
        "os.system shows its output",
        "import os\nos.system('echo from os.system')",
        until="from os.system",
        output_at_any_time=True,
    ),
    cell(
        "a subprocess shows its output",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(\"from a child\")']).returncode",
        until="from a child",
        output_at_any_time=True,
    ),
    cell(
        "a subprocess can be read",
        "subprocess.run(['cat'], input=b'piped', capture_output=True).stdout",
    ),
    cell(
        "a process pool works",
        "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(1) as pool:\n    found = pool.map(abs, [-1, 2])\nfound",
    ),
)
