"""A cell holds the inner key and the inner sockets. It must not get past the router with them."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from tests.kernel import Kernel, Outcome

pytestmark = pytest.mark.process

FORGE = textwrap.dedent("""
    import hashlib, hmac, json, uuid, zmq
    connection = json.load(open("/run/sandbox/connection.json"))
    session = connection["sandbox"]["session"]
    context = zmq.Context()

    def connect(kind, port):
        socket = context.socket(kind)
        socket.linger = 2000
        socket.connect(f"ipc:///run/sandbox/inner-{port}")
        return socket

    def sign(frames):
        return hmac.new(connection["key"].encode(), b"".join(frames), hashlib.sha256).hexdigest().encode()

    def frames(msg_type, content, parent, *, session=session, idents=(), header=None, raw=None):
        header = header or {"msg_id": uuid.uuid4().hex, "msg_type": msg_type, "username": "evil",
                            "session": session, "date": "2020-01-01T00:00:00Z", "version": "5.3"}
        body = [json.dumps(part, default=str).encode() for part in (header, parent, {}, content)]
        for number, value in (raw or {}).items():
            body[number] = value
        return [*idents, b"<IDS|MSG>", sign(body), *body]

    me = get_ipython().kernel.get_parent()["header"]
""")


@pytest.fixture
def hostile(kernel: Kernel) -> Kernel:
    assert kernel.run(FORGE).status == "ok"
    return kernel


def marks(outcome: Outcome) -> list[str]:
    return [
        message["content"].get("text", "")
        for message in outcome.messages
        if message["msg_type"] == "stream"
    ]


def test_the_forgery_kit_works(hostile: Kernel) -> None:
    """The control: a well-formed message of the cell's own passes, as any print does."""
    outcome = hostile.run(
        "me = get_ipython().kernel.get_parent()['header']\n"
        "iopub = connect(zmq.PUSH, 2)\n"
        "iopub.send_multipart(frames('stream', {'name': 'stdout', 'text': 'FORGED'}, me))\n"
        "iopub.close(); import time; time.sleep(0.3)"
    )
    assert "FORGED" in marks(outcome)


@pytest.mark.parametrize(
    "message",
    [
        "frames('stream', TEXT, me, session='somebody-else')",
        "frames('stream', TEXT, me)[:-1]",
        "frames('stream', TEXT, me)[1:]",
        "[b'<IDS|MSG>', b'0' * 64, *frames('stream', TEXT, me)[2:]]",
        'frames(\'stream\', TEXT, me, raw={3: b\'{"text":"FORGED","name":"stdout","x":NaN}\'})',
        "frames('stream', TEXT, me, raw={3: b'{\"text\":\"FORGED\\xff\"}'})",
        "frames('stream', TEXT, me, raw={3: b'{\"FORGED\":' * 3000 + b'1' + b'}' * 3000})",
        "frames('stream', TEXT, me, raw={0: b'[]'})",
        "frames('stream', TEXT, me, raw={2: b'7'})",
        "frames('stream', TEXT, me, header={'msg_id': 3, 'msg_type': {}, 'session': session})",
        "frames('stream', TEXT, me, idents=[b'x'] * 50)",
        "[*frames('stream', TEXT, me), *[b'FORGED'] * 9000]",
    ],
    ids=[
        "foreign_session",
        "content_missing",
        "delimiter_missing",
        "wrong_signature",
        "nan",
        "bad_utf8",
        "too_deep",
        "header_a_list",
        "metadata_a_number",
        "header_of_odd_types",
        "too_many_idents",
        "too_many_buffers",
    ],
)
def test_a_malformed_message_from_inside_never_reaches_the_frontend(
    hostile: Kernel, message: str
) -> None:
    outcome = hostile.run(
        "me = get_ipython().kernel.get_parent()['header']\n"
        "TEXT = {'name': 'stdout', 'text': 'FORGED'}\n"
        "iopub = connect(zmq.PUSH, 2)\n"
        f"iopub.send_multipart({message})\n"
        "iopub.close(); import time; time.sleep(0.3)\n"
        "print('honest')"
    )
    assert outcome.status == "ok"
    shown = [m for m in outcome.messages if m["msg_type"] != "execute_input"]
    assert "FORGED" not in repr(shown)
    assert "honest" in outcome.text()
    assert hostile.run("1 + 1").result == "2"


def test_a_reply_to_no_request_is_dropped(hostile: Kernel) -> None:
    outcome = hostile.run(
        "shell = connect(zmq.DEALER, 1)\n"
        "stranger = {**me, 'msg_id': 'never-sent'}\n"
        "for kind in ('execute_reply', 'kernel_info_reply', 'shutdown_reply'):\n"
        "    shell.send_multipart(frames(kind, {'status': 'ok', 'FORGED': 1}, stranger, idents=[b'x']))\n"
        "shell.close(); import time; time.sleep(0.3)"
    )
    assert outcome.status == "ok"
    assert hostile.run("1 + 1").result == "2"


def test_a_reply_of_another_type_does_not_answer_a_request(hostile: Kernel) -> None:
    client = hostile.client
    cell = client.execute(
        "me = get_ipython().kernel.get_parent()['header']\n"
        "shell = connect(zmq.DEALER, 1)\n"
        "shell.send_multipart(frames('shutdown_reply', {'status': 'ok'}, me))\n"
        "shell.close(); import time; time.sleep(0.3)\n"
    )
    reply = hostile.reply_to(cell)
    assert reply["msg_type"] == "execute_reply"


def test_kernel_info_cannot_be_taught_to_lie(hostile: Kernel) -> None:
    hostile.run(
        "kernel = get_ipython().kernel\n"
        "type(kernel).banner = 'LIE'\n"
        "kernel.help_links = [{'text': 'LIE', 'url': 'javascript:alert(1)'}]\n"
        "type(kernel).language_info = {'name': 'LIE'}"
    )
    content = hostile.client.kernel_info(reply=True, timeout=10)["content"]
    assert "LIE" not in repr(content)
    assert content["language_info"]["name"] == "python"


def test_a_prompt_without_a_cell_that_allows_stdin_is_dropped(hostile: Kernel) -> None:
    outcome = hostile.run(
        "me = get_ipython().kernel.get_parent()['header']\n"
        "stdin = connect(zmq.DEALER, 3)\n"
        "stdin.send_multipart(frames('input_request', {'prompt': 'Password:', 'password': True}, me))\n"
        "stdin.close(); import time; time.sleep(0.3)",
        allow_stdin=False,
    )
    assert outcome.status == "ok"
    assert not hostile.client.stdin_channel.msg_ready()


def test_raw_garbage_and_giant_frames_leave_the_kernel_usable(hostile: Kernel) -> None:
    outcome = hostile.run(
        "import os, socket\n"
        "for port in (1, 2, 3, 4):\n"
        "    for _ in range(20):\n"
        "        with socket.socket(socket.AF_UNIX) as raw:\n"
        "            raw.connect(f'/run/sandbox/inner-{port}')\n"
        "            try:\n"
        "                raw.sendall(os.urandom(4096))\n"
        "            except OSError:\n"
        "                pass\n"
        "giant = connect(zmq.PUSH, 2)\n"
        "giant.linger = 3000\n"
        "giant.send(bytes(80 << 20))\n"
        "giant.close()\n"
    )
    assert outcome.status == "ok"
    assert hostile.run("1 + 1").result == "2"
    assert hostile.manager.is_alive()


def test_a_second_peer_on_the_lifeline_is_not_accepted(hostile: Kernel) -> None:
    outcome = hostile.run(
        "import socket\n"
        "with socket.socket(socket.AF_UNIX) as raw:\n"
        "    raw.connect('/run/sandbox/lifeline')"
    )
    assert outcome.ename in ("FileNotFoundError", "ConnectionRefusedError")


def test_a_cell_cannot_run_another_cells_request(hostile: Kernel) -> None:
    """A hostile ROUTER may swallow requests; the frontend's kernel still answers on control."""
    hostile.run("thief = connect(zmq.ROUTER, 1)")
    message: dict[str, Any] = hostile.client.session.msg("usage_request", {})
    hostile.client.control_channel.send(message)
    assert hostile.client.get_control_msg(timeout=5)["msg_type"] == "usage_reply"
