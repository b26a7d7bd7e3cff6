"""What a probe is, and how probes are run: in the sandbox, and on the host as the control.

An attempt says what it got as text, which counts if it holds the host's secret (that is judged outside:
the sandbox is never told the secret), or ``True`` if it did what it should not be able to do. An
``OSError`` is a refusal. Anything else is a mistake in the probe, which proves nothing.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

MODULES = (
    "attack",
    "secrets",
    "writing",
    "start_up",
    "network",
    "processes",
    "process_control",
    "devices",
    "machine",
    "shared",
    "namespaces",
    "rights",
    "inner",
)
PROBE_SECONDS = 20
ANSWER_SECONDS = 0.4
SAID_CHARACTERS = 50_000
BLOCK = 65_536
NOBODY = 65_534

Attempt = Callable[[], object]


class Probe(NamedTuple):
    """One attempt.

    ``control``: where it must succeed. ``host``: in a plain process of root's; ``apart``: the same in
    namespaces of its own, for what would change the machine.
    ``witness``: what the host looks at, before and after, to see that nothing has happened.
    ``own``: by level, why it may succeed there without having reached the host: the witness decides.
    ``left_out``: by level, why it says nothing there.
    ``optional``: what it is after need not be on every host; where it is not, it is not counted.
    """

    name: str
    kind: str
    attempt: Attempt
    control: str
    witness: str
    own: Mapping[str, str]
    left_out: Mapping[str, str]
    optional: bool


PROBES: list[Probe] = []
# What there is to be reached, from `stage`.
TARGETS: dict[str, Any] = {}


def add(
    kind: str,
    name: str,
    attempt: Attempt,
    *,
    control: str = "host",
    witness: str = "said",
    own: Mapping[str, str] | None = None,
    left_out: Mapping[str, str] | None = None,
    optional: bool = False,
) -> None:
    found = Probe(name, kind, attempt, control, witness, own or {}, left_out or {}, optional)
    PROBES.append(found)


def probe(kind: str, **options: Any) -> Callable[[Attempt], Attempt]:
    """A function as a probe of its name."""

    def register(attempt: Attempt) -> Attempt:
        add(kind, attempt.__name__.replace("_", " "), attempt, **options)
        return attempt

    return register


def run(names: list[str], targets: Mapping[str, Any]) -> dict[str, list[str]]:
    """How each of these probes ended: a word, and what it said."""
    TARGETS.update(targets)
    return {probe.name: outcome(probe) for probe in PROBES if probe.name in names}


def outcome(probe: Probe) -> list[str]:
    """Run it in a child, so that it can spoil nothing for the next one."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PROBE_SECONDS)
        TARGETS["place"] = TARGETS["places"].get(probe.name)
        os.write(writer, json.dumps(attempted(probe.attempt)).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        name = signal.Signals(-code).name
        return ["hung" if name == "SIGALRM" else "killed", name]
    return list(json.loads(answer)) if answer else ["broken", f"no answer, exit code {code}"]


def attempted(attempt: Attempt) -> list[str]:
    try:
        got = attempt()
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, type(error).__name__)
        return ["absent" if name in ("ENOENT", "ESRCH", "ENOTDIR") else "refused", name]
    except BaseException as error:  # to be told of: it is the probe's mistake
        return ["broken", repr(error)[:300]]
    if isinstance(got, bytes | str):
        text = got.decode("latin-1") if isinstance(got, bytes) else got
        return ["read", text[:SAID_CHARACTERS].encode("ascii", "backslashreplace").decode()]
    return ["did" if got is True else "failed", repr(got)[:300]]


# What probes are made of --------------------------------------------------------------------------


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(BLOCK)


def opens(path: str, flags: int = os.O_RDONLY) -> bool:
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    return True


def opens_for_writing(path: str) -> bool:
    """Open and leave alone: the control is not to change the machine."""
    return opens(path, os.O_WRONLY)


def call(name: str, *arguments: object) -> int:
    """A system call by name; buffers are ``bytes`` or ctypes' own."""
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(function(ctypes.c_long(TARGETS["calls"][name]), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def talk(family: int, address: Any, *, kind: int = socket.SOCK_STREAM) -> bytes:
    """What a listener answers: the host's all tell the secret."""
    with socket.socket(family, kind) as client:
        client.settimeout(ANSWER_SECONDS)
        if family == socket.AF_UNIX and kind == socket.SOCK_DGRAM:
            client.bind("")  # a name to be answered at
        client.connect(address)
        client.send(b"knock")
        return client.recv(BLOCK)


def knock(path: str) -> bytes:
    return talk(socket.AF_UNIX, path)


def be_nobody() -> None:
    """An ordinary user, where this is root: what must not lead back to root."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def in_child(attempt: Callable[[], bool]) -> bool:
    """Whether it succeeds in a child of its own."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if attempt() else 1)
        except OSError as error:
            os._exit(error.errno or 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code > 1:
        raise OSError(code, "in a child")
    return code == 0
