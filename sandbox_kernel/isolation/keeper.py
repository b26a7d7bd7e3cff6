"""The keeper: a process beside the wrapper that has one container, and ends it when the wrapper ends.

Engines are slow, may hang, and may die: here that holds up nobody. It reads what to run as a line of
JSON on stdin, which then stays open. When it closes, because the wrapper wants that or has died, by
whatever cause, the container is removed. A line that comes over it before asks for statistics, from then
on. What the container prints goes to stdout; what became of it goes as lines of JSON to the descriptor
that is the only argument (``container`` reads them):

    waiting  the engine is silent for longer than is normal
    found    which level it has, with which image
    missing  or why it has none of the levels that were asked for
    started  the container runs: its first process, and what the engine says of it
    error    or why it does not; ``refused`` if the engine says so, ``made`` if it has made it before
    used     what it uses, by the engine's answer to a question ``asked_at``
    unused   or why the engine does not say

A container whose engine has gone away lives on, and is kept: its sockets are the wrapper's.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.engine_http import Engine, EngineRefusal
from sandbox_kernel.isolation.inquiry import Inquiry
from sandbox_kernel.isolation.offer import PODMAN, NothingFound, choose
from sandbox_kernel.isolation.owner import OWNER, is_abandoned, is_of_an_earlier_boot
from sandbox_kernel.isolation.wanted import Found, Wanted

STDIN: Final = 0
# How long an engine that is gone or frozen is waited for to remove a container. What is left after
# that is removed by the next wrapper.
REMOVAL_SECONDS: Final = 600.0
RETRY_SECONDS: Final = 0.5
# After that the kernel is up: what others have left can be looked for, which takes the engine a moment.
IDLE_SECONDS: Final = 2.0
# A container is made within seconds of its volume, if at all.
OLD_SECONDS: Final = 3600.0
# An engine that was frozen may make what it was asked for long ago, after it was told to remove it.
AFTERTHOUGHT_SECONDS: Final = 5.0
_HEADER_BYTES: Final = 8
_NOT_FOUND: Final = 404


class Keeper:
    """One container, from its creation to its removal."""

    def __init__(self, report: int) -> None:
        self._report = report
        self._has_cleaned = False
        self._wants_statistics = False
        self._inquiry: Inquiry | None = None

    def run(self, order: dict[str, Any]) -> None:
        wanted = Wanted(**order["wanted"])
        engine = Engine(wanted.address, on_silence=self._tell_of_silence)
        name = str(order["name"])
        asked_for = made = False
        volumes: list[str] = []
        try:
            found = find(engine, wanted, order["found"])
            self._say(found=found._asdict())
            config = found.complete(order["config"])
            volumes = volumes_of(config)
            asked_for = True
            engine.post(f"/containers/create?name={name}", config)
            made = True
            console, printed = engine.attach(name)
            engine.post(f"/containers/{name}/start")
            self._tell_of_start(engine, name, config)
            self._keep(engine, name, console, printed)
        except NothingFound as nothing:
            missing = [(level, error.what, error.hint) for level, error in nothing.missing]
            self._say(missing=missing)
        except SandboxUnavailable as error:
            self._say(error=error.what, hint=error.hint)
        except EngineRefusal as error:
            self._say(refused=error.explanation, status=error.status, made=made)
        finally:
            # By its name: an engine may have made it and not have said so.
            if asked_for:
                remove_at_last(engine, name, volumes, sure=made)

    def _tell_of_silence(self) -> None:
        self._say(waiting=True)

    def _tell_of_start(self, engine: Engine, name: str, config: Mapping[str, Any]) -> None:
        (about,) = engine.ask(f"/containers/{name}/json")
        if isinstance(about, EngineRefusal):
            if about.status == _NOT_FOUND:
                return  # it has ended, and was removed with its end: what it printed says why
            raise about
        host = about["HostConfig"]
        self._say(
            started=about["Id"],
            pid=about["State"]["Pid"],
            # Podman's own word for it is not a name.
            runtime=about.get("OCIRuntime") or host.get("Runtime") or "",
            cpus=cpus_of(host),
            unheld=unheld(config["HostConfig"], host),
        )

    def _say(self, **words: Any) -> None:
        # With the wrapper gone there is nobody to hear it; stdin says that too.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._report, json.dumps(words).encode() + b"\n")

    # -- as long as it runs ------------------------------------------------------------------------

    def _keep(
        self, engine: Engine, name: str, console: socket.socket | None, printed: bytes
    ) -> None:
        """Until the container or the wrapper ends; the engine may go and come back meanwhile."""
        while console is not None:
            with console:
                if self._pass_on(engine, name, console.fileno(), printed):
                    return
            console, printed = self._attach_again(engine, name)

    def _pass_on(self, engine: Engine, name: str, console: int, printed: bytes) -> bool:
        """The container's output, until its end; whether the wrapper has ended."""
        pending = self._print_whole(printed)
        idle_until = time.monotonic() + IDLE_SECONDS
        while True:
            sources, pause = [STDIN, console], None
            if not self._has_cleaned:
                pause = max(0.0, idle_until - time.monotonic())
            if self._inquiry is not None:
                sources += self._inquiry.sources
                pause = min(self._inquiry.pause, IDLE_SECONDS if pause is None else pause)
            readable, _, _ = select.select(sources, [], [], pause)
            if not self._has_cleaned and time.monotonic() >= idle_until:
                remove_abandoned(engine)
                self._has_cleaned = True
            if STDIN in readable and self._wrapper_has_ended():
                return True
            if self._wants_statistics and self._inquiry is None:
                self._inquiry = Inquiry(engine, name)
            if self._inquiry is not None and (said := self._inquiry.go_on(readable)):
                self._say(**said)
            if console in readable:
                try:
                    received = os.read(console, 65536)
                except ConnectionResetError:  # a killed engine's way to hang up
                    return False
                if not received:
                    return False
                pending = self._print_whole(pending + received)

    @staticmethod
    def _print_whole(data: bytes) -> bytes:
        """Print what is whole of a stream of frames, each with a header; what is left over."""
        while len(data) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(data[4:_HEADER_BYTES], "big")
            if len(data) < end:
                break
            with contextlib.suppress(BrokenPipeError):  # the wrapper has ended, as stdin says too
                os.write(sys.stdout.fileno(), data[_HEADER_BYTES:end])
            data = data[end:]
        return data

    def _attach_again(self, engine: Engine, name: str) -> tuple[socket.socket | None, bytes]:
        """Nothing is printed any more: the container has ended (``None``), or its engine has."""
        while True:
            try:
                if not engine.get(f"/containers/{name}/json")["State"]["Running"]:
                    return None, b""
                return engine.attach(name)
            except (EngineRefusal, SandboxUnavailable) as error:
                # Any other refusal says something of the engine, nothing of the container.
                if isinstance(error, EngineRefusal) and error.status == _NOT_FOUND:
                    return None, b""
                # Nobody tells when an engine comes back; the end of the wrapper is seen at once.
                if select.select([STDIN], [], [], RETRY_SECONDS)[0] and self._wrapper_has_ended():
                    return None, b""

    def _wrapper_has_ended(self) -> bool:
        """Stdin can be read: its end, or a line that asks for statistics."""
        line = os.read(STDIN, 4096)
        self._wants_statistics |= bool(line)
        return not line


def find(engine: Engine, wanted: Wanted, before: Mapping[str, Any] | None) -> Found:
    """What the engine has; all sandboxes of a kernel get what the first has found ``before``.

    Podman takes its default runtime whatever it is asked for, and may have been started anew with another
    one: that is asked each time, and another one is no reason for a weaker level.
    """
    if before is None:
        return choose(engine, wanted)
    found = Found(**before)
    if found.engine == PODMAN and found.runtime is not None:
        try:
            now = choose(engine, wanted)
        except NothingFound as nothing:
            _, why = nothing.missing[0]
            raise SandboxUnavailable(why.what, hint=why.hint) from nothing
        if now.runtime != found.runtime:
            what = f"Podman no longer starts containers with {found.runtime!r}, as this kernel's began."
            hint = "Start it with that runtime again; or restart the kernel, for what there is now."
            raise SandboxUnavailable(what, hint=hint)
    return found


def cpus_of(host: dict[str, Any]) -> float:
    """The processors that an engine lets a container use; 0: all."""
    if host.get("NanoCpus"):
        return float(host["NanoCpus"]) / 1e9
    if (quota := host.get("CpuQuota") or 0) > 0:
        return float(quota) / float(host.get("CpuPeriod") or 100_000)
    return 0.0


def unheld(asked: Mapping[str, Any], has: Mapping[str, Any]) -> list[str]:
    """Limits that an engine was asked for and has dropped, with no more than a warning."""
    limits = {"Memory": "memory", "MemorySwap": "swap", "PidsLimit": "processes"}
    return [
        word
        for key, word in limits.items()
        if key in asked and not 0 < (has.get(key) or 0) <= asked[key]
    ]


# -- its end ---------------------------------------------------------------------------------------


def volumes_of(config: Mapping[str, Any]) -> list[str]:
    mounts = config["HostConfig"]["Mounts"]
    return [mount["Source"] for mount in mounts if mount["Type"] == "volume"]


def remove_at_last(engine: Engine, name: str, volumes: Sequence[str], *, sure: bool) -> None:
    """Until it is gone. Unless ``sure`` that it was made, also if it is made only now."""
    deadline = time.monotonic() + REMOVAL_SECONDS
    looked_until = 0.0
    while time.monotonic() < deadline:
        with contextlib.suppress(SandboxUnavailable):
            if remove(engine, name) and all(remove_volume(engine, volume) for volume in volumes):
                looked_until = looked_until or time.monotonic() + AFTERTHOUGHT_SECONDS
                if sure or time.monotonic() > looked_until:
                    return
        time.sleep(RETRY_SECONDS)  # for an engine to come back, which tells nobody


def remove(engine: Engine, container: str) -> bool:
    """Whether it is gone; else the engine is at it, and may yet die or fail."""
    return _delete(engine, f"/containers/{container}?v=1&force=1")


def remove_stopped(engine: Engine, container: str) -> None:
    """Podman keeps containers over a reboot; one that runs is of another host with the same engine."""
    with contextlib.suppress(EngineRefusal):
        _delete(engine, f"/containers/{container}?v=1")


def remove_volume(engine: Engine, volume: str) -> bool:
    """Whether it is gone; else its container is not quite."""
    return _delete(engine, f"/volumes/{volume}")


def _delete(engine: Engine, path: str) -> bool:
    try:
        engine.delete(path)
    except EngineRefusal as error:
        return error.status == _NOT_FOUND
    return True


def remove_abandoned(engine: Engine) -> None:
    """Remove what wrappers that are gone have left, and should have no keeper any more either."""
    filters = f"{{%22label%22:[%22{OWNER}%22]}}"
    with contextlib.suppress(EngineRefusal, SandboxUnavailable):  # the next keeper looks again
        for container in engine.get(f"/containers/json?all=1&filters={filters}"):
            owner = container["Labels"][OWNER]
            if is_abandoned(owner):
                remove(engine, container["Id"])
            elif is_of_an_earlier_boot(owner):
                remove_stopped(engine, container["Id"])
        for volume in engine.get(f"/volumes?filters={filters}")["Volumes"] or ():
            owner = volume["Labels"][OWNER]
            # A reboot leaves a container's volume; the engine keeps those in use.
            if is_abandoned(owner) or is_of_an_earlier_boot(owner) or is_old(volume):
                remove_volume(engine, volume["Name"])


def is_old(volume: Mapping[str, Any]) -> bool:
    """Whether its container, which was made with it, is there by now, or is gone.

    With a pid namespace end the keepers in it, and nobody elsewhere knows whose a volume was.
    """
    from datetime import datetime  # not on the way of every start

    try:
        made = datetime.fromisoformat(volume["CreatedAt"])
    except (KeyError, TypeError, ValueError):
        return False  # an engine that does not say
    return (datetime.now(made.tzinfo) - made).total_seconds() > OLD_SECONDS


def main() -> None:
    # The end of the wrapper is seen on stdin; a signal to its group is not meant for this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if order := sys.stdin.readline():  # else the wrapper has ended before it could say
        Keeper(int(sys.argv[1])).run(json.loads(order))
