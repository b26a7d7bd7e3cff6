"""What an IPython magic does: the text that it carries on to a shell, to Python or to the page.

Every magic is reported by its name. Its arguments may hold Python, as ``{expression}`` and ``$name``,
whose values IPython puts in before the magic sees them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from sandbox_kernel.policy import shell_commands, shell_paths
from sandbox_kernel.policy.expansion import expressions
from sandbox_kernel.policy.shell_words import name_set
from sandbox_kernel.policy.verdict import Embedded, Hit, Language, Magic, Rule

RULES: Final[tuple[Rule, ...]] = (
    Rule("magic", "low", "it uses an IPython magic that the policy does not simply allow", "Write the same in plain Python, or have the operator list this magic", "separate_process"),
    Rule("magic.shell", "low", "it hands text to a shell", "Use Python where it can do the same", "host_files"),
    Rule("magic.alias", "medium", "it gives a command or a magic another name", "Use the plain name", "separate_process"),
    Rule("magic.autocall", "medium", "it has IPython make calls and commands of later lines that are none by their looks", "Write calls with brackets, and commands with !", "separate_process"),
    Rule("magic.other_language", "medium", "it runs code in a language that is not checked", "Write it in Python", "host_files"),
    Rule("magic.html", "low", "it puts markup into the page of the notebook", "Show text, a table or a plot", None),
    Rule("magic.run_file", "medium", "it runs a file that is not checked", "Import it, or paste it into a cell", "separate_process"),
    Rule("magic.load_code", "medium", "it loads code from elsewhere into the notebook", "Paste the code into a cell", "network"),
    Rule("magic.load_ext", "low", "it loads an extension, which may change how cells run", "Import the module that is needed", "separate_process"),
    Rule("magic.install", "low", "it installs software", "Ask for it to be installed beforehand", "network"),
    Rule("magic.write_file", "low", "it writes the cell to a file", "Define it in a cell", "host_files"),
    Rule("magic.write_script", "medium", "it writes a script or a program to a file", "Define it in a cell", "ephemeral"),
    Rule("magic.sensitive_path", "high", "it names a path that holds credentials, or that programs read when they start", "Write to /tmp, which ends with the kernel", "host_files"),
    Rule("magic.directory", "low", "it changes the working directory", "Use paths below the working directory", "host_files"),
    Rule("magic.environment", "low", "it shows the whole environment, which may hold secrets", "Read the one variable that is needed", "environment"),
    Rule("magic.environment_hook", "high", "it sets a variable that makes later programs load other code", "Set it for the one program that needs it", "host_files"),
    Rule("magic.history", "medium", "it runs or keeps what was typed before, which no check sees again", "Repeat the code in a cell", "ephemeral"),
    Rule("magic.pastebin", "high", "it publishes code on a public site", "Share the notebook", "network"),
    Rule("magic.config", "medium", "it changes settings of IPython", "Ask the operator", "separate_process"),
    Rule("magic.connection", "medium", "it shows or opens the way into the kernel", "Use the notebook", "separate_process"),
    Rule("magic.background", "low", "it leaves a process running after the cell", "Run it to its end", "processes"),
)  # fmt: skip

_Items = Iterator[Hit | Embedded]
_SHELLS: Final = name_set("bash sh zsh dash ksh ash fish shell")
_PYTHONS: Final = re.compile(r"(i?python|pypy)[\d.]*")
# The options of each magic that take a value; all others stand alone.
_VALUE_OPTIONS: Final = {
    "debug": name_set("-b --breakpoint"),
    "lprun": name_set("-f -m -D -T -u"),
    "memit": name_set("-r -t -i"),
    "mprun": name_set("-f -T"),
    "prun": name_set("-D -l -s -T"),
    "px": name_set("-t -g -o -e --targets --group-outputs --out --err"),
    "run": name_set("-N -b -D -l -s -T -m"),
    "timeit": name_set("-n -r -p -v"),
}
# Of the magics that run a program, anywhere in the line and shortened as one likes.
_SCRIPT_OPTION: Final = re.compile(
    r"(?<!\S)--(?:(?:o(?:ut?)?|e(?:rr?)?|p(?:r(?:oc?)?)?)(?:=\S*|\s+\S+|$)|(?:bg?|n[a-z-]*)(?!\S))\s*"
)
_SHELL_SETTING: Final = re.compile(r"-[euvx]+o?|pipefail")
_NO_RAISE: Final = re.compile(r"\s*--n[a-z-]*(?!\S)\s*")
# Their arguments reach them as they are.
_NOT_EXPANDED: Final = name_set("time timeit prun debug")
_BODY_EXPANDED: Final = name_set("! !! sx system")
_HOOKS: Final = re.compile(
    r"(LD_(PRELOAD|AUDIT)|DYLD_\w+|BASH_ENV|PYTHON(STARTUP|HOME|INSPECT)|PROMPT_COMMAND)\b"
)
_ASSIGNMENT: Final = re.compile(r"\s*(\w+)\s*[=\s]\s*[\"']?(\S+)")
_MOST_SCRIPTS: Final = 100
_DATA: Final = re.compile(r"type\s*=\s*.?(application|text)/((ld\+)?json|x-)", re.IGNORECASE)
_LOADS: Final = re.compile(r"<(iframe|object|embed|base|meta|form)\b|javascript:", re.IGNORECASE)
_HANDLER: Final = re.compile(
    r"""[\s"'/](on[a-z]{2,30})\s?=\s?("[^"]{0,9999}"|'[^']{0,9999}'|[^\s>"']{1,999})""",
    re.IGNORECASE,
)
_LINKER: Final = re.compile(r"data-commandlinker-command", re.IGNORECASE)
_REMOTE: Final = re.compile(r"\s*[\"']?(https?|ftp|file):", re.IGNORECASE)
_WORD: Final = re.compile(r"\S+")


class _Rest(NamedTuple):
    """A part of a magic's arguments, and where it begins in them."""

    text: str
    offset: int


def examine(magic: Magic) -> list[Hit | Embedded]:
    """The name, the rules that it breaks, and the texts that it carries."""
    items: list[Hit | Embedded] = [Hit("magic", magic.name, magic.line, magic.column)]
    items += _KINDS.get(magic.name, _unknown)(magic)
    items += _evaluated(magic)
    for word in re.split(r"[\s=\"']+", magic.arguments[:4096]):
        rule = shell_paths.sensitive(word) if word else None
        if rule not in (None, "shell.system_path") and magic.name != "dotenv":
            items.append(_hit(magic, "magic.sensitive_path", word))
    return list(dict.fromkeys(items))


def _hit(magic: Magic, rule: str, about: str = "") -> Hit:
    about = about or f"%{magic.name} {magic.arguments}".strip()
    about = about if len(about) <= 80 else about[:79] + "…"
    return Hit(rule, about, magic.line, magic.column)


def _arguments(magic: Magic, language: str, rest: _Rest | None = None) -> _Items:
    """The arguments, or the rest of them, as text of a language."""
    rest = rest or _Rest(magic.arguments, 0)
    if rest.text.strip():
        column = magic.column + _lead(magic) + rest.offset
        yield Embedded(_LANGUAGES[language], rest.text, magic.line, column)


def _body(magic: Magic, language: str) -> _Items:
    if magic.body is not None and magic.body.strip():
        yield Embedded(_LANGUAGES[language], magic.body, magic.line + 1, 0)


def _lead(magic: Magic) -> int:
    """The characters before the arguments."""
    if magic.name in ("!", "!!"):
        return len(magic.name)
    return len(magic.name) + (2 if magic.body is None else 3)


def _evaluated(magic: Magic) -> _Items:
    if magic.name not in _NOT_EXPANDED:
        for found in expressions(magic.arguments):
            column = magic.column + _lead(magic) + found.offset
            yield Embedded("python", found.text, magic.line, column)
    if magic.name in _BODY_EXPANDED and magic.body:
        for found in expressions(magic.body):
            line = magic.line + 1 + magic.body.count("\n", 0, found.offset)
            yield Embedded("python", found.text, line, 0)


def _after_options(magic: Magic) -> _Rest:
    """The arguments without the options in front."""
    with_value = _VALUE_OPTIONS.get(magic.name, frozenset())
    skip = False
    for match in _WORD.finditer(magic.arguments):
        word = match[0]
        if skip:
            skip = False
        elif word == "--":
            return _Rest(magic.arguments[match.end() :].lstrip(), match.end() + 1)
        elif word.startswith("-") and len(word) > 1:
            skip = _takes_next(word, with_value)
        else:
            return _Rest(magic.arguments[match.start() :], match.start())
    return _Rest("", len(magic.arguments))


def _takes_next(word: str, with_value: frozenset[str]) -> bool:
    """Whether an option, or the last of several in one word, takes the next word: ``-qn 3``."""
    if word.startswith("--"):
        return word in with_value
    valued = (index for index, letter in enumerate(word) if f"-{letter}" in with_value)
    return next(valued, None) == len(word) - 1


# Kinds of magics -------------------------------------------------------------------------------


def _unknown(magic: Magic) -> _Items:
    """Nothing is known of it: its body may be Python, and is read as such by no rule here."""
    return iter(())


def _shell(magic: Magic) -> _Items:
    yield _hit(magic, "magic.shell")
    rest = _after_options(magic) if magic.name == "sc" else None
    if magic.name == "sc" and rest is not None and "=" in rest.text:
        name, _, command = rest.text.partition("=")
        rest = _Rest(command, rest.offset + len(name) + 1)
    yield from _arguments(magic, "shell", rest)
    yield from _body(magic, "shell")


def _script(magic: Magic) -> _Items:
    """``%%bash --bg``, ``%%script bash -x``, ``%%python``: a program that reads the body."""
    words = magic.arguments.split()
    if "--bg" in words or "--b" in words:
        yield _hit(magic, "magic.background")
    rest = _SCRIPT_OPTION.sub("", magic.arguments).strip()
    if magic.name == "script":
        # The program is a command too.
        yield from _arguments(magic, "shell", _Rest(rest, max(magic.arguments.find(rest), 0)))
        program = next(iter(rest.split()), "")
        if program in ("env", "sudo", "nohup", "time", "/usr/bin/env"):
            program = next(iter(rest.split()[1:]), "")
        if program.startswith("{sys.executable"):
            program = "python"
        program = program.rpartition("/")[2]
    else:
        program = magic.name
        if not all(map(_SHELL_SETTING.fullmatch, rest.split())):
            yield Embedded("shell", f"{program} {rest}", magic.line, magic.column + 2)
    if program in _SHELLS:
        yield _hit(magic, "magic.shell")
        yield from _body(magic, "shell")
    elif program == "python2" or magic.name == "python2":
        yield _hit(magic, "magic.other_language")  # another Python than the one that is read here
    elif _PYTHONS.fullmatch(program):
        yield from _body(magic, "python")
    elif program in ("js", "javascript", "node", "nodejs"):
        yield from _body(magic, "javascript")
    elif program and program not in ("cat", "echo", "true", "false", "head", "tail", "wc", "sort"):
        yield _hit(magic, "magic.other_language")


def _python(magic: Magic) -> _Items:
    yield from _arguments(magic, "python", _after_options(magic))
    yield from _body(magic, "python")


def _time(magic: Magic) -> _Items:
    """What it does not know as an option is code: ``%time -f(x)``."""
    option = _NO_RAISE.match(magic.arguments)
    start = option.end() if option else 0
    yield from _arguments(magic, "python", _Rest(magic.arguments[start:], start))
    yield from _body(magic, "python")


def _python_body(magic: Magic) -> _Items:
    yield from _body(magic, "python")


def _profiled(magic: Magic) -> _Items:
    """``%lprun -f function statement``: the functions named are evaluated as well."""
    for match in re.finditer(r"-[fm]\s+(\S+)", magic.arguments):
        yield from _arguments(magic, "python", _Rest(match[1], match.start(1)))
    yield from _python(magic)


def _javascript(magic: Magic) -> _Items:
    yield from _arguments(magic, "javascript")
    yield from _body(magic, "javascript")


def _html(magic: Magic) -> _Items:
    yield _hit(magic, "magic.html")
    for item in examine_markup(magic.body or ""):
        yield item._replace(line=magic.line + item.line)


def _text(magic: Magic) -> _Items:
    """``%%latex`` and ``%%markdown`` show text, unless there is markup in it that does something."""
    for item in examine_markup(magic.body or ""):
        yield _hit(magic, "magic.html")
        yield item._replace(line=magic.line + item.line)


def examine_markup(text: str) -> _Items:
    """The scripts in markup, and what it does in the page without any."""
    scripts = list(islice(_scripts(text), _MOST_SCRIPTS))
    for attributes, start, script in scripts:
        line = 1 + text.count("\n", 0, start)
        column = start - (text.rfind("\n", 0, start) + 1)
        if re.search(r"\bsrc\s*=", attributes, re.IGNORECASE):
            yield Hit("javascript.remote_module", attributes.strip()[:80], line, column)
        if script.strip() and not _DATA.search(attributes):
            yield Embedded("javascript", script, line, column)
    handlers = list(islice(_HANDLER.finditer(text), _MOST_SCRIPTS))
    for match in handlers:
        line = 1 + text.count("\n", 0, match.start(2))
        yield Embedded("javascript", match[2].strip("\"'"), line, 0)
    if _MOST_SCRIPTS in (len(scripts), len(handlers)):
        yield Hit("javascript.unparseable", "too many scripts", 1, 0)
    if _LINKER.search(text):
        yield Hit("javascript.commands", "data-commandlinker-command", 1, 0)
    if _LOADS.search(text):
        yield Hit("javascript.inject", "markup that loads or sends", 1, 0)


def _scripts(text: str) -> Iterator[tuple[str, int, str]]:
    """The attributes, start and text of each script: roughly, but never more than once over it."""
    lower = text.lower() if text.isascii() else re.sub("[A-Z]", lambda m: m[0].lower(), text)
    at = 0
    while (tag := lower.find("<script", at)) >= 0:
        start = lower.find(">", tag) + 1
        if start == 0:
            return
        end = lower.find("</script", start)
        end = len(text) if end < 0 else end
        yield text[tag + 7 : start - 1], start, text[start:end]
        at = end


def _other(magic: Magic) -> _Items:
    yield _hit(magic, "magic.other_language")


def _run(magic: Magic) -> _Items:
    yield _hit(magic, "magic.run_file")
    if _REMOTE.search(_after_options(magic).text):
        yield _hit(magic, "magic.load_code")


def _load(magic: Magic) -> _Items:
    yield _hit(magic, "magic.load_code")


def _extension(magic: Magic) -> _Items:
    yield _hit(magic, "magic.load_ext", magic.arguments.strip())


def _install(magic: Magic) -> _Items:
    words = magic.arguments.split()
    if {"install", "download", "update", "upgrade", "create", "add", "sync"} & set(words[:4]):
        yield _hit(magic, "magic.install")
    # These run through a shell, and whatever follows a `;` with them.
    for item in _arguments(magic, "shell"):
        if isinstance(item, Embedded):
            yield item._replace(text=f"{magic.name} {item.text}", column=magic.column + 1)


def _write(magic: Magic) -> _Items:
    yield _hit(magic, "magic.write_file")
    target = _after_options(magic).text.strip().strip("\"'")
    if shell_paths.written(target) or shell_paths.sensitive(target) not in (
        None,
        "shell.system_path",
    ):
        yield _hit(magic, "magic.sensitive_path", target)
    body = magic.body or ""
    if target.endswith((".sh", ".bash", ".pth", ".service", ".desktop")) or body.startswith("#!"):
        yield _hit(magic, "magic.write_script", target)


def _directory(magic: Magic) -> _Items:
    yield _hit(magic, "magic.directory")


def _environment(magic: Magic) -> _Items:
    if not magic.arguments.strip():
        yield _hit(magic, "magic.environment")
    elif assignment := _ASSIGNMENT.match(magic.arguments):
        name, value = assignment.groups()
        # One folder more in the PATH is usual; one that anybody writes to is not.
        if _HOOKS.match(name) or (name == "PATH" and shell_commands.assigned(name, value)):
            yield _hit(magic, "magic.environment_hook")


def _history(magic: Magic) -> _Items:
    yield _hit(magic, "magic.history")


def _pastebin(magic: Magic) -> _Items:
    yield _hit(magic, "magic.pastebin")


def _config(magic: Magic) -> _Items:
    if "=" in magic.arguments:
        # What is right of the sign is evaluated.
        yield from _arguments(magic, "python", _Rest(magic.arguments.strip(), 0))
        if not re.match(r"\s*InlineBackend\.", magic.arguments):
            yield _hit(magic, "magic.config")
        if "autocall" in magic.arguments:
            yield _hit(magic, "magic.autocall")


def _alias(magic: Magic) -> _Items:
    parts = magic.arguments.split(None, 1)
    if len(parts) < 2:
        return  # shows one, or all
    yield _hit(magic, "magic.alias")
    if magic.name == "alias":
        yield from _arguments(magic, "shell", _Rest(parts[1], magic.arguments.index(parts[1])))


def _autocall(magic: Magic) -> _Items:
    """From then on ``f x`` is ``f(x)``, and with %rehashx any program's name is a command."""
    if magic.arguments.strip() != "0":
        yield _hit(magic, "magic.autocall")


def _plots(magic: Magic) -> _Items:
    """``%matplotlib module://name`` imports that module; IPython makes small letters of it first."""
    for word in magic.arguments.lower().split():
        _, is_module, name = word.strip("\"'").rpartition("module://")
        if is_module:
            yield _hit(magic, "python.import", name)


def _file_command(magic: Magic) -> _Items:
    """``%ls``, ``%rm`` and the like are aliases of shell commands."""
    command = {"ll": "ls", "lf": "ls", "lk": "ls", "ldir": "ls", "lx": "ls"}.get(
        magic.name, magic.name
    )
    yield Embedded("shell", f"{command} {magic.arguments}".strip(), magic.line, magic.column)


def _connection(magic: Magic) -> _Items:
    yield _hit(magic, "magic.connection")


_LANGUAGES: Final[dict[str, Language]] = {
    "python": "python",
    "shell": "shell",
    "javascript": "javascript",
}
_KINDS: Final[dict[str, Callable[[Magic], _Items]]] = {
    name: kind
    for kind, bearers in (
        (_shell, "! !! sx system sc"),
        (_script, "bash sh script shell zsh python python2 python3 pypy pypy3 perl ruby cmd"),
        (_time, "time"),
        (_python, "timeit prun memit debug px px0 autopx"),
        (_profiled, "lprun mprun"),
        (_python_body, "capture code_wrap"),
        (_javascript, "js javascript"),
        (_html, "html HTML svg SVG"),
        (_text, "latex markdown"),
        (_other, "R octave julia cython cython_inline cython_pyximport c cpp cuda fortran sql "
                 "bigquery matlab rust go writeto"),
        (_run, "run"),
        (_load, "load loadpy"),
        (_extension, "load_ext reload_ext install_ext"),
        (_install, "pip conda mamba micromamba uv"),
        (_write, "writefile file"),
        (_directory, "cd pushd popd"),
        (_environment, "env set_env"),
        (_history, "store macro rerun recall rep edit ed history hist save notebook logstart logon"),
        (_pastebin, "pastebin"),
        (_config, "config"),
        (_alias, "alias alias_magic"),
        (_autocall, "autocall rehashx"),
        (_file_command, "ls ll lf lk ldir lx cat cp mv rm rmdir mkdir man less more"),
        (_connection, "connect_info qtconsole"),
        (_plots, "matplotlib pylab"),
    )
    for name in bearers.split()
}  # fmt: skip
