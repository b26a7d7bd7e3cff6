"""Trees of other languages: what holds however the text is cut."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own, which a crash of the parser would end.
READ_UNTIL = """
import sys
from sandbox_kernel.policy import syntax
from sandbox_kernel.policy.source import Unreadable

text = sys.argv[1] * (6000 // len(sys.argv[1].encode()))
for looks in range(30):
    times = iter([0.0] * looks)
    syntax.time.thread_time = lambda: next(times, 99.0)
    for parse in (syntax.parse_shell, syntax.parse_javascript):
        try:
            parse(text)
        except Unreadable:
            pass
print("read")
"""


@pytest.mark.parametrize("text", ["aé", "!(a){x}\ufffd", "😀 "])
def test_a_text_may_end_at_any_character_when_the_time_is_over(text: str) -> None:
    command = [sys.executable, "-c", READ_UNTIL, text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "read")
