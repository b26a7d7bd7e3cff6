"""The JSON Schema of a policy file, for editors: completion, and mistakes marked while one types.

The loader alone decides what is a policy. It does not use this; it says more, and says it better.
Written to policies/policy.schema.json by ``python -m sandbox_kernel.policy.schema``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

from sandbox_kernel.paths import policies_directory
from sandbox_kernel.policy import model, rules
from sandbox_kernel.policy.audit_section import LONGEST_PATTERN, PLACES
from sandbox_kernel.policy.code_section import PARTS, Part, rules_of
from sandbox_kernel.policy.model import LONGEST_NAME, Setting
from sandbox_kernel.policy.sections import NAMES, OWN_VARIABLE, SHARING, TABLES, VARIABLE
from sandbox_kernel.policy.units import COUNT
from sandbox_kernel.policy.verdict import DECISIONS

SCHEMA_NAME: Final = "policy.schema.json"


def policy_schema() -> dict[str, Any]:
    """The schema, from the tables that the loader reads by."""
    properties = {
        "extends": {
            "type": "string",
            "description": "The policy that says what this one leaves out; `default` if none is named.",
        },
        "isolation": _mapping(
            "How strong the sandbox must be.",
            {
                "prefer": {"type": "array", "items": _word(get_args(model.Level)), "minItems": 1},
                "require": _word(get_args(model.Level)),
                "image": {"type": "string", "pattern": f"^({NAMES['image'].pattern})$"},
                "runtime": {
                    "type": "string",
                    "pattern": f"^({NAMES['runtime'].pattern})$",
                    "not": {"pattern": f"^({SHARING.pattern})$"},
                },
            },
        ),
        "limits": _mapping("What one cell may use.", _limits()),
        "budget": _amounts("What all cells may use together.", model.BUDGET),
        "network": _word(get_args(model.Network)),
        "workspace": _mapping("The notebook's folder.", {"mount": _word(get_args(model.Mount))}),
        "environment": _mapping(
            "Variables passed on to the sandbox.",
            {
                "pass": {
                    "type": "array",
                    "items": {
                        "type": "string",
                        "pattern": f"^({VARIABLE.pattern})$",
                        "not": {"pattern": f"^({OWN_VARIABLE.pattern})$"},
                    },
                }
            },
        ),
        "code": _mapping("What the static check decides about a cell before it runs.", _code()),
        "outputs": _word(get_args(model.Outputs)),
        "stdin": _word(get_args(model.Stdin)),
        "audit": _mapping("What is kept of what cells did.", _audit()),
        "checkpoint": _word(get_args(model.Checkpoint)),
        "annotate": _word(get_args(model.Annotate)),
        "late_output": _word(get_args(model.LateOutput)),
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A policy of sandbox-kernel",
        **_mapping("default.yaml says what each key means.", properties),
    }


def _limits() -> dict[str, Any]:
    background = _amounts(
        "What cells have left running may use until the next cell.", model.BACKGROUND
    )
    amounts = {key: _amount(setting) for key, setting in TABLES["limits"].items()}
    return {**amounts, "background": background}


def _audit() -> dict[str, Any]:
    return {
        **{key: {"enum": [True, False, "true", "false"]} for key in ("enabled", "required")},
        "code": _word(get_args(model.AuditCode)),
        "durability": _word(get_args(model.Durability)),
        "redact": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": LONGEST_PATTERN},
        },
        "anchor": {"type": "string", "pattern": f"^({PLACES['anchor'].pattern})$"},
        "anchor_every": _amount(model.ANCHOR_EVERY),
        "mirror": {"type": "string", "pattern": f"^({PLACES['mirror'].pattern})$"},
    }


def _code() -> dict[str, Any]:
    parts = {}
    for name, part in PARTS.items():
        names = _names(part) if part.name_rule else {}
        if part.key:
            names = {part.key: _mapping("Decided by name.", names)}
        decisions = {rule: _word(DECISIONS, rules.rule(rule).reason) for rule in rules_of(name)}
        rules_key = {"rules": _mapping("Decided by rule.", decisions)}
        parts[name] = _mapping(f"What is decided about {name}.", names | rules_key)
    return {"max_size": _amount(model.MAX_SIZE), **parts}


def _names(part: Part) -> dict[str, Any]:
    entry = {"type": "string", "pattern": f"^{part.pattern}$", "maxLength": LONGEST_NAME}
    lists = {"type": "array", "items": entry, "uniqueItems": True, "description": part.wanted}
    return {"otherwise": _word(DECISIONS), **dict.fromkeys(DECISIONS, lists)}


def _amounts(description: str, table: Mapping[str, Setting]) -> dict[str, Any]:
    return _mapping(description, {key: _amount(setting) for key, setting in table.items()})


def _amount(setting: Setting) -> dict[str, Any]:
    units = "|".join(filter(None, setting.kind.steps_of))
    fraction = "" if setting.kind is COUNT else r"(\.[0-9]{1,9})?"
    pattern = rf"(0|[1-9][0-9]*){fraction}" + (f" ?({units})?" if units else "")
    if setting.can_be_none:
        pattern = f"none|{pattern}"
    return {
        "type": ["string", "integer" if setting.kind is COUNT else "number"],
        "pattern": f"^({pattern})$",
        "minimum": 0,
        "description": setting.wanted,
    }


def _word(choices: Iterable[str], description: str = "") -> dict[str, Any]:
    return {"enum": list(choices), **({"description": description} if description else {})}


def _mapping(description: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "properties": dict(properties),
        "additionalProperties": False,
    }


def schema_text() -> str:
    """What policies/policy.schema.json holds."""
    return json.dumps(policy_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (policies_directory() / SCHEMA_NAME).write_text(schema_text())
