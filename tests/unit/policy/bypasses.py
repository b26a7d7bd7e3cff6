"""Ways around a static check, by technique: cells that are read in tests, and never run.

A technique is of class S if the right rule sees it reliably, P if only in part or at the price of false
alarms, I if nothing but isolation holds. Those of class S that hand a command on name one that a rule
on commands denies (``cat /etc/shadow``), so that a denial shows that the command itself was read.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Class = Literal["S", "P", "I"]


class Technique(NamedTuple):
    """One row of the threat model, or a further one, with its variants by name."""

    number: int
    name: str
    kind: Class
    variants: dict[str, str]
    inner_python: str = ""  # the version of the Python that runs the cells, if it is another one


class Bypass(NamedTuple):
    """One variant."""

    technique: Technique
    variant: str
    cell: str

    def __str__(self) -> str:
        return f"{self.technique.number}-{self.variant}"


TECHNIQUES: Final = (
    Technique(
        1,
        "concatenation and getattr",
        "P",
        {
            "sum": "getattr(__import__('o' + 's'), 'sys' + 'tem')('id')",
            "join": "import os\ngetattr(os, ''.join(['sys', 'tem']))('id')",
            "reversed": "import os\ngetattr(os, 'metsys'[::-1])('id')",
            "chr": "__import__(''.join(chr(c) for c in [111, 115])).system('id')",
            "from-input": "import os\ngetattr(os, input())('id')",
            "reduce": (
                "import functools, random\n"
                "functools.reduce(getattr, ['_os', 'system'], random)('id')"
            ),
            "from-dir": "import os\nvars(os)[[n for n in dir(os) if len(n) == 6][3]]('id')",
        },
    ),
    Technique(
        2,
        "subclasses",
        "S",
        {
            "chain": (
                "().__class__.__base__.__subclasses__()[0].__init__.__globals__['system']('id')"
            ),
            "mro": "[c for c in ().__class__.__mro__[-1].__subclasses__()]",
            "of-type": "type.__subclasses__(object)",
            "getattr": "getattr(object, '__sub' + 'classes__')()",
            "methodcaller": "import operator\noperator.methodcaller('__subclasses__')(object)",
            "attrgetter": "import operator\noperator.attrgetter('__class__.__base__')(())",
            "vars": "vars(type)['__subclasses__'](object)",
            "getattribute": "object.__getattribute__(int, '__subclasses__')()",
            "lowered": "vars(type)['__SUBCLASSES__'.lower()](object)",
            "casefolded": "import operator\noperator.methodcaller('__SUBCLASSES__'.casefold())(object)",
            "reversed": "vars(type)['__sessalcbus__'[::-1]](object)",
            "reversed-name": "k = '__sessalcbus__'\nvars(type)[k[::-1]](object)",
            "split": "vars(type)['a __SUBCLASSES__'.lower().split()[1]](object)",
            "of-str": "vars(type)[str.lower('__SUBCLASSES__')](object)",
            "decoded": "vars(type)[str(b'__subclass' + b'es__', 'ascii')](object)",
            "translated": "vars(type)['__subxclasses__'.translate({120: None})](object)",
        },
    ),
    Technique(
        3,
        "generator frame",
        "S",
        {
            "generator": "(x for x in ()).gi_frame.f_builtins['__import__']('os')",
            "coroutine": "async def f(): pass\nf().cr_frame.f_globals",
            "async-generator": "async def f(): yield\nf().ag_frame.f_back",
            "getattr": "g = (x for x in ())\ngetattr(g, 'gi_' + 'frame')",
            "getframe": "import sys\nsys._getframe(1)",
            "alias": "from sys import _getframe as f\nf()",
            "lowered": "g = (x for x in ())\nobject.__getattribute__(g, 'GI_FRAME'.lower())",
        },
    ),
    Technique(
        4,
        "traceback",
        "S",
        {
            "except": "try:\n    1/0\nexcept Exception as e:\n    e.__traceback__.tb_frame.f_builtins",
            "except-star": (
                "try:\n    1/0\nexcept* Exception as e:\n"
                "    e.exceptions[0].__traceback__.tb_frame.f_globals"
            ),
            "exc-info": "import sys\ntry:\n    1/0\nexcept:\n    sys.exc_info()[2].tb_frame",
            "walk-tb": "import traceback\n[f for f, _ in traceback.walk_tb(e.__traceback__)]",
            "tb-next": "e.__traceback__.tb_next.tb_frame",
        },
    ),
    Technique(
        5,
        "NFKC identifier",
        "S",
        {
            "import": "__ⅈmport__('os').system('id')",
            "wide": "ｅｖａｌ('1')",
            "bold-attribute": "().__class__.__𝐛ase__",
            "superscript": "ᵉxec('pass')",
        },
    ),
    Technique(
        6,
        "ctypes",
        "S",
        {
            "cdll": "import ctypes\nctypes.CDLL(None).system(b'id')",
            "alias": "from ctypes import CDLL as L\nL(None).system(b'id')",
            "star": "from ctypes import *\nCDLL(None)",
            "through-numpy": "import numpy as np\nnp.ctypeslib.ctypes.CDLL(None)",
            "pythonapi": "__import__('ctypes').pythonapi.PyRun_SimpleString(b'1')",
            "below": "import _ctypes\n_ctypes.dlopen(None, 0)",
            "cffi": "import cffi\ncffi.FFI().dlopen(None)",
            "of-array": "import numpy as np\nnp.arange(3).ctypes._ctypes.CDLL(None).system(b'id')",
            "of-array-getattr": "getattr(a.ctypes, '_' + 'ctypes').CDLL(None).system(b'id')",
            "in-list": "import numpy as np\n[np][0].ctypeslib.ctypes.CDLL(None).system(b'id')",
            "in-loop": "import numpy as np\nfor m in [np]: m.ctypeslib.ctypes.CDLL(None)",
            "argument": "import numpy as np\ndef f(m): m.ctypeslib.ctypes.CDLL(None)\nf(np)",
            "lambda": "import numpy as np\n(lambda m: m.ctypeslib.ctypes.CDLL(None))(np)",
            "in-class": "import numpy as np\nclass A: m = np\nA.m.ctypeslib.ctypes.CDLL(None)",
            "in-dict": "import numpy as np\n{'a': np}['a'].ctypeslib.ctypes.CDLL(None)",
            "returned": "import numpy as np\ndef g(): return np\ng().ctypeslib.ctypes.CDLL(None)",
            "matched": "import numpy as np\nmatch np:\n    case m: m.ctypeslib.ctypes.CDLL(None)",
            "with": (
                "import numpy as np, contextlib\n"
                "with contextlib.nullcontext(np) as m: m.ctypeslib.ctypes.CDLL(None)"
            ),
            "keyword-default": "import numpy as np\ndef f(*, m=np): m.ctypeslib.ctypes.CDLL(None)",
            "unpacked": "import numpy as np\n(a, b), c = (np, 1), 2\na.ctypeslib.ctypes.CDLL(None)",
            "vars-of-item": "import numpy as np\nvars([np][0])['ctypeslib'].ctypes.CDLL(None)",
            "star-of-numpy": "from numpy import *\nctypeslib.ctypes.CDLL(None).system(b'id')",
        },
    ),
    Technique(
        7,
        "shell forms",
        "S",
        {
            "bang": "!cat /etc/shadow",
            "two-bangs": "!!cat /etc/shadow",
            "assigned": "y = !cat /etc/shadow",
            "assigned-magic": "y = %sx cat /etc/shadow",
            "in-if": "if True:\n    !cat /etc/shadow",
            "in-def": "def f():\n    x = 1\n    !cat /etc/shadow",
            "continued": "!cat \\\n/etc/shadow",
            "after-code": "x = 1\n!cat /etc/shadow\ny = 2",
            "quoted": "!c'a't /etc/sha''dow",
            "escaped": "!cat $'/etc/sh\\x61dow'",
            "ifs": "!cat${IFS}/etc/shadow",
            "eval": "!eval 'cat /etc/shadow'",
            "bash-c": "!bash -c 'sh -c \"cat /etc/shadow\"'",
            "substitution": "!echo $(cat /etc/shadow)",
            "heredoc": "!bash <<< 'cat /etc/shadow'",
            "bash-options": "!bash -euo pipefail -c 'cat /etc/shadow'",
            "bash-letters": "!bash -ce 'cat /etc/shadow'",
            "python-options": "!python3 -W ignore -X dev -c \"open('/etc/shadow')\"",
            "executable": (
                "import subprocess\n"
                "subprocess.run(['x', '-c', 'cat /etc/shadow'], executable='/bin/sh')"
            ),
            "command-keyword": "import os\nos.system(command='cat /etc/shadow')",
            "back-quotes-in-default": '!echo "${x:-`cat /etc/shadow`}"',
            "back-quotes-in-alternative": "!echo ${HOME:+`cat /etc/shadow`}",
            "back-quotes-in-assignment": "!echo ${x:=`cat /etc/shadow`}",
            "back-quotes-without-colon": "!echo ${x-`cat /etc/shadow`}",
            "back-quotes-in-redirect": "!ls > ${x:-`cat /etc/shadow`}",
            "back-quotes-in-replacement": "!echo ${HOME/x/`cat /etc/shadow`}",
            "back-quotes-within": "!echo `echo \\`cat /etc/shadow\\``",
            "quotes-in-default": "!echo \"${x:-'$(cat /etc/shadow)'}\"",
            "climbing": "!cat ../../../../etc/shadow",
            "climbing-from-home": "!cat ~/../../etc/shadow",
            "option": "!grep -f/etc/shadow x",
            "options": "!grep -rf/etc/shadow x",
            "env-preload": "!env LD_PRELOAD=./x.so ls",
            "sed-flag": "!sed 's/.*/cat ~\\/.ssh\\/id_rsa/e' x",
            "sed-second": "!sed -n '1d; 2e cat /etc/shadow' x",
        },
    ),
    Technique(
        8,
        "cell magics",
        "S",
        {
            "bash": "%%bash\ncat /etc/shadow",
            "script": "%%script bash\ncat /etc/shadow",
            "script-path": "%%script /usr/bin/env bash -x\ncat /etc/shadow",
            "html": "%%html\n<script>fetch('/api/terminals', {method: 'POST'})</script>",
            "html-handler": "%%html\n<img src=x onerror=\"fetch('/api/terminals')\">",
            "javascript": "%%javascript\nfetch('/api/terminals', {method: 'POST'})",
            "writefile": "%%writefile colorsys.py\nimport os",
            "capture": "%%capture out\n!cat /etc/shadow",
            "capture-python": "%%capture\neval('1')",
            "nested": "%%time\n%%capture\n!cat /etc/shadow",
            "heredoc": "%%sh\nbash <<EOF\ncat /etc/shadow\nEOF",
            "ruby": "%%ruby\n`id`",
            "bash-arguments": "%%bash -c 'cat /etc/shadow'\nls",
            "bash-out-arguments": "%%sh --out x -c 'cat /etc/shadow'\nls",
            "back-quotes-in-heredoc": "%%bash\ncat <<EOF\n`cat /etc/shadow`\nEOF",
            "heredoc-with-tabs": "%%bash\ncat <<-EOF\n\t$(cat /etc/shadow)\n\tEOF",
            "default-in-heredoc": "%%bash\ncat <<EOF\n${x:-`cat /etc/shadow`}\nEOF",
            "python-with-tabs": "%%bash\npython <<-EOF\n\topen('/etc/shadow')\n\tEOF",
            "test-of-a-name": "%%bash\n[[ -v 'x[$(cat /etc/shadow)]' ]]",
            "test-command": "%%bash\ntest -v 'x[$(cat /etc/shadow)]'",
            "test-of-a-number": "%%bash\n[[ 'x[$(cat /etc/shadow)]' -eq 1 ]]",
            "printf-to-a-name": "%%bash\nprintf -v 'x[$(cat /etc/shadow)]' y",
            "name-in-a-variable": "%%bash\nx='a[$(cat /etc/shadow)]'\n[[ $x -eq 1 ]]",
            "subscript": "%%bash\n((x['$(cat /etc/shadow)']))",
            "prompt-of-a-value": "%%bash\nx='$(cat /etc/shadow)'\necho \"${x@P}\"",
            "prompt-of-a-trace": "%%bash\nPS4='$(cat /etc/shadow)'\ntest -v x",
            "sum-of-a-loop": "%%bash\nfor z in 'a[$(cat /etc/shadow)]'; do ((z)); done",
            "sum-in-a-word": "%%bash\nfor z in 'a[$(cat /etc/shadow)]'; do echo $((z)); done",
            "test-in-a-loop": "%%bash\nfor z in 'a[$(cat /etc/shadow)]'; do [[ z -eq 0 ]]; done",
            "slice-in-a-loop": "%%bash\nfor z in 'a[$(cat /etc/shadow)]'; do echo ${HOME:z}; done",
            "printf-of-parts": "%%bash\nprintf -v z '%s$(cat /etc/shadow)]' 'a['; ((z))",
            "sum-in-a-function": "%%bash\nf() { (($1)); }\nf 'a[$(cat /etc/shadow)]'",
            "printf-to-a-prompt": "%%bash -x\nprintf -v PS4 '$(cat /etc/shadow)'; echo hi",
            "printf-to-a-prompt-in-parts": "%%bash -x\nprintf -v PS4 %s '$' '(id)'; echo hi",
            "loop-over-a-prompt": "%%bash -x\nfor PS4 in '$(cat /etc/shadow)'; do echo hi; done",
            "javascript-sum-after-a-value": "%%javascript\nfetch(base + '/api/' + 'terminals')",
            "javascript-template-of-texts": "%%javascript\nfetch(`/api/${'term' + 'inals'}`)",
        },
    ),
    Technique(
        9,
        "prompt stripping",
        "S",
        {
            "python-prompt": ">>> !cat /etc/shadow",
            "python-prompts": ">>> x = 1\n>>> eval('x')",
            "ipython-prompt": "In [1]: !cat /etc/shadow",
            "blank-lines": "\n\n%%bash\ncat /etc/shadow",
            "indented": "    !cat /etc/shadow",
            "continuation": ">>> if 1:\n...     eval('1')",
            "vi-mode": "[ins] In [1]: !cat /etc/shadow",
        },
    ),
    Technique(
        10,
        "automagic",
        "P",
        {
            "sx": "sx cat /etc/shadow",
            "cat": "cat /etc/shadow",
            "run": "run evil.py",
            "cd": "cd /root",
            "pip": "pip install evil",
        },
    ),
    Technique(
        11,
        "escape prefix",
        "S",
        {
            "semicolon": ";exec import os",
            "comma": ",eval 1",
            "slash": "/eval open('/etc/shadow')",
            "indented": "if True:\n    ;exec import os",
        },
    ),
    Technique(
        12,
        "magic that carries code",
        "S",
        {
            "timeit": "%timeit __import__('os').system('id')",
            "timeit-options": "%timeit -n 1 -r 1 eval('1')",
            "timeit-cell": "%%timeit x = eval('1')\npass",
            "time": "%time exec('pass')",
            "prun": "%prun exec('pass')",
            "run": "%run f.py",
            "load-ext": "%load_ext m",
            "alias": "%alias z cat /etc/shadow",
            "alias-magic": "%alias_magic t sx",
            "alias-of-half": "%alias z cat",
            "autocall": "%autocall 2",
            "autocall-set": "%config ZMQInteractiveShell.autocall = 2",
            "autocall-attribute": "get_ipython().autocall = 2",
            "rehashx": "%rehashx",
            "config": "%config IPCompleter.greedy = eval('1')",
            "time-shell": "%time !cat /etc/shadow",
            "time-minus": "%time -eval('1')",
            "timeit-flag": "%timeit -o eval('1')",
            "timeit-flags": "%timeit -cq eval('1')",
            "prun-flag": "%prun -r eval('1')",
            "braces": "%matplotlib {__import__('ctypes').CDLL(None).system(b'id')}",
            "braces-precision": "%precision {eval('1')}",
            "braces-xmode": "%xmode {exec('pass')}",
            "braces-who": "%who {eval('1')}",
            "braces-capture": "%%capture {eval('1')}\npass",
            "braces-bash": "%%bash {eval('1')}\nls",
            "braces-slice": "%precision {eval('1')[0:1]}",
            "braces-first": "%precision {eval('1')} {print $1}",
            "braces-shell": "!echo {exec('pass')}",
            "braces-assigned": "x = !echo {exec('pass')}",
        },
    ),
    Technique(
        13,
        "get_ipython()",
        "S",
        {
            "system": "get_ipython().system('cat /etc/shadow')",
            "dynamic": "get_ipython().system(command)",
            "line-magic": "get_ipython().run_line_magic('sx', 'cat /etc/shadow')",
            "cell-magic": "get_ipython().run_cell_magic('bash', '', 'cat /etc/shadow')",
            "run-cell": "get_ipython().run_cell('!cat /etc/shadow')",
            "alias": "ip = get_ipython()\nf = ip.getoutput\nf('cat /etc/shadow')",
            "imported": "from IPython import get_ipython as g\ng().run_cell('eval(1)')",
            "instance": (
                "from IPython.core.interactiveshell import InteractiveShell\n"
                "InteractiveShell.instance().system('cat /etc/shadow')"
            ),
            "getattr": "getattr(get_ipython(), 'sys' + 'tem')('cat /etc/shadow')",
            "mapped": "list(map(get_ipython().system, ['cat /etc/shadow']))",
            "ex": "get_ipython().ex('import os')\nget_ipython().ev('eval(1)')",
            "in-list": "[get_ipython()][0].system('id')",
            "in-loop": "for f in [get_ipython]: f().system('id')",
            "lambda": "(lambda f: f().system('id'))(get_ipython)",
            "returned": "def ip(): return get_ipython()\nip().system('id')",
            "matched": "match get_ipython():\n    case object(system=f): f('id')",
            "method-caller": "import operator\noperator.methodcaller('system', 'id')(get_ipython())",
            "class": "get_ipython().__class__.system(get_ipython(), 'id')",
            "type": "type(get_ipython()).system(ip, 'id')",
            "of-exit": "exit._ip.system('cat /etc/shadow')",
            "of-quit": "q = quit\n[q][0]._ip.system('cat /etc/shadow')",
            "unpacked": "a, *b = get_ipython(), 1\na.system('id')",
            "in-class": "class A: ip = get_ipython()\nA.ip.system('id')",
            "kept": "x.ip = get_ipython()",
            "last-output": "get_ipython()",
            "parent": "get_ipython().display_formatter.parent.system('cat /etc/shadow')",
            "own-str": "str = lambda f: f.system('id')\nstr(get_ipython())",
            "walrus": "(ip := get_ipython()) and ip.system('cat /etc/shadow')",
            "rebound": "get_ipython().system('cat /etc/shadow')\nget_ipython = 1",
            "rebound-first": "if 0: get_ipython = 1\nget_ipython().system('cat /etc/shadow')",
            "of-globals": "dict(globals())['get_ipython']().system('cat /etc/shadow')",
            "of-globals-get": "globals().get('get_ipython')().system('cat /etc/shadow')",
            "of-globals-default": "globals().get('get_ipython', 1)().system('cat /etc/shadow')",
            "of-globals-copied": "globals().copy()['GET_IPYTHON'.lower()]().system('id')",
            "of-globals-spread": "{**globals()}['get_ipython']().system('cat /etc/shadow')",
            "of-globals-united": "(globals() | {})['get_ipython']().system('cat /etc/shadow')",
            "of-globals-by-dict": "dict.get(globals(), 'get_ipython')().system('cat /etc/shadow')",
            "of-globals-by-getter": "import operator\noperator.itemgetter('get_ipython')(globals())().system('id')",
            "of-namespace": "get_ipython().user_ns['get_ipython']().system('cat /etc/shadow')",
            "matched-exit": "match exit:\n    case object(_ip=ip): ip.system('id')",
            "getter-of-exit": "import operator\noperator.attrgetter('_ip.system')(exit)('id')",
            "getattr-of-exit": "getattr([exit][0], '_i' + 'p').system('id')",
            "of-widgets": "from ipywidgets.widgets.widget import get_ipython as g\ng().system('cat /etc/shadow')",
            "of-widgets-attribute": "import ipywidgets as w\nw.widgets.widget.get_ipython().system('cat /etc/shadow')",
            "parent-of-item": "get_ipython().display_formatter.formatters['text/html'].parent.parent.system('cat /etc/shadow')",
            "of-anything": "[w][0].get_ipython().system('cat /etc/shadow')",
            "of-widget-channel": "import ipywidgets as w\nw.IntSlider().comm.kernel.shell.system('id')",
            "of-any-channel": "[w.Text()][0].comm.kernel.shell.run_cell('!cat /etc/shadow')",
            "of-kernel": "import ipywidgets as w\nk = w.Text().comm.kernel\nk.shell.system('id')",
            "do-execute": "import ipywidgets as w\nw.Text().comm.kernel.do_execute('!id', False)",
            "of-globals-items": (
                "[v for k, v in globals().items() if k[:5] == 'get_i'][0]().system('id')"
            ),
            "of-globals-by-any-name": (
                "globals()[[n for n in globals() if n[:5] == 'get_i'][0]]().system('id')"
            ),
            "of-globals-handed-on": "def f(g): return g[k]\nf(globals())().system('id')",
            "instance-itself": "import IPython.display\nIPython.InteractiveShell._instance.run_cell('!cat /etc/shadow')",
        },
    ),
    Technique(
        14,
        "transformer hook",
        "P",
        {
            "post": "get_ipython().input_transformers_post.append(f)",
            "cleanup": "ip = get_ipython()\nip.input_transformers_cleanup.insert(0, f)",
            "ast": "get_ipython().ast_transformers.append(f)",
            "event": "get_ipython().events.register('pre_run_cell', f)",
            "by-type": "import IPython\nIPython.core.inputtransformer2.TransformerManager.transform_cell = f",
        },
    ),
    Technique(
        15,
        "inspection",
        "P",
        {
            "doc": "class Q:\n    @property\n    def __doc__(self): return eval('1')\nq = Q()\nq?",
            "quiet": "class Q:\n    def __getattr__(self, name): return f(name)\nq = Q()\n?q",
        },
    ),
    Technique(
        16,
        "history",
        "P",
        {
            "in": "exec(In[-1])",
            "oh": "_oh[3]('id')",
            "ih": "exec(_ih[1])",
            "macro": "%macro m 1-3",
            "rerun": "%rerun 1",
            "recall": "%recall 2",
        },
    ),
    Technique(
        17,
        "decorator without a call",
        "S",
        {
            "eval": "@eval\n@'__import__(\"os\")'.format\nclass X: pass",
            "exec": "@exec\n@lambda _: 'import os'\nclass X: pass",
            "import": "@__import__\n@lambda _: 'os'\nclass X: pass",
            "system": "from os import system\n@system\n@lambda _: 'id'\nclass X: pass",
            "of-function": "@eval\n@str.format\ndef f(): pass",
            "of-builtin": "@__builtin__.exec\n@lambda _: 'import os'\nclass X: pass",
        },
    ),
    Technique(
        18,
        "operator overload",
        "S",
        {
            "class-getitem": "class A: __class_getitem__ = eval\nA['1']",
            "add": "class A:\n    __add__ = lambda self, other: exec(other)\nA() + 'import os'",
            "call": "class A:\n    def __init__(self): self.f = 1\n    __getattr__ = eval\nA().x",
            "import": "class A: __class_getitem__ = __import__\nA['os']",
            "type": "type('A', (), {'__class_getitem__': eval})['1']",
            "setattr": "class A: pass\nA.__class_getitem__ = exec\nA['pass']",
        },
    ),
    Technique(
        19,
        "alias and map",
        "S",
        {
            "alias": "e = eval\ne('1')",
            "map": "list(map(eval, ['1']))",
            "map-import": "list(map(__import__, ['os']))[0]",
            "partial": "import functools\nfunctools.partial(exec, 'pass')()",
            "dict": "{'e': eval}['e']('1')",
            "list": "[exec][0]('pass')",
            "argument": "def f(g): return g('1')\nf(eval)",
            "default": "def f(g=eval): return g('1')",
            "walrus": "(e := exec)('pass')",
            "globals": "globals()['ev' + 'al']('1')",
            "builtins": "__builtins__.eval('1')",
            "builtins-dict": "__builtins__.__dict__['ev' + 'al']('1')",
            "import-builtins": "import builtins as b\nb.exec('pass')",
            "from-builtins": "from builtins import eval as harmless\nharmless('1')",
            "self": "print.__self__.eval('1')",
            "sorted": "sorted(['1'], key=eval)",
            "rebound": "eval('1')\nif 0: eval = 1",
            "rebound-module": "import os\nif 0: os = 1\nos.system('cat /etc/shadow')",
            "rebound-globals": "globals()['eval']('1')\nglobals = vars = 1",
            "builtin": "__builtin__.eval('1')",
            "builtin-import": "__builtin__.__import__('os').system('cat /etc/shadow')",
            "builtin-getattr": "getattr(__builtin__, 'eval')('1')",
            "of-enum": "import enum\nenum.bltns.eval('1')",
            "enum-in-list": "import enum\n[enum][0].bltns.eval('1')",
            "module-in-list": "import random\n[random][0]._os.system('cat /etc/shadow')",
            "module-in-list-getattr": "import random\ngetattr([random][0], '_os').system('id')",
            "module-as-self": "import random\n(lambda self: self._os.system('id'))(random)",
            "modules-of-argument": "def f(m): m.codecs.sys.modules['posix'].system('id')",
        },
    ),
    Technique(
        20,
        "match-class walk",
        "S",
        {
            "class": "match ():\n    case object(__class__=c): c.x",
            "base": "match int:\n    case type(__base__=b): pass",
            "subclasses": "match object:\n    case type(__subclasses__=s): s()",
            "globals": "match f:\n    case object(__globals__=g): g['x']",
            "module": "import random\nmatch random:\n    case object(_os=o): o",
            "function": "import os\nmatch os:\n    case object(system=f): f('id')",
            "nested": "match x:\n    case [object(gi_frame=f), *_]: f",
            "arguments": "class A: __match_args__ = tuple(names)\nmatch x:\n    case A(y): y",
            "arguments-computed": "class A: __match_args__ = ('__CLASS__'.lower(),)",
            "arguments-module": "class A: __match_args__ = ('_os',)",
            "arguments-later": "class A: pass\nA.__match_args__ = names",
            "arguments-property": "class M(type):\n    @property\n    def __match_args__(cls): return names",
            "arguments-of-type": "type('A', (), {'__match_args__': names})",
            "arguments-of-dataclass": (
                "from dataclasses import dataclass\n@dataclass\nclass G:\n    gi_frame: object\n"
                "match x:\n    case G(b): b"
            ),
            "arguments-of-tuple": (
                "from typing import NamedTuple\nclass F(NamedTuple):\n    f_builtins: dict"
            ),
        },
    ),
    Technique(
        21,
        "transitive module",
        "P",
        {
            "pathlib": "import pathlib\npathlib.os.system('id')",
            "random": "import random\nrandom._os.system('id')",
            "numpy": "import numpy as np\nnp.ctypeslib.ctypes",
            "from": "from pathlib import os as x\nx.system('id')",
            "json": "import json\njson.codecs.builtins.eval('1')",
            "guessed": "statistics.random._os.system('id')",
            "attrgetter": "import operator, random\noperator.attrgetter('_os.system')(random)('id')",
            "dict": "import random\nrandom.__dict__['_os'].system('id')",
            "renamed": "import glob\nm = glob\nm.os.popen('id')",
            "io-open": "import json\njson.codecs.open('/etc/shadow')",
            "list-from": "from pandas import compat",
            "list-from-sympy": "from sympy import parsing\nparsing.sympy_parser.parse_expr('f()')",
            "list-from-pil": "from PIL import ImageShow as s\ns.show(image)",
            "list-attribute": "import numpy as np\nnp.f2py.run_main([])",
            "list-getattr": "import numpy as np\ngetattr(np, 'f2py').run_main([])",
            "list-dict": "import numpy as np\nvars(np)['f2py'].run_main([])",
            "beyond-import": "import IPython.display\nIPython.core.magics",
            "reexported": "from matplotlib.cbook import weakref as w\nw.ref",
            "reexported-attribute": "import dataclasses\ndataclasses.inspect.getsource(f)",
        },
    ),
    Technique(
        22,
        "sys.modules and gc",
        "P",
        {
            "item": "import sys\nsys.modules['posix'].system('id')",
            "get": "import sys\nsys.modules.get('os').system('id')",
            "values": "import sys\n[m for m in sys.modules.values() if hasattr(m, 'system')]",
            "gc": "import gc\n[o for o in gc.get_objects() if type(o) is dict]",
            "referrers": "from gc import get_referrers as r\nr(print)",
        },
    ),
    Technique(
        23,
        "loaders",
        "S",
        {
            "builtins": "__builtins__.__loader__.load_module('posix')",
            "module": "import math\nmath.__loader__.load_module('posix')",
            "spec": "import math\nmath.__spec__.loader.create_module",
            "name": "__loader__",
            "importer": (
                "from importlib.machinery import BuiltinImporter as B\nB.load_module('posix')"
            ),
            "file-location": (
                "import importlib.util as u\n"
                "s = u.spec_from_file_location('m', 'm.py')\ns.loader.exec_module(u.module_from_spec(s))"
            ),
            "meta-path": "import sys\nsys.meta_path[0].find_spec('os')",
            "getattr": "import math\ngetattr(math, '__lo' + 'ader__')",
            "lowered": "import json\nvars(json)['__LOADER__'.lower()]",
            "all-values": (
                "import json\n"
                "[v for k, v in vars(json).items() if 'oader' in k][0].load_module('posix')"
            ),
            "spec-by-name": "import math\ns = math.__spec__\ns.loader.load_module('posix')",
        },
    ),
    Technique(
        24,
        "pickle",
        "P",
        {
            "loads": "import pickle\npickle.loads(b\"cposix\\nsystem\\n(S'id'\\ntR.\")",
            "load": "import pickle\npickle.load(open('data.pkl', 'rb'))",
            "pandas": "import pandas as pd\npd.read_pickle('data.pkl')",
            "torch": "import torch\ntorch.load('model.pt')",
            "joblib": "import joblib\njoblib.load('model.joblib')",
            "numpy": "import numpy as np\nnp.load('data.npy', allow_pickle=True)",
            "shelve": "import shelve\nshelve.open('data')",
            "yaml": "import yaml\nyaml.load(text, Loader=yaml.UnsafeLoader)",
            "numpy-position": "import numpy as np\nnp.load('data.npy', None, True)",
            "numpy-spread": "import numpy as np\nnp.load('data.npy', **{'allow_pickle': 1})",
            "numpy-starred": "import numpy as np\nnp.load(*['data.npy', None, True])",
        },
    ),
    Technique(
        25,
        "gadgets of the standard library",
        "P",
        {
            "locate": "import pydoc\npydoc.locate('os.system')('id')",
            "resolve-name": "import pkgutil\npkgutil.resolve_name('os:system')('id')",
            "dict-config": "import logging.config\nlogging.config.dictConfig({'()': 'os.system'})",
            "timeit": "import timeit\ntimeit.timeit('eval(1)', number=1)",
            "runpy": "import runpy\nrunpy.run_path('x.py')",
            "doctest": "import doctest\ndoctest.run_docstring_examples(f, globals())",
            "code": "import code\ncode.InteractiveInterpreter().runsource('import os')",
            "unittest": "import unittest\nunittest.defaultTestLoader.loadTestsFromName('os.system')",
            "warnings": "import warnings\nwarnings._getcategory('os.system')",
            "cgitb": "import idlelib.run\nidlelib.run.Executive",
            "import-item": "import IPython.display\nIPython.utils.importstring.import_item('os.system')",
            "optional": "from pandas.io.excel._base import import_optional_dependency as i\ni('os')",
            "create-function": "import dataclasses\ndataclasses._create_fn('f', (), ['import os'])",
            "getoutput": "import IPython.display\nIPython.utils._process_common.getoutput('cat /etc/shadow')",
        },
    ),
    Technique(
        26,
        "eval of a library",
        "I",
        {
            "query": "df.query('@pd.io.common.os.system(\"id\") == 0')",
            "eval": "pd.eval('@f(1)')",
            "sympify": "import sympy\nsympy.sympify('open(\"x\")')",
            "numexpr": "import numexpr\nnumexpr.evaluate(text)",
            "formula": "import patsy\npatsy.dmatrix('f(x)', data)",
        },
    ),
    Technique(
        27,
        "format strings",
        "P",
        {
            "format": "'{0.__init__.__globals__}'.format(o)",
            "item": "'{0[__builtins__]}'.format(o)",
            "get-field": "import string\nstring.Formatter().get_field('0.os.system', [o], {})",
            "split": "('{0.__in' + 'it__.__glo' + 'bals__}').format(o)",
            "format-map": "'{o.__class__.__base__}'.format_map({'o': 1})",
            "from-input": "input().format(o)",
        },
    ),
    Technique(
        28,
        "annotations that are text",
        "P",
        {
            "get-type-hints": (
                "import typing\nclass C:\n    x: 'eval(1)'\ntyping.get_type_hints(C)"
            ),
            "inspect": (
                "import inspect\ndef f(x: 'eval(1)'): pass\ninspect.signature(f, eval_str=True)"
            ),
            "singledispatch": (
                "import functools\n@functools.singledispatch\ndef f(x): pass\n"
                "@f.register\ndef _(x: 'eval(1)'): pass"
            ),
            "forward-ref": "from typing import ForwardRef\nForwardRef('eval(1)')._evaluate({}, {}, set())",
        },
    ),
    Technique(
        29,
        "default argument, f-string, annotation",
        "S",
        {
            "default": "def f(x=exec('pass')): pass",
            "keyword-default": "def f(*, x=eval('1')): pass",
            "lambda-default": "f = lambda x=eval('1'): x",
            "f-string": "f\"{eval('1')}\"",
            "format-spec": "f\"{1:{eval('1')}}\"",
            "annotation": "x: eval('int') = 1",
            "bare-annotation": "x: eval('int')",
            "argument-annotation": "def f(x: eval('int')): pass",
            "returns": "def f() -> eval('int'): pass",
            "base": "class A(eval('object')): pass",
            "metaclass": "class A(metaclass=eval('type')): pass",
            "comprehension": "[x for x in [1] if eval('1')]",
            "subscript": "a[eval('1')] = 2",
            "assert": "assert eval('1'), exec('pass')",
            "with": "with eval('f'): pass",
            "except": "try: pass\nexcept eval('E'): pass",
            "guard": "match 1:\n    case x if eval('1'): pass",
            "starred": "print(*eval('[]'), **eval('{}'))",
            "delete": "del a[eval('1')]",
            "raise": "raise E from eval('1')",
        },
    ),
    Technique(
        30,
        "code objects",
        "S",
        {
            "marshal": "import marshal\nmarshal.loads(b'x')",
            "replace": "f.__code__ = f.__code__.replace(co_consts=())",
            "assign": "def f(): pass\nf.__code__ = g",
            "setattr": "setattr(f, '__code__', g)",
            "type-of-function": "type(f)(compile('pass', '', 'exec'), {})",
            "type-of-lambda": "type(lambda: 0)(c, {})",
            "function-type": "import types\ntypes.FunctionType(c, {})",
            "code-type": "from types import CodeType as C\nC(0)",
            "getattr": "getattr(f, '__co' + 'de__').replace(co_code=b'')",
            "lowered": "object.__setattr__(f, '__CODE__'.lower(), c)",
            "wrapper": "import functools\nfunctools.update_wrapper(g, h, assigned=('__CODE__'.lower(),))",
            "type-by-name": "F = type(lambda: 0)\nF(c, {})",
            "class-of-lambda": "(lambda: 0).__class__(c, {})",
            "types-of-typing": "import typing\ntyping.types.FunctionType(c, {})",
            "types-from": "from enum import types as t\nt.FunctionType(c, {})",
            "types-in-list": "import typing\n[typing][0].types.FunctionType(c, {})",
            "types-of-star": "from matplotlib.cbook import *\ntypes.FunctionType(types.CodeType(0), {})",
            "type-in-annotation": (
                "from types import FunctionType\ndef f(x: FunctionType): pass\n"
                "f.__annotations__['x'](c, {})"
            ),
        },
    ),
    Technique(
        31,
        "encodings",
        "S",
        {
            "utf-7": "exec(b'# coding: utf-7\\n+AGkAbQBwAG8AcgB0- os')",
            "hex": "exec(bytes.fromhex('696d706f7274206f73'))",
            "rot13": "import codecs\nexec(codecs.decode('vzcbeg bf', 'rot13'))",
            "base64": "import base64\nexec(base64.b64decode('aW1wb3J0IG9z'))",
            "zlib": "import zlib\neval(zlib.decompress(data))",
            "compiled": "exec(compile(bytes([105, 109]), '', 'exec'))",
        },
    ),
    Technique(
        32,
        "hooks",
        "P",
        {
            "breakpointhook": "import sys\nsys.breakpointhook = f\nbreakpoint()",
            "meta-path": "import sys\nsys.meta_path.insert(0, f)",
            "settrace": "import sys\nsys.settrace(f)",
            "audit": "import sys\nsys.addaudithook(f)",
            "excepthook": "import sys\nsys.excepthook = f",
            "displayhook": "import sys\nsys.displayhook = f",
            "threading": "import threading\nthreading.settrace(f)",
            "import": "import builtins\nbuiltins.__import__ = f",
        },
    ),
    Technique(
        33,
        "deferred code",
        "I",
        {
            "timer": "import threading\nthreading.Timer(60, f).start()",
            "atexit": "import atexit\natexit.register(f)",
            "thread": "import threading\nthreading.Thread(target=f, daemon=True).start()",
            "del": "class A:\n    def __del__(self): f()\na = A()",
            "repr": "class A:\n    def _repr_html_(self): return f()\nA()",
            "signal": "import signal\nsignal.signal(signal.SIGALRM, f)\nsignal.alarm(60)",
        },
    ),
    Technique(
        34,
        "module shadowing",
        "I",
        {
            "open": "open('colorsys.py', 'w').write('x = 1')\nimport colorsys",
            "pathlib": "from pathlib import Path\nPath('colorsys.py').write_text('x')\nimport colorsys",
            "path": "import sys\nsys.path.insert(0, '/tmp')\nimport colorsys",
            "shell": "!echo 'import os' > colorsys.py\nimport colorsys",
            "heredoc": "%%bash\ncat > colorsys.py <<'EOF'\nimport os\nEOF",
        },
    ),
    Technique(
        35,
        "async processes",
        "S",
        {
            "shell": "import asyncio\nawait asyncio.create_subprocess_shell('id')",
            "exec": "import asyncio\nawait asyncio.create_subprocess_exec('id')",
            "alias": "from asyncio.subprocess import create_subprocess_shell as c\nawait c('id')",
            "loop": "import asyncio\nawait asyncio.get_running_loop().subprocess_shell(P, 'id')",
            "loop-exec": (
                "import asyncio\nloop = asyncio.new_event_loop()\nloop.subprocess_exec(P, 'id')"
            ),
            "gathered": "import asyncio as a\nawait a.gather(*map(a.create_subprocess_shell, ['id']))",
            "reexported": "from tqdm.asyncio import asyncio as a\nawait a.create_subprocess_shell('id')",
            "argument": "def f(m): return m.asyncio.create_subprocess_shell('id')",
        },
    ),
    Technique(
        36,
        "startup persistence",
        "I",
        {
            "ipython": (
                "from pathlib import Path\n"
                "Path('~/.ipython/profile_default/startup/x.py').expanduser().write_text('x')"
            ),
            "bashrc": "open('/home/user/.bashrc', 'a').write('id')",
            "pth": "open('x.pth', 'w').write('import os')",
            "magic": "%%writefile ~/.ipython/profile_default/startup/x.py\nimport os",
        },
    ),
    Technique(
        37,
        "syntax newer than the check",
        "S",
        {
            "type-alias": "type X = ().__subclasses__()",
            "type-parameter": "def f[T: ().__subclasses__()](): pass",
            "quotes-in-f-string": "f'{'a'}' + ().__subclasses__()",
            "template-string": 't"{().__subclasses__()}"',
            "bare-except": "try: pass\nexcept A, B: ().__subclasses__()",
            "of-tomorrow": "unless x: ().__subclasses__()",
            "in-exec": "exec('unless x: ().__subclasses__()')",
            "in-magic": "%time unless x: ().__subclasses__()",
        },
        inner_python="99.0",
    ),
    Technique(
        38,
        "native code",
        "I",
        {
            "memfd": "import os\nfd = os.memfd_create('x')\nos.write(fd, elf)\nos.execve(fd, ['x'], {})",
            "wheel": "%pip install ./evil.whl",
            "extension": "import sys\nsys.path.append('.')\nimport evil",
        },
    ),
    Technique(
        39,
        "scripts shown by Python",
        "S",
        {
            "class": "from IPython.display import Javascript\nJavascript(\"fetch('/api/terminals')\")",
            "star": "from IPython.display import *\nJavascript(\"fetch('/api/terminals')\")",
            "star-core": "from IPython.core.display import *\ndisplay_javascript('x()', raw=True)",
            "mime-type": "display({'application/javascript': 'x()'}, raw=True)",
            "mime-type-in-parts": "display({'application/' + 'javascript': 'x()'}, raw=True)",
            "mime-type-by-name": "k = 'application/javascript'\ndisplay({k: 'x()'}, raw=True)",
            "method": "class A:\n    def _repr_javascript_(self): return 'x()'",
            "lambda": "class A: _repr_javascript_ = lambda self: 'x()'",
            "attribute": "A._repr_javascript_ = f",
            "setattr": "setattr(A, '_repr_' + 'javascript_', f)",
            "type": "type('A', (), {'_repr_javascript_': f})()",
            "html": "from IPython.display import *\nHTML('<script>x()</script>')",
            "widget": (
                "import ipywidgets\n"
                "ipywidgets.HTML(\"<img src=x onerror=fetch('/api/terminals',{method:'POST'})>\")"
            ),
            "widget-value": "from ipywidgets import *\nHTML(value='<script>x()</script>')",
        },
    ),
    Technique(
        40,
        "another program of a common name",
        "P",
        {
            "here": "!./cat x",
            "elsewhere": "!/tmp/evil/cat x",
            "climbing": "!/usr/bin/../../tmp/cat x",
            "path": "!PATH=/tmp/evil cat x",
            "path-among-others": "!PATH=/usr/local/sbin:/tmp/evil:/usr/bin cat x",
            "path-of-all": "%%bash\nPATH=/tmp/evil:$PATH\ncat x",
            "libraries": "!LD_LIBRARY_PATH=/tmp/evil cat x",
            "printf": "%%bash\nprintf -v PATH .; cat x",
            "loop": "%%bash\nfor PATH in .; do cat x; done",
            "sum": "%%bash\n((PATH=1)); cat x",
            "sum-in-a-word": "%%bash\necho $((PATH=1)); cat x",
            "read": "%%bash\nread PATH <<< .; cat x",
            "backend": "%matplotlib module://evil",
        },
    ),
)

BYPASSES: Final = tuple(
    Bypass(technique, variant, cell)
    for technique in TECHNIQUES
    for variant, cell in technique.variants.items()
)
