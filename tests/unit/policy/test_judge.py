"""Verdicts on whole cells: places, memory, bounds, and the known ways around the check."""

from __future__ import annotations

import ast
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from sandbox_kernel.policy import judge as judge_module
from sandbox_kernel.policy import python_nodes
from sandbox_kernel.policy.judge import (
    FAILED,
    LARGE_BYTES,
    LONGEST_ABOUT,
    MAX_FINDINGS,
    Judge,
)
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.model import Code, Names
from sandbox_kernel.policy.verdict import DECISIONS, Decision, Verdict

from .bypasses import BYPASSES, TECHNIQUES, Bypass
from .figures import DOCUMENT, published

# Of a processor; the bound is 0.25 s, and a busy machine makes all work slower.
NOISY_SECONDS = 0.6


@cache
def code_of(policy: str) -> Code:
    return load_policy(policy).code


@pytest.fixture
def strict() -> Code:
    return code_of("strict")


@pytest.fixture
def default() -> Code:
    return code_of("default")


def places(verdict: Verdict, rule: str) -> list[tuple[int, int]]:
    return [(found.line, found.column) for found in verdict.findings if found.rule == rule]


def rules(verdict: Verdict) -> set[str]:
    return {found.rule for found in verdict.findings}


def long(text: str) -> str:
    """The same with so many comments behind it that it is read in a fork."""
    indent = text[: len(text) - len(text.lstrip(" "))]
    return text + "\n" + f"{indent}# nothing\n" * (LARGE_BYTES // 10 + 1)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# Places --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "rule", "pointed_at"),
    [
        ("x = 1\ny = ().__class__.__base__", "python.subclasses", "().__class__.__base__"),
        ("%matplotlib inline\n!ls\nx = eval('1')", "python.eval", "eval('1')"),
        ("y = !ls\nif y:\n    eval('1')", "python.eval", "eval('1')"),
        ("%%bash\necho hi\ncat /etc/shadow", "shell.sensitive_path", "/etc/shadow"),
        ("%%bash -x\ncd a\n  cat /etc/shadow", "shell.sensitive_path", "/etc/shadow"),
        ("%%time\nx = 1\neval('1')", "python.eval", "eval('1')"),
        ("%time x = eval('1')", "python.eval", "eval('1')"),
        (">>> x = 1\n>>> eval('1')", "python.eval", "eval('1')"),
        ("\n\n\nx = eval('1')", "python.eval", "eval('1')"),
        ("   x = 1\n   eval('1')", "python.eval", "eval('1')"),
        ("ä = 'ö'; eval('1')", "python.eval", "eval('1')"),
        ("x = 1\nexec('y = 1; eval(2)')", "python.exec", "exec"),
        ("x = 1\nexec('y = 1; eval(2)')", "python.eval", "eval(2)"),
        ("x = 1\nexec('y = 1\\neval(2)')", "python.eval", "exec"),
        ('exec("""\ny = 1\neval(2)\n""")', "python.eval", "eval(2)"),
        ("import os\nos.system('ls; cat /etc/shadow')", "shell.sensitive_path", "/etc/shadow"),
        ("if True:\n    !cat /etc/shadow", "shell.sensitive_path", "/etc/shadow"),
        ("x = 1\n!cat /etc/shadow", "shell.sensitive_path", "/etc/shadow"),
    ],
)
def test_a_finding_points_into_the_text_of_the_user(
    cell: str, rule: str, pointed_at: str, strict: Code
) -> None:
    found = places(Judge(strict).judge(cell), rule)
    before, _, _ = cell.partition(pointed_at)
    line = before.count("\n") + 1
    start = len(before) - (before.rfind("\n") + 1)
    assert found
    assert set(found) == {(line, start)}


def test_a_line_of_ipythons_own_counting_is_no_place(default: Code) -> None:
    verdict = Judge(default).judge("%%bash\u2028cat /etc/shadow")
    assert {found.line for found in verdict.findings} == {1}


def test_the_place_of_code_in_code_lies_in_the_cell(strict: Code) -> None:
    cell = "x = 1\nexec('''a = 1\nb = 2\n\n\neval(a)''')"
    assert all(1 <= line <= 6 for line, _ in places(Judge(strict).judge(cell), "python.eval"))


# Memory --------------------------------------------------------------------------------------------


def test_an_alias_of_an_earlier_cell_is_known(default: Code) -> None:
    judge = Judge(default)
    assert judge.judge("import sys as harmless").decision == "allow"
    assert "python.frames" in rules(judge.judge("harmless._getframe(1)"))


@pytest.mark.parametrize(
    ("policy", "cells"),
    [
        ("strict", ["get_ipython = get_ipython", "get_ipython().system('cat /etc/shadow')"]),
        ("strict", ["import math\nif 0: get_ipython = 1", "get_ipython().run_cell('eval(1)')"]),
        ("default", ["import os", "os = os", "os.system('cat /etc/shadow')"]),
        ("default", ["open = open", "open('/x', 'w')\nopen(b'/etc/shadow')"]),
        ("default", ["type = type", "type(lambda: 0)(c, {})"]),
        ("default", ["from numpy import *", "x = 1", "ctypeslib.ctypes.CDLL(None)"]),
        ("strict", ["from numpy import *", "f2py.run_main([])"]),
        ("strict", ["import ipywidgets as w\nc = w.Text().comm", "c.kernel.parent.system('id')"]),
    ],
)
def test_a_name_bound_again_hides_nothing(policy: str, cells: list[str]) -> None:
    judge = Judge(code_of(policy))
    *before, last = cells
    assert {judge.judge(cell).decision for cell in before} <= {"allow", "warn"}
    assert judge.judge(last).decision == "deny"


@pytest.mark.parametrize(
    ("cells", "decision"),
    [
        (["a = '/etc/'", "open(a + 'shadow')"], "deny"),
        (["a = '/etc/'\nb = a", "open(f'{b}shadow')"], "deny"),
        (["a = '/et' + 'c/'", "x = 1", "!ls\nopen(a + 'shadow')"], "deny"),
        (["a = '/etc/'", "a = f()", "open(a + 'shadow')"], "allow"),
        (["a = '/etc/'", "for a in x: open(a + 'shadow')"], "allow"),
        (["a = '/etc/'", "def f(a): open(a + 'shadow')"], "allow"),
        (["a = '/etc/'", "del a", "open(a + 'shadow')"], "allow"),
        (["a = '/etc/'\na += 'x'", "open(a + 'shadow')"], "allow"),
        (["a = '.env'", "open(a)"], "deny"),
    ],
)
def test_texts_of_earlier_cells_are_known(
    cells: list[str], decision: Decision, default: Code
) -> None:
    judge = Judge(default)
    *_, last = [judge.judge(cell) for cell in cells]
    assert last.decision == decision


@pytest.mark.usefixtures("no_zombies")
def test_texts_of_a_large_cell_are_known(default: Code) -> None:
    judge = Judge(default)
    assert judge.judge(long("a = 'sh' + 'adow'")).decision == "allow"
    assert judge.judge("open('/etc/' + a)").decision == "deny"


def test_a_denied_cell_leaves_nothing(default: Code) -> None:
    judge = Judge(default)
    assert (
        judge.judge("s = print\nimport sys as harmless\ngi_frame = s.gi_frame").decision == "deny"
    )
    assert judge.judge("harmless._getframe(1)").decision == "allow"


def test_a_cell_that_was_asked_about_counts_once_it_is_approved(strict: Code) -> None:
    cell = "s = open('x', 'w')\nharmless = s.write"
    code = strict._replace(rules={**strict.rules, "python.process": "deny"})
    for is_approved in (False, True):
        judge = Judge(code)
        assert judge.judge(cell).decision == "ask"
        assert judge.judge("other = 1").decision == "allow"  # of a subshell, while the user thinks
        if is_approved:
            judge.approved(cell)
        names = {"s", "harmless"} if is_approved else set()
        assert judge._memory.names == names | {"other"}


def test_a_line_that_may_be_a_magic_is_read_both_ways(default: Code) -> None:
    judge = Judge(default)
    assert judge.judge("cat = 1").decision == "allow"
    assert "magic.sensitive_path" in rules(judge.judge("cat /etc/shadow"))  # `del cat` may have run
    judge = Judge(code_of("strict"))
    assert judge.judge("sx = [0]").decision == "allow"
    assert "python.eval" in rules(judge.judge("sx [eval('0')]"))


def test_expressions_behind_the_cell_are_judged(strict: Code) -> None:
    judge = Judge(strict)
    assert judge.judge("x = 1", ["x + 1", "[x]"]).decision == "allow"
    assert rules(judge.judge("x = 1", ["x", "eval('x')"])) == {"python.eval"}
    assert judge.judge("", ["eval('x')"]).decision == "deny"


def test_a_finding_in_an_expression_has_the_expression_with_it(strict: Code) -> None:
    verdict = Judge(strict).judge("a = 1\nb = eval('2')", ["c", "eval('1')"])
    assert [found.expression for found in verdict.findings] == ["eval('1')", ""]
    assert [found.line for found in verdict.findings] == [1, 2]


def test_expressions_know_what_the_cell_defines(strict: Code) -> None:
    verdict = Judge(strict).judge("import json as j", ["j.codecs.builtins"])
    assert "python.transitive_module" in rules(verdict)


@pytest.mark.parametrize(
    "cell", ["!echo {exec('import ctypes')}", "%cd {x.gi_frame}", "%%bash {x.gi_frame}\nls"]
)
def test_what_ipython_evaluates_for_a_command_is_judged(cell: str, default: Code) -> None:
    assert Judge(default).judge(cell).decision == "deny"


@pytest.mark.parametrize(
    "cell",
    [
        "!awk '{print $1}' x",
        "!awk '{s += $1} END {print s}' x",
        "!wget {url} -O {os.path.basename(url)}",
        "!find . -name x -exec ls {} +",
        "!echo {a,b} ${HOME}",
        "%tensorboard --logdir={FLAGS.model_dir}",
    ],
)
def test_braces_in_commands_of_honest_notebooks_are_allowed(cell: str, default: Code) -> None:
    assert Judge(default).judge(cell).decision == "allow"


@pytest.mark.parametrize(
    "cell",
    [
        "from sqlalchemy import inspect\ninspect(engine)",
        "from rich import inspect\ninspect(x)",
        "df.os.value_counts()",
        "if args.os == 'linux': x = df.os.replace('a', 'b')",
        "from data_loader import get_loader\nloader = get_loader(path)",
        "x.load_module()",
        "'{self.__class__.__name__}'.format(self=self)",
        "'{f.__name__}: {f.__doc__}'.format(f=f)",
        "'{o.f_score} {o.tb_log}'.format(o=o)",
        "form.get_field('a')",
        "df.query('a > @cfg.x')",
        "df.query('email == \"a@b.com\"')",
        "df.query('email == \"a@b.com(x)\" and a in @names')",
        "from dotenv import load_dotenv\nload_dotenv('.env')",
        "import dotenv\nconfig = dotenv.dotenv_values(dotenv_path='config/.env.local')",
        "%dotenv .env",
        "open = 5\ntype = 'linear'\nvars = [open, type]",
        "__spec__ = None",
        "isinstance(f, type(lambda: 0))\n(lambda: 0).__class__.__name__",
        "a.ctypes.data_as(p)",
        "'__main__'.upper()\nname = '__init__.py'[:-3]\n'a b'.split()[0]",
        # Lessons
        "f.__closure__[0].cell_contents",
        "import types\nisinstance(x, types.FunctionType)",
        "from types import FunctionType, LambdaType\nisinstance(f, (LambdaType, FunctionType))",
        "import types\ntype(f) is types.FunctionType",
        "from types import FunctionType\ndef f(x: FunctionType) -> FunctionType: return x",
        "bool.__base__\nprint(int.__base__.__name__)",
        "g = (x for x in ())\ng.gi_frame is None",
        "self.os.system('ls')\nself.subprocess.run(['ls'])",
        "from dataclasses import dataclass\n@dataclass\nclass Host:\n    os: str",
        # Texts
        "soup.select('.profile')\nsuffixes = ['.docker', '.env']",
        "driver.find_element('css selector', '.env')",
        "pd.read_csv('../dev/dev.tsv')\nx = '../proc/clean.csv', '../root/', '../sys/log.txt'",
        "env_path = Path('.') / '.env'\nload_dotenv(dotenv_path=env_path)",
        "import os\nload_dotenv(os.path.join(os.getcwd(), '.env'))",
        # Programs, and what is shown
        "%env PATH=$PATH:/usr/local/cuda/bin",
        "%set_env PATH /opt/conda/bin:$PATH",
        "%%javascript\n$('div').get(0)",
        "import os\ndef w(n):\n    for i in range(n): os.fork()",
        "from flask_restful import marshal",
        "import ray.util.multiprocessing\nray.util.multiprocessing.Pool()",
        "!tar --use-compress-program=unzstd -xf x.tar.zst",
        "!tar --use-compress-program 'pigz -9' -cf x y",
        "!man -P cat ls",
        "!awk '{a[$(NF-1)]++}' x",
        "from fastai.vision import *\npickle.load(f)\nx.os\ndf.os.unique()",
        "import ipywidgets as w\nw.HTML('<b>x</b>')\nmodel.kernel.shape",
        "globals()['x'] = 1\nglobals()[name] = 2\n'{x}'.format(**locals())\nprint(vars(args))",
        "vars(args).items()\nself.__dict__.update(d)",
    ],
)
def test_honest_code_that_looks_like_an_attack_is_allowed(cell: str, default: Code) -> None:
    assert Judge(default).judge(cell).decision == "allow"


# An answer that many have copied.
PRINT_EXCEPTION = """
import linecache, sys
def PrintException():
    exc_type, exc_obj, tb = sys.exc_info()
    f = tb.tb_frame
    lineno = tb.tb_lineno
    filename = f.f_code.co_filename
    linecache.checkcache(filename)
    line = linecache.getline(filename, lineno, f.f_globals)
    print('({}, line {} "{}"): {}'.format(filename, lineno, line.strip(), exc_obj))
"""


@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        (
            "import importlib.util\n"
            "spec = importlib.util.spec_from_file_location('m', 'm.py')\n"
            "m = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(m)",
            "python.load_file",
        ),
        ("import imp\nm = imp.load_source('m', 'm.py')", "python.load_file"),
        ("pd.read_csv('/root/data.csv')", "python.system_path"),
        ("!ls /root/data", "shell.system_path"),
        ("df.query('date > @pd.Timestamp(\"2020-01-01\")')", "python.query_escape"),
        ("df.query('`a b` in @names.keys()')", "python.query_escape"),
        ("df.query(\"a == 'b' and @x.y . z ('id')\")", "python.query_escape"),
        ("import inspect\ninspect.currentframe().f_code.co_name", "python.inspect_frames"),
        ("import sys\nsys._getframe(1).f_back.f_code.co_name", "python.inspect_frames"),
        ("print(tb.tb_frame.f_code.co_filename, tb.tb_lineno)", "python.inspect_frames"),
        ("import sys\nsys._getframe().f_lineno", "python.inspect_frames"),
        ("import inspect\ninspect.currentframe().f_back.f_lineno", "python.inspect_frames"),
        (PRINT_EXCEPTION, "python.inspect_frames"),
        ("import numpy\nprint(numpy.__spec__.origin)\nnumpy.__spec__", "python.load_file"),
        ("import sounddevice\nsounddevice.play(x, 44100)", "python.import"),
        ("import pyaudio\npyaudio.PyAudio()", "python.import"),
        ("%%javascript\n$.getScript('https://a.org/toc.js')", "javascript.remote_module"),
        ("for k, v in globals().items(): print(k)", "python.dynamic_attribute"),
    ],
)
def test_what_honest_code_seldom_does_is_warned_of(cell: str, rule: str, default: Code) -> None:
    verdict = Judge(default).judge(cell)
    assert verdict.decision == "warn"
    assert rule in rules(verdict)


@pytest.mark.parametrize(
    "cell",
    [
        "import math\nmath.__loader__.load_module('posix')",
        "from importlib.machinery import BuiltinImporter as B\nB.load_module('posix')",
        "df.query('@pd.io.common.os.system(\"id\") == 0')",
        "'{o.f_globals}'.format(o=o)",
        "'{0.__class__.__init__.__globals__}'.format(o)",
        "import string\nstring.Formatter().get_field('0.os', [o], {})",
        "open('.env')",
        "open('config/.env.local')",
        "open('/root/.ssh/x')",
        "open('id_rsa')",
        "open('/etc//shadow')",
        "open('/etc/./shadow')",
        "open(''.join(['/etc/', 'shadow']))",
        "import os\nopen(os.path.join('/etc', 'shadow'))",
        "from pathlib import Path\n(Path('/etc') / 'shadow').read_text()",
        "open('{}/{}'.format('/etc', 'shadow'))",
        "import os\nos.system(command='cat /etc/shadow')",
        "import subprocess\nsubprocess.run(['x', '-c', 'nc y'], executable='/bin/sh')",
        "!bash -o pipefail -c 'nc y'",
        "!python3 -W ignore -c 'import ctypes'",
        "frame.io.common.os.system('nc y')",
        "x._os.popen('nc y')",
        "df.query('@x._os.popen(\"nc y\")')",
        "df.query('`a b` > 1 and @os.system(\"nc y\")')",
        "sys._getframe().f_code",
        "x.tb_frame.f_code.co_name, x.tb_frame",
        "__spec__ = None\n__spec__.loader",
        f"{PRINT_EXCEPTION}    return f",
        f"{PRINT_EXCEPTION}    f.f_back",
        "bool.__base__.__subclasses__()",
        "().__class__.__base__",
        "import numpy\nf(numpy.__spec__)",
        "import types\ntypes.FunctionType(c, {})() == 1",
        "import types\nisinstance = lambda a, b: b(c, {})\nisinstance(1, types.FunctionType)",
        "name = '.env'\nopen(name)",
        "o = open\no('.netrc')",
        "import os\nos.path.join(home, '.ssh')",
        "from pathlib import Path\nPath.home() / '.ssh'",
        "open(home + '/' + '.aws')",
        "open('/'.join([home, '.aws']))",
        "open('../../proc/x')",
        "open('/usr/../root/x')",
        "%env PATH=/tmp:$PATH",
        "%env LD_PRELOAD=./x.so",
        "import sounddevice as sd\nsd.rec(3)",
        "%%javascript\n$.get('/x')",
        "%%javascript\n$('div').load('/x')",
        "%%javascript\nvar f = $.getScript; f('x')",
        "import os\nn = 9**9\nfor i in range(n): os.fork()",
        "!tar --use-compress-program='sh x' -xf y",
        "!man -P 'cat; id' ls",
    ],
)
def test_what_is_no_honest_code_is_denied(cell: str, default: Code) -> None:
    assert Judge(default).judge(cell).decision == "deny"


@pytest.mark.parametrize(
    "cell", ["%alias z cat", "%alias_magic z sx", "%autocall 2", "%autocall", "%rehashx"]
)
def test_nothing_changes_how_later_lines_are_read(cell: str, default: Code) -> None:
    assert Judge(default).judge(cell).decision == "deny"


@pytest.mark.parametrize("cell", ["%alias", "%alias z", "%unalias z", "%autocall 0"])
def test_a_look_at_names_of_commands_is_allowed(cell: str, default: Code) -> None:
    assert Judge(default).judge(cell).decision == "allow"


@pytest.mark.parametrize(
    "cell",
    [
        "from IPython import display\ndisplay.HTML('<b>x</b>')",
        "import IPython.display\nIPython.display.display(x)",
        "from pandas.api import types\ntypes.is_string_dtype(x)",
        "import pandas as pd\npd.api.types.is_numeric_dtype(x)",
        "import polars as pl\npl.selectors.numeric()",
        "from scipy import io, signal\nimport scipy\nscipy.signal.hann(3)",
        "import numpy as np\nnp.select([a], [b])\nnp.trace(m)\nnp.random.rand()\nnp.copy(a)",
        "import numpy as np\nnp.load('x.npy', 'r', False)\nnp.load('x.npy', allow_pickle=False)",
        "import tqdm.asyncio\ntqdm.asyncio.tqdm(x)",
        "from tqdm.asyncio import tqdm\ntqdm.pandas()",
        "from dataclasses import dataclass\nfrom datetime import datetime, time",
        "class P:\n    __match_args__ = ('x', 'y')\nmatch p:\n    case P(x, y): x",
        "'get_ipython' in globals()",
        "import numpy as np\nnp.testing.assert_allclose(a, b)",
        "from numpy.testing import assert_allclose, assert_equal",
        "from numpy import *\nx = linspace(0, 1)\nlinalg.norm(random.rand(3))",
        "%%latex\n$x$",
        "%%markdown\n# hi",
        "!ls 2>/dev/null\n!ls 2>&1",
    ],
)
def test_modules_that_strict_allows_can_be_used(cell: str, strict: Code) -> None:
    assert Judge(strict).judge(cell).decision == "allow"


@pytest.mark.parametrize(
    ("cell", "about"),
    [
        ("import a.b", ["a.b"]),
        ("from a import b", ["a.b"]),
        ("from a import b as c, d", ["a.b"]),
        ("import a\na.b.g()", ["a.b"]),
        ("import a\na.b.f()", []),
        ("import a\ngetattr(a, 'b')", ["a.b"]),
        ("import a\nmatch a:\n    case object(b=c): c", ["a.b"]),
        ("from a import c", []),
        ("import x.y\nx.y.f()", []),
        ("from x import y", []),
        ("from x import y, z", ["x"]),
        ("import x.y\nx.z.f()", ["x.z"]),
        ("import x.y as y\ny.z", []),
        ("import a\na.b.f(a.b.g)", ["a.b"]),
        ("from a.b import f", []),
        ("from a.b import f, g", ["a.b"]),
    ],
)
def test_a_module_within_a_module_is_judged_by_its_own_entry(
    cell: str, about: list[str], default: Code
) -> None:
    imports = Names("deny", {"a": "allow", "a.b": "deny", "a.b.f": "allow", "x.y": "allow"})
    verdict = Judge(default._replace(imports=imports)).judge(cell)
    assert [found.about for found in verdict.findings] == about


@pytest.mark.parametrize(
    "cell",
    [
        "ip = get_ipython()\nip.run_line_magic('matplotlib', 'inline')",
        "from IPython import get_ipython\nif get_ipython() is not None: x = 1",
        "in_colab = 'google.colab' in str(get_ipython())",
        "get_ipython().__class__.__name__ == 'ZMQInteractiveShell'",
        "hasattr(get_ipython(), 'kernel')",
        "%matplotlib inline\n!ls",
    ],
)
def test_a_question_about_the_shell_is_allowed(cell: str, strict: Code) -> None:
    code = strict._replace(imports=Names("allow", {}))
    assert Judge(code).judge(cell).decision == "allow"


@pytest.mark.parametrize("cell", ["!ls", "!!ls", "x = !ls", "%sx ls", "get_ipython().system(x)"])
def test_a_command_is_text_for_a_shell_and_a_magic(cell: str, default: Code) -> None:
    rule = default._replace(rules={**default.rules, "magic.shell": "deny"})
    assert rules(Judge(rule).judge(cell)) >= {"magic.shell"}
    names = default._replace(magics=Names("deny", {"time": "allow"}))
    assert rules(Judge(names).judge(cell)) >= {"magic"}
    listed = default._replace(magics=Names("deny", {"sx": "allow", "system": "allow"}))
    assert Judge(listed).judge(cell).decision in ("allow", "warn")


@pytest.mark.parametrize("policy", ["default", "strict"])
@pytest.mark.parametrize("cell", ["!ls", "!!ls", "x = !ls -l *.csv", "!/bin/cat x", "!head ../x"])
def test_a_plain_command_is_allowed(cell: str, policy: str) -> None:
    assert Judge(code_of(policy)).judge(cell) == Verdict("allow")


# Findings ------------------------------------------------------------------------------------------


def test_the_gravest_finding_comes_first(default: Code) -> None:
    verdict = Judge(default).judge("import subprocess\nimport pty\nx.gi_frame\nimport ctypes")
    decisions = [DECISIONS.index(found.decision) for found in verdict.findings]
    assert decisions == sorted(decisions, reverse=True)
    assert verdict.decision == "deny"
    assert len(set(decisions)) == 2
    denied = [found.line for found in verdict.findings if found.decision == "deny"]
    assert denied == sorted(denied)


def test_findings_are_capped(strict: Code) -> None:
    many = "\n".join(f"import m{n}" for n in range(3 * MAX_FINDINGS))
    assert len(Judge(strict).judge(many).findings) == MAX_FINDINGS


def test_many_warnings_do_not_hide_a_denial(default: Code) -> None:
    warnings = "\n".join(f"open('/etc/x{n}')" for n in range(3 * MAX_FINDINGS))
    verdict = Judge(default).judge(f"{warnings}\nx.gi_frame")
    assert verdict.decision == "deny"
    assert verdict.findings[0].rule == "python.frames"
    assert len(verdict.findings) == MAX_FINDINGS


def test_one_finding_of_a_place_is_enough(strict: Code) -> None:
    findings = Judge(strict).judge("eval('1')").findings
    assert len(findings) == len(set(findings)) == 1


@pytest.mark.parametrize("cell", [f"import {'a' * 200_000}", f"%{'a' * 5_000}"])
def test_a_long_name_is_cut(cell: str, strict: Code) -> None:
    [found] = Judge(strict).judge(cell).findings
    assert len(found.about) == LONGEST_ABOUT


def test_strict_asks_before_a_shell_writes_a_file(strict: Code, default: Code) -> None:
    for cell in (
        "!echo 'import os' > colorsys.py",
        "%%bash\ncat > x.py <<'EOF'\nx\nEOF",
        "!ls &> x",
    ):
        verdict = Judge(strict).judge(cell)
        assert (verdict.decision, rules(verdict)) == ("ask", {"python.write_file"})
        assert Judge(default).judge(cell).decision == "allow"
        assert Judge(code_of("paranoid")).judge(cell).decision == "deny"


@pytest.mark.parametrize("policy", ["strict", "paranoid"])
@pytest.mark.parametrize("magic", ["latex", "markdown"])
def test_text_with_markup_that_does_something_is_denied(magic: str, policy: str) -> None:
    judge = Judge(code_of(policy))
    for text in ("<script>x()</script>", "[x](javascript:x())", "<img src=x onerror=x()>"):
        assert "magic.html" in rules(judge.judge(f"%%{magic}\n{text}"))
    assert judge.judge(f"%%{magic}\n$x$ and **y** < z").decision == "allow"


def test_trusted_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Judge, "_read", read)
    monkeypatch.setattr(Judge, "_read_apart", read)
    judge = Judge(code_of("trusted"))
    assert judge.judge("import ctypes\n" * 10_000) == Verdict("allow")
    assert judge.judge("x" * (2 << 20), ["eval(1)"]) == Verdict("allow")


# What cannot be read -------------------------------------------------------------------------------


def test_a_cell_beyond_the_size_is_denied(default: Code) -> None:
    code = default._replace(max_bytes=100)
    assert Judge(code).judge("x" * 100).decision == "allow"
    assert rules(Judge(code).judge("x" * 101)) == {"cell.too_large"}
    assert rules(Judge(code).judge("ä" * 51)) == {"cell.too_large"}  # as bytes
    assert rules(Judge(code).judge("x" * 50, ["y" * 51])) == {"cell.too_large"}


def test_code_within_code_is_read_to_a_depth(default: Code) -> None:
    def wrapped(times: int) -> str:
        text = "x.gi_frame"
        for _ in range(times):
            text = f"exec({text!r})"
        return text

    assert rules(Judge(default).judge(wrapped(judge_module.MAX_DEPTH))) == {"python.frames"}
    assert rules(Judge(default).judge(wrapped(judge_module.MAX_DEPTH + 1))) == {"cell.too_deep"}


def test_many_texts_within_a_cell_are_too_many(default: Code) -> None:
    many = "\n".join(f"exec('x = {n}')" for n in range(judge_module.MAX_TEXTS + 1))
    assert "cell.too_deep" in rules(Judge(default).judge(many))


@pytest.mark.parametrize("policy", ["default", "strict", "paranoid"])
def test_what_python_cannot_take_is_denied(policy: str) -> None:
    judge = Judge(code_of(policy))
    assert rules(judge.judge("x = '\ud800'")) == {"cell.unreadable"}
    # A null byte is a syntax error to some versions of Python: then nothing runs either.
    assert rules(judge.judge("x = '\0'; eval('1')")) <= {"cell.unreadable"}


@pytest.mark.parametrize("cell", ["x = = 1", "for", "print 'x'", "'", "(", "def f(:\n  pass"])
def test_a_syntax_error_is_left_to_python(cell: str, strict: Code) -> None:
    assert Judge(strict).judge(cell) == Verdict("allow")


@pytest.mark.parametrize(
    ("version", "decision"),
    [
        (f"{sys.version_info[0]}.{sys.version_info[1]}.99", "allow"),
        (f"{sys.version_info[0]}.{sys.version_info[1] - 1}.0", "allow"),
        (f"{sys.version_info[0]}.{sys.version_info[1] + 1}.0", "deny"),
        ("nonsense", "deny"),
        (None, "deny"),
    ],
)
def test_what_only_a_newer_python_may_read_is_denied(
    version: str | None, decision: str, default: Code
) -> None:
    judge = Judge(default)
    judge.know_inner_python(version)
    assert judge.judge("x = 1\n!awk '{print $1}' x").decision == "allow"
    verdict = judge.judge("x = = 1")
    assert verdict.decision == decision
    assert rules(verdict) == ({"cell.unreadable"} if decision == "deny" else set())


def test_a_fault_of_the_check_is_a_denial(
    default: Code, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    painting = "\x1b]52;c;ZXZpbA==\x07\u202e of the cell"

    def examine(*_: object) -> None:
        raise ZeroDivisionError(painting)

    monkeypatch.setattr(judge_module.python, "examine", examine)
    [found] = Judge(default).judge("x = 1").findings
    assert (found.rule, found.decision, found.about) == ("cell.unreadable", "deny", FAILED)
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    # The log may be a terminal.
    assert said.replace("\n", "").isprintable()


def test_a_slice_of_a_value_may_be_as_long_as_it_likes(default: Code) -> None:
    cell = "%%bash\nx=abc\necho ${x:" + "9" * 5000 + "}"
    assert Judge(default).judge(cell).decision == "allow"


@pytest.mark.parametrize("command", ["curl", "wget", "rm", "tar", "find", "git", "sudo", "bash -c"])
def test_a_command_without_arguments_is_read(command: str, default: Code) -> None:
    assert "cell.unreadable" not in rules(Judge(default).judge(f"!{command}\n!{command} -"))


@pytest.mark.parametrize("kind", [ast.Match, ast.Await, ast.Lambda])
def test_syntax_that_is_newer_than_the_check_is_denied(
    kind: type[ast.AST], default: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {key: value for key, value in python_nodes.FIELDS.items() if key is not kind}
    monkeypatch.setattr(python_nodes, "FIELDS", known)
    cell = "match x:\n    case 1: pass\nawait f()\ng = lambda: 1"
    assert rules(Judge(default).judge(cell)) == {"python.unknown_syntax"}


# Large cells ---------------------------------------------------------------------------------------


@pytest.fixture
def no_zombies() -> Iterator[None]:
    yield
    # The worker may be there, and nobody who has ended and was not collected.
    with suppress(ChildProcessError):
        assert os.waitpid(-1, os.WNOHANG) == (0, 0)


@pytest.mark.usefixtures("no_zombies")
@pytest.mark.parametrize("policy", ["default", "strict"])
@pytest.mark.parametrize(
    "cell",
    ["x = 1", "x.gi_frame", "!cat /etc/shadow", "%%bash\ncat /etc/shadow", "import pty", "x = ="],
)
def test_a_large_cell_gets_the_verdict_of_a_small_one(cell: str, policy: str) -> None:
    code = code_of(policy)
    assert Judge(code).judge(long(cell)) == Judge(code).judge(cell)


@pytest.mark.usefixtures("no_zombies")
@pytest.mark.parametrize("lines", [10_000, 60_000])
@pytest.mark.parametrize("cell", ["%%bash\n{}cat /etc/shadow", "exec('''{}x.gi_frame''')"])
def test_nothing_hides_at_the_end_of_a_long_text(cell: str, lines: int, default: Code) -> None:
    text = cell.format("#1234567\n" * lines)
    assert Judge(default).judge(text).decision == "deny"


@pytest.mark.usefixtures("no_zombies")
def test_large_cells_are_remembered(default: Code) -> None:
    judge = Judge(default)
    assert judge.judge(long("import sys as harmless")).decision == "allow"
    assert "python.frames" in rules(judge.judge("harmless._getframe(1)"))


@pytest.mark.usefixtures("no_zombies")
def test_a_large_cell_that_is_denied_leaves_nothing(default: Code) -> None:
    judge = Judge(default)
    assert judge.judge(long("import sys as harmless\nx.gi_frame")).decision == "deny"
    assert judge.judge("harmless._getframe(1)").decision == "allow"


@pytest.mark.usefixtures("no_zombies")
def test_no_descriptor_is_left(default: Code) -> None:
    judge = Judge(default)
    judge.judge(long("!ls"))
    before = descriptors()
    for _ in range(5):
        judge.judge(long("!ls"))
    assert descriptors() == before


# Bounds --------------------------------------------------------------------------------------------

MIB = 1 << 20
_LINE = "value_{0} = [function({0}, key='text', other=values[{0}].name) for x in range({0})]\n"
BOUNDS = {
    "1 MiB of dense code": "".join(map(_LINE.format, range(MIB // 90)))[:MIB],
    "a dense cell of 100 KiB": "".join(map(_LINE.format, range(1100))),
    "10^5 brackets": "(" * 100_000,
    "10^5 closed brackets": "[" * 100_000 + "]" * 100_000,
    "150 brackets": "(" * 150 + "1" + ")" * 150,
    "attributes": "x" + ".a" * 200_000,
    "attributes within the parser's depth": "x" + ".__class__" * 900,
    "calls": "f" + "()" * 100_000,
    "a sum": "x = " + "+".join(["1"] * 100_000),
    "minus signs": "x = " + "-" * 100_000 + "1",
    "a giant integer": "x = " + "9" * (MIB - 10),
    "a hexadecimal giant": "x = 0x" + "f" * (MIB - 10),
    "a power": "x = 9 ** 9 ** 9 ** 9\nexec('a' * 10 ** 12)",
    "null bytes": "\0" * MIB,
    "lone surrogates": "'" + "\ud800" * 300_000 + "'",
    "5,000 magics": "%time x\n" * 5_000,
    "400 magics": "%time x\n" * 400,
    "5,000 commands": "!ls\n" * 5_000,
    "a string of 1 MiB": "x = '" + "a" * (MIB - 10) + "'",
    "a string of dots": "x = '" + "../" * (MIB // 3 - 10) + "'",
    "a shell string": "!echo " + "a" * (MIB - 10),
    "10^4 substitutions": "!echo " + "$(echo " * 10_000 + ")" * 10_000,
    "10^4 substitutions in bash": "%%bash\n" + "$(" * 10_000,
    "10^4 back quotes": "%%bash\necho " + "`" * 10_000,
    "nested braces": "%%bash\necho " + "{a," * 10_000 + "}" * 10_000,
    "an open brace": "!echo {" + "_" * 16_000,
    "open brackets in a brace": "!echo {a" + "[" * 8_000 + "(" * 8_000,
    "open heredocs": "%%bash\n" + "cat <<A\n" * 10_000,
    "JavaScript in depth": "%%javascript\n" + "[" * 50_000,
    "JavaScript in length": "%%javascript\n" + "a.b();\n" * 100_000,
    "many scripts": "%%html\n" + "<script>a()</script>\n" * 40_000,
    "open tags": "%%html\n" + "<script " * 100_000,
    "handlers": "%%html\n" + "<a onclick='" * 80_000,
    "help": "a" * (MIB - 10) + "?",
    "help words": "a." * (MIB // 2 - 10) + "?",
    "form feeds": "\f" * MIB,
    "carriage returns": "x\r" * (MIB // 2),
    "prompts": ">>> x\n" * 100_000,
    "names": "".join(f"a{n} = a{n - 1}\n" for n in range(60_000)),
    "aliases": "".join(f"a{n} = a{n - 1} or b{n}\n" for n in range(40_000, 0, -1)),
    "dictionaries": "x = " + "{1:" * 80 + "1" + "}" * 80 + "\n" + "x = {1: {2: 3}}\n" * 50_000,
    "strings that are joined": "x = " + "''.join(" * 60 + "'a'" + ")" * 60,
    "f-strings": "x = " + 'f"{a}"' * 100_000,
    "decorators": "@a\n" * 100_000 + "def f(): pass",
    "functions in functions": "".join(" " * n + "def f():\n" for n in range(99)) + " " * 99 + "1",
    "else if": "if a: pass\n" + "elif a: pass\n" * 50_000,
    "lambdas": "x = " + "lambda: " * 90 + "1",
    "long texts that are computed": "exec(['%s'.upper()*1 + 'a'*65000 for c in 'y'*999])\n" * 120,
    "long texts that are replaced": "exec('a'.replace('a', 'b'*65000).replace('c', 'd'))\n" * 150,
    "a module of many dots": "import " + ".".join(["a"] * 300_000),
    "star imports": "from os import *\n" * 50_000,
    # No more than 8 KiB, so that they are read in place.
    "a sum in JavaScript": "%%js\nx=" + "+".join(["''"] * 2_700),
    "a sum of letters in JavaScript": "%%js\nx=" + "+".join(["'a'"] * 2_040),
    "doubled texts in JavaScript": "%%js\nvar a0='aaaa';"
    + "".join(f"var a{n}=a{n - 1}+a{n - 1};" for n in range(1, 400)),
    "templates in JavaScript": "%%js\n" + "`${" * 1_600 + "}`" * 1_600,
    "quotes in JavaScript": "%%js\n" + "'" * 8_100,
    "a word of sed": "%%bash\nsed 's" + "a" * 8_100 + "'",
    "commands of find": "%%bash\n" + "find -exec " * 700,
    "redirections": "%%bash\n" + "<>" * 4_000,
    "nested sums": "%%bash\necho " + "$((a+" * 1_150 + "1" + "))" * 1_150,
    "doubled values": "%%bash\na0=aaaa;"
    + "".join(f"a{n}=$a{n - 1}$a{n - 1};" for n in range(1, 30))
    + "echo $a29 " * 700,
    "replaced values": "%%bash\nx="
    + "a" * 2_000
    + ";y=${x//a/"
    + "b" * 2_000
    + "};z=${y//b/"
    + "c" * 2_000
    + "};$z",
    "a product of braces": "%%bash\necho " + "{,,,,,,,,,,,,,,,,,,,}{,,,,,,,,,,,,,,,,,,,,} " * 180,
    "words in words": "%%bash\necho " + "a" * 3_000 + "|xargs -I a xargs -I b " + "a" * 3_000,
    "ssh in ssh": "%%bash\n" + "ssh a " * 1_300,
}


def processor_seconds() -> float:
    """Of this process and of the forks it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.mark.slow
@pytest.mark.usefixtures("no_zombies")
@pytest.mark.parametrize("policy", ["default", "strict"])
@pytest.mark.parametrize("name", BOUNDS)
def test_a_verdict_comes_in_time(name: str, policy: str) -> None:
    cell = BOUNDS[name]
    judge = Judge(code_of(policy)._replace(max_bytes=2 * MIB))
    judge.judge("!ls\nx = 1")  # what is loaded once
    began = processor_seconds()
    verdict = judge.judge(cell)
    seconds = processor_seconds() - began
    rule = verdict.findings[0].rule if verdict.findings else ""
    print(f"{name}, {len(cell) >> 10} KiB: {1e3 * seconds:.0f} ms, {verdict.decision} {rule}")
    assert seconds < NOISY_SECONDS


# Known ways around a check -------------------------------------------------------------------------


def without_names(code: Code) -> Code:
    """The same policy if every module, command and magic were allowed: rules on forms alone."""
    anything = Names("allow", {})
    return code._replace(imports=anything, commands=anything, magics=anything)


def verdict_on(bypass: Bypass, code: Code, cell: str = "") -> Verdict:
    judge = Judge(code)
    if bypass.technique.inner_python:
        judge.know_inner_python(bypass.technique.inner_python)
    return judge.judge(cell or bypass.cell)


RELIABLE = [bypass for bypass in BYPASSES if bypass.technique.kind == "S"]


def test_each_technique_has_variants() -> None:
    assert all(len(technique.variants) >= 2 for technique in TECHNIQUES)
    assert len(BYPASSES) >= 200


@pytest.mark.parametrize("bypass", RELIABLE, ids=str)
def test_strict_denies_what_can_be_seen_reliably(bypass: Bypass, strict: Code) -> None:
    assert verdict_on(bypass, strict).decision == "deny"
    # And for what it is, not because a module or command has no place in the lists.
    assert verdict_on(bypass, without_names(strict)).decision == "deny"


@pytest.mark.slow
@pytest.mark.parametrize("bypass", RELIABLE, ids=str)
def test_a_large_cell_hides_nothing(bypass: Bypass, strict: Code) -> None:
    assert verdict_on(bypass, strict, long(bypass.cell)).decision == "deny"


def test_as_much_of_each_class_is_denied_as_is_published() -> None:
    """What is of class P or I is for the sandbox; what is said about it must be true all the same."""
    policies: dict[str, Code] = {name: code_of(name) for name in ("default", "strict")}
    policies["strict without lists"] = without_names(policies["strict"])
    counts: dict[str, Counter[tuple[str, Decision]]] = defaultdict(Counter)
    for bypass in BYPASSES:
        for name, code in policies.items():
            decision = verdict_on(bypass, code).decision
            counts[bypass.technique.kind][name, decision] += 1
    for kind, of_kind in sorted(counts.items()):
        number = of_kind.total() // len(policies)
        for name in policies:
            shares = {decision: of_kind[name, decision] for decision in reversed(DECISIONS)}
            print(f"class {kind}, {name}: {shares} of {number}")
        denied = [f"{of_kind[name, 'deny']} of {number}" for name in policies]
        assert published(kind)[1:] == denied
    assert counts["S"]["strict", "deny"] == len(RELIABLE)
    assert f"{len(BYPASSES)} variants of {len(TECHNIQUES)} techniques" in DOCUMENT.read_text()
