"""The rules that one simple command breaks, by its name and its words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from sandbox_kernel.policy import shell_paths
from sandbox_kernel.policy.shell_words import DOWNLOADERS, SYSTEM_PATH, is_known, name_set

_BY_NAME: Final[dict[str, str]] = {
    name: rule
    for rule, bearers in {
        "shell.network": "nc ncat netcat nmap telnet ssh scp sftp ftp tftp tcpdump tshark socat rsh "
        "rlogin masscan hping3 arping ngrok cloudflared tor dig nslookup host whois proxychains "
        "torsocks sshfs rclone iperf iperf3",
        "shell.sudo": "sudo su doas pkexec runuser",
        "shell.privilege": "mount umount insmod modprobe rmmod nsenter "
        "unshare chroot setcap capsh setpriv docker podman nerdctl ctr kubectl pivot_root "
        "bwrap visudo ptrace gdb newgrp sg",
        "shell.users": "useradd adduser userdel deluser usermod groupadd groupdel groupmod passwd "
        "chpasswd chsh chfn vipw gpasswd",
        "shell.kill": "pkill killall killall5 skill xkill",
        "shell.system_control": "shutdown reboot halt poweroff init telinit systemctl service initctl "
        "iptables ip6tables nft ufw firewall-cmd sysctl crontab at batch ifconfig route "
        "hostnamectl timedatectl swapoff kexec dmesg auditctl setenforce update-rc.d chkconfig",
        "shell.device": "fdisk sfdisk parted wipefs mkswap losetup cryptsetup lvremove vgremove "
        "pvremove hdparm mke2fs debugfs blkdiscard badblocks mknod",
        "shell.cover_tracks": "shred wipe srm",
        "shell.install": "yum dnf apk pacman zypper brew snap flatpak easy_install gem cargo cpan "
        "dpkg rpm",
    }.items()
    for name in bearers.split()
}
_BY_NAME.update(dict.fromkeys(DOWNLOADERS - {"ftp", "tftp", "sftp", "scp"}, "shell.download"))
_INSTALLERS: Final = {
    **dict.fromkeys(name_set("pip pip3 conda mamba micromamba uv pipx apt apt-get aptitude poetry"),
                    "install upgrade dist-upgrade full-upgrade update add sync create build-dep"),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), "install i add ci exec"),
    **dict.fromkeys(["go", "cargo", "gem", "brew", "R"], "install get"),
}  # fmt: skip
_HARMLESS_INSTALLERS: Final = frozenset({"cargo", "gem", "brew", "rpm", "dpkg"})
_RUNNERS: Final = frozenset({"npx", "bunx", "pnpx", "uvx"})
_HOOKS: Final = re.compile(
    r"(LD_(PRELOAD|LIBRARY_PATH|AUDIT)|DYLD_\w+|BASH_ENV|ENV|PROMPT_COMMAND|PYTHON(STARTUP|HOME|INSPECT|BREAKPOINT)"
    r"|PERL5(LIB|OPT)|RUBYOPT|NODE_OPTIONS|GIT_(SSH(_COMMAND)?|EXTERNAL_DIFF|PAGER)|PAGER|IFS|PATH)"
)
_PROMPTS: Final = re.compile(r"PS[0-4]")  # bash runs the commands in them
# Ordinary in notebooks that set up a driver or a tool; only what points to a place anybody writes
# to counts.
_MILD_HOOKS: Final = frozenset({"LD_LIBRARY_PATH", "PATH", "IFS", "PAGER", "ENV"})
_AWK_RUNS: Final = re.compile(r"system\s*\(|\|\s*getline|/inet/|\|&")
_AWK_PRINTS: Final = re.compile(r"\|\s*\"")
_SCRIPT_OPTIONS: Final = {
    **{"perl": "eE", "ruby": "e", "php": "r", "lua": "e", "Rscript": "e", "R": "e"},
    **{"julia": "eE", "tclsh": "", "osascript": "e", "pwsh": "c", "powershell": "c", "octave": "e"},
    **{
        "groovy": "e",
        "scala": "e",
        "guile": "c",
        "ghc": "e",
        "expect": "c",
        "gawk": "",
        "sqlite3": "",
    },
}
_CODE_WORDS: Final = re.compile(
    r"fsockopen|TCPSocket|socket|dup2|subprocess|pty|child_process|spawn|exec|system|popen|\bnet\b|"
    r"/bin/(?:ba|z|da)?sh",
    re.IGNORECASE,
)
_NEAR: Final = 2000


def is_reverse_shell_code(code: str) -> bool:
    """Whether a one-liner of some language ties a socket to a shell."""
    socket = net = starts = -_NEAR - 1  # where the last of each ends
    for match in _CODE_WORDS.finditer(code[:20_000]):
        word, at = match[0].lower(), match.start()
        if word in ("fsockopen", "tcpsocket"):
            return True
        if word == "socket":
            socket = match.end()
        elif word == "net":
            if at - starts <= _NEAR:
                return True
            net = match.end()
        else:
            near_net = word in ("child_process", "/bin/sh", "/bin/bash") and at - net <= _NEAR
            if near_net or (at - socket <= _NEAR and word != "child_process"):
                return True
            if word in ("child_process", "spawn", "exec"):
                starts = match.end()
    return False


def assigned(name: str, value: str) -> str | None:
    """The rule that an assignment breaks."""
    if _PROMPTS.fullmatch(name):
        runs = "$(" in value or "`" in value or not is_known(value)
        return "shell.environment_hook" if runs else None
    if not _HOOKS.fullmatch(name):
        return None
    if name in _MILD_HOOKS:
        first = value.split(":")[0]
        return (
            "shell.environment_hook"
            if first in ("", ".", "./", "/tmp", "/dev/shm") and name == "PATH"
            else None
        )
    return "shell.environment_hook"


def changes_programs(name: str, value: str) -> bool:
    """Whether a name may stand for another program from here on than the system's own."""
    if name == "LD_LIBRARY_PATH":
        return bool(value)
    if name != "PATH" or value == SYSTEM_PATH or value.startswith(f"{SYSTEM_PATH}:"):
        return False
    return not all(map(shell_paths.is_system_folder, value.split(":")))


def broken(name: str, args: list[str]) -> Iterator[str]:
    """The rules that this command breaks."""
    if name.startswith("mkfs"):
        yield "shell.device"
    elif (rule := _BY_NAME.get(name)) and name not in _HARMLESS_INSTALLERS:
        yield rule
    if check := _CHECKS.get(name):
        yield from check(args)
    if name in _INSTALLERS and any(arg in _INSTALLERS[name].split() for arg in args[:6]):
        yield "shell.install"
    if name in _RUNNERS:
        yield "shell.install"
    if name in _SCRIPT_OPTIONS:
        yield from _other_language(name, args)


def _plain(args: list[str]) -> list[str]:
    if "--" in args:
        at = args.index("--")
        return [arg for arg in args[:at] if not arg.startswith("-")] + args[at + 1 :]
    return [arg for arg in args if not arg.startswith("-")]


def _flags(args: list[str]) -> str:
    """The letters of all short options."""
    return "".join(arg[1:] for arg in args if arg.startswith("-") and not arg.startswith("--"))


def _rm(args: list[str]) -> Iterator[str]:
    targets = _plain(args)
    recursive = bool(set(_flags(args)) & {"r", "R"}) or "--recursive" in args
    # `rm *` and `rm ./*` clear the directory's files: usual in a notebook's clean-up.
    vital = [path for path in targets if shell_paths.is_vital(path)]
    absolute = any(path.startswith(("/", "~/.")) for path in vital)
    if "--no-preserve-root" in args or absolute or (vital and recursive):
        yield "shell.delete_system"
    elif recursive:
        yield "shell.delete_recursive"
    if any(shell_paths.written(path) == "shell.cover_tracks" for path in targets):
        yield "shell.cover_tracks"


def _find(args: list[str]) -> Iterator[str]:
    if "-delete" in args:
        vital = any(shell_paths.is_vital(path) and path != "." for path in args[:1])
        yield "shell.delete_system" if vital else "shell.delete_recursive"
    if {"-perm", "-suid"} & set(args) and any("4000" in arg or "u=s" in arg for arg in args):
        yield "shell.privilege"


def _writes(args: list[str]) -> Iterator[str]:
    for path in _plain(args):
        if rule := shell_paths.written(path):
            yield rule


def _copies(args: list[str]) -> Iterator[str]:
    """``cp a b``: only the last is written; ``mv`` takes the others away too, see below."""
    plain = _plain(args)
    target = [args[i + 1] for i, arg in enumerate(args[:-1]) if arg in ("-t", "-C", "-d", "-P")]
    for path in target + plain[-1:] if len(plain) > 1 else target:
        if rule := shell_paths.written(path):
            yield rule


def _moves(args: list[str]) -> Iterator[str]:
    yield from _copies(args)
    plain = _plain(args)
    if any(shell_paths.is_vital(path) and path not in ("*", "./*") for path in plain[:-1]):
        yield "shell.delete_system"
    if plain[-1:] == ["/dev/null"]:
        yield "shell.delete_recursive"


def _dd(args: list[str]) -> Iterator[str]:
    for arg in args:
        key, _, path = arg.partition("=")
        if key == "of" and (rule := shell_paths.written(path)):
            yield rule


def _sed(args: list[str]) -> Iterator[str]:
    if "i" in _flags(args)[:3] or any(arg.startswith("--in-place") for arg in args):
        yield from _writes(args[1:])


def _truncate(args: list[str]) -> Iterator[str]:
    yield from _writes(args)


def _chmod(args: list[str]) -> Iterator[str]:
    plain = _plain(args)
    mode = plain[0] if plain else ""
    if re.fullmatch(r"0?[2467]\d{3}|[ugoa]*[+=][rwx]*s[rwxst]*", mode):
        yield "shell.privilege"
    open_to_all = r"0?\d?[0-7]?[0-7][2367]|(a|o|ugo|[ugoa]*[oa][ugoa]*)[+=][rx]*w[rwx]*"
    recursive = "R" in _flags(args) or "--recursive" in args
    if recursive or re.fullmatch(open_to_all, mode):
        yield "shell.permissions"
    if any(shell_paths.written(path) == "shell.system_write" for path in plain[1:]):
        yield "shell.system_write"


def _chown(args: list[str]) -> Iterator[str]:
    plain = _plain(args)
    if plain and re.match(r"(root|0)(:|$)|:(root|0)$", plain[0]):
        yield "shell.privilege"
    if "R" in _flags(args) or "--recursive" in args:
        yield "shell.permissions"


def _kill(args: list[str]) -> Iterator[str]:
    # `kill -9 $pid` ends one's own process; -1 is everybody's and 1 the first.
    targets = (
        args[1:] if args[:1] and re.match(r"-(\d|[A-Z]|s$|n$)", args[0]) and len(args) > 1 else args
    )
    if any(target in ("-1", "1", "0") for target in targets):
        yield "shell.kill"


def _curl(args: list[str]) -> Iterator[str]:
    uploads = {"-T", "--upload-file", "-F", "--form", "--post-file", "--body-file"}
    data = {"-d", "--data", "--data-binary", "--data-raw", "--data-urlencode", "--post-data"}
    for option, value in zip(args, [*args[1:], ""], strict=False):
        key, _, inline = option.partition("=")
        value = inline or value
        if key in uploads or (key in data and re.search(r"(^|=)@|\ufdd0", value)):
            yield "shell.upload"
        if option in ("-o", "--output", "-O", "--output-document", "-P", "--directory-prefix") and (
            rule := shell_paths.written(value)
        ):
            yield rule


def _nc(args: list[str]) -> Iterator[str]:
    if set(_flags(args)) & {"e", "c"} or "--exec" in args or "--sh-exec" in args:
        yield "shell.reverse_shell"


def _socat(args: list[str]) -> Iterator[str]:
    if any(re.match(r"(exec|system):", arg, re.IGNORECASE) for arg in args):
        yield "shell.reverse_shell"


def _history(args: list[str]) -> Iterator[str]:
    if set(_flags(args)) & {"c", "w", "d"}:
        yield "shell.cover_tracks"


def _unset(args: list[str]) -> Iterator[str]:
    if any(arg in ("HISTFILE", "HISTSIZE", "HISTCONTROL") for arg in args):
        yield "shell.cover_tracks"


def _env(args: list[str]) -> Iterator[str]:
    if not _plain(args):
        yield "shell.environment"


def _git(args: list[str]) -> Iterator[str]:
    if "config" in args[:3] and len(_plain(args)) > 2 and "--get" not in args and "-l" not in args:
        yield "shell.git_config"
    if "push" in args[:4]:
        yield "shell.upload"
    if "clean" in args[:3] and {"f", "d"} <= set(_flags(args)):
        yield "shell.delete_recursive"
    if {"clone", "fetch", "pull"} & set(args[:6]):
        yield "shell.download"


def _python(args: list[str]) -> Iterator[str]:
    if "-m" in args and (module := args[args.index("-m") + 1 :][:1]):
        rest = args[args.index("-m") + 2 :]
        if module[0] in ("pip", "conda", "pipx", "ensurepip") and (
            {"install", "download"} & set(rest) or module[0] == "ensurepip"
        ):
            yield "shell.install"
        if module[0] in ("http.server", "SimpleHTTPServer", "smtpd", "ftplib", "telnetlib", "pty"):
            yield "shell.network"


def _other_language(name: str, args: list[str]) -> Iterator[str]:
    letters = _SCRIPT_OPTIONS[name]
    for option, value in zip(args, [*args[1:], ""], strict=False):
        if letters and re.fullmatch(rf"-\w*[{letters}]|--eval|--execute|-Command|-command", option):
            yield "shell.other_language"
            if is_reverse_shell_code(value):
                yield "shell.reverse_shell"


def _awk(args: list[str]) -> Iterator[str]:
    if any(_AWK_RUNS.search(arg) or _awk_prints_to_a_command(arg) for arg in args):
        yield "shell.other_language"


def _awk_prints_to_a_command(program: str) -> bool:
    """``print x | "command"``."""
    for statement in re.split("[;}]", program):
        at = statement.find("print")
        if at >= 0 and _AWK_PRINTS.search(statement, at):
            return True
    return False


def _keys(args: list[str]) -> Iterator[str]:
    yield "shell.git_config"


def _unpack(args: list[str]) -> Iterator[str]:
    for option, value in zip(args, [*args[1:], ""], strict=False):
        if option in ("-C", "--directory", "-d") and (rule := shell_paths.written(value)):
            yield rule


_CHECKS: Final[dict[str, Callable[[list[str]], Iterator[str]]]] = {
    **{"rm": _rm, "rmdir": _rm, "unlink": _rm, "find": _find, "dd": _dd, "sed": _sed},
    **{"tee": _writes, "touch": _writes, "mkdir": _writes, "truncate": _truncate, "ed": _writes},
    **{"cp": _copies, "install": _copies, "ln": _copies, "rsync": _copies, "mv": _moves},
    **{"chmod": _chmod, "chown": _chown, "chgrp": _chown, "kill": _kill, "history": _history},
    **{"curl": _curl, "wget": _curl, "nc": _nc, "ncat": _nc, "netcat": _nc, "socat": _socat},
    **{"env": _env, "printenv": _env, "unset": _unset, "git": _git, "ssh-keygen": _keys},
    **{"ssh-copy-id": _keys, "ssh-add": _keys, "tar": _unpack, "unzip": _unpack, "shred": _rm},
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(("python", "python3", "python2"), _python),
}
