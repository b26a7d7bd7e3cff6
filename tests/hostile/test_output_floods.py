"""A cell cannot drown its frontend, its wrapper or its host in output, whatever it sends and how.

While a cell floods, the host looks on: how much memory the wrapper takes, how soon it answers others,
and how many bytes reach a client. Every check of "capped" has its control: without limits all arrives.
"""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.session import DELIM, Session

from sandbox_kernel.words import size
from tests.kernel import LEVELS, TIMEOUT, Kernel, Outcome, at, eventually, running_kernel
from tests.wire.test_hostile_cell import FORGE

pytestmark = [pytest.mark.every_level, pytest.mark.alone]

MIB = 1 << 20
# What the wrapper may hold at most: a few messages of 16 MiB that are on their way.
WRAPPER_GROWTH = 64 * MIB
# What is promised.
ANSWER_SECONDS = 1.0
# The processors are shared out by group, and a container is one of its own; gVisor's own threads keep
# all of them busy.
ANSWER_SECONDS_BESIDE_CONTAINERS = 4.0
# Beside the cell's output a client gets what the wrapper says: the error, the receipt, statuses.
WORDS_OF_THE_WRAPPER = 256 << 10

TIGHT = {"text": "256KiB", "output": "1MiB", "messages": 200, "memory": "256MiB"}
NO_LIMITS = textwrap.dedent("""
    limits:
      text: none
      output: none
      messages: none
""")


# -- what the host sees ----------------------------------------------------------------------------


@dataclass
class Seen:
    """What was seen while a cell ran."""

    kernel: Kernel
    rss: list[int] = field(default_factory=list)
    answers: dict[str, list[float]] = field(default_factory=lambda: {"shell": [], "control": []})
    shown: dict[str, int] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def growth(self) -> int:
        return max(self.rss) - self.rss[0]

    @property
    def in_time(self) -> bool:
        if self.kernel.level == "process":
            return self.slowest_answer < ANSWER_SECONDS
        return self.slowest_answer < ANSWER_SECONDS_BESIDE_CONTAINERS

    @property
    def slowest_answer(self) -> float:
        return max(max(seconds) for seconds in self.answers.values())

    @property
    def shown_bytes(self) -> int:
        """Everything that reached a client, all frames counted."""
        return sum(self.shown.values())

    def sample_memory(self) -> None:
        statm = Path(f"/proc/{self.kernel.wrapper_pid}/statm")
        while True:
            self.rss.append(int(statm.read_text().split()[1]) * 4096)
            if self.over.wait(0.02):
                return

    def ask(self) -> None:
        """As a second client does: ``kernel_info_request`` on shell and on control."""
        session = Session(key=self.kernel.manager.session.key)
        with sockets(self.kernel, shell=zmq.DEALER, control=zmq.DEALER) as channels:
            while True:
                asked = {}
                for channel, socket in channels.items():
                    asked[channel] = time.monotonic()
                    session.send(socket, "kernel_info_request", {})
                for channel, socket in channels.items():
                    answered = socket.poll(20_000)
                    self.answers[channel].append(time.monotonic() - asked[channel])
                    if answered:
                        socket.recv_multipart()
                if self.over.wait(0.1):
                    return

    def listen(self) -> None:
        with sockets(self.kernel, iopub=zmq.SUB) as channels:
            iopub = channels["iopub"]
            iopub.subscribe(b"")
            while iopub.poll(50) or not self.over.is_set():
                if not iopub.poll(0):
                    continue
                frames = iopub.recv_multipart()
                header, parent = frames[(start := frames.index(DELIM)) + 2 : start + 4]
                if b'"kernel_info_request"' in parent:
                    continue  # about the questions above
                kind = header.split(b'"msg_type":')[1].split(b'"')[1].decode()
                self.shown[kind] = self.shown.get(kind, 0) + sum(map(len, frames))


@contextmanager
def sockets(kernel: Kernel, queue: int = 0, **kinds: int) -> Iterator[dict[str, zmq.Socket[bytes]]]:
    """Sockets of another client, by channel; each takes in ``queue`` messages, 0 is any number."""
    info = kernel.manager.get_connection_info()
    context = zmq.Context()
    opened = {}
    for channel, kind in kinds.items():
        opened[channel] = context.socket(kind)
        opened[channel].rcvhwm = queue
        opened[channel].connect(f"tcp://{info['ip']}:{info[f'{channel}_port']}")
    try:
        yield opened
    finally:
        for socket in opened.values():
            socket.close(linger=0)
        context.term()


@contextmanager
def watched(kernel: Kernel) -> Iterator[Seen]:
    seen = Seen(kernel)
    threads = [threading.Thread(target=run) for run in (seen.sample_memory, seen.ask, seen.listen)]
    for thread in threads:
        thread.start()
    try:
        while not all(seen.answers.values()):
            time.sleep(0.02)
        time.sleep(0.1)  # the subscription is on its way
        yield seen
    finally:
        time.sleep(0.1)
        seen.over.set()
        for thread in threads:
            thread.join()


def flood(kernel: Kernel, limits: dict[str, Any], code: str) -> tuple[Outcome, Seen]:
    """Run a cell that floods; what it does to others must not be seen."""
    assert kernel.run("keep = 42").status == "ok"
    with watched(kernel) as seen:
        outcome = kernel.run_within(limits, code)
    print(
        f"wrapper +{size(seen.growth)}, answers within {seen.slowest_answer:.3f} s, "
        f"shown {size(seen.shown_bytes)} {seen.shown}; {outcome.ename}: {outcome.evalue}"
    )
    assert seen.growth < WRAPPER_GROWTH
    assert seen.in_time, seen.slowest_answer
    return outcome, seen


def expect_capped(outcome: Outcome, seen: Seen) -> None:
    limits = outcome.receipt["limits"]
    assert seen.shown_bytes <= limits["output_bytes"] + WORDS_OF_THE_WRAPPER
    assert seen.shown.get("stream", 0) <= limits["text_bytes"] + WORDS_OF_THE_WRAPPER


def expect_told(outcome: Outcome) -> None:
    """The limit, what was used and what became of the variables: in words and for programs."""
    assert outcome.ename == "CellOutputExceeded"
    assert outcome.receipt["outcome"] == "output"
    exceeded = outcome.receipt["exceeded"]
    assert exceeded["limit"] in ("output", "text", "messages")
    assert exceeded["used"] > exceeded["allowed"]
    assert "allows" in outcome.evalue
    assert "all variables" in outcome.evalue
    shown = [m["content"] for m in outcome.messages if m["msg_type"] == "error"]
    assert [(error["ename"], error["evalue"]) for error in shown] == [
        ("CellOutputExceeded", outcome.evalue)
    ]


# -- floods that any cell may cause by mistake -----------------------------------------------------


@dataclass(frozen=True)
class Flood:
    """A cell, and the errors that may end it: the wrapper's, or Python's where that comes first."""

    code: str
    errors: frozenset[str] = frozenset({"CellOutputExceeded"})


IN_PROCESS = frozenset({"CellOutputExceeded", "CellMemoryExceeded", "MemoryError", "ValueError"})
FLOODS = {
    "a_million_lines": Flood("for i in range(10**6): print(i)"),
    "a_gibibyte_printed": Flood("print('x' * (1 << 30))", IN_PROCESS),
    "a_gibibyte_as_a_result": Flood("'x' * (1 << 30)", IN_PROCESS),
    "a_gibibyte_displayed": Flood("display({'text/plain': 'x' * (1 << 30)}, raw=True)", IN_PROCESS),
    "many_large_displays": Flood(
        "for i in range(200): display({'text/plain': 'x' * (700 << 10)}, raw=True)"
    ),
    "clear_output": Flood(
        "from IPython.display import clear_output\nfor i in range(10**5): clear_output(wait=True)"
    ),
    "update_display": Flood(
        "shown = display(0, display_id=True)\nfor i in range(10**5): shown.update(i)"
    ),
    "many_small_displays": Flood("for i in range(10**5): display(i)"),
    "a_childs_stderr": Flood(
        "import subprocess\n"
        "subprocess.run('yes 0123456789abcdef0123456789abcdef | head -c 1000000000 >&2', shell=True)"
    ),
    "comm_msg": Flood(
        "from comm import create_comm\n"
        "comm = create_comm(target_name='flood')\n"
        "for i in range(10**5): comm.send({'number': i})"
    ),
    "comm_buffers": Flood(
        "from comm import create_comm\n"
        "comm = create_comm(target_name='flood')\n"
        "for i in range(200): comm.send({}, buffers=[bytes(900 << 10)])"
    ),
    "a_huge_traceback": Flood("raise KeyError('x' * (200 << 20))", IN_PROCESS | {"KeyError"}),
}


# The default policy's limits are gigabytes: elsewhere the tight ones show the same, sooner.
@pytest.mark.parametrize(
    ("level", "limits"),
    [at("process", {}), *(at(level, TIGHT) for level in LEVELS)],
    ids=["default_policy", *(f"{level}-tight_limits" for level in LEVELS)],
    scope="module",
)
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_capped_and_told_and_costs_nothing_else(
    kernel: Kernel, name: str, limits: dict[str, Any]
) -> None:
    outcome, seen = flood(kernel, limits, FLOODS[name].code)
    assert outcome.ename in FLOODS[name].errors, outcome.receipt
    expect_capped(outcome, seen)
    if outcome.ename == "CellOutputExceeded":
        expect_told(outcome)
    assert outcome.receipt["state"] in ("kept", "rolled_back")
    assert kernel.run("keep").result == "42"
    assert kernel.run("print('and on')").text() == "and on\n"


def test_a_cell_that_stops_when_told_keeps_what_it_had_set(kernel: Kernel) -> None:
    """A first large message must not make it look as if the cell had left threads behind."""
    outcome = kernel.run_within(
        TIGHT, "reached = 0\nwhile True:\n    print('x' * 99)\n    reached += 1"
    )
    expect_told(outcome)
    assert outcome.receipt["state"] == "kept"
    assert outcome.receipt["exceeded"]["action"] == "interrupted"
    assert int(kernel.run("reached").result or 0) > 100


def test_a_huge_traceback_still_shows_an_error(kernel: Kernel) -> None:
    """JupyterLab shows the error that is published, not the one in the reply."""
    outcome = kernel.run("raise KeyError('x' * (20 << 20))")
    assert outcome.status == "error"
    assert [m["content"]["ename"] for m in outcome.messages if m["msg_type"] == "error"]


@pytest.mark.parametrize(
    ("code", "kind", "count", "total"),
    [
        ("for i in range(100_000): print(i)", "stream", None, 588_890),
        ("print('x' * (20 << 20))", "stream", None, (20 << 20) + 1),
        ("for i in range(10_500): display(i)", "display_data", 10_500, None),
        (
            "for i in range(6): display({'text/plain': 'x' * (8 << 20)}, raw=True)",
            "display_data",
            6,
            48 << 20,
        ),
    ],
    ids=["lines", "one_string", "small_displays", "large_displays"],
)
def test_without_limits_all_of_it_arrives(
    tmp_path: Path, level: str, code: str, kind: str, count: int | None, total: int | None
) -> None:
    """The control: it is the limits that cap, and not the relay that loses."""
    with running_kernel(cwd=tmp_path, level=level, policy=NO_LIMITS) as kernel:
        outcome = kernel.outcome_of(kernel.client.execute(code))
    assert outcome.status == "ok", outcome.evalue
    shown = [m["content"] for m in outcome.messages if m["msg_type"] == kind]
    texts = [content.get("text") or content["data"]["text/plain"] for content in shown]
    if kind == "display_data":
        texts.pop()  # the receipt
    assert count is None or len(texts) == count
    assert total is None or sum(map(len, texts)) == total


# -- floods of a kernel that is hostile ------------------------------------------------------------

KIT = FORGE + textwrap.dedent("""
    import signal, time

    BIG = "x" * (2 << 20)
    TEXT = {"name": "stdout", "text": BIG}
    SHOWN = {"data": {}, "metadata": {}, "transient": {}}

    def padded(kind):
        return {"msg_id": uuid.uuid4().hex, "msg_type": kind, "username": "x" * 60_000,
                "session": session, "date": "2020-01-01T00:00:00Z", "version": "5.3"}

    def deaf():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def on_and_on(make, seconds=3.0):
        # In the IOPub thread, past everything that ipykernel and the bridge check.
        done, end = threading.Event(), time.monotonic() + seconds
        def send():
            while time.monotonic() < end:
                kernel.iopub_thread.socket.send_multipart(make(), copy=False)
            done.set()
        kernel.iopub_thread.schedule(send)
        while not done.wait(0.1):
            pass

    def on_every_stream(pieces):
        def send(fd):
            stream = sockets.socket(fileno=os.dup(fd))
            stream.setblocking(True)
            for piece in pieces:
                stream.sendall(piece)
        # Some have no reader: they belong to event loops.
        threads = [threading.Thread(target=send, args=(each,)) for each in unix_streams()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
""")
HOSTILE = {
    "streams": "p = me(); on_and_on(lambda: frames('stream', TEXT, p))",
    "streams_deaf_to_interrupts": "deaf(); p = me(); on_and_on(lambda: frames('stream', TEXT, p), 60)",
    "streams_of_no_cell": "on_and_on(lambda: frames('stream', TEXT, {}))",
    "streams_of_a_cell_that_never_was": (
        "p = {**me(), 'msg_id': 'x'}; on_and_on(lambda: frames('stream', TEXT, p))"
    ),
    "small_displays_of_no_cell": "on_and_on(lambda: frames('display_data', SHOWN, {}))",
    "execute_inputs": (
        "p = me(); on_and_on(lambda: frames('execute_input', {'code': BIG, 'execution_count': 1}, p))"
    ),
    "statuses": (
        "p = me(); on_and_on(lambda: frames('status', {'execution_state': 'busy', 'x': BIG}, p))"
    ),
    "small_statuses": (
        "p = me(); on_and_on(lambda: frames('status', {'execution_state': 'busy'}, p))"
    ),
    "unknown_types": "p = me(); on_and_on(lambda: frames('no_such_type', {'x': BIG}, p))",
    "metadata": (
        "p = me(); raw = {2: json.dumps({'x': BIG}).encode()}\n"
        "on_and_on(lambda: frames('display_data', SHOWN, p, raw=raw))"
    ),
    "headers": "p = me(); on_and_on(lambda: frames('comm_open', {}, p, header=padded('comm_open')))",
    "headers_of_displays": (
        "p = me(); on_and_on(lambda: frames('display_data', SHOWN, p, header=padded('display_data')))"
    ),
    "headers_of_unknown_types": (
        "p = me(); on_and_on(lambda: frames('odd', {}, p, header=padded('odd')))"
    ),
    "parent_headers": (
        "p = {**me(), 'pad': 'x' * 60_000}; on_and_on(lambda: frames('display_data', SHOWN, p))"
    ),
    "parent_headers_of_no_cell": (
        "p = {'pad': 'x' * 60_000}; on_and_on(lambda: frames('comm_msg', {'comm_id': 'x'}, p))"
    ),
    "both_headers_of_clear_outputs": (
        "p = {**me(), 'pad': 'x' * 60_000}\n"
        "on_and_on(lambda: frames('clear_output', {}, p, header=padded('clear_output')))"
    ),
    "buffers": (
        "p = me(); part = bytes(200 << 10)\n"
        "on_and_on(lambda: frames('comm_msg', {'comm_id': 'x', 'data': {}}, p) + [part] * 3)"
    ),
    "topics": (
        "p = me(); on_and_on(lambda: frames('display_data', SHOWN, p, idents=[BIG.encode()]))"
    ),
}


def hostile_cells() -> Iterator[Any]:
    for name, code in HOSTILE.items():
        yield pytest.param(code, TIGHT, id=name)
    yield pytest.param(HOSTILE["streams"], {}, id="streams_under_the_default_policy")


@pytest.mark.parametrize(("code", "limits"), list(hostile_cells()))
def test_a_kernel_that_ignores_all_limits_is_capped_from_outside(
    kernel: Kernel, code: str, limits: dict[str, Any]
) -> None:
    assert kernel.run(KIT).status == "ok"
    outcome, seen = flood(kernel, {**limits, "grace": "500ms", "wall": "30s"}, code)
    expect_capped(outcome, seen)
    expect_told(outcome)
    assert kernel.run("keep").result == "42"


@pytest.mark.parametrize("channel", ["control", "stdin", "shell"])
def test_a_flood_on_another_channel_reaches_nobody(kernel: Kernel, channel: str) -> None:
    assert kernel.run(KIT).status == "ok"
    socket = {
        "control": "kernel.control_stream.socket",
        "stdin": "kernel.stdin_socket",
        "shell": "kernel.shell_stream.socket",
    }[channel]
    name = "[b'wrapper']" if channel == "shell" else "[]"
    outcome, seen = flood(
        kernel,
        TIGHT,
        "p = {**me(), 'msg_id': 'x'}\n"
        "for _ in range(80):\n"
        f"    {socket}.send_multipart({name} + frames('input_request', {{'prompt': BIG}}, p))",
    )
    expect_capped(outcome, seen)
    assert kernel.run("keep").result == "42"


BETWEEN_CELLS = {
    "a_thread_that_was_left": (
        "import threading\n"
        "def print_on():\n"
        "    for _ in range(64): print('x' * (1 << 20), flush=True)\n"
        "threading.Timer(0.5, print_on).start()"
    ),
    "an_end_of_its_own_making": (
        "p = me(); answer = {'status': 'ok', 'execution_count': 3}\n"
        "on_iopub(frames('status', {'execution_state': 'idle'}, p))\n"
        "on_shell(frames('execute_reply', answer, p))\n"
        "time.sleep(0.5)\n"
        "on_and_on(lambda: frames('stream', TEXT, p), 2.0)"
    ),
}


@pytest.mark.parametrize("name", BETWEEN_CELLS)
def test_a_flood_between_cells_is_capped_as_one_of_a_cell_is(tmp_path: Path, name: str) -> None:
    policy = "limits:\n  text: 1MiB\n  output: 2MiB\n  messages: 500\n"
    with running_kernel(cwd=tmp_path, policy=policy) as kernel:
        assert kernel.run(KIT).status == "ok"
        with watched(kernel) as seen:
            assert kernel.run(BETWEEN_CELLS[name]).status == "ok"
            time.sleep(3)
        assert seen.growth < WRAPPER_GROWTH
        assert seen.in_time, seen.slowest_answer
        assert seen.shown_bytes <= 2 * MIB + WORDS_OF_THE_WRAPPER
        behind = kernel.run("print('and on')")
        if behind.status == "error":
            # The flood still stands before it in the queue, and was too much: all of that has ended.
            assert (behind.ename, behind.receipt["state"]) == ("SandboxLost", "rolled_back")
            assert "more messages that nobody gets" in behind.evalue
            behind = kernel.run("print('and on')")
        assert behind.text() == "and on\n"


# -- memory of the wrapper's own -------------------------------------------------------------------

ENDLESS = {
    # One buffer, sent again and again: it costs the sandbox nothing.
    "a_message_of_many_buffers": (
        "p = me(); part = bytes(16 << 20)\n"
        "on_iopub(frames('comm_msg', {'comm_id': 'x', 'data': {}}, p) + [part] * 80)"
    ),
    # ZMTP by hand: each frame says that another one follows.
    "frames_without_end": (
        "deaf(); on_every_stream([b'\\x03' + (1 << 20).to_bytes(8, 'big') + bytes(1 << 20)] * 300)"
    ),
    "tiny_frames_without_end": "deaf(); on_every_stream([b'\\x01\\x01x' * 100_000] * 40)",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_message_without_end_does_not_fill_the_wrapper(kernel: Kernel, name: str) -> None:
    assert kernel.run(KIT).status == "ok"
    assert kernel.run("keep = 42").status == "ok"
    with watched(kernel) as seen:
        outcome = kernel.run_within({"wall": "10s", "grace": "500ms"}, ENDLESS[name])
    print(
        f"wrapper +{size(seen.growth)}, answers within {seen.slowest_answer:.3f} s; "
        f"{outcome.ename}: {outcome.evalue}"
    )
    assert seen.growth < WRAPPER_GROWTH
    assert seen.in_time, seen.slowest_answer
    assert outcome.status == "error"
    assert kernel.run("keep").result == "42"


def test_a_message_without_end_that_a_thread_sends_between_cells_does_not_either(
    kernel: Kernel,
) -> None:
    assert kernel.run(KIT).status == "ok"
    assert kernel.run("keep = 42").status == "ok"
    send = ENDLESS["frames_without_end"].removeprefix("deaf(); ")
    with watched(kernel) as seen:
        left = f"import threading\ndef left(): {send}\nthreading.Timer(0.5, left).start()"
        assert kernel.run(left).status == "ok"
        sender = kernel.kernel_process.inner_pid
        eventually(
            lambda: sender not in [each.inner_pid for each in kernel.processes()],
            what="the end of who sends",
        )
        outcome = kernel.run("keep")
    print(f"wrapper +{size(seen.growth)}, answers within {seen.slowest_answer:.3f} s")
    assert seen.growth < WRAPPER_GROWTH
    # What the kernel itself sends on the same stream may come between two frames.
    said = outcome.text("stderr")
    assert "never finished one" in said or "a frame of no known kind" in said
    assert outcome.result == "42"


# Each some 30 MiB.
SHOWN = {
    "large frames": "for _ in range(3): display({'text/plain': 'x' * (10 << 20)}, raw=True)",
    "frames just below what is sent without a copy": (
        "for _ in range(700): display({'text/plain': 'x' * 45_000}, raw=True)"
    ),
    "messages of many small buffers": (
        "from comm import create_comm\n"
        "comm = create_comm(target_name='x')\n"
        "for _ in range(3): comm.send({}, buffers=[bytes(30_000)] * 333)"
    ),
}


@pytest.mark.parametrize("how", SHOWN)
def test_a_subscriber_that_never_reads_does_not_fill_the_wrapper(kernel: Kernel, how: str) -> None:
    with sockets(kernel, queue=1, iopub=zmq.SUB) as channels:
        silent = channels["iopub"]
        silent.subscribe(b"")
        assert silent.poll(TIMEOUT * 1000), "it is welcomed, so it is subscribed"
        with watched(kernel) as seen:
            for _ in range(8):
                outcome = kernel.run(SHOWN[how])
                assert outcome.status == "ok"
        print(f"wrapper +{size(seen.growth)}")
        assert seen.in_time, seen.slowest_answer
        assert seen.growth < WRAPPER_GROWTH


def test_a_frontend_that_pauses_for_a_second_misses_nothing(tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, policy=NO_LIMITS) as kernel:
        assert kernel.run("1").result == "1"
        request = kernel.client.execute("for number in range(20_000): display(number)")
        kernel.client.get_iopub_msg(timeout=TIMEOUT)
        time.sleep(1)  # the pause itself
        outcome = kernel.outcome_of(request)
    displays = [m["content"] for m in outcome.messages if m["msg_type"] == "display_data"]
    shown = [content["data"]["text/plain"] for content in displays]
    assert shown[:-1] == [str(number) for number in range(20_000)]
