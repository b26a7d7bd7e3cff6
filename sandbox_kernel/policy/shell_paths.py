"""Which paths a shell command or a magic had better leave alone."""

from __future__ import annotations

import posixpath
import re
from fnmatch import fnmatchcase
from typing import Final

from sandbox_kernel.policy.shell_words import UNKNOWN

_SECRET: Final = re.compile(
    r"""
    (^|/) (
        \.(ssh|aws|gnupg|kube|azure|netrc|pgpass|pypirc|git-credentials|password-store|boto|s3cfg
          |vault-token|(bash|zsh|sh|python|mysql|psql)_history|mozilla|my\.cnf|htpasswd)
      | \.env(\.(local|prod|production|dev|development|staging|test))?
      | \.docker/config\.json | \.config/(gcloud|gh|google-chrome|chromium)
      | id_(rsa|dsa|ecdsa|ed25519) | authorized_keys | application_default_credentials\.json
      | jupyter/runtime | jupyter_cookie_secret | jpserver-[^/]*\.json
    ) (/|$)
  | ^/etc/(passwd|shadow|gshadow|group|sudoers|master\.passwd|krb5\.keytab|ssl/private|ssh)[-.]?(/|$|d)
  | ^/(root/\.[^/]+|home/[^/]+/\.(ssh|aws)|run/secrets|var/run/secrets|var/lib/pam|var/spool/cron)(/|$)
  | ^/proc/(self|thread-self|\d+|[?*\[$].*|\ufdd0)/(environ|mem|maps|root|cwd|fd|ns|auxv|cmdline)(/|$)
  | ^/proc/(kcore|kallsyms|keys|key-users|sysrq-trigger)$
    """,
    re.VERBOSE,
)
_SECRET_FILES: Final = (
    "/etc/passwd",
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/root/.ssh/id_rsa",
    "/proc/self/environ",
    "/proc/1/environ",
    "~/.ssh/id_rsa",
    "~/.ssh",
    "~/.aws/credentials",
    "~/.bash_history",
)
_SYSTEM: Final = re.compile(
    r"^/(etc|usr|bin|sbin|boot|lib|lib32|lib64|dev|proc|sys|var|root|run|opt|srv|home|mnt|media|app)?(/|$)"
)
_SCRATCH: Final = re.compile(
    r"^/(var/tmp|dev/(shm|null|zero|u?random|std(in|out|err)|tty|fd|pts))(/|$)"
)
_SCRATCH_DEVICE: Final = re.compile(r"^/dev/(null|zero|std(out|err)|tty|fd/\d+)$")
_DESCRIPTOR: Final = re.compile(r"\d+-?|-")
_OWN: Final = re.compile(r"^/home/[^/]+/.")
_LOOKED_AT: Final = re.compile(
    r"^/(etc|boot|dev|proc|sys|var/(log|lib|spool|cache|backups|mail)|root|run)(/|$)"
    r"|^/usr/share/(base-passwd|keyrings|pam|ca-certificates)|^/(usr|var|opt|bin|sbin|lib|lib64)/?$"
)
# What notebooks show of the machine they run on.
_FACTS: Final = re.compile(
    r"^/(proc/(cpuinfo|meminfo|version|loadavg|uptime|driver/nvidia/.*)|etc/(os|lsb)-release)$"
)
_START_UP: Final = re.compile(
    r"""(^|/)(
        \.(bashrc|bash_profile|bash_login|bash_logout|profile|zshrc|zshenv|zprofile|inputrc|vimrc
          |gitconfig|ssh|pythonrc|pythonstartup|xinitrc|xprofile|pdbrc)
      | \.config/(autostart|systemd|fish) | \.ipython | \.jupyter | authorized_keys
      | \.git/hooks | share/jupyter/kernels | sitecustomize\.py | usercustomize\.py
    )(/|$)""",
    re.VERBOSE,
)
_PROGRAMS: Final = frozenset(
    ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/usr/local/sbin")
)
_OPTION: Final = re.compile(r"-\w+(?=[/~.@])")
_UP: Final = re.compile(r"^(?:\.\./)+")
_CLIMBS: Final = re.compile(r"(?:\.\./){2}")  # as the rule on paths in Python has it
_LIBRARIES: Final = re.compile(r"/(site|dist)-packages(/|$)")
_DEVICE: Final = re.compile(
    r"^/dev/(sd|hd|vd|xvd|nvme|mmcblk|mem|kmem|port|mapper|loop|disk|dm-|md|sr|block|kvm|fuse|tty\w)"
)
_SOCKETS: Final = re.compile(r"docker\.sock|containerd\.sock|crio\.sock|podman\.sock")
_METADATA: Final = re.compile(
    r"(?<![\d.])(169\.254\.169\.254|169\.254\.170\.2|100\.100\.100\.200|2852039166|0251\.0376\.0251\.0376)"
    r"(?![\d.]*\d)|0xa9fea9fe|metadata\.google\.internal|fd00:ec2::254|::ffff:169\.254",
    re.IGNORECASE,
)
_LOGS: Final = re.compile(r"^/var/log(/|$)|(^|/)\.[a-z]+_history$|^/var/run/utmp")


def is_system_folder(folder: str) -> bool:
    """Whether programs in there are those of the system: nobody in the sandbox can write to it."""
    return normal(folder + "/").rstrip("/") in _PROGRAMS


def normal(path: str) -> str:
    """The path without detours; ``~`` stays, since no cell knows where its home is."""
    path = path.removeprefix("file://").lstrip("@") if path[:1] in "f@" else path
    if path.startswith("~root"):
        path = "/root" + path[5:]
    if "//" in path or "/." in path:
        path = posixpath.normpath(path)
    return "/" + path.lstrip("/") if path.startswith("/") else path


def sensitive(word: str) -> str | None:
    """The rule that a word breaks by being named at all: secrets, metadata, system directories."""
    if len(word) > 4096 or not any(letter in word for letter in "/.:_x0123456789"):
        return None
    if _METADATA.search(word):
        return "shell.metadata_address"
    if _SOCKETS.search(word):
        return "shell.privilege"
    if "/" not in word and not word.startswith((".", "id_", "@", "authorized")):
        return None
    if option := _OPTION.match(word):
        word = word[option.end() :]  # `grep -f/etc/shadow`
    for part in {word, *re.split(r"[=:,@]", word)} if re.search(r"[=:,@]", word) else (word,):
        path = _climbed(normal(part))
        if _SECRET.search(path) or _is_glob_of_secret(path):
            return "shell.sensitive_path"
        if _DEVICE.search(path):
            return "shell.device"
        if re.match(r"/dev/(tcp|udp)/", path):
            return "shell.reverse_shell"
    path = normal(word)
    if _CLIMBS.match(path):
        return "shell.system_path"
    if _SCRATCH.search(path) or _FACTS.search(path) or not _LOOKED_AT.search(path):
        return None
    return "shell.system_path"


def _climbed(path: str) -> str:
    """Where a path leads to that climbs out of the working directory: to the root, for all we know."""
    if not path.startswith("../"):
        return path
    return _UP.sub("/", path)


def _is_glob_of_secret(path: str) -> bool:
    if not any(letter in path for letter in "*?[") or path[:1] not in "/~":
        return False
    parts = path.split("/")
    for secret in _SECRET_FILES:
        names = secret.split("/")
        if len(names) == len(parts) and all(map(fnmatchcase, names, parts)):
            # `/*/*` is a look around, not a way to write one of these.
            return any(part.strip("*?") for part in parts[1:])
    return False


def written(target: str) -> str | None:
    """The rule that writing to this path breaks."""
    path = normal(target)
    if _DEVICE.search(path):
        return "shell.device"
    if re.match(r"/dev/(tcp|udp)/", path):
        return "shell.reverse_shell"
    if _LOGS.search(path):
        return "shell.cover_tracks"
    if _LIBRARIES.search(path):
        return "shell.library_write"
    if _START_UP.search(path) or (_SYSTEM.search(path) and not _is_own(path)):
        return "shell.system_write"
    return None


def made(operator: str, target: str) -> str | None:
    """The rule on a file that a redirection makes or changes; ``2>&1`` and /dev/null are none.

    It is the same as if Python wrote it: a policy that asks about the one means the other, too.
    """
    is_copy = operator in (">&", "&>", "&>>") and _DESCRIPTOR.fullmatch(target) is not None
    return None if is_copy or _SCRATCH_DEVICE.search(normal(target)) else "python.write_file"


def is_vital(target: str) -> bool:
    """Whether deleting this path takes the system, the home or everything around with it."""
    path = normal(target).rstrip("/") or "/"
    if path in ("~", "~/*", "~/.*", "*", "./*", ".", "..", "../*", "../..", "/", "/*", ".*", "./"):
        return True
    if path.startswith("../..") and not path.strip("./*"):
        return True
    if path.startswith(UNKNOWN):
        return False
    return bool(_SYSTEM.search(path)) and not _is_own(path)


def _is_own(path: str) -> bool:
    """Scratch space, or something below a home or a mounted directory."""
    if _SCRATCH.search(path) or _OWN.search(path):
        return True
    return bool(re.match(r"/(mnt|media|app|opt|srv)/.", path)) and not path.endswith("*")
