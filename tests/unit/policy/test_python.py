"""What the Python validator finds, row by row of the threat model, and what it must not find."""

from __future__ import annotations

import ast
import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_kernel.policy import python_nodes
from sandbox_kernel.policy.python import RULES, Memory, examine
from sandbox_kernel.policy.source import Unreadable, read_cell
from sandbox_kernel.policy.verdict import Embedded, Hit, Magic

IDS = {rule.id for rule in RULES} | {"shell.command", "magic", "magic.shell"}


def rules_in(text: str, memory: Memory | None = None) -> set[str]:
    return {item.rule for item in examine(read_cell(text).code, memory) if isinstance(item, Hit)}


def abouts(text: str, rule: str) -> list[str]:
    items = examine(read_cell(text).code)
    return [item.about for item in items if isinstance(item, Hit) and item.rule == rule]


def embedded(text: str) -> list[tuple[str, str]]:
    items = examine(read_cell(text).code)
    return [(item.language, item.text) for item in items if isinstance(item, Embedded)]


# One line for each variant; the class-S rows have at least two.
TECHNIQUES = [
    # 1 concat + getattr
    ("getattr(__import__('o'+'s'),'sys'+'tem')('id')", "python.process"),
    ("getattr(__import__('so'[::-1]), 'metsys'[::-1])('id')", "python.process"),
    ("getattr(__import__(chr(111)+chr(115)), f'{\"sys\"}{\"tem\"}')('id')", "python.process"),
    ("__import__(bytes.fromhex('6f73').decode()).system('id')", "python.process"),
    ("import base64\n__import__(base64.b64decode('b3M=').decode()).system('id')", "python.process"),
    ("import codecs\n__import__(codecs.decode('bf','rot13')).system('id')", "python.process"),
    ("__import__(''.join(chr(c) for c in [111, 115])).system('id')", "python.process"),
    ("__import__('%s%s' % ('o', 's')).system('id')", "python.process"),
    ("__import__('{}{}'.format('o', 's')).system('id')", "python.process"),
    ("n = 'o' + 's'\n__import__(n).system('id')", "python.process"),
    ("__import__(input())", "python.dynamic_import"),
    ("import importlib\nimportlib.import_module(name)", "python.dynamic_import"),
    ("import os\ngetattr(os, name)('id')", "python.dynamic_attribute"),
    ("vars(__import__('os'))['system']('id')", "python.process"),
    ("import os\nos.__dict__['system']('id')", "python.process"),
    ("import os\nos.__getattribute__('system')('id')", "python.process"),
    # 2 subclasses
    ("().__class__.__base__.__subclasses__()", "python.subclasses"),
    ("getattr(object, '__subcl' + 'asses__')()", "python.subclasses"),
    ("import operator\noperator.attrgetter('__subclasses__')(object)()", "python.subclasses"),
    ("''.__class__.__mro__[-1]", "python.class_walk"),
    ("[c for c in x if c][0].__init__.__globals__['system']('id')", "python.globals"),
    ("vars(f)['__globals__']", "python.globals"),
    # 3 generator frames
    ("(x for x in ()).gi_frame.f_builtins['__import__']('os')", "python.frames"),
    ("async def f(): pass\nf().cr_frame.f_globals", "python.frames"),
    ("async def f(): yield\nf().ag_frame", "python.frames"),
    ("import sys\nsys._getframe().f_back", "python.frames"),
    ("from sys import _getframe as g\ng(0)", "python.frames"),
    # 4 tracebacks
    ("try:\n  1/0\nexcept Exception as e:\n  e.__traceback__.tb_frame.f_builtins", "python.frames"),
    (
        "try:\n  1/0\nexcept* Exception as e:\n  e.exceptions[0].__traceback__.tb_frame",
        "python.frames",
    ),
    # 5 NFKC identifiers
    ("__ⅈmport__('os').system('id')", "python.process"),
    ("𝓮𝔁𝓮𝓬('1')", "python.exec"),
    # 6 ctypes
    ("import ctypes\nctypes.CDLL(None).system(b'id')", "python.native"),
    ("from ctypes import CDLL as C\nC(None)", "python.native"),
    ("import cffi\ncffi.FFI().dlopen(None)", "python.native"),
    # 13 get_ipython
    ("get_ipython().system(command)", "python.ipython_exec"),
    ("ip = get_ipython()\nip.run_line_magic(name, '')", "python.ipython_exec"),
    ("from IPython import get_ipython as g\ng().run_cell(text)", "python.ipython_exec"),
    # 14 transformer hooks
    ("get_ipython().input_transformers_post.append(f)", "python.ipython_hooks"),
    ("ip = get_ipython()\nip.ast_transformers.append(f)", "python.ipython_hooks"),
    ("get_ipython().events.register('pre_run_cell', f)", "python.ipython_hooks"),
    ("get_ipython().set_custom_exc((Exception,), f)", "python.ipython_hooks"),
    ("get_ipython().kernel", "python.ipython_internals"),
    # 17 decorators without a call
    ("@eval\n@'1+1'.format\nclass A: pass", "python.eval"),
    ("@exec\n@str\nclass A: pass", "python.exec"),
    # 18 operator overload
    ("class A: __class_getitem__ = eval\nA['1']", "python.eval"),
    ("class A: __add__ = exec\nA() + '1'", "python.exec"),
    # 19 aliases and map
    ("e = eval; e('1')", "python.eval"),
    ("list(map(eval, ['1']))", "python.eval"),
    ("(lambda f: f('1'))(exec)", "python.exec"),
    ("a, b = print, exec\nb('1')", "python.exec"),
    # 20 match-class walk
    ("match ():\n  case object(__class__=c): pass", "python.class_walk"),
    ("match x:\n  case object(__subclasses__=s): s()", "python.subclasses"),
    ("match f:\n  case object(__globals__=g): g", "python.globals"),
    # 21 transitive modules
    ("import pathlib\npathlib.os.system('id')", "python.transitive_module"),
    ("import random\nrandom._os.system('id')", "python.transitive_module"),
    ("import numpy as np\nnp.ctypeslib.ctypes.CDLL(None)", "python.transitive_module"),
    ("from pathlib import os as x\nx.system('id')", "python.transitive_module"),
    ("from pathlib import os as x\nx.system('id')", "python.process"),
    # 22 sys.modules, gc
    ("import sys\nsys.modules['posix'].system('id')", "python.sys_modules"),
    ("import sys\nsys.modules['posix'].system('id')", "python.process"),
    ("import gc\ngc.get_objects()", "python.gc"),
    ("from gc import get_referrers as g\ng(1)", "python.gc"),
    # 23 loaders
    ("__builtins__.__loader__.load_module('posix')", "python.loaders"),
    ("__spec__.loader.load_module('posix')", "python.loaders"),
    ("__loader__.load_module('posix')", "python.loaders"),
    ("import sys\nsys.meta_path.insert(0, f)", "python.loaders"),
    ("__builtins__['eval']('1')", "python.builtins_access"),
    ("print.__self__.exec('1')", "python.builtins_access"),
    ("print.__self__.exec('1')", "python.exec"),
    ("import builtins as b\nb.exec('1')", "python.exec"),
    ("globals()['__builtins__'].eval('1')", "python.eval"),
    # 24 pickles
    ("import pickle\npickle.loads(b'cposix\\nsystem\\n.')", "python.unpickle_literal"),
    ("import pickle\npickle.load(f)", "python.unpickle"),
    ("import pandas as pd\npd.read_pickle('x')", "python.load_model"),
    ("import numpy as np\nnp.load('x', allow_pickle=True)", "python.load_model"),
    ("import yaml\nyaml.load(t)", "python.yaml_load"),
    ("import yaml\nyaml.load(t, Loader=yaml.Loader)", "python.yaml_load"),
    # 25 gadgets
    ("import pydoc\npydoc.locate('os.system')('id')", "python.process"),
    ("import pkgutil\npkgutil.resolve_name('os:system')('id')", "python.process"),
    ("import logging.config as l\nl.dictConfig({})", "python.indirect_exec"),
    ("import runpy\nrunpy.run_path('x')", "python.indirect_exec"),
    ("import code\ncode.interact()", "python.indirect_exec"),
    ("import doctest\ndoctest.testmod()", "python.indirect_exec"),
    # 26 library eval
    ("df.query('@pd.io.common.os.system(\"id\")==0')", "python.query_escape"),
    # 27 format strings
    ("'{0.__init__.__globals__}'.format(o)", "python.format_walk"),
    ("t = '{x[0].__class__.__init__}'", "python.format_walk"),
    ("import string\nstring.Formatter().get_field('0.os.system', (o,), {})", "python.format_walk"),
    # 28 string annotations
    ("import typing\ntyping.get_type_hints(C)", "python.type_hints"),
    # 29 odd places
    ("def f(x=exec('1')): pass", "python.exec"),
    ("f\"{exec('1')}\"", "python.exec"),
    ("x: exec('1') = 1", "python.exec"),
    ("class A(metaclass=eval('type')): pass", "python.eval"),
    ("lambda *, x=eval('1'): 0", "python.eval"),
    ("def f() -> eval('1'): pass", "python.eval"),
    # 30 code objects
    ("import marshal\nmarshal.loads(b'')", "python.code_objects"),
    ("f.__code__ = g.__code__", "python.code_objects"),
    ("f.__code__.replace(co_consts=())", "python.code_objects"),
    ("type(f)(compile('1', '', 'exec'), {})", "python.code_objects"),
    ("c = compile('1', '', 'exec')\ntype(lambda: 0)(c, {})", "python.code_objects"),
    ("import types\ntypes.FunctionType(c, {})", "python.code_objects"),
    ("setattr(f, '__code__', c)", "python.code_objects"),
    # 31 encodings
    ("exec(b'# coding: utf-7\\n+AGU-')", "python.exec"),
    ("exec(bytes.fromhex('31'))", "python.exec"),
    # 32 hooks
    ("import sys\nsys.breakpointhook = f", "python.hooks"),
    ("import sys\nsys.settrace(f)", "python.hooks"),
    ("from sys import addaudithook\naddaudithook(f)", "python.hooks"),
    # 33 deferred
    ("import threading\nthreading.Timer(1, f).start()", "python.deferred"),
    ("import atexit\natexit.register(f)", "python.deferred"),
    # 35 async
    ("import asyncio\nawait asyncio.create_subprocess_shell('id')", "python.process"),
    ("from asyncio import create_subprocess_exec as c\nawait c('id')", "python.process"),
    # Beyond the table
    ("import os\nwhile True: os.fork()", "python.fork_bomb"),
    ("import os\nfor i in range(9**9): os.fork()", "python.fork_bomb"),
    ("import os\nos.kill(-1, 9)", "python.kill_all"),
    ("import subprocess as s\ns.run('ls | wc', shell=True)", "python.shell_true"),
    ("import subprocess as s\ns.run(command)", "python.dynamic_shell"),
    ("open('x', 'w')", "python.write_file"),
    ("p.write_text('x')", "python.write_file"),
    ("import shutil\nshutil.rmtree('/')", "python.delete_tree"),
    ("from os import remove\nremove('x')", "python.delete"),
    ("import os\nos.chmod('x', 0o777)", "python.permissions"),
    ("import os\nprint(os.environ)", "python.environment"),
    ("import os\nfor k in os.environ: pass", "python.environment"),
    ("import requests\nrequests.get('http://example.org')", "python.network"),
    ("import socket\nsocket.socket()", "python.network"),
    ("from urllib.request import urlopen", "python.network"),
    ("open('/etc/shadow')", "python.sensitive_path"),
    ("open(f'{\"~\"}/.ssh/id_rsa')", "python.sensitive_path"),
    ("'/proc/self/environ'", "python.sensitive_path"),
    ("import os\nos.path.join('/usr', '../etc/passwd')", "python.sensitive_path"),
    ("u = 'http://169.254.169.254/latest'", "python.metadata_address"),
    ("u = 'http://metadata.google.internal/'", "python.metadata_address"),
    ("import psutil\npsutil.cpu_percent()", "python.host_inspection"),
    ("from PIL import ImageGrab\nImageGrab.grab()", "python.surveillance"),
    ("from os import *\nsystem('id')", "python.process"),
    ("os.system('id')", "python.process"),
    ("frame.io.common.os.system('id')", "python.transitive_module"),
    ("[m for m in map(os.fork, forever)]\nwhile 1: os.fork()", "python.fork_bomb"),
    ("if x:\n  m = json\nelse:\n  m = os\nm.system('id')", "python.process"),
    ("def f():\n  return e('1')\ne = eval", "python.eval"),
    ("if 0:\n  eval = 1\neval('1')", "python.shadowed_builtin"),
    ("import matplotlib.pyplot as plt\nplt.np.load('x', None, True)", "python.load_model"),
    ("object.__setattr__(f, '__code__', c)", "python.code_objects"),
    ("'{a}{b}'.format(a='__sub', b='classes__')", "python.subclasses"),
    ("'{0}{b}'.format('__sub', b='classes__')", "python.subclasses"),
    ("f\"{'__sub'!s}classes__\"", "python.subclasses"),
    ("'__SUBCLASSES__ x'.casefold().partition(' ')[0]", "python.subclasses"),
    ("'x,__SUBCLASSES__'.lower().rsplit(',')[1]", "python.subclasses"),
    ("import operator\noperator.add('__sub', 'classes__')", "python.subclasses"),
    ("import functools\nfunctools.wraps(g, assigned=['__code__'])(f)", "python.code_objects"),
    ("import os\nobject.__getattribute__(os, 'system')('id')", "python.process"),
    ("import os\nvars(os).get('system', None)('id')", "python.process"),
    ("import os\ndict(vars(os))['system']('id')", "python.process"),
    ("import os\n(vars(os) | {})['sys'.upper().casefold() + 'tem']('id')", "python.process"),
]


@pytest.mark.parametrize(("text", "rule"), TECHNIQUES)
def test_the_technique_is_seen(text: str, rule: str) -> None:
    assert rule in rules_in(text)


BENIGN = [
    "import os\npath = os.path.join('data', 'x.csv')\nos.makedirs('out', exist_ok=True)",
    "home = os.environ['HOME']\nos.environ.get('X')\n'X' in os.environ\nos.environ['Y'] = '1'",
    "model.eval()\nmodel.compile(loss='mse')\nimport re\nre.compile('x')",
    "def system(x): return x\nsystem('ls')",
    "class A:\n    def __init__(self): super().__init__()\n    def exec(self): pass\nA().exec()",
    "x.__class__.__name__, x.__dict__, x.__doc__, f.__name__",
    "getattr(obj, name)\ngetattr(df, 'head')()\nsetattr(self, k, v)",
    "open('x').read()\nopen('x', 'rb')\nwith open('x', mode='r') as f: pass",
    "'{} of {}'.format(1, 2)\n'{0.real}'.format(1)\n'{x:>10}'.format(x=1)",
    "s = 'a/b/../c'\nt = '../data/x.csv'\nu = 'https://example.org/etc'",
    "import numpy as np\nnp.random.rand()\nnp.load('x.npy')\nnp.linalg.inv(m)",
    "df.query('a > 1')\ndf.query('a > @limit')\ndf.eval('c = a + b')",
    "import yaml\nyaml.safe_load(t)\nyaml.load(t, Loader=yaml.SafeLoader)\nyaml.load(t, yaml.CSafeLoader)",
    "import importlib\nimportlib.reload(module)",
    "import timeit\ntimeit.timeit(lambda: 1)",
    "import pickle\npickle.dump(x, f)",
    "import json\njson.loads('{}')\njson.load(f)",
    "match p:\n  case Point(x=0, y=y): pass",
    "import sys\nsys.path.append('..')\nsys.version\nsys.exit()",
    "from socket import gethostname as _\nimport urllib.parse\nurllib.parse.quote('x')",
    "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig('x.png')",
    "print(f'{x!r:>{width}}')",
    "'google.colab' in sys.modules",
    "def magic(line): pass\nsuper().__init__()",
    "code = 5\nstring = 'x'\ncode.bit_length()\nstring.upper()",
]


@pytest.mark.parametrize("text", BENIGN)
def test_ordinary_code_touches_no_rule_but_imports(text: str) -> None:
    assert rules_in(text) <= {"python.import", "python.host_inspection"}


def test_every_rule_reported_is_a_rule_that_policies_know() -> None:
    assert {rule for text, _ in TECHNIQUES for rule in rules_in(text)} <= IDS
    assert len(IDS) == len(RULES) + 3
    for rule in RULES:
        assert rule.id.startswith("python.")
        assert rule.reason
        assert rule.instead
        assert not rule.reason.endswith(".")


def test_every_import_is_named() -> None:
    text = (
        "import a.b, c as d\nfrom e.f import g\nfrom . import h\nfrom ..i import j\nfrom k import *"
    )
    assert abouts(text, "python.import") == ["a.b", "c", "e.f", ".", "..i", "k"]
    assert abouts("from http import server", "python.import") == ["http", "http.server"]
    assert abouts("from pathlib import os", "python.import") == ["pathlib", "os"]
    assert abouts("__import__('o' + 's')", "python.import") == ["os"]
    assert abouts("import pathlib\npathlib.os.sep", "python.import") == ["pathlib", "os"]
    assert abouts("from tqdm.asyncio import asyncio", "python.import") == [
        "tqdm.asyncio",
        "asyncio",
    ]
    assert abouts("import typing\ntyping.types", "python.import") == ["typing", "types"]
    assert abouts("from operator import attrgetter as a\na('types.X')", "python.import") == [
        "operator",
        "types",
    ]
    assert (
        abouts("from glob import glob\nimport glob\nglob.glob('x')", "python.import")
        == ["glob"] * 2
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exec('import os')", [("python", "import os")]),
        ("eval(' 1 + 1')", [("python", "1 + 1")]),
        ("e = exec\ne('x' * 3)", [("python", "xxx")]),
        ("exec(b'# coding: utf-7\\nx = +AGE-')", [("python", "# coding: utf-7\nx = a")]),
        ("import timeit\ntimeit.timeit('f()', 'g()')", [("python", "f()"), ("python", "g()")]),
        ("import os\nos.system('rm -rf /')", [("shell", "rm -rf /")]),
        ("c = 'id'\nimport subprocess\nsubprocess.getoutput(c)", [("shell", "id")]),
        ("import subprocess\nsubprocess.run('a | b', shell=True)", [("shell", "a | b")]),
        (
            "import subprocess\nsubprocess.run(['bash', '-c', 'a; b'])",
            [("shell", "bash -c 'a; b'")],
        ),
        ("!ls -l", [("shell", "ls -l")]),
        ("x = !ls", [("shell", "ls")]),
        ("get_ipython().run_cell('import os')", [("python", "import os")]),
        ("getattr(get_ipython(), 'sys' + 'tem')('id')", [("shell", "id")]),
    ],
)
def test_text_that_is_run_is_handed_on(text: str, expected: list[tuple[str, str]]) -> None:
    assert embedded(text) == expected


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("import subprocess\nsubprocess.run(['/usr/bin/git', 'log', x])", "git"),
        ("import subprocess\nsubprocess.Popen('ls')", "ls"),
        ("import subprocess\nsubprocess.check_output(['ls'] + more)", "ls"),
        ("import os\nos.execv('/bin/sh', ['sh'])", "sh"),
        ("import os\nos.execlp('ls', 'ls', '-l')", "ls"),
        ("import os\nos.spawnlp(0, 'ls', 'ls')", "ls"),
        ("import os\nos.posix_spawn('/bin/ls', ['ls'], {})", "ls"),
        ("import pty\npty.spawn('/bin/sh')", "sh"),
        ("import pty\npty.spawn(['/bin/sh', '-i'])", "sh"),
        ("import asyncio\nawait asyncio.create_subprocess_exec('ls', '-l')", "ls"),
    ],
)
def test_programs_are_named(text: str, command: str) -> None:
    assert abouts(text, "shell.command") == [command]


@pytest.mark.parametrize("path", ["./git", "/tmp/x/git", "bin/git"])
def test_a_program_outside_the_systems_folders_is_named_with_its_path_too(path: str) -> None:
    text = f"import subprocess\nsubprocess.run(['{path}'])"
    assert abouts(text, "shell.command") == ["git", path]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%matplotlib inline", ("matplotlib", "inline", None)),
        ("%%time\nf()", ("time", "", "f()\n")),
        ("y = %sx id", ("sx", "id", None)),
        ("get_ipython().run_line_magic('sx', 'i' + 'd')", ("sx", "id", None)),
        ("get_ipython().magic('%sx id')", ("sx", "id", None)),
        ("ip = get_ipython()\nip.run_cell_magic('bash', '', 'id')", ("bash", "", "id")),
        ("pip install x", ("pip", "install x", None)),
        ("if x:\n    %cd y", ("cd", "y", None)),
        (">>> %cd y", ("cd", "y", None)),
    ],
)
def test_magics_are_named(text: str, expected: tuple[str, str, str | None]) -> None:
    [item] = [item for item in examine(read_cell(text).code) if isinstance(item, Magic)]
    assert (item.name, item.arguments, item.body) == expected


def test_auto_quoted_code_is_seen() -> None:
    assert embedded(";exec import os") == [("python", "import os")]
    assert "python.exec" in rules_in(",exec 1")


# Memory --------------------------------------------------------------------------------------------


def test_earlier_cells_are_remembered_once_committed() -> None:
    memory = Memory()
    memory.begin()
    examine("import os as o\ne = eval\nls = 1\n", memory)
    assert memory.names == frozenset()
    memory.commit()
    assert memory.names == {"o", "e", "ls"}
    assert "python.process" in rules_in("o.system('id')", memory)
    assert "python.eval" in rules_in("e('1')", memory)


def test_a_denied_cell_leaves_nothing() -> None:
    memory = Memory()
    memory.begin()
    examine("e = eval\n", memory)
    memory.begin()
    memory.commit()
    assert memory.names == frozenset()
    assert "python.eval" not in rules_in("e('1')", memory)


def test_a_cells_own_function_hides_the_module_of_that_name() -> None:
    memory = Memory()
    memory.begin()
    examine("def eval(x): return x\nsocket = 5\n", memory)
    memory.commit()
    assert rules_in("socket.bit_length()", memory) == set()
    examine("del socket\n", memory)
    memory.commit()
    assert rules_in("socket.create_server(a)", memory) == {"python.network"}


def test_a_function_that_hides_a_built_in_one_is_told_of() -> None:
    memory = Memory()
    examine("def eval(x): return x\n", memory)
    memory.commit()
    # Both: the cell may have ended before the definition.
    assert rules_in("eval('1')", memory) == {"python.eval", "python.shadowed_builtin"}
    assert rules_in("open = 1\ntype = 2\nopen(type)") == set()


@pytest.mark.parametrize(
    ("first", "second", "rule"),
    [
        ("import os", "os = os", "python.process"),
        ("import os", "os = 1", "python.process"),
        ("import os", "if 0: os = 1", "python.process"),
        ("import os", "del os", "python.process"),
        ("import os", "if 0:\n    for os in x: pass", "python.process"),
        ("import os as o", "os = o", "python.process"),
    ],
)
def test_what_a_name_stood_for_is_not_forgotten(first: str, second: str, rule: str) -> None:
    memory = Memory()
    for cell in (first, second):
        memory.begin()
        examine(cell, memory)
        memory.commit()
    assert rule in rules_in("os.system('id')", memory)


def test_names_within_functions_are_not_the_cells() -> None:
    memory = Memory()
    examine(
        "def f(a):\n    b = 1\n    global c\n    c = 2\nclass D:\n    e = 1\n[g for g in h]\n",
        memory,
    )
    memory.commit()
    assert {"f", "c", "D"} <= memory.names
    assert not {"a", "b", "e"} & memory.names


def test_memory_is_bounded() -> None:
    memory = Memory(most_names=10)
    examine("\n".join(f"x{number} = 1" for number in range(50)), memory)
    memory.commit()
    assert len(memory.names) == 10


def test_few_and_short_texts_are_remembered() -> None:
    memory = Memory()
    examine("\n".join(f"x{number} = 'a'" for number in range(3000)), memory)
    examine(f"short = {'a' * 200!r}\nlong = {'a' * 201!r}", memory)
    memory.commit()
    known = [number for number in range(3000) if memory.text(f"x{number}") is not None]
    assert 0 < len(known) <= 2000
    assert memory.text("short") == "a" * 200
    assert memory.text("long") is None


# Robustness ----------------------------------------------------------------------------------------


def test_every_kind_of_node_of_this_python_is_known() -> None:
    abstract = {ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.type_ignore}
    for kind in vars(ast).values():
        if not isinstance(kind, type) or not issubclass(kind, ast.AST) or kind.__subclasses__():
            continue
        outdated = {"Num", "Str", "Bytes", "NameConstant", "Ellipsis", "Index", "ExtSlice", "Suite"}
        outdated |= {"AugLoad", "AugStore", "Param", "Interactive", "FunctionType", "alias"}
        if kind.__name__ in outdated or any(base in abstract for base in kind.__mro__):
            continue
        assert kind in python_nodes.FIELDS, kind


def test_no_child_of_a_node_is_passed_over() -> None:
    tree = ast.parse(Path(ast.__file__).read_text())  # a long program, with most of the grammar
    walked = sum(map(len, python_nodes.Nodes(tree, None).values()))
    skipped = ast.expr_context | ast.boolop | ast.operator | ast.unaryop | ast.cmpop | ast.alias
    assert walked == sum(not isinstance(node, skipped) for node in ast.walk(tree))


def test_unknown_nodes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {kind: fields for kind, fields in python_nodes.FIELDS.items() if kind is not ast.Await}
    monkeypatch.setattr(python_nodes, "FIELDS", known)
    assert {"python.unknown_syntax", "python.eval"} <= rules_in("await eval('1')")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000 + ")" * 100_000,
        "[" * 150 + "]" * 150,
        "-" * 100_000 + "1",
        "not " * 50_000 + "1",
        "+".join(["1"] * 20_000),
        "a" + ".b" * 50_000,
        "f" + "()" * 20_000,
        "x\0y",
        "x = '\ud800'",
        "1" * 5000,
        "9" * 100_000,
        "'a' * 10**9 + 'b' * 10**9",
        "x = 'ab' * 60000\n" + "y = x * 60000\n" * 10,
        "b'x'.replace('x', 'y')\n'x'.replace(b'x', b'y')\n''.join(5)\n'x'.partition('')",
        "x = 'ab' * 30000\n" + f"{'{0}{y}' * 10_000!r}.format(x, y=x)\n" * 5,
        "lambda: " * 5000 + "1",
        "a = b\n" * 50_000,
        "eval(" * 90 + "1" + ")" * 90,
        "x = " + "{" * 90 + "}" * 90,
        "if 1:\n" + "".join(" " * depth + "if 1:\n" for depth in range(1, 95)) + " " * 95 + "1",
        "\n" * 100_000,
        "f'" + "{1}" * 10_000 + "'",
        "".join(f"x{n} = x{n + 1}\n" for n in range(5000)) + "x5000 = eval\n",
        "exec(" + "+".join(["'a'"] * 5000) + ")",
        "'" + "{" * 4000 + "_.__'",
        "'" + "../" * 90 + "'",
    ],
)
def test_nothing_but_items_or_unreadable_comes_out(text: str) -> None:
    began = time.process_time()
    with contextlib.suppress(Unreadable):
        examine(read_cell(text).code)
    assert time.process_time() - began < 5


def test_a_syntax_error_is_told_from_what_is_too_much() -> None:
    with pytest.raises(Unreadable) as caught:
        examine("x = = 1")
    assert caught.value.is_syntax_error
    with pytest.raises(Unreadable) as caught:
        examine("x = '\ud800'")
    assert not caught.value.is_syntax_error


def test_the_deadline_holds() -> None:
    with pytest.raises(Unreadable, match="too long"):
        examine("x = 1\n" * 2000, deadline=time.thread_time() - 1)


def test_columns_count_characters() -> None:
    [hit] = [item for item in examine("x = 'é𝄞'; eval('1')") if isinstance(item, Hit)]
    assert (hit.line, hit.column) == (1, 10)


PIECES = st.sampled_from(
    [
        "eval",
        "exec",
        "__import__",
        "os",
        ".system",
        "('id')",
        "getattr",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "'",
        '"',
        "f'",
        "{x}",
        ".__globals__",
        "=",
        ":=",
        ",",
        ":",
        "\n",
        "\n    ",
        "\\\n",
        "lambda x: ",
        "import ",
        "from ",
        " as ",
        "def f(x):\n  ",
        "class A:\n  ",
        "@",
        "match x:\n  case ",
        "await ",
        "b64decode",
        "chr(111)",
        "+",
        "*",
        "%",
        "[::-1]",
        "'{}'",
        ".format",
        ".join",
        "for x in ",
        "x",
        "get_ipython()",
        ".run_line_magic",
        "subprocess.run",
        "shell=True",
        "!",
        "%",
        "1",
        "-1",
        "*x",
        "\ud800",
        "\0",
        "é",
        "\x0c",
        "\r",
        "\u2028",
        "in ",
        "if 1",
        "else ",
        "try:\n  ",
        "except* E:\n",
    ]
)


@settings(max_examples=400)
@given(st.lists(PIECES, max_size=25).map("".join))
def test_any_text_gives_items_or_unreadable(text: str) -> None:
    try:
        items = examine(text, Memory())
    except Unreadable:
        return
    for item in items:
        assert isinstance(item, Hit | Embedded | Magic)
        assert item.line >= 1
        if isinstance(item, Hit):
            assert item.rule in IDS
