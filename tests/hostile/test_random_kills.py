"""A kernel process killed at any moment of a cell leaves the state exactly as it was before it."""

from __future__ import annotations

import ast
import os
import random
import signal
import threading
import time
from typing import Any

import pytest

from sandbox_kernel.limits.endings import NOT_KEPT
from tests.kernel import Kernel, Outcome
from tests.tiers import SEED, repetitions, rounds

pytestmark = [pytest.mark.every_level, pytest.mark.slow]

# At `process`; elsewhere a tenth.
KILLS = rounds(200, push=20)
# How long a cell takes, and how long after it was sent the process is killed at the latest.
CELL_SECONDS = (0.02, 0.06)
LATEST_SECONDS = 0.07

SETUP = """
import collections, decimal, hashlib, io, os, pickle, random, signal, time
import numpy

class Account:
    rate = 1.0
    def __init__(self):
        self.balance, self.history = 0, []

random.seed(1)
numpy.random.seed(2)
generator = numpy.random.default_rng(3)
mapping, numbers, letters = {}, [], collections.deque(maxlen=1000)
array = numpy.zeros((200, 50))
account, alias = Account(), numbers
buffer, total = io.BytesIO(), decimal.Decimal(0)
file = open('/tmp/lines.txt', 'w+')
file.write('line\\n' * 100_000)
file.seek(0)

def mutate(seconds):
    global total
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        mapping[random.random()] = numpy.random.random()
        numbers.append(random.gauss(0, 1))
        letters.append(random.choice('abc'))
        array[random.randrange(200)] += generator.random(50)
        account.balance += 1
        account.history.append(account.balance)
        Account.rate *= 1.000001
        buffer.write(os.urandom(8))
        total += decimal.Decimal(random.random())
        file.readline()
        globals()[f'made_{len(numbers)}'] = len(numbers)

def fingerprint():
    names = sorted(name for name in globals() if name.startswith('made_'))
    shell = get_ipython()
    state = {
        'mapping': mapping, 'numbers': numbers, 'letters': list(letters), 'array': array.tobytes(),
        'account': (vars(account), Account.rate), 'buffer': buffer.getvalue(), 'total': str(total),
        'file': file.tell(), 'identity': alias is numbers,
        'names': names, 'values': [globals()[name] for name in names],
        'random': random.getstate(), 'numpy.random': numpy.random.get_state(),
        'generator': generator.bit_generator.state,
        'In': len(In), 'Out': len(Out), 'execution_count': shell.execution_count,
    }
    return {name: hashlib.sha256(pickle.dumps(value)).hexdigest() for name, value in state.items()}
"""


# What every round of `mutate` changes, and every cell.
CHANGING = {"mapping", "numbers", "account", "buffer", "total", "names", "values", "random", "In"}


def kills_at(level: str) -> int:
    return KILLS if level == "process" else KILLS // 10


def ask_for_fingerprint(kernel: Kernel) -> Outcome:
    """Of all parts of the state, by a question that leaves no trace in it."""
    asked = kernel.client.execute("", silent=True, user_expressions={"it": "fingerprint()"})
    return kernel.outcome_of(asked)


def fingerprint(kernel: Kernel) -> dict[str, str]:
    answer = ask_for_fingerprint(kernel)
    assert answer.status == "ok", answer.evalue
    expressions: dict[str, Any] = answer.reply["content"]["user_expressions"]
    return ast.literal_eval(expressions["it"]["data"]["text/plain"])


def run_and_kill(kernel: Kernel, seconds: float, delay: float) -> tuple[Outcome, str]:
    """Run a cell that takes ``seconds``; its process is killed ``delay`` after it was sent.

    Also what is said behind a cell that has ended well.
    """
    code = f"mutate({seconds})\n'done'"
    if kernel.level == "gvisor":
        # No signal of the host's reaches its processes one by one. An alarm that nobody handles ends
        # one as suddenly, in the middle of anything, and so late after the cell has begun.
        code = f"signal.setitimer(signal.ITIMER_REAL, {delay})\n{code}"
        outcome = kernel.outcome_of(kernel.client.execute(code))
    else:
        killing = threading.Timer(delay, kernel.kill, (kernel.kernel_process,))
        cell = kernel.client.execute(code)
        killing.start()
        outcome = kernel.outcome_of(cell)
        killing.cancel()
        killing.join()
    said = ""
    if outcome.status == "ok":
        # It may have been killed all the same, just after: then it is this that is lost.
        asked = ask_for_fingerprint(kernel)
        said = f"{asked.evalue} {asked.text('stderr')}"
    return outcome, said


def test_a_process_killed_in_mid_cell_leaves_the_state_before_the_cell(
    kernel: Kernel, level: str
) -> None:
    moments = random.Random(SEED)
    assert kernel.run(SETUP).status == "ok"
    # The control: what is compared is what cells change.
    untouched = fingerprint(kernel)
    assert fingerprint(kernel) == untouched
    assert kernel.run("mutate(0.02)").status == "ok"
    before = fingerprint(kernel)
    assert before != untouched

    wrapper, kills = kernel.wrapper_pid, kills_at(level)
    killed = finished = 0
    while killed < kills:
        seconds, delay = moments.uniform(*CELL_SECONDS), moments.uniform(0, LATEST_SECONDS)
        about = f"seed {SEED}, cell {killed + finished}: {seconds=:.4f}, {delay=:.4f}"
        outcome, said = run_and_kill(kernel, seconds, delay)
        after = fingerprint(kernel)
        changed = {part for part in before if after[part] != before[part]}
        if outcome.status == "ok":
            finished += 1
            assert finished <= kills, about
            # All of it is there; or nothing, if it was killed before its checkpoint, and that is said.
            if NOT_KEPT in said:
                assert changed == set(), f"{about}: {said}"
            else:
                assert changed >= CHANGING, f"{about}: {CHANGING - changed} {said}"
            before = after
            continue
        killed += 1
        assert outcome.ename == "SandboxLost", f"{about}: {outcome.evalue}"
        assert outcome.receipt["state"] == "rolled_back", f"{about}: {outcome.evalue}"
        assert changed == set(), f"{about}: {outcome.evalue}"
    assert kernel.wrapper_pid == wrapper
    print(f"{killed} of {killed} killed cells undone, {finished} more had finished before")


def test_a_fork_that_a_cell_leaves_is_not_taken_for_the_kernel(kernel: Kernel) -> None:
    """It comes back to where the kernel process waits for the next cell, and makes checkpoints."""
    assert kernel.run("import os, time").status == "ok"
    for _ in range(3):
        assert kernel.run("child = os.fork()").status == "ok"
        # Whatever it does, it does now.
        time.sleep(0.5)
        cell = kernel.client.execute("time.sleep(60)")
        while kernel.client.get_iopub_msg(timeout=30)["msg_type"] != "execute_input":
            pass
        kernel.kill(kernel.kernel_process)
        assert kernel.reply_to(cell)["content"]["ename"] == "SandboxLost"
        assert kernel.value("child") != 0


def test_a_cell_that_is_said_to_be_undone_is_undone(kernel: Kernel) -> None:
    """Even if it had ended, and only the wrapper did not know yet: it hears of the kill first."""
    assert kernel.run("import time\nnumber = -1").status == "ok"
    expected = -1
    for number in range(3):
        victim = kernel.kernel_process
        cell = kernel.client.execute(f"time.sleep(0.2); number = {number}")
        while kernel.client.get_iopub_msg(timeout=30)["msg_type"] != "execute_input":
            pass
        os.kill(kernel.wrapper_pid, signal.SIGSTOP)
        time.sleep(0.5)  # the cell ends, and a checkpoint is made
        kernel.kill(victim)
        time.sleep(0.1)
        os.kill(kernel.wrapper_pid, signal.SIGCONT)
        reply = kernel.reply_to(cell)
        if reply["metadata"]["sandbox"]["state"] == "kept":
            expected = number
        found = kernel.run("number")
        # On a busy machine the kill may come before the checkpoint: then that is said.
        said = f"{reply['content']} {found.text('stderr')}"
        assert found.result == str(expected) or NOT_KEPT in said, said
        expected = int(found.result or expected)


def test_a_process_killed_between_cells_is_not_said_to_have_kept_what_it_has_not(
    kernel: Kernel, level: str
) -> None:
    """The checkpoint of a cell is made after its end: a kill may come before it."""
    assert kernel.run("number = -1").status == "ok"
    for number in range(repetitions(level, 20)):
        victim = kernel.kernel_process
        assert kernel.run(f"number = {number}").status == "ok"
        kernel.kill(victim)
        next_one = kernel.run("number")
        said = f"{next_one.evalue} {next_one.text('stderr')}"
        found = next_one.result if next_one.status == "ok" else kernel.run("number").result
        assert found == str(number) or NOT_KEPT in said, said
        assert kernel.run(f"number = {number}").status == "ok"
