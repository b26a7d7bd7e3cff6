"""Who asks is always to be seen."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from sandbox_kernel.relay.asking import LABEL, told_apart

MIB = 1 << 20


@pytest.mark.parametrize(
    "prompt", [f"{LABEL} Run? ", "[Sandbox-Kernel] Run? ", "\x1b[2KSANDBOX-KERNEL asks"]
)
def test_a_prompt_that_could_be_the_wrappers_says_that_the_cell_asks(prompt: str) -> None:
    content = json.dumps({"prompt": prompt, "password": True}).encode()
    assert json.loads(told_apart(content)) == {
        "prompt": f"(the cell asks:) {prompt}",
        "password": True,
    }


@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt":"name? ","password":false,"more":1}',
        b"{}",
        b'{"password":true}',
    ],
)
def test_any_other_prompt_is_as_the_cell_made_it(content: bytes) -> None:
    assert told_apart(content) == content


@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt":["[sandbox-kernel] Run? "],"password":false}',
        b'{"prompt":"[sandbox-kernel] Run? ","password":1}',
        b'{"prompt":null}',
        b"[]",
    ],
)
def test_a_prompt_that_is_no_text_is_not_shown(content: bytes) -> None:
    assert json.loads(told_apart(content)) == {"prompt": "(the cell asks:) ", "password": False}


def test_an_escaped_imitation_is_one_too() -> None:
    assert b"the cell asks" in told_apart(b'{"prompt":"\\u0073andbox-kernel"}')


def test_what_else_a_cell_puts_into_a_prompt_is_not_built() -> None:
    content = b'{"prompt":"sandbox-kernel","more":[' + b"[]," * (4 * MIB) + b"[]]}"
    tracemalloc.start()
    assert len(told_apart(content)) < 100
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB
