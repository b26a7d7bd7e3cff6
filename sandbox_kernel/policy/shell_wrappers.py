"""Commands that run other commands: what is inside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from sandbox_kernel.policy import shell_sed
from sandbox_kernel.policy.shell_words import UNKNOWN, filled, name_set


class Inside(NamedTuple):
    """What a wrapper runs: words, or text that a shell will read."""

    words: list[str]
    text: str | None = None
    is_usual: bool = False  # what that option is there for, so that it is no surprise


class _Form(NamedTuple):
    with_value: str  # options that take the next word
    skip: int = 0  # words before the command
    assignments: bool = False  # VAR=x may precede the command


WRAPPERS: Final = {
    "sudo": _Form("-u -g -h -p -C -r -t -T -D -R -U --user --group", 0, True),
    "doas": _Form("-u -C", 0, True),
    "env": _Form("-u -C -S --unset --chdir", 0, True),
    "nohup": _Form(""),
    "time": _Form("-f -o --format --output"),
    "timeout": _Form("-s -k --signal --kill-after", 1),
    "gtimeout": _Form("-s -k", 1),
    "nice": _Form("-n --adjustment"),
    "ionice": _Form("-c -n -p"),
    "xargs": _Form("-I -n -P -L -s -d -E -a --max-args --max-procs --delimiter --arg-file"),
    "parallel": _Form("-j -a -N -n --jobs --colsep --joblog --arg-file"),
    "exec": _Form("-a"),
    "command": _Form(""),
    "builtin": _Form(""),
    "coproc": _Form(""),
    "busybox": _Form(""),
    "toybox": _Form(""),
    "setsid": _Form(""),
    "stdbuf": _Form("-i -o -e"),
    "unbuffer": _Form(""),
    "chroot": _Form("", 1),
    "watch": _Form("-n --interval -d"),
    "strace": _Form("-o -e -p -s -u"),
    "ltrace": _Form("-o -e -p -s -u"),
    "gdb": _Form("-ex -x"),
    "xvfb-run": _Form("-s -n -e -f -p -w"),
    "mpirun": _Form("-n -np -H --hostfile -c"),
    "mpiexec": _Form("-n -np -H"),
    "taskset": _Form("", 1),
    "chrt": _Form("", 1),
    "prlimit": _Form(""),
    "flock": _Form("-w -E", 1),
    "unshare": _Form("-S -G --setuid --setgid"),
    "nsenter": _Form("-t --target -S -G"),
    "systemd-run": _Form("-p -u --unit"),
    "firejail": _Form(""),
    "runuser": _Form("-u -g"),
    "setpriv": _Form(""),
    "capsh": _Form(""),
    "eatmydata": _Form(""),
    "fakeroot": _Form(""),
    "proxychains": _Form("-f"),
    "torsocks": _Form(""),
    "pkexec": _Form("--user"),
    "ld.so": _Form(""),
    "ld-linux-x86-64.so.2": _Form("--library-path"),
    "conda": _Form("-n -p --name --prefix", 1),
    "uv": _Form("--with --python -p", 1),
    "poetry": _Form("", 1),
}
_RUNS_BY_VERB: Final = {"conda": "run", "mamba": "run", "uv": "run", "poetry": "run"}
_TEXT_OPTIONS: Final = {
    **{"su": ("-c", "--command"), "runuser": ("-c", "--command"), "script": ("-c", "--command")},
    **{"flock": ("-c", "--command"), "watch": (), "env": ("-S", "--split-string")},
}
_SSH_WITH_VALUE: Final = name_set("-p -i -l -o -L -R -D -F -J -b -c -e -m -W -w")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_HIDDEN: Final = {
    "tar": re.compile(r"--(checkpoint-action=exec|to-command|use-compress-program|rsh-command)=?(.*)|-I(.+)"),
    "rsync": re.compile(r"(-e|--rsh)=?(.*)"),
    "zip": re.compile(r"(-TT|--unzip-command)=?(.*)"),
    "vim": re.compile(r"(\+|-c)?\s*:?!(.*)"),
    "vi": re.compile(r"(\+|-c)?\s*:?!(.*)"),
    "git": re.compile(
        r"(core\.(?:pager|editor|sshCommand|fsmonitor|hooksPath)|alias\.\w+|--upload-pack|ext)(?:=!?|::)(.*)"
    ),
    "man": re.compile(r"(-P|--pager)=?(.*)"),
    "ssh": re.compile(r"(?:-o)?(ProxyCommand|LocalCommand)[= ](.*)", re.IGNORECASE),
    "wget": re.compile(r"(--use-askpass)=(.*)"),
}  # fmt: skip


# What packs archives, and what shows a page of a manual.
_USUAL: Final = re.compile(
    r"(?:(?:un)?(?:zstd(?:mt)?|xz|lz4|lzma|lzip|brotli)|p?gzip|gunzip|pigz|unpigz|[lp]?bzip2|[lp]?bunzip2"
    r"|pixz|plzip|cat|less|more)(?: -[\w=-]+)*"
)


def insides(name: str, args: list[str], stdin: str | None) -> Iterator[Inside]:
    """What this command runs in turn, nearest first; nothing if it is no wrapper."""
    if name == "find":
        yield from _found(args)
    elif name == "ssh":
        rest = _after_options(args, _SSH_WITH_VALUE, 1)
        if rest:
            yield Inside([], " ".join(rest))
    elif name in ("eval", "alias", "trap"):
        yield from _texts(name, args)
    elif name in WRAPPERS or name in _TEXT_OPTIONS:
        yield from _wrapped(name, args, stdin)
    if name == "sed":
        for text in shell_sed.run_by(args):
            yield Inside([], text)
    elif pattern := _HIDDEN.get(name):
        for first, second in zip(args, [*args[1:], ""], strict=False):
            if (match := pattern.match(first)) and (name != "tar" or "-I" not in first[:2]):
                text = match[match.lastindex or 0] or second
                yield Inside([], text, _USUAL.fullmatch(text) is not None)


def is_wrapper(name: str) -> bool:
    """Whether the next plain word is a command as well."""
    return name in WRAPPERS and name not in _RUNS_BY_VERB


def is_hidden(name: str) -> bool:
    """Whether nobody expects this tool to run another."""
    return name == "sed" or (name in _HIDDEN and name != "ssh")


def _texts(name: str, args: list[str]) -> Iterator[Inside]:
    if name == "eval":
        args = args[1:] if args[:1] == ["--"] else args
        if args:
            yield Inside([], " ".join(args))
    elif name == "trap":
        if len(args) > 1 and args[0] not in ("-", "-p", "-l", ""):
            yield Inside([], args[0])
    else:
        for arg in args:
            if "=" in arg:
                yield Inside([], arg.partition("=")[2])


def _wrapped(name: str, args: list[str], stdin: str | None) -> Iterator[Inside]:
    for option in _TEXT_OPTIONS.get(name, ()):
        for index, arg in enumerate(args):
            if arg == option and index + 1 < len(args):
                yield Inside([], args[index + 1])
            elif option.startswith("--") and arg.startswith(option + "="):
                yield Inside([], arg.partition("=")[2])
    form = WRAPPERS.get(name)
    if form is None or (name == "command" and args[:1] in (["-v"], ["-V"])):
        return
    if name in _RUNS_BY_VERB and _RUNS_BY_VERB[name] not in args[:1]:
        return
    rest = _after_options(args, frozenset(form.with_value.split()), form.skip)
    if name in _RUNS_BY_VERB:
        rest = _after_options(rest, frozenset(form.with_value.split()), 0)
    while form.assignments and rest and _ASSIGNMENT.fullmatch(rest[0]):
        rest = rest[1:]
    if name in ("xargs", "parallel"):
        rest = _with_input(rest, args, stdin)
    if name in ("watch", "parallel") and rest:
        yield Inside([], " ".join(rest))
    elif rest:
        yield Inside(rest)


def _with_input(rest: list[str], args: list[str], stdin: str | None) -> list[str]:
    """The command of ``xargs`` with what it reads, in place of ``{}`` or at the end."""
    if ":::" in rest:
        at = rest.index(":::")
        rest, stdin = rest[:at], " ".join(rest[at + 1 :])
    given = stdin.split() if stdin is not None else [UNKNOWN]
    mark = next((args[i + 1] for i, arg in enumerate(args[:-1]) if arg == "-I"), "{}")
    if any(mark in word for word in rest):
        return [filled(word, mark, " ".join(given)) for word in rest]
    return rest + given[:100] if rest else []


def _found(args: list[str]) -> Iterator[Inside]:
    places = [arg for arg in args if not arg.startswith("-")][:1]
    words: list[str] | None = None  # of the command that is open
    for arg in [*args, ";"]:
        if words is None:
            words = [] if arg in ("-exec", "-execdir", "-ok", "-okdir") else None
        elif arg not in (";", "+"):
            words.append(filled(arg, "{}", places[0] if places else "."))
        else:
            if words:
                yield Inside(words)
            words = None


def _after_options(args: list[str], with_value: frozenset[str], skip: int) -> list[str]:
    index = 0
    while index < len(args):
        arg = args[index]
        if arg == "--":
            index += 1
            break
        if not arg.startswith("-") or arg == "-":
            break
        index += 2 if arg in with_value else 1
    return args[index + skip :]
