"""What engines run containers with; above all whether gVisor's is set up for a sandbox's needs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from sandbox_kernel.isolation.checks.base import Check, Host, run
from sandbox_kernel.isolation.offer import podman_service

RUNTIMES: Final = "runtimes"
GVISOR: Final = "gVisor"
_RUNSC: Final = "runsc"
_PODMAN: Final = "Podman"
# Those whose names say nothing are left out: Docker has its default under two names.
_KNOWN: Final = ("runc", "crun", _RUNSC, "kata")
_OPENS: Final = ("open", "all")
_OLD_FLAG: Final = "fsgofer-host-uds"
_NEW_FLAG: Final = re.compile(r"^\s*-{1,2}host-uds\b", re.MULTILINE)


class Runtime(NamedTuple):
    """A program that an engine may start containers with."""

    path: str
    arguments: tuple[str, ...]

    @property
    def is_gvisor(self) -> bool:
        return Path(self.path).name == _RUNSC


class _Engine(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def runtimes(self) -> Mapping[str, Runtime]: ...
    @property
    def default_runtime(self) -> str: ...


def runtimes(engine: _Engine | None) -> Check:
    """The runtimes that can be chosen, and the one that is taken if none is."""
    if engine is None:
        return Check(RUNTIMES, "unknown", "no engine to ask")
    names = [name for name in engine.runtimes if name.startswith(_KNOWN)]
    others = [name for name in names if name != engine.default_runtime]
    found = ", ".join([f"{engine.default_runtime or 'none'} (default)", *sorted(others)])
    return Check(RUNTIMES, "ok", found)


def gvisor(engine: _Engine | None, host: Host) -> Check:
    """Whether the engine can run a container under gVisor that reaches the wrapper's sockets."""
    if engine is None:
        return Check(GVISOR, "unknown", "no engine to ask")
    checks = [
        _judge(engine.kind, name, runtime, host)
        for name, runtime in engine.runtimes.items()
        if name == _RUNSC or runtime.is_gvisor
    ]
    if not checks and engine.kind == _PODMAN:
        found = f"Podman starts every container with its default runtime, {engine.default_runtime}"
        fix = (
            f"Start its service with {podman_service(_RUNSC, _flag(_RUNSC, host))}, or use Docker."
        )
        return Check(GVISOR, "missing", found, fix)
    if not checks:
        found = f"the engine has no runtime {_RUNSC}"
        return Check(GVISOR, "missing", found, _fix(_flag(_RUNSC, host), install=True))
    return next((check for check in checks if check.status == "ok"), checks[0])


def named(engine: _Engine, name: str, host: Host) -> Check:
    """The same of the one runtime that a policy names. Of what is not gVisor nothing is known."""
    if (runtime := engine.runtimes.get(name)) is None:
        return Check(GVISOR, "missing", f"the engine has no runtime {name}")
    if name == _RUNSC or runtime.is_gvisor:
        return _judge(engine.kind, name, runtime, host)
    return Check(GVISOR, "ok", name)


def _judge(kind: str, name: str, runtime: Runtime, host: Host) -> Check:
    path = shutil.which(runtime.path or name, path=host.environ.get("PATH"))
    flag = _flag(path or _RUNSC, host)
    if kind == _PODMAN:
        fix = f"Start its service with {podman_service(name, flag)}."
        found = f"{name} is there, but Podman does not tell with which flags it is started"
        return Check(GVISOR, "unknown", found, fix)
    flags = _flags(runtime.arguments)
    # A flag that this version does not know keeps it from starting at all.
    old = flags.get(_OLD_FLAG, "false") != "false"
    opens = old if flag == _OLD_FLAG else old or flags.get("host-uds") in _OPENS
    if not opens:
        found = f"{name} is started without --{flag}: it could not reach the wrapper's sockets"
        return Check(GVISOR, "refused", found, _fix(flag, install=False))
    platform = flags.get("platform", "its default")
    if platform == "kvm" and not Path("/dev/kvm").exists():
        fix = "Take `--platform=kvm` out of its arguments in /etc/docker/daemon.json."
        return Check(GVISOR, "refused", f"{name} wants KVM, which is not there", fix)
    said = f"{name}, platform {platform}, flags {' '.join(runtime.arguments)}"
    if flags.get("host-uds") != "open" and flag != _OLD_FLAG:
        said += "; --host-uds=open would do, and lets it make no sockets"
    if path is None:
        return Check(GVISOR, "unknown", f"{said}; {runtime.path or name} is not seen from here")
    return Check(GVISOR, "ok", said)


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    """As Go reads them: one dash or two, the value behind ``=`` or in the next argument."""
    flags: dict[str, str] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("-"):
            name, equals, value = argument.lstrip("-").partition("=")
            flags[name] = value if equals else "true"
        elif name:
            flags[name] = argument
    return flags


def _flag(runsc: str, host: Host) -> str:
    """What lets this gVisor open sockets of the host: old versions have a flag of another name."""
    path = shutil.which(runsc, path=host.environ.get("PATH"))
    said = run([path, "flags"], host).said if path else ""
    return _OLD_FLAG if _OLD_FLAG in said and not _NEW_FLAG.search(said) else "host-uds=open"


def _fix(flag: str, *, install: bool) -> str:
    first = "install it (`apt-get install runsc`), then " if install else ""
    return (
        f"As root, {first}register it: `runsc install -- --{flag} --network=none`, and "
        "`systemctl restart docker`."
    )
