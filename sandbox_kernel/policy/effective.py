"""A whole policy in the form of a policy file: what holds when all it extends is put together."""

from __future__ import annotations

from typing import Any

from sandbox_kernel.policy.code_section import PARTS, rules_of
from sandbox_kernel.policy.model import (
    ANCHOR_EVERY,
    BACKGROUND,
    BUDGET,
    LIMITS,
    MAX_SIZE,
    NAME_RULES,
    SANDBOX_LIMITS,
    Code,
    Names,
    Policy,
)
from sandbox_kernel.policy.verdict import DECISIONS


def as_document(policy: Policy) -> dict[str, Any]:
    """Every key of the policy, in the words and units of YAML; it reads back as the same policy."""
    return {
        "isolation": {
            "prefer": list(policy.isolation.prefer),
            "require": policy.isolation.require,
            "image": policy.isolation.image,
            "runtime": policy.isolation.runtime,
        },
        "limits": {
            key: setting.show(getattr(policy.limits, setting.field))
            for key, setting in (LIMITS | SANDBOX_LIMITS).items()
        }
        | {
            "background": {
                key: setting.show(getattr(policy.limits, setting.field))
                for key, setting in BACKGROUND.items()
            }
        },
        "budget": {
            key: setting.show(getattr(policy.budget, setting.field))
            for key, setting in BUDGET.items()
        },
        "network": policy.network,
        "workspace": {"mount": policy.workspace},
        "environment": {"pass": list(policy.environment)},
        "code": _code(policy.code),
        "outputs": policy.outputs,
        "stdin": policy.stdin,
        "audit": {
            "enabled": str(policy.audit.enabled).lower(),
            "required": str(policy.audit.required).lower(),
            "code": policy.audit.code,
            "durability": policy.audit.durability,
            "redact": list(policy.audit.redact),
            "anchor": policy.audit.anchor,
            "anchor_every": ANCHOR_EVERY.show(policy.audit.anchor_seconds),
            "mirror": policy.audit.mirror,
        },
        "checkpoint": policy.checkpoint,
        "annotate": policy.annotate,
        "late_output": policy.late_output,
    }


def _code(code: Code) -> dict[str, Any]:
    document: dict[str, Any] = {"max_size": MAX_SIZE.show(code.max_bytes)}
    for name, part in PARTS.items():
        document[name] = {}
        if part.name_rule:
            names = _names(getattr(code, NAME_RULES[part.name_rule]))
            document[name] |= {part.key: names} if part.key else names
        document[name]["rules"] = {rule: code.rules[rule] for rule in rules_of(name)}
    return document


def _names(names: Names) -> dict[str, Any]:
    lists: dict[str, Any] = {decision: names.listed(decision) for decision in DECISIONS}
    return {"otherwise": names.otherwise, **lists}
