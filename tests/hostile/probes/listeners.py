"""Listeners on the host that count who comes and tell everybody the secret."""

from __future__ import annotations

import collections
import selectors
import socket
import struct
import threading
from pathlib import Path

from tests.hostile.probes.control import BEACON_PORT, BEACON_SECONDS
from tests.hostile.probes.network import SERVICES

MULTICAST_GROUP = "239.255.42.99"


class Listeners:
    """All listeners, served by one thread, which also sends the beacon's word on loopback."""

    def __init__(self, secret: str) -> None:
        self.arrivals: collections.Counter[str] = collections.Counter()
        self.ports: dict[str, int] = {}
        self._answer = secret.encode()
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _add(
        self,
        name: str,
        family: int,
        address: object,
        kind: int = socket.SOCK_STREAM,
    ) -> socket.socket:
        listener = socket.socket(family, kind)
        self._sockets.append(listener)
        listener.bind(address)  # type: ignore[arg-type]
        if kind != socket.SOCK_DGRAM:
            listener.listen(16)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, (name, kind))
        if family != socket.AF_UNIX:
            self.ports[name] = listener.getsockname()[1]
        return listener

    def listen_to_the_network(self, own_address: str | None) -> None:
        datagram = socket.SOCK_DGRAM
        for name in ("loopback", "IPv4 in IPv6", "the address of nobody", "opened in one packet"):
            self._add(name, socket.AF_INET, ("127.0.0.1", 0))
        self._add("loopback by its name", socket.AF_INET, ("127.0.0.1", 0))
        self._add("another address of loopback", socket.AF_INET, ("127.0.0.2", 0))
        self._add("loopback of IPv6", socket.AF_INET6, ("::1", 0))
        if own_address is not None:
            self._add("the host's own address", socket.AF_INET, (own_address, 0))
        for name in ("datagrams", "a name is looked up"):
            self._add(name, socket.AF_INET, ("127.0.0.1", 0), datagram)
        self._add("datagrams of IPv6", socket.AF_INET6, ("::1", 0), datagram)
        self._add("a broadcast", socket.AF_INET, ("0.0.0.0", 0), datagram)
        group = self._add("a multicast", socket.AF_INET, ("0.0.0.0", 0), datagram)
        membership = socket.inet_aton(MULTICAST_GROUP) + socket.inet_aton("127.0.0.1")
        group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)

    def listen_in_the_abstract(self, name: str) -> None:
        self._add("an abstract socket", socket.AF_UNIX, f"\0{name}")
        kinds = {"datagrams": socket.SOCK_DGRAM, "packets": socket.SOCK_SEQPACKET}
        for what, kind in kinds.items():
            address = f"\0{name}-{what}"
            self._add(f"an abstract socket of {what}", socket.AF_UNIX, address, kind)

    def listen_in_files(self, services: Path, others: dict[str, str], run: Path) -> None:
        for name in SERVICES.values():
            self._listen_at(name, services / name)
        for name, path in others.items():
            self._listen_at(name, Path(path))
        for name in ("lifeline", "inner-1", "inner-2", "inner-3", "inner-4"):
            self._listen_at(name, run / name)

    def _listen_at(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._add(name, socket.AF_UNIX, str(path))
        path.chmod(0o777)  # not its mode keeps a cell out

    def start(self) -> None:
        self._thread.start()

    def _serve(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as beacon:
            while not self._ended.is_set():
                beacon.sendto(self._answer, ("127.0.0.1", BEACON_PORT))
                for key, _ in self._selector.select(BEACON_SECONDS):
                    assert isinstance(key.fileobj, socket.socket)
                    self._answer_at(key.fileobj, *key.data)

    def _answer_at(self, listener: socket.socket, name: str, kind: int) -> None:
        self.arrivals[name] += 1
        if kind == socket.SOCK_DGRAM:
            _, sender = listener.recvfrom(2048)
            listener.sendto(self._answer, sender)
            return
        connection, _ = listener.accept()
        with connection:
            # A reset would take the answer back before it is read.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))
            connection.recv(16)
            connection.send(self._answer)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for listener in self._sockets:
            listener.close()
        self._selector.close()
