"""The host of the probes: a home with secrets, services, a neighbour; all of it gone at the end.

Names are made up for each stage, so that several can stand at once; contents hold one secret. What
must not be mistaken for a lack of rights is open to everybody.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import pty
import secrets
import shutil
import site
import socket
import sqlite3
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandbox_kernel.isolation.engine import connect
from tests.hostile.probes.attack import PROBES, TARGETS, call
from tests.hostile.probes.control import ROOT
from tests.hostile.probes.devices import DEVICE_FILES, IN_THE_FOLDER, name_of_node
from tests.hostile.probes.facts import (
    call_numbers,
    disk_of,
    environment_files,
    handle_of,
    hardware_address,
    own_address,
)
from tests.hostile.probes.listeners import Listeners
from tests.hostile.probes.neighbour import Neighbour
from tests.hostile.probes.secrets import IN_A_HOME, IN_PLACES, OF_THE_SYSTEM

TOO_MUCH_BYTES = 5 << 28  # a quarter more than a sandbox's folders hold
LEASE_LOOK_SECONDS = 0.005


class Stage:
    """What is planted, and the addresses of it all."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        # As long as the name of a process may be.
        self.secret = secrets.token_hex(7)
        self.mark = f"probe-{secrets.token_hex(4)}"
        self.home = self._directory(Path("/home", self.mark))
        self.folder = self.home / "projects" / "notebooks"
        self.scratch = self.home / "scratch"
        self.apart = self.home / "apart"
        for path in (self.folder, self.scratch, self.apart / "upper", self.apart / "mounted"):
            path.mkdir(parents=True)
        (self.apart / "cover").mkdir()
        self.scratch.chmod(0o777)
        self.state = self.home / ".local/share/sandbox-kernel"
        self.runtime = self.home / ".local/share/jupyter/runtime"
        self.leases = 0
        TARGETS["calls"] = call_numbers()
        self.targets: dict[str, Any] = {"mark": self.mark, "calls": TARGETS["calls"]}
        self._plant_files()
        self._plant_in_the_folder()
        self._plant_places()
        self._plant_services()
        self._plant_shared_objects()
        self.neighbour = Neighbour(self.home / "neighbour", self.secret)
        stack.callback(self.neighbour.close)
        self.terminal, terminal_name = self._terminal()
        self.targets |= self.neighbour.facts | {
            "neighbour": self.neighbour.pid,
            "terminal": terminal_name,
            "home": str(self.home),
            "folder": str(self.folder),
            "key": str(self.home / ".ssh/id_ed25519"),
            "state": str(self.state),
            "handle": handle_of(self.home / ".ssh/id_ed25519"),
            "environment": environment_files(),
            "too much": TOO_MUCH_BYTES,
            "disk": disk_of(self.home),
        }

    def _directory(self, path: Path) -> Path:
        path.mkdir()
        self._stack.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    def _file(self, path: Path, text: str) -> Path:
        path.write_text(text)
        path.chmod(0o644)
        self._stack.callback(path.unlink, missing_ok=True)
        return path

    def _plant_files(self) -> None:
        text = json.dumps({"token": self.secret})
        for relative in IN_A_HOME:
            path = self.home / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.home / f"diary-{self.secret}").touch()
        (self.home / "projects" / f"other-{self.secret}").mkdir()
        (self.home / "lib").mkdir()
        (self.home / "lib/private_module.py").write_text(f"WORD = {self.secret!r}\n")
        (self.home / "bin").mkdir()
        (self.home / "bin/tell").write_text(f"#!/bin/sh\necho {self.secret}\n")
        (self.home / "bin/tell").chmod(0o755)
        with contextlib.closing(sqlite3.connect(self.home / "history.sqlite")) as base:
            base.execute("create table history (line)")
            base.execute("insert into history values (?)", [self.secret])
            base.commit()
        other = self._directory(Path("/home", f"{self.mark}-other"))
        (other / "diary.txt").write_text(text)
        planted = {}
        for place in IN_PLACES:
            if Path(place).is_dir():
                planted[place] = str(self._file(Path(place, f"{self.mark}.txt"), text))
        self._file(Path("/dev/shm", self.mark), text)
        self.targets |= {
            "other home": str(other),
            "planted": planted,
            "hashes": {
                path: hashlib.sha256(Path(path).read_bytes()).hexdigest()
                for path in OF_THE_SYSTEM
                if Path(path).exists()
            },
        }

    def _plant_in_the_folder(self) -> None:
        """What is in the sandbox's sight: it leads out, or gives rights, if it is believed."""
        (self.folder / "link-to-the-key").symlink_to(self.home / ".ssh/id_ed25519")
        (self.folder / "link-up").symlink_to("../..")
        for name, program, mode in (
            ("setuid-id", "id", 0o4755),
            ("setgid-id", "id", 0o2755),
            ("capable-cat", "cat", 0o755),
        ):
            found = shutil.which(program)
            assert found is not None
            shutil.copy(found, self.folder / name)
            (self.folder / name).chmod(mode)
        # Version 2, effective; raw sockets, permitted.
        raw_sockets = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
        os.setxattr(self.folder / "capable-cat", "security.capability", raw_sockets)
        nodes = {name_of_node(what): DEVICE_FILES[what] for what in IN_THE_FOLDER}
        for name, device in (nodes | {"tun": "/dev/net/tun"}).items():
            path = Path(disk_of(self.home) if device == "disk" else device)
            if path.exists():
                about = path.stat()
                os.mknod(self.folder / name, stat.S_IFMT(about.st_mode), about.st_rdev)
                (self.folder / name).chmod(0o666)
        leased = self.folder / "leased.ipynb"
        leased.write_text("{}")
        ended = threading.Event()
        looking = threading.Thread(target=self._look_for_leases, args=(leased, ended))
        looking.start()
        self._stack.callback(looking.join)
        self._stack.callback(ended.set)
        self.targets["leased"] = str(leased)

    def _look_for_leases(self, path: Path, ended: threading.Event) -> None:
        """Save the file again and again, as an editor would, and count when that is held up."""
        while not ended.wait(LEASE_LOOK_SECONDS):
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except BlockingIOError:
                self.leases += 1

    def _plant_places(self) -> None:
        """A folder for each probe that is about to change one."""
        roots = {
            "folder": self.folder,
            "home": self.home,
            "etc": Path("/etc"),
            "usr": Path("/usr/local/lib"),
            "packages": Path(site.getsitepackages()[0]),
            "var": Path("/var/lib"),
            "root": Path("/root"),
            "tmp": Path("/tmp"),
            "shm": Path("/dev/shm"),
            "run": Path("/run"),
        }
        places = {}
        for number, probe in enumerate(PROBES):
            what, _, where = probe.witness.partition(":")
            if what == "place":
                place = self._directory(roots[where] / f"{self.mark}-{number}")
                place.chmod(0o777)
                for name in ("file", "second"):
                    (place / name).write_text(f"{name} of {probe.name}")
                    (place / name).chmod(0o666)
                places[probe.name] = str(place)
        self.targets["places"] = places

    def _plant_services(self) -> None:
        services = self._directory(Path("/run", self.mark))
        agent = self._directory(Path("/tmp", f"ssh-{self.mark}"))
        display = Path("/tmp/.X11-unix")
        display.mkdir(mode=0o1777, exist_ok=True)
        stand_in = self.home / "run"
        stand_in.mkdir()
        (stand_in / "inner").mkdir()
        for name in ("inner/boot.py", "connection.json"):
            (stand_in / name).write_text("{}")
        others = {
            "the agent of ssh": f"{agent}/agent.1",
            "the X server": f"{display}/X{self.mark}",
            "a database": f"{services}/.s.PGSQL.5432",
        }
        self.listeners = Listeners(self.secret)
        address = own_address()
        self.listeners.listen_to_the_network(address)
        self.listeners.listen_in_the_abstract(self.mark)
        self.listeners.listen_in_files(services, others, stand_in)
        self.listeners.start()
        self._stack.callback(Path(others["the X server"]).unlink)
        self._stack.callback(self.listeners.close)
        names = sorted({name for _, name in socket.if_nameindex()} - {"lo"})
        self.targets |= {
            "services": str(services),
            "sockets": others,
            "ports": self.listeners.ports,
            "abstract": self.mark,
            "address": address,
            "interfaces": names or ["no interface"],
            "hardware address": hardware_address(names[-1]) if names else "",
            "engine": self._engine(),
        }

    def _engine(self) -> str:
        """Its socket, where there is an engine: with a volume that is named after the secret."""
        address = os.environ.get("DOCKER_HOST", "")
        if not address.startswith("unix://"):
            return "/nowhere"
        client = connect()
        self._stack.callback(client.close)
        client.create_volume(self.secret)
        self._stack.callback(client.remove_volume, self.secret)
        return address.removeprefix("unix://")

    def _plant_shared_objects(self) -> None:
        key = secrets.randbits(30)
        create, remove = 0o1666, 0
        memory = call("shmget", key, 4096, create)
        self._stack.callback(call, "shmctl", memory, remove, None)
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        ctypes.memmove(libc.shmat(memory, None, 0), self.secret.encode(), len(self.secret))
        queue = call("msgget", key, create)
        self._stack.callback(call, "msgctl", queue, remove, None)
        # The probe takes one of two: either will do.
        for _ in range(2):
            call("msgsnd", queue, struct.pack("l", 1) + self.secret.encode(), len(self.secret), 0)
        self.semaphore = call("semget", key, 1, create)
        self._stack.callback(call, "semctl", self.semaphore, 0, remove, 0)
        name = self.mark.encode()
        named = call("mq_open", name, os.O_CREAT | os.O_RDWR, 0o666, None)
        self._stack.callback(os.close, named)
        self._stack.callback(call, "mq_unlink", name)
        for _ in range(2):
            call("mq_timedsend", named, self.secret.encode(), len(self.secret), 0, None)
        user_keyring, set_permissions, revoke = -4, 5, 3
        for description in (self.mark, self.secret):
            text = self.secret.encode()
            made = call("add_key", b"user", description.encode(), text, len(text), user_keyring)
            self._stack.callback(call, "keyctl", revoke, made)
            call("keyctl", set_permissions, made, 0x3F3F0000)
        self.targets |= {"ipc key": key, "key name": self.mark}

    def _terminal(self) -> tuple[int, str]:
        master, slave = pty.openpty()
        self._stack.callback(os.close, master)
        self._stack.callback(os.close, slave)
        os.set_blocking(master, False)
        name = os.ttyname(slave)
        Path(name).chmod(0o666)
        return master, name

    def inside(self) -> dict[str, Any]:
        """The targets as a cell finds them."""
        writable = {place: place for place in ("/tmp", "/dev/shm", "/var/tmp")}
        return self.targets | {
            "is control": False,
            "scratch": "/tmp",
            "supervisor": 1,
            "traceable": 1,
            "run": "/run/sandbox",
            "cover": self.targets["connection file in the folder"],
            "mount point": str(self.folder),
            "writable": writable | {"the home inside": "/home/sandbox"},
        }

    def control(self) -> dict[str, Any]:
        """The targets as the control finds them: stand-ins for what there is in a sandbox only."""
        victims = []
        for _ in range(2):
            victim = subprocess.Popen(["sleep", "600"])
            self._stack.callback(victim.wait)
            self._stack.callback(victim.kill)
            victims.append(victim.pid)
        places = ("/tmp", "/dev/shm", "/var/tmp", "the home inside")
        return self.targets | {
            "is control": True,
            "scratch": str(self.scratch),
            "supervisor": victims[0],
            "traceable": victims[1],
            "run": str(self.home / "run"),
            "cover": str(self.apart / "cover"),
            "mount point": str(self.apart / "mounted"),
            "writable": dict.fromkeys(places, str(self.scratch)),
            "apart": str(self.apart),
            "overlaid": ["/etc", "/usr", "/root", sys.prefix, str(ROOT / "sandbox_kernel")],
        }


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        yield Stage(stack)
