"""What a frontend's debugger may have evaluated."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.relay.cells import Cells, Request
from sandbox_kernel.relay.debugging import Debugging, code_in


class Asked:
    """As much of a request as is looked at."""

    msg_type = "debug_request"

    def __init__(self, **arguments: object) -> None:
        self.message = self
        self.content = {"command": "evaluate", "arguments": arguments}


def denies(**arguments: object) -> bool:
    judge = Judge(load_policy("strict").code)
    debugging = Debugging(Cells(), cast(Enforcer, None), judge, "strict")
    return debugging.judge(cast(Request, Asked(**arguments))) is not None


def at_breakpoint(**of_breakpoint: object) -> dict[str, Any]:
    return {"breakpoints": [{"line": 1, **of_breakpoint}]}


@pytest.mark.parametrize(
    "arguments",
    [
        {"expression": "eval('1')"},
        {"expression": "x", "value": "eval('1')"},
        at_breakpoint(condition="eval('1')"),
        {"filterOptions": [{"filterId": "raised", "condition": "eval('1')"}]},
        at_breakpoint(logMessage="x is {eval('1')}"),
        at_breakpoint(logMessage="{x} and {y}: {eval('1')}"),
        at_breakpoint(logMessage="{ {'a': eval('1')}['a'] }"),
        at_breakpoint(logMessage="no } code {eval('1')}"),
        at_breakpoint(logMessage="{x) + (eval('1')}"),
        at_breakpoint(logMessage="{eval('1'} and {)}"),
        at_breakpoint(hitCondition=">= eval('1')"),
        at_breakpoint(hitCondition="% eval('1')"),
        at_breakpoint(hitCondition="@HIT@ == 1 or eval('1')"),
    ],
)
def test_code_of_a_debugger_is_judged(arguments: dict[str, Any]) -> None:
    assert denies(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"expression": "this is no code", "value": "eval('1')"},
        {"breakpoints": [{"condition": "no code"}, {"condition": "eval('1')"}]},
        {"breakpoints": [{"logMessage": "it's {x}"}, {"condition": "eval('1')"}]},
        {"breakpoints": [{"hitCondition": ">= 3"}, {"logMessage": "{eval('1')}"}]},
    ],
)
def test_a_text_that_is_no_code_does_not_hide_another(arguments: dict[str, Any]) -> None:
    assert denies(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"expression": "x + 1"},
        {"expression": "d['a']", "value": "[1, 2]"},
        at_breakpoint(condition="x > 1 and y is None", hitCondition="> 3"),
        at_breakpoint(logMessage="eval is not called; x = {x}, {len(y)}, {} and {{'a': 1}}"),
        {"breakpoints": None, "expression": 5},
        {"breakpoints": ["no breakpoint"]},
    ],
)
def test_ordinary_requests_of_a_debugger_pass(arguments: dict[str, Any]) -> None:
    assert not denies(**arguments)


def test_a_request_without_arguments_has_no_code() -> None:
    assert list(code_in({})) == []
    assert list(code_in({"arguments": "eval('1')"})) == []
