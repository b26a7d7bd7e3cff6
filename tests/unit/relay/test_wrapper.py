"""What the wrapper passes on between its parts."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.relay.link import Link
from sandbox_kernel.relay.wrapper import Wrapper


@pytest.mark.parametrize(
    ("kernel_info", "decision"),
    [
        ({"language_info": {"name": "python", "version": "3.0.0"}}, "allow"),
        ({"language_info": {"name": "python", "version": "99.0.0"}}, "deny"),
        ({"language_info": "python"}, "deny"),
        ({}, "deny"),
    ],
)
def test_the_judge_is_told_which_python_runs_the_cells(
    kernel_info: dict[str, object], decision: str
) -> None:
    wrapper = Wrapper.__new__(Wrapper)
    wrapper._judge = judge = Judge(load_policy("default").code)
    for part in ("_lifecycle", "_audit", "_router", "_enforcer"):
        setattr(wrapper, part, Mock())
    assert judge.judge("x = = 1").decision == "allow"
    wrapper.attach(Mock(spec=Link, kernel_info=kernel_info))
    assert judge.judge("x = = 1").decision == decision
