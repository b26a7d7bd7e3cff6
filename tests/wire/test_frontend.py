"""What a frontend may get wrong: a clear error or a counted drop, and the kernel goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.session import Session

from tests.kernel import TIMEOUT, Kernel, running_kernel
from tests.ports import connection_file

# All of this is between the frontend and the wrapper: no sandbox has a part in it.
pytestmark = pytest.mark.process


@pytest.fixture
def raw_shell(kernel: Kernel) -> Iterator[zmq.Socket[bytes]]:
    info = kernel.manager.get_connection_info()
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(f"tcp://{info['ip']}:{info['shell_port']}")
    yield socket
    socket.close(linger=0)
    context.term()


def with_frame(session: Session, number: int, value: bytes) -> list[bytes]:
    """A question with one frame of our own, signed: only the damage itself is tested."""
    parts = session.serialize(session.msg("kernel_info_request", {}))
    parts[number] = value
    parts[1] = session.sign(parts[2:6])
    return parts


def damaged(session: Session) -> dict[str, Callable[[], list[bytes]]]:
    def frames() -> list[bytes]:
        return session.serialize(session.msg("kernel_info_request", {}))

    def header(value: bytes) -> list[bytes]:
        return with_frame(session, 2, value)

    return {
        "wrong signature": lambda: [*frames()[:1], b"0" * 64, *frames()[2:]],
        "no signature": lambda: [*frames()[:1], b"", *frames()[2:]],
        "no delimiter": lambda: frames()[1:],
        "too few frames": lambda: frames()[:4],
        "nothing": lambda: [b""],
        "header not JSON": lambda: header(b"{"),
        "header a list": lambda: header(b"[]"),
        "header without msg_id": lambda: header(b'{"msg_type":"kernel_info_request"}'),
        "header with odd types": lambda: header(b'{"msg_type":1,"msg_id":[]}'),
        "header without session and version": lambda: header(
            b'{"msg_type":"execute_request","msg_id":"x"}'
        ),
    }


@pytest.mark.parametrize("damage", damaged(Session(key=b"k")).keys())
def test_a_damaged_message_is_dropped_and_the_kernel_goes_on(
    kernel: Kernel, raw_shell: zmq.Socket[bytes], damage: str
) -> None:
    session = Session(key=kernel.manager.session.key)
    raw_shell.send_multipart(damaged(session)[damage]())
    # The same socket: order shows that the damaged one was taken in and not answered.
    raw_shell.send_multipart(session.serialize(session.msg("kernel_info_request", {})))
    assert raw_shell.poll(10_000)
    assert b"kernel_info_reply" in b"".join(raw_shell.recv_multipart())
    assert not raw_shell.poll(100)
    assert kernel.run("1 + 1").result == "2"


@pytest.mark.parametrize(
    ("number", "body"),
    [
        (5, b'{"a":' * 2000 + b"1" + b"}" * 2000),
        (5, b'{"code":NaN}'),
        (5, b'{"code":"\\ud83d"}'),
        (4, b'{"scale":1e400}'),
        (4, b"3"),
    ],
    ids=["too_deep", "nan", "half_a_character", "huge_number", "no_object"],
)
def test_a_question_whose_body_cannot_be_read_gets_an_error_and_the_kernel_goes_on(
    kernel: Kernel, raw_shell: zmq.Socket[bytes], number: int, body: bytes
) -> None:
    session = Session(key=kernel.manager.session.key)
    raw_shell.send_multipart(with_frame(session, number, body))
    assert raw_shell.poll(10_000)
    _, frames = session.feed_identities(raw_shell.recv_multipart())
    reply = session.deserialize(frames)
    assert (reply["msg_type"], reply["content"]["status"]) == ("kernel_info_reply", "error")
    assert kernel.run("1 + 1").result == "2"


def test_a_cell_with_odd_bytes_in_its_metadata_runs(kernel: Kernel) -> None:
    """A name that is no UTF-8, as Python has it."""
    content = {"code": "6 * 7", "silent": False, "allow_stdin": False}
    message = kernel.client.session.msg("execute_request", content, metadata={"path": "caf\udce9"})
    kernel.client.shell_channel.send(message)
    assert kernel.outcome_of(message["header"]["msg_id"]).result == "42"


def test_a_replayed_cell_runs_once(kernel: Kernel, raw_shell: zmq.Socket[bytes]) -> None:
    session = Session(key=kernel.manager.session.key)
    kernel.run("count = 0")
    content = {"code": "count += 1", "silent": False, "allow_stdin": False}
    frames = session.serialize(session.msg("execute_request", content))
    for _ in range(3):
        raw_shell.send_multipart(frames)
    assert raw_shell.poll(10_000)
    raw_shell.recv_multipart()
    assert kernel.run("count").result == "1"


def test_drops_are_counted_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "kernel.json"
    info = connection_file(path, key=b"right")
    command = [sys.executable, "-m", "sandbox_kernel", "launch", "-f", str(path)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as wrapper:
        context = zmq.Context()
        shell, control = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        shell.connect(f"tcp://{info['ip']}:{info['shell_port']}")
        control.connect(f"tcp://{info['ip']}:{info['control_port']}")
        liar, honest = Session(key=b"wrong"), Session(key=b"right")
        for _ in range(5):
            shell.send_multipart(liar.serialize(liar.msg("kernel_info_request", {})))
        shell.send_multipart(honest.serialize(honest.msg("kernel_info_request", {})))
        assert shell.poll(30_000)
        request = honest.msg("shutdown_request", {"restart": False})
        control.send_multipart(honest.serialize(request))
        _, log = wrapper.communicate(timeout=30)
        shell.close(linger=0)
        control.close(linger=0)
        context.term()
    assert "dropped a message: wrong signature" in log
    assert "wrong signature × 5" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "No such file"),
        ("{", "is not JSON"),
        ("[]", "does not hold a JSON object"),
        ("{}", "'transport' is missing"),
        ({"transport": "udp"}, "neither tcp nor ipc"),
        ({"shell_port": "x"}, "shell_port 'x' is not a port number"),
        ({"shell_port": 0}, "shell_port 0 is not a port number"),
        ({"key": 5}, "key is not a string"),
        ({"signature_scheme": "md5"}, "signature_scheme 'md5'"),
        ({"curve_publickey": "x"}, "both are needed"),
        ({"ip": "203.0.113.7"}, "cannot bind the shell socket"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_a_bad_connection_file_is_named(tmp_path: Path, text: Any, named: str) -> None:
    path = tmp_path / "kernel.json"
    if isinstance(text, dict):
        connection_file(path, key=b"k")
        path.write_text(json.dumps(json.loads(path.read_text()) | text))
    elif text is not None:
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "sandbox_kernel", "launch", "-f", str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_options_that_could_redirect_the_kernel_are_not_passed_on(tmp_path: Path) -> None:
    extra = [
        "--HistoryManager.hist_file=:memory:",
        "--IPKernelApp.kernel_class=evil",
        "--ip=0.0.0.0",
    ]
    with running_kernel(cwd=tmp_path, arguments=extra) as kernel:
        config = kernel.run("print(get_ipython().config)").text()
        assert "evil" not in config
        assert "hist_file" in config


def test_curve_keys_of_the_frontend_are_honoured(tmp_path: Path) -> None:
    with running_kernel(cwd=tmp_path, transport_encryption="required") as kernel:
        assert kernel.manager.get_connection_info()["curve_publickey"]
        assert kernel.run("1 + 1").result == "2"
        info = kernel.manager.get_connection_info()
        # The control: without the keys nothing comes through.
        context = zmq.Context()
        plain = context.socket(zmq.DEALER)
        plain.connect(f"tcp://{info['ip']}:{info['shell_port']}")
        session = Session(key=kernel.manager.session.key)
        plain.send_multipart(session.serialize(session.msg("kernel_info_request", {})))
        assert not plain.poll(500)
        plain.close(linger=0)
        context.term()


def test_the_ipc_transport_works(tmp_path: Path) -> None:
    # A short relative-free prefix: the frontend's own sockets obey the 107 bytes of unix paths.
    with running_kernel(cwd=tmp_path, transport="ipc", ip=f"/tmp/k{id(tmp_path):x}") as kernel:
        assert kernel.run("1 + 1").result == "2"


def test_every_new_subscriber_is_welcomed(kernel: Kernel) -> None:
    info = kernel.manager.get_connection_info()
    context = zmq.Context()
    for _ in range(3):
        subscriber = context.socket(zmq.SUB)
        subscriber.connect(f"tcp://{info['ip']}:{info['iopub_port']}")
        subscriber.subscribe(b"")
        assert subscriber.poll(5_000)
        assert b"iopub_welcome" in b"".join(subscriber.recv_multipart())
        subscriber.close(linger=0)
    context.term()


def test_heartbeats_are_echoed_while_a_cell_holds_the_kernel(kernel: Kernel) -> None:
    info = kernel.manager.get_connection_info()
    cell = kernel.client.execute("pow(7, 10**7) and None")
    context = zmq.Context()
    heart = context.socket(zmq.REQ)
    heart.connect(f"tcp://{info['ip']}:{info['hb_port']}")
    for beat in range(5):
        heart.send(b"%d" % beat)
        assert heart.poll(1_000)
        assert heart.recv() == b"%d" % beat
    heart.close(linger=0)
    context.term()
    assert kernel.reply_to(cell)["content"]["status"] == "ok"


def test_a_question_behind_ones_own_cell_is_answered_in_its_turn_and_anothers_soon(
    kernel: Kernel, raw_shell: zmq.Socket[bytes]
) -> None:
    shell = kernel.client.shell_channel
    cell = kernel.client.execute("import time; time.sleep(2)")
    question = kernel.client.kernel_info()
    other = Session(key=kernel.manager.session.key)
    raw_shell.send_multipart(other.serialize(other.msg("kernel_info_request", {})))
    assert raw_shell.poll(10_000)
    answered: list[str] = []
    # There may be answers to earlier questions.
    while shell.msg_ready():
        answered.append(shell.get_msg()["parent_header"]["msg_id"])
    assert cell not in answered
    assert question not in answered
    while question not in answered:
        answered.append(shell.get_msg(timeout=10)["parent_header"]["msg_id"])
    assert answered[-2:] == [cell, question]


def test_a_client_that_numbers_its_messages_like_the_one_before_it_is_answered(
    kernel: Kernel,
) -> None:
    """As all clients of one kernel manager do; the cell of the first one may still run."""
    first = kernel.client
    running = first.execute("import time; time.sleep(1)")
    while first.get_iopub_msg(timeout=TIMEOUT)["parent_header"].get("msg_id") != running:
        pass
    first.stop_channels()
    kernel.client = second = kernel.manager.client()
    second.start_channels()
    second.session.message_count = int(running.rpartition("_")[2])
    assert second.execute("1 / 0") == running
    statuses = [second.get_shell_msg(timeout=TIMEOUT)["content"]["status"] for _ in range(2)]
    second.stop_channels()
    assert statuses == ["ok", "error"]


def test_an_interrupt_that_is_numbered_like_the_running_cell_stops_it(kernel: Kernel) -> None:
    """The kernel manager, who sends it, counts its messages from 0, as its clients do."""
    cell = kernel.client.execute("import time\nprint('on')\ntime.sleep(60)")
    while kernel.client.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "stream":
        pass
    kernel.manager.session.message_count = int(cell.rpartition("_")[2])
    kernel.manager.interrupt_kernel()
    assert kernel.reply_to(cell)["content"]["ename"] == "KeyboardInterrupt"
    assert kernel.run("1 + 1").result == "2"


def test_a_question_on_control_takes_no_reply_from_a_later_cell_with_its_id(
    kernel: Kernel,
) -> None:
    """The question is answered for a kernel that is silent, half a second later."""
    question = kernel.client.session.msg("kernel_info_request", {})
    kernel.client.control_channel.send(question)
    kernel.client.get_control_msg(timeout=TIMEOUT)
    kernel.client.session.message_count = int(question["header"]["msg_id"].rpartition("_")[2])
    cell = kernel.client.execute("import time; time.sleep(1)")
    assert cell == question["header"]["msg_id"]
    assert kernel.reply_to(cell)["content"]["status"] == "ok"
