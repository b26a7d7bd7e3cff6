"""Names in Python that rules are about: functions and modules by qualified name, attributes by theirs."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Functions, by rule --------------------------------------------------------------------------------

_BY_RULE: Final[Mapping[str, str]] = {
    "python.eval": "builtins.eval",
    "python.exec": "builtins.exec builtins.execfile",
    "python.compile": "builtins.compile codeop.compile_command",
    "python.builtins_access": "builtins.__dict__ builtins.__getattribute__",
    "python.frames": """
        sys._getframe sys._current_frames sys._current_exceptions sys.call_tracing""",
    "python.inspect_frames": """
        inspect.currentframe inspect.stack inspect.trace inspect.getouterframes
        inspect.getinnerframes inspect.getframeinfo traceback.walk_stack traceback.walk_tb""",
    "python.code_objects": """
        marshal.loads marshal.load types.CodeType types.FunctionType types.LambdaType
        importlib._bootstrap_external._compile_bytecode""",
    "python.gc": "gc.get_objects gc.get_referrers gc.get_referents",
    "python.sys_modules": "sys.modules",
    "python.loaders": """
        sys.meta_path sys.path_hooks sys.path_importer_cache importlib.util.spec_from_loader
        importlib.machinery.BuiltinImporter importlib.machinery.FrozenImporter
        importlib.machinery.ExtensionFileLoader imp.load_dynamic imp.load_compiled
        zipimport.zipimporter _imp.create_dynamic _imp.create_builtin""",
    "python.load_file": """
        importlib.util.module_from_spec importlib.util.spec_from_file_location
        importlib.machinery.SourceFileLoader imp.load_source imp.load_module pkgutil.get_loader
        pkgutil.find_loader""",
    "python.format_walk": """
        string.Formatter.get_field string.Formatter.vformat string.Formatter().get_field
        string.Formatter().vformat""",
    "python.hooks": """
        sys.settrace sys.setprofile sys.addaudithook sys.breakpointhook sys.excepthook
        sys.displayhook sys.unraisablehook sys.set_asyncgen_hooks sys.monitoring threading.settrace
        threading.setprofile threading.excepthook builtins.breakpoint pdb.set_trace""",
    "python.unpickle": """
        pickle.loads pickle.load pickle.Unpickler pickle._loads pickle._load pickle._Unpickler
        _pickle.loads _pickle.load _pickle.Unpickler cPickle.loads cPickle.load dill.loads dill.load
        cloudpickle.loads cloudpickle.load jsonpickle.decode shelve.open""",
    "python.load_model": """
        joblib.load sklearn.externals.joblib.load torch.load pandas.read_pickle
        pandas.io.pickle.read_pickle""",
    "python.yaml_load": """
        yaml.unsafe_load yaml.unsafe_load_all yaml.full_load yaml.full_load_all yaml.UnsafeLoader""",
    "python.indirect_exec": """
        pydoc.locate pydoc.resolve pydoc.safeimport pydoc.importfile pkgutil.resolve_name
        logging.config.dictConfig logging.config.fileConfig logging.config.listen
        logging.config.DictConfigurator runpy.run_module runpy.run_path runpy._run_code
        doctest.testmod doctest.testfile doctest.run_docstring_examples doctest.testsource
        doctest.debug doctest.debug_src doctest.DocTestRunner code.interact
        code.InteractiveInterpreter code.InteractiveConsole cProfile.run cProfile.runctx
        profile.run profile.runctx trace.Trace bdb.Bdb pdb.run pdb.runeval pdb.runcall
        unittest.mock.patch idlelib.rpc multiprocessing.connection.Client
        warnings._getcategory numpy.testing.runstring numpy.testing.rundocs
        numpy.testing.measure numpy.f2py.compile numexpr.evaluate
        dataclasses._create_fn dataclasses._FuncBuilder""",
    "python.type_hints": "typing.get_type_hints inspect.get_annotations typing.ForwardRef",
    "python.process": """
        os.system os.popen os.popen2 os.popen3 os.popen4 os.startfile posix.system posix.popen
        os.execl os.execle os.execlp os.execlpe os.execv os.execve os.execvp os.execvpe
        posix.execv posix.execve os.spawnl os.spawnle os.spawnlp os.spawnlpe os.spawnv os.spawnve
        os.spawnvp os.spawnvpe os.posix_spawn os.posix_spawnp posix.posix_spawn posix.posix_spawnp
        subprocess.run subprocess.Popen subprocess.call subprocess.check_call
        subprocess.check_output subprocess.getoutput subprocess.getstatusoutput
        _posixsubprocess.fork_exec pty.spawn pty.fork commands.getoutput commands.getstatusoutput
        asyncio.create_subprocess_shell asyncio.create_subprocess_exec
        asyncio.subprocess.create_subprocess_shell asyncio.subprocess.create_subprocess_exec
        platform.popen uuid._get_command_stdout webbrowser.open multiprocessing.util.spawnv_passfds pexpect.spawn pexpect.run
        distutils.spawn.spawn IPython.utils.process.system IPython.utils.process.getoutput
        IPython.utils._process_common.getoutput IPython.utils._process_common.getoutputerror
        IPython.utils._process_common.get_output_error_code""",
    "python.fork": "os.fork os.forkpty posix.fork posix.forkpty pty.fork",
    "python.kill": "os.kill os.killpg os.abort posix.kill posix.killpg signal.pidfd_send_signal",
    "python.deferred": "atexit.register threading.Timer weakref.finalize sched.scheduler",
    "python.write_file": """
        shutil.copy shutil.copy2 shutil.copyfile shutil.copytree shutil.move shutil.unpack_archive
        os.rename os.renames os.replace os.link os.symlink os.truncate os.mkfifo os.mknod""",
    "python.delete": "os.remove os.unlink os.rmdir os.removedirs posix.unlink posix.remove",
    "python.delete_tree": "shutil.rmtree distutils.dir_util.remove_tree",
    "python.permissions": """
        os.chmod os.chown os.lchown os.fchmod os.fchown shutil.chown os.chroot os.setuid os.setgid
        os.seteuid os.setegid os.setreuid os.setresuid os.setgroups os.setxattr os.umask os.nice
        resource.setrlimit""",
    "python.surveillance": """
        sounddevice.rec sounddevice.playrec sounddevice.InputStream sounddevice.RawInputStream""",
    "python.host_inspection": """
        os.getlogin os.getloadavg getpass.getuser pwd.getpwall pwd.getpwnam pwd.getpwuid grp.getgrall
        spwd.getspall socket.gethostname platform.node
        os.uname os.getgroups os.getgrouplist platform.uname""",
}

# Whatever is used of these modules.
_MODULES_BY_RULE: Final[Mapping[str, str]] = {
    "python.native": "ctypes _ctypes cffi numpy.ctypeslib distutils.ccompiler",
    "python.host_inspection": "psutil",
    "python.surveillance": """
        PIL.ImageGrab pyscreenshot mss pyperclip pynput pyautogui keyboard mouse watchdog
        pyxhook Xlib pyscreeze""",
    "python.network": """
        socket _socket socketserver ssl urllib.request urllib2 urllib3 requests http.client
        http.server httpx aiohttp ftplib smtplib poplib imaplib nntplib telnetlib xmlrpc paramiko
        websocket websockets pycurl scapy asyncssh fabric twisted treq pysftp boto boto3 pymongo
        redis psycopg2 pymysql""",
}
# Parts of them that connect nowhere.
_HARMLESS: Final = _words(
    """socket.gethostname socket.timeout socket.error socket.AF_INET ssl.SSLError
    requests.exceptions requests.Session.__init__ requests.Response requests.RequestException
    psutil.__version__ ctypes.util.find_library"""
)

_rules_of: dict[str, tuple[str, ...]] = {}
for _rule, _names in _BY_RULE.items():
    for _name in _names.split():
        _rules_of[_name] = (*_rules_of.get(_name, ()), _rule)
EXACT: Final[Mapping[str, tuple[str, ...]]] = _rules_of
_PREFIXES: Final[Mapping[str, str]] = {
    module: rule for rule, modules in _MODULES_BY_RULE.items() for module in modules.split()
}


# Methods of loaders; elsewhere the names are everybody's.
_LOADER_METHODS: Final = (".load_module", ".get_loader", ".find_loader")
_LOADER_MODULES: Final = ("importlib.", "imp.", "pkgutil.", "zipimport.", "sys.")


@lru_cache(maxsize=4096)
def rules_on(name: str) -> tuple[str, ...]:
    """The rules that a use of this qualified name touches."""
    rules = tuple(EXACT.get(name, ()))
    if name == KERNEL:
        return ("python.ipython_internals",)
    if ".__spec__.loader" in name:
        return ("python.loaders",)
    if not rules and name.endswith(_LOADER_METHODS) and name.startswith(_LOADER_MODULES):
        return ("python.load_file",)
    if "." in name and name not in _HARMLESS:
        for module in prefixes(name):
            if module in _PREFIXES and module != name:
                return (*rules, _PREFIXES[module])
    return rules


def prefixes(name: str) -> Iterator[str]:
    """``a``, ``a.b``, ``a.b.c`` of ``a.b.c``."""
    end = name.find(".")
    while end != -1:
        yield name[:end]
        end = name.find(".", end + 1)
    yield name


# Modules -------------------------------------------------------------------------------------------

MODULES: Final = (
    frozenset(name.rpartition(".")[0] for name in EXACT)
    | frozenset(_PREFIXES)
    | frozenset(module.partition(".")[0] for module in (*_PREFIXES, *EXACT))
    | _words(
        """base64 binascii codecs importlib importlib.abc importlib.machinery importlib.resources
        importlib.util os os.path pathlib timeit posix sys io pkgutil multiprocessing
        multiprocessing.pool concurrent.futures operator urllib.error urllib.parse xml.etree xml.sax
        http.cookies ctypes.util logging.handlers string typing types inspect signal threading"""
    )
)
_OFTEN_VARIABLES: Final = _words(
    """string code trace profile commands redis boto pty resource grp pwd io types signal operator
    fabric treq sched doctest inspect websocket dill ssl unittest keyboard mouse"""
)
# Taken for the module even if no import was seen.
GUESSED: Final = frozenset(name for name in MODULES if "." not in name) - _OFTEN_VARIABLES
ALIASES: Final[Mapping[str, str]] = {"np": "numpy", "pd": "pandas", "sp": "subprocess"}

# Found inside other modules, these are a way around an import that the policy would see.
INNER_MODULES: Final = _words(
    """os sys subprocess ctypes builtins importlib shutil socket pickle marshal posix pty gc runpy
    _posixsubprocess multiprocessing cffi pdb"""
)
# All attributes that may be one: `random._os` too, and `enum.bltns`.
_RENAMED: Final[Mapping[str, str]] = {"bltns": "builtins"}
INNER_NAMES: Final = INNER_MODULES | {f"_{name}" for name in INNER_MODULES} | frozenset(_RENAMED)
# Reached through something that is not known to be a module: `df.os` is a column, `x._os` is not.
INNER_MODULES_ANYWHERE: Final = _words("_os subprocess builtins posix importlib")
_REAL_SUBMODULES: Final = _words(
    """torch.multiprocessing pathos.multiprocessing dask.multiprocessing ray.util.multiprocessing
    six.moves.builtins flask_restful.marshal flask_restplus.marshal flask_restx.marshal
    pandas.api.types polars.selectors tqdm.asyncio"""
)
# Of the standard library, what only computes, or has a name that functions and packages have as well.
_EVERYDAY: Final = _words(
    """__future__ abc array base64 binascii bisect calendar cmath collections colorsys contextlib copy
    csv dataclasses datetime decimal difflib enum errno fractions functools graphlib hashlib heapq hmac
    html itertools json keyword math numbers operator pprint queue random re reprlib secrets statistics
    string struct textwrap time typing unicodedata uuid warnings zlib zoneinfo
    cmd code email io locale parser platform profile resource select signal site stat symbol test this
    token trace wave"""
)
# The rest: `typing.types` and `from tqdm.asyncio import asyncio` are imports of these.
_STANDARD: Final = frozenset(sys.stdlib_module_names) - _EVERYDAY - INNER_NAMES
# Packages of which parts may be listed, by the names under which others import them: `plt.np.f2py`.
_PACKAGES: Final[Mapping[str, str]] = {
    "np": "numpy",
    "pd": "pandas",
    "mpl": "matplotlib",
    "matplotlib": "matplotlib",
    "IPython": "IPython",
}
_REEXPORTED: Final = (
    _STANDARD | {f"_{name}" for name in _STANDARD if name[0] != "_"} | frozenset(_PACKAGES)
)
MODULE_NAMES: Final = INNER_NAMES | _REEXPORTED


def told_by_member(module: str | None, attribute: str) -> str | None:
    """What ``.module.attribute`` is whatever it is taken of, if that tells it from a column's name.

    ``df.os.replace`` may be any column's; of ``os``, only what starts a program tells.
    """
    name = (module or "").removeprefix("_")
    if name not in INNER_MODULES:
        return None
    rules = EXACT.get(f"{name}.{attribute}", ())
    tells = "python.process" in rules if name == "os" else bool(rules)
    return f"{name}.{attribute}" if tells else None


def inner_module(base: str | None, attribute: str) -> str | None:
    """The module that ``base.attribute`` is, if it is another one that ``base`` imported."""
    if attribute not in INNER_NAMES:
        return None
    name = attribute.lstrip("_") if attribute not in INNER_MODULES else attribute
    name = _RENAMED.get(name, name)
    if base is None:
        return name if {name, attribute} & INNER_MODULES_ANYWHERE else None
    if "(" in base:
        return None
    if base.rpartition(".")[2] == name:
        return None  # socket.socket
    whole = f"{base}.{attribute}"
    return None if whole in _REAL_SUBMODULES or whole in MODULES else name


def reexported(base: str, attribute: str) -> str | None:
    """The module that ``base.attribute`` seems to be, of those that are less grave.

    Unlike an inner module it is no finding of its own: the policy's list of modules decides about it.
    """
    if attribute not in _REEXPORTED or "(" in base:
        return None
    if (package := _PACKAGES.get(attribute)) is not None:
        return None if base == package else package
    name = attribute if attribute in _STANDARD else attribute[1:]
    if base.partition(".")[0] == name:
        return None  # glob.glob
    whole = f"{base}.{attribute}"
    return None if whole in _REAL_SUBMODULES or whole in MODULES else name


# Built-in names ------------------------------------------------------------------------------------

BUILTINS: Final = frozenset(dir(builtins)) | {"__builtins__", "__loader__", "__spec__"}
# The module itself; the second one is IPython's.
BUILTINS_ITSELF: Final = frozenset({"__builtins__", "__builtin__"})
# Defined anew, they hide what the check looks for.
HIDING: Final = _words("eval exec compile __import__ getattr breakpoint get_ipython")
# They stand for themselves even then: the definition may come later, or never be reached.
NOTABLE: Final[Mapping[str, str]] = {
    "get_ipython": "get_ipython",
    **{
        name: f"builtins.{name}"
        for name in (HIDING - {"get_ipython"}) | {"open", "type", "vars", "globals"}
    },
}

# Attributes ----------------------------------------------------------------------------------------

_ATTRIBUTES_BY_RULE: Final[Mapping[str, str]] = {
    "python.subclasses": "__subclasses__ __base__",
    "python.class_walk": "__bases__ __mro__ mro",
    "python.globals": "__globals__ func_globals",
    "python.builtins_access": "__builtins__ __builtin__ __self__",
    # Of whatever: an array has it (a.ctypes._ctypes), and a module that is handed on is not followed.
    "python.native": "_ctypes ctypeslib CDLL PyDLL pydll pythonapi LoadLibrary dlopen",
    "python.code_objects": "FunctionType LambdaType CodeType",
    # They import what their text names.
    "python.dynamic_import": "import_optional_dependency import_item",
    "python.dynamic_attribute": "__match_args__",
    "python.frames": """
        gi_frame cr_frame ag_frame tb_frame f_builtins f_globals f_locals f_back f_code gi_code
        cr_code ag_code gi_yieldfrom cr_await""",
    "python.code_access": "__code__ func_code co_code co_consts co_names cell_contents",
    "python.loaders": """
        __loader__ __spec__ meta_path path_hooks""",
    "python.load_file": "exec_module create_module",
    "python.ipython_hooks": """
        input_transformers_post input_transformers_cleanup ast_transformers set_custom_exc""",
    # Of an event loop, or of asyncio.
    "python.process": """
        subprocess_shell subprocess_exec create_subprocess_shell create_subprocess_exec""",
    "python.ipython_internals": "do_execute",  # of a kernel
    "javascript.any": "_repr_javascript_",
}
ATTRIBUTES: Final[Mapping[str, str]] = {
    name: rule for rule, names in _ATTRIBUTES_BY_RULE.items() for name in names.split()
}
# The types of functions and of code. To make one is grave, to ask for one is not.
CODE_TYPES: Final = frozenset({"FunctionType", "LambdaType", "CodeType"})
# A value in a closure is a variable's: to set one changes no code.
CODE_PARTS: Final = frozenset(_ATTRIBUTES_BY_RULE["python.code_access"].split()) - {"cell_contents"}
# Those that are no everyday words. The name of the shell's function leads to it in any namespace.
ATTRIBUTES_IN_TEXT: Final[Mapping[str, str]] = {
    "get_ipython": "python.ipython_internals",
    **{name: rule for name, rule in ATTRIBUTES.items() if "_" in name},
}
# Where a text is known to name an attribute. As an attribute, `_ip` is many a class's own.
ATTRIBUTES_BY_NAME: Final[Mapping[str, str]] = {"_ip": "python.ipython_internals", **ATTRIBUTES}
# The name, file and line of running code, as logs have them: nothing leads on from these.
CODE_FACTS: Final = frozenset({"co_name", "co_filename", "co_firstlineno"})
FRAME_FACTS: Final = frozenset({"f_lineno"})
TO_FRAMES: Final = frozenset({"tb_frame", "f_back", "tb_next", "gi_frame", "cr_frame", "ag_frame"})
# What leads from one thing to others, if more is taken of it than facts.
LEADING: Final = frozenset({*ATTRIBUTES, "_getframe"}) - {"mro"}

# IPython's shell -----------------------------------------------------------------------------------

SHELL: Final = "get_ipython()"
# The kernel, which has the shell; every channel between a widget and the page has it in turn.
KERNEL: Final = f"{SHELL}.kernel"
COMMS: Final = (".comm", ".Comm()", "create_comm()", "get_comm_manager()")
GIVES_SHELL: Final = _words(
    """get_ipython IPython.get_ipython IPython.core.getipython.get_ipython
    IPython.core.interactiveshell.InteractiveShell.instance
    IPython.InteractiveShell.instance ipykernel.zmqshell.ZMQInteractiveShell.instance"""
)
SHELL_ITSELF: Final = GIVES_SHELL | {SHELL}
SHELL_CLASSES: Final = ("InteractiveShell", "ZMQInteractiveShell")
SHELL_RUNS_COMMAND: Final = frozenset(
    {"system", "system_piped", "system_raw", "getoutput", "getoutput_pexpect"}
)
SHELL_RUNS_CODE: Final = frozenset(
    {"run_cell", "run_cell_async", "run_code", "ex", "ev", "runcode", "_run_cell", "var_expand"}
)
SHELL_RUNS_MAGIC: Final = frozenset(
    {"run_line_magic", "run_cell_magic", "magic", "_run_line_magic"}
)
SHELL_HOOKS: Final = _words(
    """events set_hook set_custom_exc input_transformers_post input_transformers_cleanup input_transformer_manager
    ast_transformers prefilter_manager alias_manager extension_manager builtin_trap display_trap
    register_post_execute set_custom_completer safe_execfile safe_execfile_ipy safe_run_module
    custom_exceptions excepthook showtraceback hooks compile mktempfile autocall"""
)
SHELL_HARMLESS: Final = _words(
    """config display_formatter has_trait colors set_next_input show_usage user_ns execution_count
    enable_matplotlib enable_pylab enable_gui banner1"""
)
# The shell's parts have it under these names, `exit` and `quit` too.
BACK_TO_SHELL: Final = frozenset({"parent", "shell", "_ip"})

SHELL_RUNS: Final = SHELL_RUNS_COMMAND | SHELL_RUNS_CODE | SHELL_RUNS_MAGIC
SHELL_KNOWN: Final = SHELL_RUNS | SHELL_HARMLESS

# What is shown -------------------------------------------------------------------------------------

DISPLAY_MODULES: Final = ("IPython.display", "IPython.core.display", "IPython.lib.display")
# A widget whose value is markup.
WIDGET_MODULES: Final = ("ipywidgets", "ipywidgets.widgets", "ipywidgets.widgets.widget_string")
MARKUP_WIDGETS: Final = frozenset({"HTML", "HTMLMath"})
SHOWING: Final = ("IPython.", "ipywidgets.")
SHOWS: Final[Mapping[str, str]] = {
    "Javascript": "javascript",
    "HTML": "markup",
    "SVG": "markup",
    "display_javascript": "javascript",
    "display_html": "markup",
    "display_svg": "markup",
}


def star_names(module: str) -> list[str]:
    """What matters of ``from module import *``."""
    if module in DISPLAY_MODULES:
        return list(SHOWS)
    if module in WIDGET_MODULES:
        return list(MARKUP_WIDGETS)
    split = (name.rpartition(".") for name in EXACT)
    return [last for base, _, last in split if base == module]


# Commands ------------------------------------------------------------------------------------------

# Their first argument is read by a shell.
SHELL_TEXT: Final = _words(
    """os.system os.popen posix.system posix.popen os.popen2 os.popen3 os.popen4 subprocess.getoutput
    subprocess.getstatusoutput commands.getoutput commands.getstatusoutput
    asyncio.create_subprocess_shell asyncio.subprocess.create_subprocess_shell platform.popen
    pexpect.run IPython.utils.process.system IPython.utils.process.getoutput
    IPython.utils._process_common.getoutput IPython.utils._process_common.getoutputerror
    IPython.utils._process_common.get_output_error_code"""
)
# Read by a shell if asked to; otherwise a program, or a list that begins with one.
SUBPROCESS: Final = _words(
    """subprocess.run subprocess.Popen subprocess.call subprocess.check_call subprocess.check_output"""
)
# A program and its arguments: at this position, and whether they are a list or follow each other.
_KINDS: Final = ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")
PROGRAMS: Final[Mapping[str, tuple[int, bool]]] = {
    "pty.spawn": (0, True),
    "asyncio.create_subprocess_exec": (0, False),
    "asyncio.subprocess.create_subprocess_exec": (0, False),
    **{f"os.exec{kind}": (1, kind.startswith("v")) for kind in _KINDS},
    **{f"os.spawn{kind}": (2, kind.startswith("v")) for kind in _KINDS},
    "os.posix_spawn": (1, True),
    "os.posix_spawnp": (1, True),
    "posix.posix_spawn": (1, True),
    "posix.posix_spawnp": (1, True),
    "posix.execv": (1, True),
    "posix.execve": (1, True),
}
# Programs that run another one, or code, named by their arguments.
RUNS_ANOTHER: Final = _words(
    """sh bash dash zsh ksh fish env sudo su doas nohup timeout nice xargs find busybox python python3
    perl ruby node ssh exec command setsid stdbuf time watch parallel awk"""
)

# Text ----------------------------------------------------------------------------------------------

SENSITIVE_PATH: Final = re.compile(
    r"""
    /etc/(?:passwd|shadow|gshadow|sudoers|ssh|crontab|cron\.|security|krb5\.keytab|ssl/private)
    | (?:^|/)\.(?:ssh|aws|gnupg|kube|docker|azure|netrc|pgpass|git-credentials|npmrc|pypirc)(?:/|$)
    | (?:^|/)\.(?:bash_history|bashrc|bash_profile|bash_logout|profile|zshrc|zsh_history)$
    | (?:^|/)\.env(?:\.(?:local|prod(?:uction)?|dev(?:elopment)?|staging|test))?$
    | (?:^|/)(?:\.\./){2,}(?:etc|proc|sys|root|boot|dev)(?:/|$)
    | ^[/~].*/\.\./(?:etc|proc|sys|root|boot|dev)(?:/|$)
    | (?:^|/)\.config/(?:gcloud|autostart|systemd) | /\.jupyter(?:/|$)
    | (?:^|/)(?:id_(?:rsa|dsa|ecdsa|ed25519)|authorized_keys|known_hosts)(?:\.pub)?$
    | /proc/(?:self|thread-self|\d+)/(?:environ|mem|maps|root|fd|ns|auxv)
    | /proc/(?:kcore|kallsyms|sysrq-trigger|sys/) | /sys/(?:kernel|fs/cgroup|firmware)
    | /dev/(?:mem|kmem|sd[a-z]|nvme|vd[a-z]|kvm|fuse|tcp/|udp/)
    | ^/root/\.\w | /var/(?:run/docker|run/secrets|spool/cron|log/auth|lib/docker)
    | /run/(?:docker|secrets|containerd) | docker\.sock$ | ^/boot(?:/|$)
    """,
    re.VERBOSE,
)
SYSTEM_PATH: Final = re.compile(
    r"^/(?:s?bin|boot|dev|etc|lib(?:32|64)?|proc|sys|usr|var|root|run|srv|app|opt|home|mnt|media)(?:/|$)"
)
EVERYDAY_PATH: Final = re.compile(
    r"^/(?:(?:usr/|usr/local/)?s?bin/[\w.+-]+$|dev/(?:null|u?random|std\w+|shm)|usr/(?:share/(?:fonts|dict|zoneinfo)|local)"
    r"|opt/(?:conda|local)|var/(?:tmp|folders)|home/\w+/\w|mnt/\w+/\w|media/\w+/\w)"
)
PATH_TRAVERSAL: Final = re.compile(r"(?:^|/)(?:\.\./){2,}")
METADATA_ADDRESS: Final = re.compile(
    r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal|fd00:ec2::254|100\.100\.100\.200"
    r"|0xa9fea9fe|2852039166",
    re.IGNORECASE,
)
LOCAL_ADDRESS: Final = re.compile(
    r"(?:^|//|@)(?:127\.\d+\.\d+\.\d+|localhost|0\.0\.0\.0|\[?::1\]?)(?:[:/]|$)", re.IGNORECASE
)
# `{self.__class__.__name__}` is how classes are shown, and leads nowhere.
FORMAT_WALK: Final = re.compile(
    r"\{\w*(?:\.\w+|\[[^\[\]{}]*\])*?(?:"
    r"\.__(?!(?:class|name|qualname|doc|version|module)__)\w+__"
    r"|\.(?:gi_frame|gi_code|cr_frame|cr_code|ag_frame|ag_code|tb_frame|tb_next"
    r"|f_(?:back|builtins|code|globals|locals))\b|\[__\w+__\])"
)
# A call through what Python calls `@name`; in quotes it is data, such as an address.
QUERY_ESCAPE: Final = re.compile(r"@\s*\w+(?:\s*\.\s*\w+)+\s*\(|__\w+__")
QUERY_NAMES: Final = re.compile(r"`[^`]*`")  # of columns that Python could not spell
QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
