"""A hostile kernel that attacks its wrapper for a given time, and what the host sees of it.

``Soak`` runs a cell that takes the inner kernel over: it writes to the connections of the kernel by hand,
in rounds that a seed decides. Whenever the wrapper ends it, the cell is sent again. Meanwhile a second
client asks ``kernel_info_request``, and the wrapper's memory and CPU are read from /proc.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty

import zmq
from jupyter_client.session import Session

from tests.kernel import Kernel, is_running
from tests.wire.test_hostile_cell import FORGE

MIB = 1 << 20
MAX_GROWTH_BYTES = 64 * MIB
MAX_ANSWER_SECONDS = 1.0
# A throttled flood costs a tenth of a processor, the start of one a second of it.
MAX_CPU_SHARE = 0.6
SAMPLE_SECONDS = 0.05
ASK_SECONDS = 0.1
ROUND_SECONDS = (0.5, 4.0)

# What runs inside. A round is one of these, for some time, on one of the connections or on all.
ROUNDS = (
    FORGE
    + r'''
import random, signal, struct, time

def zmtp(parts, more=False):
    out = []
    for number, part in enumerate(parts):
        flags = 1 if more or number < len(parts) - 1 else 0
        if len(part) < 256:
            out.append(bytes((flags, len(part))) + part)
        else:
            out.append(bytes((flags | 2,)) + len(part).to_bytes(8, "big") + part)
    return b"".join(out)

KINDS = ("stream", "display_data", "status", "comm_msg", "comm_open", "execute_reply", "error",
         "kernel_info_reply", "input_request", "execute_input", "clear_output", "no_such_type",
         "debug_event", "shutdown_reply", "update_display_data")

class Round:
    """One way to attack, until its time is over or the wrapper hangs up."""

    def __init__(self, seed, seconds, parent):
        self.random = random.Random(seed)
        self.end = time.monotonic() + seconds
        self.parent = parent
        self.sent = 0
        streams = []
        for fd in unix_streams():
            stream = sockets.socket(fileno=os.dup(fd))
            if "inner" in str(stream.getpeername()):  # not an event loop's own
                streams.append(stream)
        self.streams = self.random.choice([streams, streams[:1], streams[1:2], streams[2:]])

    def run(self, name):
        threads = [threading.Thread(target=self.guarded, args=(getattr(self, name), stream), daemon=True)
                   for stream in self.streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self.end - time.monotonic()) + 0.2)

    def guarded(self, attack, stream):
        try:
            stream.setblocking(True)
            stream.settimeout(0.2)
            while time.monotonic() < self.end:
                attack(stream)
        except OSError:
            pass

    def put(self, stream, data):
        view = memoryview(data)
        while view and time.monotonic() < self.end:
            try:
                view = view[stream.send(view):]
            except TimeoutError:
                pass
        self.sent += 1

    def message(self):
        pick = self.random
        size = pick.choice([0, 10, 1000, 1000, 60_000, 2 << 20])
        content = pick.choice([
            {"name": "stdout", "text": "x" * size},
            {"data": {"text/plain": "x" * size}, "metadata": {}, "transient": {}},
            {"execution_state": pick.choice(["busy", "idle", "starting", 7])},
            {"status": "ok", "execution_count": pick.choice([1, -1, 10 ** 30, None])},
            {"comm_id": "c", "data": {}, "target_name": "t"},
            {"prompt": "?", "password": True},
        ])
        parent = pick.choice([self.parent, self.parent, {}, {"msg_id": "never"},
                              {"msg_id": 7}, {**self.parent, "pad": "x" * pick.choice([0, 60_000])}])
        parts = frames(pick.choice(KINDS), content, parent,
                       session=pick.choice([session, session, session, "other"]),
                       idents=[b"x" * pick.choice([0, 10, 70_000])] * pick.choice([0, 1, 1, 9]))
        return parts + [bytes(pick.choice([0, 10, 1 << 20]))] * pick.choice([0, 0, 0, 1, 30])

    # -- ways to attack

    def valid(self, stream):
        self.put(stream, zmtp(self.message()))

    def small_flood(self, stream):
        self.put(stream, zmtp(frames("status", {"execution_state": "busy"}, {"msg_id": "x"})) * 50)

    def same_flood(self, stream):
        self.put(stream, zmtp(frames("stream", {"name": "stdout", "text": "x" * 5000}, self.parent)) * 20)

    def bad_signature(self, stream):
        self.put(stream, zmtp([b"<IDS|MSG>", b"0" * 64, b"{}", b"{}", b"{}", b"{}"]) * 50)

    def mutated(self, stream):
        parts = self.message()
        number = self.random.randrange(len(parts))
        part = bytearray(parts[number])
        for _ in range(self.random.randint(1, 8)):
            if part:
                part[self.random.randrange(len(part))] = self.random.randrange(256)
        parts[number] = bytes(part)
        match self.random.randrange(5):
            case 0: parts = parts[:number]
            case 1: parts = parts + parts
            case 2: self.random.shuffle(parts)
        self.put(stream, zmtp(parts or [b""]))

    def resigned(self, stream):
        body = [self.random.choice([b"{}", b"[]", b"null", b"", b"{" * 3000, b'{"a":' * 90 + b"1" + b"}" * 90,
                b'{"msg_id":"\\ud800"}', b"\xff" * 40, b'{"x":' + b"9" * 5000 + b"}"]) for _ in range(4)]
        self.put(stream, zmtp([b"<IDS|MSG>", sign(body), *body]))

    def unfinished_large(self, stream):
        self.put(stream, zmtp([bytes(1 << 20)], more=True))

    def unfinished_small(self, stream):
        self.put(stream, b"\x01\x01x" * 10_000)

    def empty_frames(self, stream):
        self.put(stream, b"\x01\x00" * 1000 + b"\x00\x00")

    def half_a_frame(self, stream):
        self.put(stream, b"\x02" + (16 << 20).to_bytes(8, "big") + bytes(self.random.randrange(1 << 20)))
        time.sleep(max(0, self.end - time.monotonic()))

    def slow_loris(self, stream):
        for byte in zmtp(self.message())[:3000]:
            self.put(stream, bytes((byte,)))

    def commands(self, stream):
        self.put(stream, self.random.choice([b"\x04\x05\x04PING", b"\x04\x0a\x09SUBSCRIBE", b"\x04\x07\x06CANCEL",
                                             b"\x04\x07\x05READYx", b"\x04\x07\x05ERRORx", b"\x06" + bytes(8)]))

    def garbage(self, stream):
        self.put(stream, self.random.randbytes(self.random.choice([1, 10, 1000, 100_000])))

    def huge_length(self, stream):
        self.put(stream, b"\x02" + self.random.choice([2 ** 63, 2 ** 64 - 1, (16 << 20) + 1]).to_bytes(8, "big"))

    def hang_up(self, stream):
        stream.shutdown(sockets.SHUT_RDWR)
        raise OSError

    def desk(self, stream):
        with sockets.socket(fileno=os.dup(3)) as desk:
            desk.send(self.random.choice([
                b"restored 1 a=1\nexited 11", b"restored 1\texited 99999999999999999999",
                b"checkpoint 1 2 3 4", b"unmade " + b"9" * 900, b"restored " + b"9" * 900, b"\xff" * 50]))
        self.sent += 1

    def die(self, stream):
        os.kill(os.getpid(), self.random.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]))

def connect_again():
    # In every checkpoint: while one wakes, there are sockets to connect to.
    def attempts():
        kept, end = [], time.monotonic() + 600
        while time.monotonic() < end:
            for name in os.listdir("/run/sandbox"):
                if name.startswith("inner") and "-" in name:
                    try:
                        for _ in range(200):
                            stream = sockets.socket(sockets.AF_UNIX)
                            stream.settimeout(0.01)
                            stream.connect("/run/sandbox/" + name)
                            kept.append(stream)
                    except OSError:
                        pass
            time.sleep(0.005)
    threading.Thread(target=attempts, daemon=True).start()

ATTACKS = [name for name, value in vars(Round).items() if callable(value)
           and name not in ("__init__", "run", "guarded", "put", "message")]

def attack(seed, seconds, parent):
    pick = random.Random(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = pick.choice(ATTACKS)
        one = Round(pick.random(), min(pick.uniform(*ROUND_SECONDS), end - time.monotonic()), parent)
        one.run(name)
        print(f"<sent {one.sent} by {name}>", flush=True)
'''
)


@dataclass
class Soak:
    """What was seen."""

    kernel: Kernel
    seed: int
    rounds: int = 0
    # As far as the hostile kernel could still say so.
    sent: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    base_bytes: int = 0
    peak_bytes: int = 0
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    answers: int = 0
    slowest_seconds: dict[str, float] = field(
        default_factory=lambda: {"shell": 0.0, "control": 0.0}
    )
    unanswered: int = 0
    alive: bool = True
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def growth_bytes(self) -> int:
        return self.peak_bytes - self.base_bytes

    @property
    def cpu_share(self) -> float:
        return self.cpu_seconds / self.wall_seconds

    def faults(self) -> list[str]:
        """What is not as promised; nothing if all is."""
        found = {
            "the wrapper ended": not self.alive,
            f"it grew by more than {MAX_GROWTH_BYTES // MIB} MiB": (
                self.growth_bytes > MAX_GROWTH_BYTES
            ),
            f"it used more than {MAX_CPU_SHARE} of a processor": self.cpu_share > MAX_CPU_SHARE,
            f"kernel_info took more than {MAX_ANSWER_SECONDS} s": (
                self.unanswered > 0 or max(self.slowest_seconds.values()) > MAX_ANSWER_SECONDS
            ),
            "nothing was sent": not self.rounds or not self.answers,
        }
        return [what for what, is_so in found.items() if is_so]

    def summary(self) -> str:
        slowest = ", ".join(f"{name} {each:.3f} s" for name, each in self.slowest_seconds.items())
        return (
            f"seed {self.seed}: {self.wall_seconds:.0f} s, {self.rounds} rounds, at least "
            f"{self.sent} messages, endings "
            f"{dict(self.endings)}; wrapper {'alive' if self.alive else 'DEAD'}, "
            f"+{self.growth_bytes / MIB:.1f} MiB at most, CPU {self.cpu_share:.1%}; "
            f"{self.answers} answers, slowest {slowest}, unanswered {self.unanswered}"
        )

    def run(self, seconds: float) -> Soak:
        """Attack for this long."""
        pick = random.Random(self.seed)
        self.kernel.run("warm = 'up'")
        self.base_bytes = self.peak_bytes = self._resident_bytes()
        before, started = self._cpu_seconds(), time.monotonic()
        threads = [threading.Thread(target=self._sample), threading.Thread(target=self._ask)]
        for thread in threads:
            thread.start()
        try:
            while time.monotonic() < started + seconds and self._is_alive():
                self._attack(pick, min(pick.uniform(2, 12), started + seconds - time.monotonic()))
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        self.alive = self._is_alive()
        self.wall_seconds = time.monotonic() - started
        self.cpu_seconds = self._cpu_seconds() - before if self.alive else 0.0
        return self

    def _attack(self, pick: random.Random, seconds: float) -> None:
        """Send the cell that attacks, within its own run or after it, and wait that long."""
        end = time.monotonic() + seconds
        call = f"attack({pick.random()}, {seconds}, me())"
        if pick.random() < 0.5:
            call = f"threading.Thread(target=attack, args=({call[7:-1]},), daemon=True).start()"
        if pick.random() < 0.3:
            call = f"os.register_at_fork(after_in_child=connect_again)\n{call}"
        code = f"ROUND_SECONDS = {ROUND_SECONDS}\n{ROUNDS}\n{call}"
        self.kernel.client.execute(code)
        self.rounds += 1
        while (left := end - time.monotonic()) > 0:
            self._listen()
            try:
                reply = self.kernel.client.get_shell_msg(timeout=min(left, 1.0))
            except Empty:
                continue
            self.endings[reply["content"].get("ename") or reply["content"]["status"]] += 1
            if reply["content"].get("ename") == "SandboxLost":
                return

    def _listen(self) -> None:
        """Read what the kernel shows, as a client must."""
        while self.kernel.client.iopub_channel.msg_ready():
            with suppress(ValueError, TypeError):  # what it sends may be no message to the client
                content = self.kernel.client.get_iopub_msg(timeout=1)["content"]
                self.sent += sum(map(int, re.findall(r"<sent (\d{1,9}) by", str(content))))

    def _is_alive(self) -> bool:
        return is_running(self.kernel.wrapper_pid)

    def _resident_bytes(self) -> int:
        return int(self._proc("statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def _cpu_seconds(self) -> float:
        user, system = self._proc("stat").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.kernel.wrapper_pid}/{name}").read_text()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS) and self._is_alive():
            self.peak_bytes = max(self.peak_bytes, self._resident_bytes())

    def _ask(self) -> None:
        """As a second client does."""
        session = Session(key=self.kernel.manager.session.key)
        info = self.kernel.manager.get_connection_info()
        context = zmq.Context()
        channels = {name: context.socket(zmq.DEALER) for name in self.slowest_seconds}
        for name, socket in channels.items():
            socket.connect(f"tcp://{info['ip']}:{info[f'{name}_port']}")
        while not self._over.wait(ASK_SECONDS):
            for name, socket in channels.items():
                asked = time.monotonic()
                session.send(socket, "kernel_info_request", {})
                if not socket.poll(10_000):
                    self.unanswered += 1
                    continue
                socket.recv_multipart()
                self.answers += 1
                took = time.monotonic() - asked
                self.slowest_seconds[name] = max(self.slowest_seconds[name], took)
        for socket in channels.values():
            socket.close(linger=0)
        context.term()
