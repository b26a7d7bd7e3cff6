"""Read a policy and all it extends. Whatever is wrong with it, nothing is guessed: ``PolicyError``.

Importing this loads PyYAML, some 15 ms: do it while the sandbox boots.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandbox_kernel.errors import PolicyError
from sandbox_kernel.policy import audit_section, model
from sandbox_kernel.policy.audit_section import build_audit, merge_audit
from sandbox_kernel.policy.code_section import build_code, code_gaps, merge_code
from sandbox_kernel.policy.document import Node, compose, read_items, read_word
from sandbox_kernel.policy.find import DEFAULT, Source, find_named, find_policy
from sandbox_kernel.policy.model import Code, Policy
from sandbox_kernel.policy.sections import READERS, TABLES
from sandbox_kernel.policy.strictness import looser_than
from sandbox_kernel.policy.units import shown

# Sections in which a list adds to the one it extends.
_MERGERS: Final = {"code": merge_code, "audit": merge_audit}
_SHOWN_GAPS: Final = 10
_SHOWN_LOOSER: Final = 3
STRICT: Final = "strict"


class _Layer(NamedTuple):
    """One file: what it sets, and where it says so."""

    source: Source
    settings: dict[str, Any]
    nodes: Mapping[str, Node]


class Loaded(NamedTuple):
    """A policy and the files it was made of, the base first."""

    policy: Policy
    sources: tuple[Source, ...]


def load_policy(name_or_path: str) -> Policy:
    """The policy of that name in a trusted directory, or in the file at that absolute path.

    Raises ``PolicyError``; never falls back to another policy.
    """
    return load_with_sources(name_or_path).policy


def load_with_sources(name_or_path: str) -> Loaded:
    """The same, with the files as they were read."""
    source = find_policy(name_or_path)
    layers = _layers(source, above=())
    merged = _merged(layers)
    sources = tuple(layer.source for layer in layers)
    policy = Policy(
        name=source.name,
        sha256=hashlib.sha256(b"".join(layer.data for layer in sources)).hexdigest(),
        isolation=model.Isolation(**merged["isolation"]),
        limits=model.Limits(**merged["limits"]),
        budget=model.Budget(**merged["budget"]),
        network=merged["network"],
        workspace=merged["workspace"]["mount"],
        environment=merged["environment"]["pass"],
        code=build_code(merged["code"]),
        outputs=merged["outputs"],
        stdin=merged["stdin"],
        audit=build_audit(merged["audit"]),
        checkpoint=merged["checkpoint"],
        annotate=merged["annotate"],
        late_output=merged["late_output"],
    )
    _check_levels(policy)
    if "restricted" in policy.isolation.accepted:
        _check_strict(policy, layers)
    return Loaded(policy, sources)


def _merged(layers: list[_Layer]) -> dict[str, Any]:
    """What all files say together."""
    _check_complete(layers[0].source, layers[0].settings)
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.settings.items():
            merged[key] = _merge(key, merged.get(key), value)
    return merged


def _check_strict(policy: Policy, layers: list[_Layer]) -> None:
    """Where little else holds a cell, its code must be read with no less care than ``strict`` has."""
    code: Code = build_code(_merged(_layers(find_named(STRICT), above=()))["code"])
    looser = looser_than(code, policy.code)
    if not looser:
        return
    last = next(layer for layer in reversed(layers) if "isolation" in layer.nodes)
    more = f" and {len(looser) - _SHOWN_LOOSER} more" if len(looser) > _SHOWN_LOOSER else ""
    what = (
        "isolation: the level 'restricted' relies on the check of the code, which must be no looser "
        f"than in policy `{STRICT}`; here it is: {', '.join(looser[:_SHOWN_LOOSER])}{more}"
    )
    hint = f"Write `extends: {STRICT}` and loosen nothing in `code`, or ask for a stronger level."
    last.source.refuse(last.nodes["isolation"].start_mark, what, hint)


def _check_levels(policy: Policy) -> None:
    isolation = policy.isolation
    if not isolation.accepted:
        what = (
            f"Policy `{policy.name}` requires {isolation.require!r}, and none of the levels that it "
            f"prefers ({', '.join(isolation.prefer)}) is as strong."
        )
        hint = f"Write `prefer: [{isolation.require}]` in its section `isolation`, or require less."
        raise PolicyError(what, hint=hint)


def _merge(key: str, base: Any, own: Any) -> Any:
    """What a section says, over what it extends."""
    if base is None or not isinstance(own, dict):
        return own
    merge = _MERGERS.get(key)
    return merge(base, own) if merge else {**base, **own}


def _layers(source: Source, above: tuple[str, ...]) -> list[_Layer]:
    """The files a policy is made of, the base first, each with what it sets."""
    keys = [*READERS, "extends"]
    nodes = dict(read_items(source, compose(source), "the policy", keys))
    extends = nodes.pop("extends", None)
    settings = {key: READERS[key](source, key, node) for key, node in nodes.items()}
    if extends is not None:
        parent = read_word(source, "extends", extends)
        if source.name == DEFAULT or parent in (*above, source.name):
            what = f"{source.name} cannot extend {shown(parent)}: that leads back to itself"
            source.refuse(extends.start_mark, what, f"All policies extend {DEFAULT} in the end.")
        try:
            base = find_named(parent)
        except PolicyError as error:
            source.refuse(extends.start_mark, f"extends: {error.what.rstrip('.')}", error.hint)
    elif source.name == DEFAULT:
        return [_Layer(source, settings, nodes)]
    else:
        base = find_named(DEFAULT)
    return [*_layers(base, (*above, source.name)), _Layer(source, settings, nodes)]


def _check_complete(default: Source, settings: Mapping[str, Any]) -> None:
    """Every chain begins with ``default``: a gap there must never come to mean "no limit"."""
    fields = {
        "isolation": model.Isolation._fields,
        "workspace": ("mount",),
        "environment": ("pass",),
        "audit": audit_section.KEYS,
    }
    gaps = []
    for section in READERS:
        given = settings.get(section)
        if given is None:
            gaps.append(section)
        elif section in TABLES:
            gaps += [
                f"{section}.{key}"
                for key, setting in TABLES[section].items()
                if setting.field not in given and key not in model.SANDBOX_LIMITS
            ]
            if section == "limits":
                gaps += [
                    f"limits.background.{key}"
                    for key, setting in model.BACKGROUND.items()
                    if setting.field not in given
                ]
        elif section == "code":
            gaps += code_gaps(given)
        else:
            gaps += [f"{section}.{key}" for key in fields.get(section, ()) if key not in given]
    if gaps:
        more = f" and {len(gaps) - _SHOWN_GAPS} more" if len(gaps) > _SHOWN_GAPS else ""
        what = f"the base of all policies does not say {', '.join(gaps[:_SHOWN_GAPS])}{more}"
        default.refuse(None, what, "State every key in it; `none` means no limit.")
