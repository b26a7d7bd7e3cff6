"""The part of the script that sends cells faster than they run, and interrupts them."""

from __future__ import annotations

from .exchange import Request, cell, exchange, execute


def _say_soon(word: str) -> str:
    """Code that prints when the line after it is running: an interrupt then meets that line."""
    return f"threading.Timer(0.3, print, ('{word}',)).start()\n"


QUEUE = (
    exchange(
        "an error aborts the cells behind it",
        execute("input('hold')\nimport time; time.sleep(0.2)\n1/0", answers=("go",)),
        execute("'aborted'", after="input_request"),
        execute("print('aborted too')"),
        execute("'and this'"),
        Request("kernel_info_request"),
    ),
    cell("after an abort cells run again", "'running'"),
    exchange(
        "a question between aborted cells is answered",
        execute("input('hold')\nimport time; time.sleep(0.2)\n1/0", answers=("go",)),
        execute("'aborted'", after="input_request"),
        Request("kernel_info_request"),
        execute("'behind the question'"),
    ),
    exchange(
        "stop_on_error=False lets the cells behind an error run",
        execute("input('hold')\ntime.sleep(0.2)\n1/0", answers=("go",), stop_on_error=False),
        execute("'still run'", after="input_request"),
        execute("print('run as well')"),
    ),
    exchange(
        "cells that are sent together run in turn",
        execute("print('first')"),
        execute("print('second')"),
        Request("complete_request", {"code": "time.sle", "cursor_pos": 8}),
        execute("'third'"),
    ),
    exchange(
        "an interrupt stops a sleeping cell",
        execute(_say_soon("asleep") + "time.sleep(60)"),
        Request("interrupt_request", channel="control", after="stream"),
    ),
    exchange(
        "an interrupt stops a loop",
        execute(_say_soon("looping") + "while True: pass"),
        Request("interrupt_request", channel="control", after="stream"),
    ),
    exchange(
        "an interrupt stops an awaiting cell",
        # ipykernel notices an interrupt only when its event loop wakes up, hence the loop.
        execute(_say_soon("awaiting") + "for _ in range(600): await asyncio.sleep(0.1)"),
        Request("interrupt_request", channel="control", after="stream"),
    ),
    exchange(
        "an interrupt stops a cell that asks",
        execute(_say_soon("asking") + "input('never answered')"),
        Request("interrupt_request", channel="control", after="stream"),
    ),
    exchange(
        "a cell may catch an interrupt",
        execute(
            _say_soon("guarded")
            + "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('caught')"
        ),
        Request("interrupt_request", channel="control", after="stream"),
    ),
    exchange(
        "an interrupt of an idle kernel changes nothing",
        Request("interrupt_request", channel="control"),
    ),
    exchange(
        "control is answered while a cell runs",
        execute("input('busy')", answers=("done",)),
        Request("kernel_info_request", channel="control", after="input_request"),
    ),
    cell("after interrupts variables are kept", "(x, y, z)"),
)
