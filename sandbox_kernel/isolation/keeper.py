"""The keeper: a process beside the wrapper that has one container, and ends it when the wrapper ends.

Engines are slow, and may hang: here that holds up nobody. ``python -m sandbox_kernel.isolation.keeper``
reads what to run as a line of JSON on stdin, which then stays open. When it closes, because the wrapper
wants that or has died, by whatever cause, the container is removed. What the container prints goes to
stdout; what became of it goes as lines of JSON to the descriptor that is the only argument.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.engine import connect, reason_of

if TYPE_CHECKING:
    from docker import APIClient

OWNER: Final = "sandbox-kernel.wrapper"
STDIN: Final = 0
# How long an engine that is gone or frozen is waited for to remove a container. What is left after
# that is removed by the next wrapper.
REMOVAL_SECONDS: Final = 600.0
RETRY_SECONDS: Final = 0.5
_HEADER_BYTES: Final = 8
_NOT_FOUND, _IN_PROGRESS = 404, 409


class Keeper:
    """One container, from its creation to its removal."""

    def __init__(self, report: int) -> None:
        self._report = report
        self._id: str | None = None

    def run(self, order: Mapping[str, Any]) -> None:
        from docker.errors import APIError, DockerException
        from requests import RequestException

        client: APIClient | None = None
        try:
            client = connect(order["address"])
            remove_abandoned(client)
            made = client.create_container_from_config(order["config"])
            self._id = made["Id"]
            console = client.attach_socket(self._id, {"stdout": 1, "stderr": 1, "stream": 1})
            client.start(self._id)
            about = client.inspect_container(self._id)
            self._say(started=self._id, pid=about["State"]["Pid"], image=about["Image"])
        except SandboxUnavailable as error:
            self._say(error=str(error), hint=error.hint)
        except APIError as error:
            self._say(refused=reason_of(error), status=error.status_code)
        except (DockerException, RequestException, OSError) as error:
            self._say(refused=reason_of(error))
        else:
            self._pass_on(console.fileno())
        finally:
            if client is not None and self._id is not None:
                self._remove(client, self._id)

    def _say(self, **words: Any) -> None:
        os.write(self._report, json.dumps(words).encode() + b"\n")

    def _pass_on(self, console: int) -> None:
        """The container's output, until it or the wrapper ends."""
        pending = b""
        while True:
            readable, _, _ = select.select([STDIN, console], [], [])
            if STDIN in readable and not os.read(STDIN, 4096):
                return
            if console in readable:
                received = os.read(console, 65536)
                if not received:
                    return
                pending = self._print_whole(pending + received)

    @staticmethod
    def _print_whole(data: bytes) -> bytes:
        """Print what is whole of a stream of frames, each with a header; what is left over."""
        while len(data) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(data[4:_HEADER_BYTES], "big")
            if len(data) < end:
                break
            os.write(sys.stdout.fileno(), data[_HEADER_BYTES:end])
            data = data[end:]
        return data

    def _remove(self, client: APIClient, container: str) -> None:
        deadline = time.monotonic() + REMOVAL_SECONDS
        while not remove(client, container) and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS)  # for an engine to come back, which tells nobody


def remove(client: APIClient, container: str) -> bool:
    """Whether it is gone; else the engine is, for now."""
    from docker.errors import APIError, DockerException
    from requests import RequestException

    try:
        client.remove_container(container, v=True, force=True)
    except APIError as error:
        return error.status_code in (_NOT_FOUND, _IN_PROGRESS)
    except (DockerException, RequestException):
        return False
    return True


def remove_abandoned(client: APIClient) -> None:
    """Remove containers of wrappers that are gone, which should have no keeper any more either."""
    for container in client.containers(all=True, filters={"label": OWNER}):
        if is_abandoned(container["Labels"][OWNER]):
            remove(client, container["Id"])


def owner_label(pid: int) -> str:
    """Who a process is: a pid means something in one pid namespace of one boot only."""
    from sandbox_kernel.limits.files import start_ticks

    return f"{_place()} {pid} {start_ticks(pid)}"


def is_abandoned(owner: str) -> bool:
    """Whether the process a label names has ended; ``False`` where that cannot be known."""
    from sandbox_kernel.limits.files import start_ticks

    place, _, process = owner.partition(" ")
    pid, _, start = process.partition(" ")
    if place != _place() or not (pid.isdecimal() and start.isdecimal()):
        return False
    return start_ticks(int(pid)) != int(start)


def _place() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


def main() -> None:
    # The end of the wrapper is seen on stdin; a signal to its group is not meant for this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    order = json.loads(sys.stdin.readline())
    Keeper(int(sys.argv[1])).run(order)


if __name__ == "__main__":
    main()
