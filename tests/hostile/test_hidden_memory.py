"""Memory where no process shows it: every place for bytes is bounded by the kernel, or is measured.

Each attack runs in a cell that may take ``MEMORY``, and tries to take ``WANTED``. Either the kernel refuses
before that much is held, or the wrapper stops the cell. The host's own totals are the witness. The same
code in a plain process of the host's holds what it asks for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_kernel.limits.surroundings import host_held
from tests.kernel import Kernel, running_kernel
from tests.sandbox import test_ordinary_user as ordinary_user

IS_ROOT = os.geteuid() == 0
# What the host holds is looked at: others would add to it.
pytestmark = [pytest.mark.every_level, pytest.mark.alone]

MIB = 1 << 20
MEMORY, SANDBOX_MEMORY, WANTED = 128 * MIB, 768 * MIB, 1024 * MIB
POLICY = f"limits: {{memory: {MEMORY}, sandbox_memory: {SANDBOX_MEMORY}, wall: 30s, grace: 300ms}}"
# What a cell takes between two looks and until it is dead, and what other programs take meanwhile.
MOST_HELD = 512 * MIB
# What the control takes of the host.
CONTROL = 192 * MIB

# Each leaves what it takes in `kept`, counts it in `taken` and ends when it has `WANTED` or is refused.
BEGIN = """
import array, ctypes, errno, fcntl, mmap, os, resource, select, socket, struct, time
libc = ctypes.CDLL(None, use_errno=True)
kept, taken = [], 0
def fill(write):
    sent = 0
    try:
        while True: sent += write(bytes(65536))
    except BlockingIOError:
        return sent
def checked(result):
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def in_children(count, work):
    # Each child keeps what it has taken, and says how much that is.
    global taken
    for _ in range(count):
        here, there = os.pipe()
        if not (pid := os.fork()):
            os.close(here)
            amount = 0
            try: amount = work()
            finally:
                os.write(there, struct.pack('q', amount))
                time.sleep(600)
        os.close(there)
        children.append(pid)
        taken += struct.unpack('q', os.read(here, 8))[0]
        os.close(here)
children = []
try:
"""
END = """
except (OSError, MemoryError) as error:
    print('refused', type(error).__name__, error)
print('taken', taken)
"""
FILES = """
os.makedirs(PLACE, exist_ok=True)
while taken < WANTED:
    with open(f'{PLACE}/hog-{taken}', 'wb') as file: taken += file.write(bytes(4 << 20))
"""
ATTACKS = {
    "files in /dev": "PLACE = '/dev'" + FILES,
    "files in /var/tmp": "PLACE = '/var/tmp'" + FILES,
    "socket pairs with large buffers": """
while taken < WANTED:
    pair = socket.socketpair()
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    pair[0].setblocking(False)
    kept.append(pair)
    taken += fill(pair[0].send)
""",
    "socket pairs in many children": """
def work():
    sent = 0
    try:
        while True:
            pair = socket.socketpair()
            pair[0].setblocking(False)
            kept.append(pair)
            sent += fill(pair[0].send)
    except OSError: return sent
while taken < WANTED: in_children(1, work)
""",
    "memory files with high numbers": """
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
for _ in range(5000): kept.append(os.open('/dev/null', os.O_RDONLY))
while taken < WANTED:
    file = os.memfd_create('hog')
    for _ in range(16): taken += os.write(file, bytes(1 << 20))
""",
    "memory files on their way over a socket": """
pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
kept.append(pair)
while taken < WANTED:
    file = os.memfd_create('hog')
    for _ in range(16): taken += os.write(file, bytes(1 << 20))
    socket.send_fds(pair[0], [b'x'], [file])
    os.close(file)
""",
    "shared memory that is mapped but not resident": """
while taken < WANTED:
    data = mmap.mmap(-1, 16 << 20)
    data.write(bytes(b'x') * (16 << 20))
    data.madvise(mmap.MADV_DONTNEED)
    kept.append(data)
    taken += 16 << 20
""",
    "connections over loopback": """
server = socket.create_server(('127.0.0.1', 0))
while taken < WANTED:
    client = socket.create_connection(server.getsockname())
    peer, _ = server.accept()
    client.setblocking(False)
    kept.append((client, peer))
    taken += fill(client.send)
""",
    "datagrams that nobody reads": """
while taken < WANTED:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(('127.0.0.1', 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(64): sender.sendto(bytes(32768), receiver.getsockname())
    sender.close()
    kept.append(receiver)
    taken += 128 << 10
""",
    "pipes in many children": """
def work():
    written = 0
    try:
        while True:
            ends = os.pipe()
            os.set_blocking(ends[1], False)
            kept.append(ends)
            written += fill(lambda data: os.write(ends[1], data))
    except OSError: return written
while taken < WANTED: in_children(1, work)
""",
    "System V shared memory": """
while taken < WANTED:
    number = checked(libc.shmget(0, 16 << 20, 0o1600))
    libc.shmat.restype = ctypes.c_void_p
    place = libc.shmat(number, None, 0)
    ctypes.memset(place, 1, 16 << 20)
    libc.shmdt(ctypes.c_void_p(place))
    kept.append(number)
    taken += 16 << 20
""",
    "System V message queues": """
while taken < WANTED:
    queue = checked(libc.msgget(0, 0o1600))
    kept.append(queue)
    message = struct.pack('l', 1) + bytes(8192)
    for _ in range(2): checked(libc.msgsnd(queue, message, 8192, 0o4000))
    taken += 16384
""",
    "page tables": """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
span, read_only, private_anonymous = 1 << 39, 1, 0x4022
place = libc.mmap(None, span, read_only, private_anonymous, -1, 0)
if place in (None, ctypes.c_void_p(-1).value): raise OSError(ctypes.get_errno(), 'mmap')
libc.madvise(place, span, 15)
while taken < WANTED and taken < span // 512:
    ctypes.c_char.from_address(place + taken * 512).value
    taken += 4096
""",
    "empty files": """
PLACE = '/dev/shm/hog' if os.access('/dev/shm', os.W_OK) else '/tmp/hog'
os.mkdir(PLACE)
while taken < WANTED:
    os.close(os.open(f'{PLACE}/{taken:0200}', os.O_CREAT | os.O_WRONLY))
    taken += 1280
""",
    "locks on files": """
while taken < WANTED:
    fd = os.open(f'/dev/shm/hog-{taken}', os.O_CREAT | os.O_RDWR)
    kept.append(fd)
    for number in range(700): fcntl.lockf(fd, fcntl.LOCK_EX, 1, number * 2)
    taken += 700 * 200
""",
    "terminals": """
while taken < WANTED:
    ends = os.openpty()
    os.set_blocking(ends[1], False)
    kept.append(ends)
    taken += fill(lambda data: os.write(ends[1], data))
""",
    "timers": """
while taken < WANTED:
    timer = ctypes.c_void_p()
    checked(libc.timer_create(1, None, ctypes.byref(timer)))
    taken += 400
""",
    "filter programs of sockets": """
program = b''.join(struct.pack('HBBI', 0x20, 0, 0, 1 << 16) for _ in range(899))
program += struct.pack('HBBI', 6, 0, 0, 0)
data = ctypes.create_string_buffer(program, len(program))
attach = struct.pack('HxxxxxxP', 900, ctypes.addressof(data))
while taken < WANTED:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    kept.append(end)
    end.setsockopt(socket.SOL_SOCKET, 26, attach)  # SO_ATTACH_FILTER
    taken += 140_000  # as written, and as the machine's kernel compiles it
""",
    "epoll watches": """
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
events = []
for _ in range(300): events.append(os.eventfd(0))
while taken < WANTED:
    poll = select.epoll()
    kept.append(poll)
    for event in events: poll.register(event, 0)
    taken += 300 * 200
""",
}
# What the filter or a limit refuses before anything to speak of is held, and what is too slow to be filled
# or bounded by a number far below `CONTROL` on the host too.
WITHOUT_CONTROL = {
    "timers",
    "terminals",
    "locks on files",
    "epoll watches",
    "System V message queues",
}
CLEAN_UP = """
import glob, shutil, signal
for pid in globals().get('children', ()):
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except OSError: pass
def release(what):
    if isinstance(what, (list, tuple)):
        for each in what: release(each)
    elif isinstance(what, int):
        try: os.close(what)
        except OSError: pass
    elif hasattr(what, 'close'): what.close()
for name in ('kept', 'events', 'file', 'fd', 'pair', 'server', 'client', 'peer', 'data', 'poll', 'ends'):
    if HOW != 'System V': release(globals().pop(name, ()))
for name in [p for d in ('/dev', '/tmp', '/dev/shm', '/var/tmp') for p in glob.glob(d + '/hog*')]:
    shutil.rmtree(name) if os.path.isdir(name) else os.remove(name)
"""


class Witness(threading.Thread):
    """The most that the host held, while something went on, of what no process has as its own."""

    def __init__(self) -> None:
        super().__init__()
        self._over = threading.Event()
        self.before = self.most = settled()

    def run(self) -> None:
        while not self._over.wait(0.01):
            self.most = max(self.most, held())

    def __enter__(self) -> Witness:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    @property
    def gained(self) -> int:
        return self.most - self.before


def held() -> int:
    return host_held()


def settled() -> int:
    """What the host holds once it has taken back what an earlier test had, which takes it a while."""
    seen = [held()]
    while len(seen) < 2 or abs(seen[-1] - seen[-2]) > 4 * MIB:
        time.sleep(0.15)
        seen.append(held())
    return seen[-1]


def code(how: str, wanted: int) -> str:
    body = "".join(f"    {line}\n" for line in ATTACKS[how].splitlines())
    return f"WANTED = {wanted}\n{BEGIN}{body}{END}"


def clean_up(how: str) -> str:
    # Numbers of System V objects are not descriptors.
    return CLEAN_UP.replace("HOW", repr(how[:8]))


@pytest.fixture(scope="module")
def attacked(
    level: str, tmp_path_factory: pytest.TempPathFactory, config_home: Path
) -> Iterator[Kernel]:
    """One kernel for all: whatever is done to it, it is there for the next."""
    folder = tmp_path_factory.mktemp("folder")
    folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SANDBOX_KERNEL_HOME", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp("state")))
        with running_kernel(level=level, policy=POLICY, cwd=folder) as kernel:
            yield kernel


@pytest.mark.parametrize("how", ATTACKS)
def test_a_cell_cannot_hold_memory_out_of_sight(attacked: Kernel, how: str) -> None:
    assert attacked.run("precious = [1, 2, 3]; import os").status == "ok"
    # gVisor is one process to the host's kernel: where that runs out of memory, all of it ends.
    may_be_lost = attacked.level == "gvisor"
    began = time.monotonic()
    with Witness() as witness:
        outcome = attacked.run(code(how, WANTED))
    cleaned = attacked.run(f"import os\n{clean_up(how)}")
    assert cleaned.status == "ok", cleaned.evalue
    if not may_be_lost:
        assert attacked.run("precious").result == "[1, 2, 3]"
    said, receipt = outcome.text(), outcome.receipt
    figures = (
        f"{how}: {outcome.ename or said.strip()}, host +{witness.gained // MIB} MiB, "
        f"{receipt['usage']['source']}, {time.monotonic() - began:.1f} s"
    )
    print(figures, outcome.evalue)
    assert witness.gained < MOST_HELD, figures
    if outcome.status == "ok":
        assert "refused" in said, figures
        # What the cell counts, or, where gVisor keeps many zeros as one, what the host sees.
        taken = int(said.split("taken ")[1])
        assert min(taken, max(0, witness.gained)) <= MEMORY, figures
    elif not (may_be_lost and receipt["state"] == "lost"):
        assert outcome.ename in ("CellMemoryExceeded", "CellLimitExceeded"), (
            figures,
            outcome.evalue,
        )
        assert receipt["exceeded"]["limit"] in (
            *("memory", "sandbox_memory", "pipes", "terminals"),
        ), figures
        assert receipt["state"] in ("kept", "rolled_back"), figures


@pytest.mark.process
@pytest.mark.skipif(not IS_ROOT, reason="as root the limits of a user do not come first")
@pytest.mark.parametrize("how", sorted(set(ATTACKS) - WITHOUT_CONTROL))
def test_the_same_code_outside_holds_that_memory(how: str) -> None:
    source = code(how, CONTROL).replace("'/var/tmp'", "'/dev/shm/hog-control'")
    source += "print('held', flush=True)\ninput()\n" + clean_up(how)
    source += "import shutil; shutil.rmtree('/dev/shm/hog-control', ignore_errors=True)\n"
    if "System V" in how:
        source += "[libc.shmctl(n, 0, None) for n in kept or ()]\n"
    before = settled()
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line == "held\n":
            break
    gained = held() - before
    process.communicate("\n", timeout=30)
    assert gained > CONTROL // 2, f"{how}: +{gained // MIB} MiB, {said}"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not IS_ROOT, reason="the whole suite runs as an ordinary user already")
def test_the_same_holds_for_an_ordinary_user_without_a_cgroup(home: Path) -> None:
    ordinary_user.test_the_guarantees_hold_for_an_ordinary_user(
        home, "../hostile/test_hidden_memory"
    )
