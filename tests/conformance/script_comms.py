"""The part of the script that opens comms and subshells."""

from __future__ import annotations

from .exchange import Request, ask, cell, exchange, execute

_BYTES = (bytes(range(256)), b"", b"\x00second\xff")

_REGISTER = """
from comm import create_comm, get_comm_manager

def opened(comm, message):
    sizes = [len(buffer) for buffer in message['buffers']]
    comm.send({'opened': message['content']['data'], 'sizes': sizes})
    comm.on_close(lambda message: print('closed with', message['content']['data']))

    @comm.on_msg
    def heard(message):
        print('heard', message['content']['data'])
        answer = [bytes(buffer)[::-1] for buffer in message['buffers']]
        comm.send({'echo': message['content']['data']}, {'meta': 1}, answer)

get_comm_manager().register_target('own', opened)
"""

_AWAIT_COMM = """
answered = asyncio.Event()
kept = create_comm(target_name='asked', comm_id='asked', data={})
kept.on_msg(lambda message: answered.set())
print('asking', flush=True)
await answered.wait()
'answered'
"""


def _comm(kind: str, comm_id: str, data: object, *buffers: bytes, **options: object) -> Request:
    content = {"comm_id": comm_id, "data": data}
    if kind == "open":
        content["target_name"] = options.pop("target", "own")
    return Request(f"comm_{kind}", content, buffers=buffers, replied=False, **options)


COMMS = (
    cell("a comm target can be registered", _REGISTER),
    exchange("a frontend opens a comm with buffers", _comm("open", "front", {"n": 1}, *_BYTES)),
    ask("an open comm is listed", "comm_info_request", {"target_name": "own"}),
    ask("all comms are listed by target", "comm_info_request", {"target_name": "no such"}),
    exchange("buffers go there and back", _comm("msg", "front", {"é": [1]}, *_BYTES)),
    exchange("a comm message without buffers is answered", _comm("msg", "front", None)),
    exchange(
        "comm messages keep their order",
        *(_comm("msg", "front", number, b"%d" % number) for number in range(5)),
    ),
    exchange("a frontend closes a comm", _comm("close", "front", {"bye": True})),
    exchange("a message to a closed comm is passed over", _comm("msg", "front", {})),
    exchange("a comm of an unknown target is closed", _comm("open", "odd", {}, target="unknown")),
    cell(
        "the kernel opens a comm with buffers",
        "kept = create_comm(target_name='front', comm_id='inner', data={'a': 1}, "
        "metadata={'m': 1}, buffers=[b'\\x00\\x01', memoryview(b'view')])",
    ),
    cell("the kernel sends over its comm", "kept.send({'b': 2}, buffers=[bytes(100_000)])"),
    cell("the kernel closes its comm", "kept.close({'c': 3})"),
    exchange(
        "a cell that awaits a comm message gets it",
        execute(_AWAIT_COMM),
        # ipykernel handles it within the running cell and reports no status for it.
        _comm("msg", "asked", {}, after="stream", idle=False),
    ),
    cell(
        "an error in a comm handler can be prepared",
        "kept.on_msg(lambda message: 1 / 0)",
    ),
    exchange("an error in a comm handler is no error of a cell", _comm("msg", "asked", {})),
)

_LEARN = {"subshell": lambda reply: reply["subshell_id"]}


def _control(name: str, msg_type: str, content: object = None, **options: object) -> object:
    return ask(name, msg_type, content, channel="control", **options)


SUBSHELLS = (
    _control("no subshell is there at first", "list_subshell_request"),
    _control("a subshell is created", "create_subshell_request", learn=_LEARN),
    _control("a subshell is listed", "list_subshell_request"),
    cell("a cell runs in a subshell", "print('in a subshell'); x", subshell="subshell"),
    cell("an error in a subshell is told", "1/0", subshell="subshell"),
    cell("a subshell asks for input", "input('sub? ')", answers=("yes",), subshell="subshell"),
    cell("await works in a subshell", "await asyncio.sleep(0.01, 'there')", subshell="subshell"),
    cell("a subshell shares variables", "x += 1", subshell="subshell"),
    cell("a subshell's variables are seen in the main shell", "x"),
    exchange(
        "a subshell runs while the main shell is busy",
        execute(
            "started = threading.Event()\nprint('waiting', flush=True)\nstarted.wait(20)",
            store_history=False,
        ),
        execute("started.set()", subshell="subshell", after="stream", store_history=False),
    ),
    exchange(
        "an error in a subshell aborts the cells behind it",
        execute("input('hold')\ntime.sleep(0.2)\n1/0", answers=("go",), subshell="subshell"),
        execute("'aborted'", subshell="subshell", after="input_request"),
        execute("'not aborted'", store_history=False),
    ),
    exchange(
        "completion works in a subshell",
        Request("complete_request", {"code": "time.sle", "cursor_pos": 8}, subshell="subshell"),
    ),
    _control(
        "a subshell is deleted",
        "delete_subshell_request",
        lambda learned: {"subshell_id": learned["subshell"]},
    ),
    _control("a deleted subshell is not listed", "list_subshell_request"),
    cell("a deleted subshell is unknown to a cell", "1", subshell="subshell"),
    exchange(
        "a deleted subshell is unknown to a question",
        Request("is_complete_request", {"code": "1"}, subshell="subshell"),
    ),
    _control(
        "an unknown subshell is not deleted", "delete_subshell_request", {"subshell_id": "no"}
    ),
    _control("a delete without an id is passed over", "delete_subshell_request", replied=False),
)
