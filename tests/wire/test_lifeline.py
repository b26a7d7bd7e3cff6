"""A cell can write at the supervisor's desk. It must not put words into the supervisor's mouth.

The lies are told by a checkpoint that takes over, when the supervisor waits for its word.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel import running_kernel

pytestmark = pytest.mark.every_level

# The checkpoint that takes over says it instead of its own word.
TELL = """
checkpoints = get_ipython().kernel.state._checkpoints
def announce(self, label, lost):
    for lie in {lies!r}:
        self._desk.send(lie.replace(b"LABEL", b"%d" % label))
type(checkpoints).announce = announce
"""
LIES = {
    "a_line_of_its_own": b"restored LABEL\nexited\t11\nx y",
    "a_status_of_twenty_digits": b"restored LABEL\nexited\t99999999999999999999\nx y",
    "a_status_of_900_digits": b"restored LABEL\nexited\t" + b"9" * 900 + b"\nx y",
    "other_separators": b"restored LABEL\x0b\nexited\x0c11\r\nx y",
    "that_there_is_nothing": b"restored LABEL\nnothing\nx y",
    "a_label_of_900_digits": b"restored " + b"9" * 900,
    "names_of_its_own": b"restored LABEL a=1\nexited\t11=1 "
    + b" ".join(b"n%d=1" % n for n in range(90)),
    "counts_that_are_lines": b"restored LABEL threads=1\nexited\t11\n=1",
    "huge_counts": b"restored LABEL threads=" + b"9" * 400,
    "no_label": b"restored \n",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_cell_cannot_speak_for_the_supervisor(tmp_path: Path, level: str, lie: str) -> None:
    with running_kernel(cwd=tmp_path, level=level) as kernel:
        assert kernel.run(TELL.format(lies=[LIES[lie], b"restored LABEL"])).status == "ok"
        wrapper = kernel.wrapper_pid
        outcome = kernel.run("import os; os.kill(os.getpid(), 9)")
        assert outcome.ename == "SandboxLost"
        assert outcome.receipt["state"] == "rolled_back"
        assert_not_believed(outcome.evalue)
        # It may still lie: whatever comes of that, the wrapper answers and says nothing of it.
        after = kernel.run("1 + 1")
        assert_not_believed(after.text("stderr") + after.evalue)
        assert kernel.manager.is_alive()
        assert kernel.wrapper_pid == wrapper


def assert_not_believed(said: str) -> None:
    assert "SIGSEGV" not in said
    assert "signal 11" not in said
    assert "9999999" not in said
