"""The catalogue: every rule that the static check knows, and what to say of it to a user."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Final

from sandbox_kernel.policy.model import suggestion
from sandbox_kernel.policy.verdict import Rule

# Reported for every import, command and magic: lists of names decide about these.
ON_NAMES: Final = (
    Rule(
        "python.import",
        "medium",
        "it loads a module that the policy does not simply allow",
        "Use a module that the policy allows, or have the operator list this one",
        "separate_process",
    ),
    Rule(
        "shell.command",
        "medium",
        "it starts a program that the policy does not simply allow",
        "Do it in Python, or have the operator list this command",
        "host_files",
    ),
    Rule(
        "magic",
        "medium",
        "it uses an IPython magic that the policy does not simply allow",
        "Write the same in plain Python, or have the operator list this magic",
        "separate_process",
    ),
)
# What is too much for the check, or no code at all, cannot be vouched for: no policy decides on it.
ALWAYS_DENIED: Final = (
    Rule(
        "cell.too_large",
        "medium",
        "it is larger than the policy lets a cell be",
        "Split the cell, and keep data in files rather than in code",
        "limits",
    ),
    Rule(
        "cell.unreadable",
        "medium",
        "it cannot be read as the code that IPython would run, so nothing is known about it",
        "Correct what is named; remove characters that do not belong in code",
        "separate_process",
    ),
    Rule(
        "cell.too_deep",
        "high",
        "it wraps code in code more often than the check follows",
        "Write the innermost code in a cell of its own",
        "separate_process",
    ),
)
# Each has RULES; of those whose rules are in a module of their own, the rest is not loaded for them.
_VALIDATORS: Final = ("python_rules", "shell_rules", "magics", "javascript")


def rule(id: str) -> Rule:
    """The rule of that id; ``KeyError`` with the nearest one if there is none."""
    try:
        return _catalogue()[id]
    except KeyError:
        msg = f"There is no rule {id[:100]!r}. {suggestion(id, all_ids())}"
        raise KeyError(msg) from None


def all_ids() -> tuple[str, ...]:
    """The ids of all rules, those on names first, by validator."""
    return tuple(_catalogue())


@cache
def _catalogue() -> Mapping[str, Rule]:
    catalogue: dict[str, Rule] = {}
    for found in (*ON_NAMES, *ALWAYS_DENIED, *_validators_rules()):
        # The rules on names are worded here, alike, though validators may list them too.
        catalogue.setdefault(found.id, found)
    return catalogue


def _validators_rules() -> tuple[Rule, ...]:
    modules = [import_module(f"sandbox_kernel.policy.{name}") for name in _VALIDATORS]
    return tuple(found for module in modules for found in module.RULES)
