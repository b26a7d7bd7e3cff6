"""Reaching listeners of the host's, or seeing its network. Each listener tells the secret to who comes."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from functools import partial
from typing import Any

from tests.hostile.probes.attack import (
    ANSWER_SECONDS,
    BLOCK,
    TARGETS,
    add,
    knock,
    probe,
    read,
    talk,
)

NETWORK = "network"
SOCKETS = "sockets of services"

# What listens in a run-time folder of a user's, or in the system's. Stand-ins: the host may have none.
SERVICES = {
    "the container engine": "docker.sock",
    "another container engine": "podman/podman.sock",
    "containerd": "containerd/containerd.sock",
    "CRI-O": "crio/crio.sock",
    "the system bus": "dbus/system_bus_socket",
    "the session bus": "bus",
    "the display server": "wayland-0",
    "the sound server": "pulse/native",
    "the service manager": "systemd/private",
    "the journal": "systemd/journal/stdout",
    "snapd": "snapd.socket",
    "the key agent of gpg": "gnupg/S.gpg-agent",
    "the secret service": "keyring/control",
}
for service, name in SERVICES.items():
    add(
        SOCKETS,
        service,
        lambda name=name: knock(f"{TARGETS['services']}/{name}"),
        witness=f"listener:{name}",
    )
for service in ("the agent of ssh", "the X server", "a database"):
    add(
        SOCKETS,
        service,
        lambda service=service: knock(TARGETS["sockets"][service]),
        witness=f"listener:{service}",
    )


@probe(SOCKETS, optional=True)
def the_engine_that_runs_containers_here() -> bytes:
    """One of its volumes is named after the secret."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(TARGETS["engine"])
        client.send(b"GET /volumes HTTP/1.0\r\n\r\n")
        answer = b""
        while received := client.recv(BLOCK):
            answer += received
        return answer


def network(name: str, family: int, host: str, **options: Any) -> None:
    """A stream to a listener of its own."""
    witness = f"listener:{name}"
    add(
        NETWORK,
        name,
        lambda: talk(family, (host, TARGETS["ports"][name])),
        witness=witness,
        **options,
    )


network("loopback", socket.AF_INET, "127.0.0.1")
network("another address of loopback", socket.AF_INET, "127.0.0.2")
network("loopback of IPv6", socket.AF_INET6, "::1")
network("IPv4 in IPv6", socket.AF_INET6, "::ffff:127.0.0.1")
network("the address of nobody", socket.AF_INET, "0.0.0.0")
network("loopback by its name", socket.AF_INET, "localhost")


@probe(NETWORK, optional=True, witness="listener:the host's own address")
def the_hosts_own_address() -> bytes:
    address = TARGETS["address"]
    return talk(socket.AF_INET, (address, TARGETS["ports"]["the host's own address"]))


@probe(NETWORK, witness="listener:opened in one packet")
def opened_in_one_packet() -> bytes:
    with socket.socket() as client:
        port = TARGETS["ports"]["opened in one packet"]
        client.sendto(b"knock", socket.MSG_FASTOPEN, ("127.0.0.1", port))
        client.settimeout(ANSWER_SECONDS)
        return client.recv(BLOCK)


@probe(NETWORK, witness="listener:datagrams")
def datagrams() -> bytes:
    address = ("127.0.0.1", TARGETS["ports"]["datagrams"])
    return talk(socket.AF_INET, address, kind=socket.SOCK_DGRAM)


@probe(NETWORK, witness="listener:datagrams of IPv6")
def datagrams_of_IPv6() -> bytes:
    address = ("::1", TARGETS["ports"]["datagrams of IPv6"])
    return talk(socket.AF_INET6, address, kind=socket.SOCK_DGRAM)


@probe(NETWORK, witness="listener:a name is looked up")
def a_name_is_looked_up() -> bytes:
    """A question to the host's resolver, as a way to tell somebody something."""
    question = b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\5probe\7example\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(ANSWER_SECONDS)
        client.sendto(question, ("127.0.0.1", TARGETS["ports"]["a name is looked up"]))
        return client.recv(BLOCK)


@probe(NETWORK, witness="listener:a broadcast")
def a_broadcast() -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(ANSWER_SECONDS)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        client.sendto(b"knock", ("127.255.255.255", TARGETS["ports"]["a broadcast"]))
        return client.recv(BLOCK)


@probe(NETWORK, witness="listener:a multicast")
def a_multicast() -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(ANSWER_SECONDS)
        through = socket.inet_aton("127.0.0.1")
        client.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, through)
        client.sendto(b"knock", ("239.255.42.99", TARGETS["ports"]["a multicast"]))
        return client.recv(BLOCK)


@probe(NETWORK, control="apart", witness="interfaces")
def the_address_at_which_clouds_hand_out_credentials() -> bytes:
    return talk(socket.AF_INET, ("169.254.169.254", 80))


@probe(NETWORK, control="apart", witness="interfaces")
def an_address_beyond_the_host() -> bytes:
    return talk(socket.AF_INET, ("198.51.100.7", 80))


@probe(NETWORK, witness="listener:an abstract socket")
def an_abstract_socket() -> bytes:
    return knock("\0" + TARGETS["abstract"])


@probe(NETWORK, witness="listener:an abstract socket of datagrams")
def an_abstract_socket_of_datagrams() -> bytes:
    return talk(socket.AF_UNIX, f"\0{TARGETS['abstract']}-datagrams", kind=socket.SOCK_DGRAM)


@probe(NETWORK, witness="listener:an abstract socket of packets")
def an_abstract_socket_of_packets() -> bytes:
    return talk(socket.AF_UNIX, f"\0{TARGETS['abstract']}-packets", kind=socket.SOCK_SEQPACKET)


@probe(NETWORK, witness="machine:connections")
def the_frontends_side_of_this_kernel() -> bool:
    with socket.create_connection(("127.0.0.1", TARGETS["shell port"]), 1) as client:
        client.settimeout(1)
        return client.recv(1) == b"\xff"  # how a socket of zmq's greets


# The host's network, to be seen -------------------------------------------------------------------


@probe(NETWORK, optional=True, witness="interfaces")
def names_of_the_hosts_interfaces() -> bool:
    return {name for _, name in socket.if_nameindex()} >= set(TARGETS["interfaces"])


@probe(NETWORK, optional=True, witness="interfaces")
def the_hosts_hardware_address() -> bool:
    with socket.socket() as client:
        name = TARGETS["interfaces"][-1].encode().ljust(256, b"\0")
        answer = fcntl.ioctl(client, 0x8927, name)  # SIOCGIFHWADDR
    return answer[18:24].hex() == TARGETS["hardware address"]


@probe(NETWORK, optional=True, witness="interfaces")
def the_hosts_routes() -> bool:
    return any(line.split()[0].decode() in TARGETS["interfaces"] for line in routes())


def routes() -> list[bytes]:
    return read("/proc/net/route").splitlines()[1:]


@probe(NETWORK, witness="machine:connections")
def a_listener_of_the_host_in_the_list() -> bool:
    return f":{TARGETS['ports']['loopback']:04X} ".encode() in whole("/proc/net/tcp")


@probe(NETWORK, witness="machine:connections")
def a_path_of_the_hosts_sockets_in_the_list() -> bool:
    return TARGETS["services"].encode() in whole("/proc/net/unix")


def whole(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@probe(NETWORK, witness="machine:connections")
def a_listener_of_the_host_by_netlink() -> bool:
    """``inet_diag``: all listening sockets of TCP."""
    netlink_sock_diag, dump, by_family, listening = 4, 0x301, 20, 1 << 10
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink_sock_diag) as client:
        client.settimeout(ANSWER_SECONDS)
        body = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, listening) + bytes(
            48
        )
        client.send(struct.pack("=IHHII", 16 + len(body), by_family, dump, 1, 0) + body)
        answers = b""
        while b"\3\0\2\0\1\0\0\0" not in answers:  # the end of a dump
            answers += client.recv(1 << 20)
    return struct.pack("!H", TARGETS["ports"]["loopback"]) in answers


def sniff(family: int, kind: int, protocol: int) -> bytes:
    """What a beacon on the host's loopback says, many times a second."""
    with socket.socket(family, kind, protocol) as client:
        client.settimeout(ANSWER_SECONDS)
        return b"".join(client.recv(2048) for _ in range(SNIFFED_PACKETS))


SNIFFED_PACKETS = 5
# The control has a beacon and a network of its own: on the host it would see what is not for it.
add(
    NETWORK,
    "packets of others, from the wire",
    partial(sniff, socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)),
    control="apart",
)
add(
    NETWORK,
    "packets of others, from a raw socket",
    partial(sniff, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP),
    control="apart",
)


@probe(NETWORK, control="apart", witness="interfaces")
def an_address_is_given_to_an_interface() -> bool:
    with socket.socket() as client:
        address = b"lo:7".ljust(16, b"\0") + struct.pack("=HH4s8x", 2, 0, b"\x7f\0\0\x07")
        fcntl.ioctl(client, 0x8916, address.ljust(256, b"\0"))  # SIOCSIFADDR
    return True


def make_interface(device: str, name: bytes) -> bool:
    """``/dev/net/tun``, with which a process makes up a network."""
    opened = os.open(device, os.O_RDWR)
    tun, no_header = 0x1, 0x1000
    request = name.ljust(16, b"\0") + struct.pack("=H22x", tun | no_header)
    fcntl.ioctl(opened, 0x400454CA, request)  # TUNSETIFF
    return True


@probe(NETWORK, control="apart", optional=True, witness="interfaces")
def an_interface_is_made() -> bool:
    return make_interface("/dev/net/tun", b"probe")


@probe(NETWORK, control="apart", optional=True, witness="interfaces")
def an_interface_is_made_by_a_node_in_the_notebooks_folder() -> bool:
    return make_interface(f"{TARGETS['folder']}/tun", b"probe-too")


@probe(NETWORK, control="apart", witness="interfaces")
def an_interface_is_made_by_netlink() -> bool:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as client:
        client.settimeout(ANSWER_SECONDS)
        kind = struct.pack("=HH", 8, 1) + b"veth"
        info = struct.pack("=HH", 4 + len(kind), 18) + kind
        body = struct.pack("=BxHiII", 0, 0, 0, 0, 0) + info
        flags = 0x1 | 0x4 | 0x200 | 0x400  # request, acknowledge, exclusive, create
        client.send(struct.pack("=IHHII", 16 + len(body), 16, flags, 1, 0) + body)
        code = struct.unpack_from("=i", client.recv(BLOCK), 16)[0]
    if code < 0:
        raise OSError(-code, "RTM_NEWLINK")
    return True
