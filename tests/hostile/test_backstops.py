"""What the static check would stop does no harm where it is bypassed: the sandbox holds.

Every cell of `bypasses` runs twice, with no check: in a plain kernel, where it must do its harm (or it
would prove nothing), and in the sandbox. The witnesses are on the host: files, a server, a process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.hostile.bypasses import BYPASSES, filled_in
from tests.kernel import SANDBOXED, Kernel, Outcome, eventually, running_kernel

pytestmark = pytest.mark.process

POLICY: Final = "extends: trusted\n"
LIMITED: Final = f"{POLICY}limits: {{wall: 10s, processes: 40, text: 64KiB}}\n"
# What shows that a control is not there; told: the kernel's key, or what is secret, is in the output.
HARMS: Final = {
    "network": {"connected"},
    "host_files": {"changed", "told", "connected"},
    "ephemeral": {"left"},
    "processes": {"killed", "told"},
    "separate_process": {"told"},
    "seccomp": {"told"},
    "no_privileges": {"changed", "told"},
    "limits": {"told"},
    "environment": {"told"},
}
FILES: Final = {
    "work/notebooks/data.txt": "data",
    "work/notebooks/disk": "-" * 100_000,
    "work/notebooks/tree/leaf.txt": "leaf",
    "work/notebooks/site-packages/module.py": "",
    "work/notebooks/machine/etc/passwd": "root:x:0:0::/:/bin/sh\n",
    "work/notebooks/machine/etc/group": "users:x:100:\n",
    "work/notebooks/machine/etc/shadow": "",
    "work/notebooks/machine/etc/gshadow": "",
    "home/.bashrc": "",
    "home/.bash_history": "ls\n",
    "home/notes.txt": "<secret>",
    "home/.ssh/id_rsa": "<secret>",
    "home/.aws/credentials": "<secret>",
}


class Server:
    """Counts who connects, and tells them nothing."""

    def __init__(self, listener: socket.socket) -> None:
        self.seen = 0
        self._listener = listener
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            self.seen += 1
            with connection:
                connection.settimeout(0.2)
                with contextlib.suppress(OSError):  # it may say nothing, or be gone
                    connection.recv(1 << 16)
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


class Witnesses:
    """What is on the host for one kernel to harm."""

    def __init__(self, base: Path, *, is_sandboxed: bool) -> None:
        self.base = base
        self.folder, self.home = base / "work" / "notebooks", base / "home"
        self.connection_file = self.folder / "kernel.json"
        self.secret, self.token = secrets.token_hex(16), f"t{secrets.token_hex(8)}"
        self.key = ""
        self._is_sandboxed = is_sandboxed
        self._make_files()
        self._before = self._files()
        display = socket.socket(socket.AF_UNIX)
        display.bind(str(self.home / "X0"))
        display.listen()
        self._port = socket.create_server(("127.0.0.1", 0))
        self._port_number = self._port.getsockname()[1]
        self._servers = [Server(display), Server(self._port)]
        self._process = self._new_process()

    def _make_files(self) -> None:
        for name, text in FILES.items():
            path = self.base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("<secret>", self.secret))
            path.chmod(0o644)
            path.parent.chmod(0o755)

    def _files(self) -> dict[str, tuple[int, str]]:
        return {
            str(path): (path.stat().st_mode, path.read_text(errors="replace"))
            for path in sorted(self.base.rglob("*"))
            if path.is_file() and path != self.connection_file
        }

    def _new_process(self) -> subprocess.Popen[bytes]:
        code = "import time; time.sleep(600)"
        return subprocess.Popen([sys.executable, "-c", code, self.secret], start_new_session=True)

    @property
    def words(self) -> dict[str, str]:
        pid = self._process.pid
        return {
            "folder": str(self.folder),
            "home": str(self.home),
            "connection": str(self.connection_file),
            "secret": self.secret,
            "token": self.token,
            "port": str(self._port_number),
            "pid": str(pid),
            "everyone": "-1" if self._is_sandboxed else str(-pid),
            "first": "1" if self._is_sandboxed else str(pid),
        }

    def harm(self, outcome: Outcome | None = None) -> set[str]:
        """What has happened since the last time that everything was put right."""
        told = outcome.text() if outcome else ""
        happened = {
            "told": self.secret in told or self.key in told,
            "changed": self._files() != self._before,
            "connected": any(server.seen for server in self._servers),
            "killed": self._process.poll() is not None,
            "left": bool(self._left()),
        }
        return {harm for harm, is_so in happened.items() if is_so}

    def _left(self) -> list[Path]:
        return [
            path for place in ("/tmp", "/dev/shm") for path in Path(place).glob(f"{self.token}*")
        ]

    def put_right(self) -> None:
        for path in self._left():
            path.unlink()
        self._make_files()
        for path in self._files():
            if path not in self._before:
                Path(path).unlink()
        for server in self._servers:
            server.seen = 0
        if self._process.poll() is not None:
            self._process = self._new_process()

    def close(self) -> None:
        for path in self._left():
            path.unlink()
        for server in self._servers:
            server.close()
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def kernel_among_witnesses(
    name: str, base: Path, policy: str | None = None
) -> Iterator[tuple[Kernel, Witnesses]]:
    """A kernel, and what it could harm; at its end it has harmed nothing, if it is sandboxed."""
    witnesses = Witnesses(base, is_sandboxed=name == SANDBOXED)
    try:
        with running_kernel(
            name=name,
            policy=policy,
            cwd=witnesses.folder,
            connection_file=str(witnesses.connection_file),
            env={
                "HOME": str(witnesses.home),
                "CANARY": witnesses.secret,  # `%env` hides what is called a token or a key
                "no_proxy": "127.0.0.1",
                "NO_PROXY": "127.0.0.1",
            },
        ) as kernel:
            witnesses.key = kernel.manager.session.key.decode()
            yield kernel, witnesses
        if name == SANDBOXED:
            assert witnesses.harm() == set()
    finally:
        witnesses.close()


@pytest.mark.parametrize("control", BYPASSES)
def test_without_the_check_the_sandbox_holds(control: str, tmp_path: Path) -> None:
    policy = LIMITED if control == "limits" else POLICY
    with kernel_among_witnesses(SANDBOXED, tmp_path / "in", policy) as (kernel, witnesses):
        for rule, cell in BYPASSES[control].items():
            outcome = kernel.run(filled_in(cell, witnesses.words))
            assert outcome.ename != "PolicyViolation", rule
            assert witnesses.harm(outcome) == set(), (rule, outcome.evalue)


@pytest.mark.parametrize("control", BYPASSES)
def test_outside_the_same_cells_do_harm(control: str, tmp_path: Path) -> None:
    if control == "no_privileges" and os.geteuid() != 0:
        pytest.skip("only root has privileges that a cell could use")
    with kernel_among_witnesses("python3", tmp_path / "out") as (kernel, witnesses):
        for rule, cell in BYPASSES[control].items():
            code = filled_in(cell, witnesses.words)
            outcome = kernel.run(code)
            eventually(
                lambda outcome=outcome: witnesses.harm(outcome) & HARMS[control],
                what=f"{rule} does no harm: {outcome.ename} {outcome.evalue} {outcome.text()[:500]}",
            )
            witnesses.put_right()
