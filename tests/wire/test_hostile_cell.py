"""A cell holds the inner key and the inner sockets. It must not get past the router with them."""

from __future__ import annotations

import textwrap
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty

import pytest

from sandbox_kernel.outputs.receipt import RECEIPT_MIME
from tests.kernel import Kernel, Outcome

pytestmark = pytest.mark.every_level

FORGE = textwrap.dedent("""
    import hashlib, hmac, json, os, socket as sockets, stat, threading, uuid
    kernel = get_ipython().kernel
    connection = json.load(open("/run/sandbox/connection.json"))
    session = connection["sandbox"]["session"]

    def on_iopub(parts):
        done = threading.Event()
        socket = kernel.iopub_thread.socket
        kernel.iopub_thread.schedule(lambda: (socket.send_multipart(parts), done.set()))
        done.wait(5)

    def on_shell(parts):
        done = threading.Event()
        stream = kernel.shell_stream
        kernel.shell_channel_thread.io_loop.add_callback(
            lambda: (stream.send_multipart([b"wrapper", *parts]), done.set())
        )
        done.wait(5)

    def sign(frames):
        return hmac.new(connection["key"].encode(), b"".join(frames), hashlib.sha256).hexdigest().encode()

    def frames(msg_type, content, parent, *, session=session, idents=(), header=None, raw=None):
        header = header or {"msg_id": uuid.uuid4().hex, "msg_type": msg_type, "username": "evil",
                            "session": session, "date": "2020-01-01T00:00:00Z", "version": "5.3"}
        body = [json.dumps(part, default=str).encode() for part in (header, parent, {}, content)]
        for number, value in (raw or {}).items():
            body[number] = value
        return [*idents, b"<IDS|MSG>", sign(body), *body]

    def me():
        return kernel.get_parent()["header"]

    def unix_streams():
        # The descriptors of those to the wrapper, among others.
        for name in os.listdir("/proc/self/fd"):
            # Not that of the listing itself.
            if os.path.exists(f"/proc/self/fd/{name}") and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with sockets.socket(fileno=os.dup(int(name))) as stream:
                    kind = (stream.family, stream.type)
                if kind == (sockets.AF_UNIX, sockets.SOCK_STREAM):
                    yield int(name)
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
    outcome = hostile.run("on_iopub(frames('stream', {'name': 'stdout', 'text': 'FORGED'}, me()))")
    assert "FORGED" in marks(outcome)


@pytest.mark.parametrize(
    "message",
    [
        "frames('stream', TEXT, me(), session='somebody-else')",
        "frames('stream', TEXT, me())[:-1]",
        "frames('stream', TEXT, me())[1:]",
        "[b'<IDS|MSG>', b'0' * 64, *frames('stream', TEXT, me())[2:]]",
        'frames(\'stream\', TEXT, me(), raw={3: b\'{"text":"FORGED","name":"stdout","x":NaN}\'})',
        "frames('stream', TEXT, me(), raw={3: b'{\"FORGED\":' * 3000 + b'1' + b'}' * 3000})",
        "frames('stream', TEXT, me(), raw={0: b'[]'})",
        "frames('stream', TEXT, me(), raw={2: b'7'})",
        "frames('stream', TEXT, me(), header={'msg_id': 3, 'msg_type': {}, 'session': session})",
        "frames('stream', TEXT, me(), idents=[b'x'] * 50)",
        "[*frames('stream', TEXT, me()), *[b'FORGED'] * 9000]",
        "frames('display_data', {}, me(), raw={3: b'{\"data\":{\"FORGED\":%b}}' % (b'7' * 4301)})",
        "frames('shutdown_reply', {'status': 'ok', 'restart': False, 'FORGED': 1}, me())",
        "frames('iopub_welcome', {'subscription': 'FORGED'}, {})",
        "frames('comm_open', {'comm_id': 'x', 'target_name': 'jupyter.widget', 'data': {'state':"
        f" {{'outputs': [{{'data': {{{RECEIPT_MIME!r}: 'FORGED'}}}}]}}}}}}, me())",
    ],
    ids=[
        "foreign_session",
        "content_missing",
        "delimiter_missing",
        "wrong_signature",
        "nan",
        "too_deep",
        "header_a_list",
        "metadata_a_number",
        "header_of_odd_types",
        "too_many_idents",
        "too_many_buffers",
        "a_number_that_python_cannot_read",
        "shutdown_reply",
        "iopub_welcome",
        "a_receipt_in_an_output_widget",
    ],
)
def test_a_malformed_message_from_inside_never_reaches_the_frontend(
    hostile: Kernel, message: str
) -> None:
    outcome = hostile.run(
        f"TEXT = {{'name': 'stdout', 'text': 'FORGED'}}\non_iopub({message})\nprint('honest')"
    )
    assert outcome.status == "ok"
    shown = [m for m in outcome.messages if m["msg_type"] != "execute_input"]
    assert "FORGED" not in repr(shown)
    assert "honest" in outcome.text()
    assert hostile.run("1 + 1").result == "2"


def test_a_reply_to_no_request_is_dropped(hostile: Kernel) -> None:
    outcome = hostile.run(
        "stranger = {**me(), 'msg_id': 'never-sent'}\n"
        "for kind in ('execute_reply', 'kernel_info_reply', 'shutdown_reply'):\n"
        "    on_shell(frames(kind, {'status': 'ok', 'FORGED': 1}, stranger, idents=[b'x']))"
    )
    assert outcome.status == "ok"
    assert hostile.run("1 + 1").result == "2"


def test_a_reply_of_another_type_does_not_answer_a_request(hostile: Kernel) -> None:
    client = hostile.client
    cell = client.execute("on_shell(frames('shutdown_reply', {'status': 'ok'}, me()))")
    reply = hostile.reply_to(cell)
    assert reply["msg_type"] == "execute_reply"


@pytest.mark.parametrize("ends", ["", "import os; os.kill(os.getpid(), 9)"], ids=["ok", "dies"])
def test_an_idle_long_before_its_reply_does_not_cost_the_cell_the_reply(
    hostile: Kernel, ends: str
) -> None:
    """Clients wait for it for ever. A busy machine, or a kernel that dies, can make it late too."""
    idle = "on_iopub(frames('status', {'execution_state': 'idle'}, me()))"
    cell = hostile.client.execute(f"{idle}\nimport time; time.sleep(1.5)\n{ends}")
    reply = hostile.reply_to(cell)
    assert reply["content"].get("ename") == ("SandboxLost" if ends else None)
    receipt = reply["metadata"]["sandbox"]
    assert receipt["state"] == ("rolled_back" if ends else "kept")
    assert receipt["usage"]["wall_seconds"] > 1.5
    assert hostile.run("1 + 1").result == "2"


def test_a_cell_that_keeps_its_reply_back_is_answered_for_it(hostile: Kernel) -> None:
    """Its client would wait for ever, and what is sent behind it as well."""
    withhold = "kernel = get_ipython().kernel\nkernel.finish_metadata = lambda *_: 1 / 0\nkept = 1"
    for _ in range(2):
        outcome = hostile.run(withhold)
        assert outcome.ename == "ReplyLost"
        assert (outcome.receipt["outcome"], outcome.receipt["state"]) == ("error", "kept")
    assert hostile.run("del kernel.finish_metadata; kept").result == "1"


def test_a_cell_that_keeps_its_reply_back_can_be_undone(hostile: Kernel) -> None:
    """It has a checkpoint of its own, like any other."""
    outcome = hostile.run("get_ipython().kernel.finish_metadata = lambda *_: 1 / 0\nkept = 1")
    assert outcome.ename == "ReplyLost"
    assert hostile.run("%undo").status == "ok"
    assert hostile.run("'kept' in globals()").result == "False"


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
        "prompt = {'prompt': 'Password:', 'password': True}\n"
        "kernel.stdin_socket.send_multipart(frames('input_request', prompt, me()))",
        allow_stdin=False,
    )
    assert outcome.status == "ok"
    assert not hostile.client.stdin_channel.msg_ready()


def test_a_text_of_many_digits_arrives(hostile: Kernel) -> None:
    """The control: no number, however long it is."""
    assert hostile.run("print('7' * 50_000)").text() == "7" * 50_000 + "\n"


def test_bytes_that_are_not_utf8_arrive_as_a_client_would_read_them(hostile: Kernel) -> None:
    """ipykernel itself sends them for file names with odd bytes."""
    raw = """{3: b'{"name":"stdout","text":"caf\\xe9"}'}"""
    outcome = hostile.run(f"on_iopub(frames('stream', {{}}, me(), raw={raw}))")
    assert "caf\N{REPLACEMENT CHARACTER}" in outcome.text()


def test_a_frame_of_brackets_does_not_keep_the_wrapper_busy(hostile: Kernel) -> None:
    client = hostile.client
    cell = client.execute(
        "bomb = b'{\"a\":[' + b'[],' * 5_000_000 + b'[]]}'\n"
        "parent = {'msg_id': 'x'}\n"
        "for _ in range(20):\n"
        "    on_iopub(frames('display_data', {}, parent, raw={3: bomb}))"
    )
    waits = []
    while not client.shell_channel.msg_ready():
        message = client.session.msg("usage_request", {})
        started = time.monotonic()
        client.control_channel.send(message)
        assert client.get_control_msg(timeout=10)["msg_type"] == "usage_reply"
        waits.append(time.monotonic() - started)
    assert hostile.reply_to(cell)["content"]["ename"] == "CellOutputExceeded"
    assert max(waits) < (2 if hostile.level == "process" else 5)
    status = Path(f"/proc/{hostile.wrapper_pid}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) << 10
    assert peak < 700 << 20


def test_prompts_count_as_output_and_do_not_keep_the_wrapper_busy(hostile: Kernel) -> None:
    """One such letter is read as eighteen, to see who asks."""
    client = hostile.client
    cell = client.execute(
        "prompt = json.dumps({'prompt': '\\ufdfa' * (5 << 20)}, ensure_ascii=False).encode()\n"
        "for _ in range(20):\n"
        "    kernel.stdin_socket.send_multipart(frames('input_request', {}, me(), raw={3: prompt}))\n"
        "import time; time.sleep(600)",
        allow_stdin=True,
    )
    waits = []
    while not client.shell_channel.msg_ready():
        started = time.monotonic()
        client.control_channel.send(client.session.msg("usage_request", {}))
        assert client.get_control_msg(timeout=10)["msg_type"] == "usage_reply"
        waits.append(time.monotonic() - started)
    assert hostile.reply_to(cell)["content"]["ename"] == "CellOutputExceeded"
    assert max(waits) < (2 if hostile.level == "process" else 5)
    shown = 0
    with suppress(Empty):  # the last of them may come behind the reply
        while True:
            shown += len(client.get_stdin_msg(timeout=1)["content"]["prompt"])
    assert 0 < shown < 1 << 20
    # What it has sent and nobody has read goes with its process: the next client numbers its cells alike.
    assert hostile.run("import os; os.kill(os.getpid(), 9)").ename == "SandboxLost"


@pytest.mark.parametrize("name", ["inner-1", "inner-2", "inner-3", "inner-4", "lifeline"])
def test_no_socket_is_left_to_connect_to(hostile: Kernel, name: str) -> None:
    """A second peer could steal requests, thousands could use up the wrapper's descriptors."""
    outcome = hostile.run(
        "import socket\n"
        "with socket.socket(socket.AF_UNIX) as raw:\n"
        f"    raw.connect('/run/sandbox/{name}')"
    )
    assert outcome.ename == "FileNotFoundError"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("[os.close(fd) for fd in unix_streams()]", "closed a connection"),
        ("kernel.iopub_thread.socket.send(bytes(80 << 20))", "a frame of more than 16 MiB"),
        (
            "[sockets.socket(fileno=os.dup(fd)).sendall(b'\\xff' * 4096) for fd in unix_streams()]",
            "a frame of no known kind",
        ),
    ],
    ids=["closes_its_sockets", "sends_a_giant_frame", "writes_garbage_on_them"],
)
def test_a_kernel_that_breaks_its_connections_is_replaced_and_the_user_told(
    hostile: Kernel, broken: str, why: str
) -> None:
    cell = hostile.client.execute(f"{broken}\nimport time; time.sleep(600)")
    reply = hostile.reply_to(cell)["content"]
    assert reply["ename"] == "SandboxLost"
    # libzmq itself gives up when its descriptors vanish; otherwise the wrapper notices.
    assert why in reply["evalue"] or "SIGABRT" in reply["evalue"]
    assert hostile.run("1 + 1").result == "2"
