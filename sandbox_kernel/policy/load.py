"""Read a policy and all it extends. Whatever is wrong with it, nothing is guessed: ``PolicyError``.

Importing this loads PyYAML, some 15 ms: do it while the sandbox boots.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandbox_kernel.errors import PolicyError
from sandbox_kernel.policy import model
from sandbox_kernel.policy.code_section import build_code, code_gaps, merge_code
from sandbox_kernel.policy.document import compose, read_items, read_word
from sandbox_kernel.policy.find import DEFAULT, Source, find_named, find_policy
from sandbox_kernel.policy.model import Policy
from sandbox_kernel.policy.sections import READERS, TABLES, absent_section
from sandbox_kernel.policy.units import shown

_SHOWN_GAPS: Final = 10


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
    _check_complete(*layers[0])
    merged: dict[str, Any] = {}
    for _, settings in layers:
        for key, value in settings.items():
            merged[key] = _merge(key, merged.get(key), value)
    sources = tuple(layer for layer, _ in layers)
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
        stdin=merged["stdin"],
        checkpoint=merged["checkpoint"],
        annotate=merged["annotate"],
    )
    return Loaded(policy, sources)


def _merge(key: str, base: Any, own: Any) -> Any:
    """What a section says, over what it extends."""
    if base is None or not isinstance(own, dict):
        return own
    return merge_code(base, own) if key == "code" else {**base, **own}


def _layers(source: Source, above: tuple[str, ...]) -> list[tuple[Source, dict[str, Any]]]:
    """The files a policy is made of, the base first, each with what it sets."""
    keys = [*READERS, "extends"]
    nodes = dict(read_items(source, compose(source), "the policy", keys, absent_section))
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
        return [(source, settings)]
    else:
        base = find_named(DEFAULT)
    return [*_layers(base, (*above, source.name)), (source, settings)]


def _check_complete(default: Source, settings: Mapping[str, Any]) -> None:
    """Every chain begins with ``default``: a gap there must never come to mean "no limit"."""
    fields = {
        "isolation": model.Isolation._fields,
        "workspace": ("mount",),
        "environment": ("pass",),
    }
    gaps = []
    for section in READERS:
        given = settings.get(section)
        if given is None:
            gaps.append(section)
        elif section in TABLES:
            table = TABLES[section].items()
            gaps += [f"{section}.{key}" for key, setting in table if setting.field not in given]
        elif section == "code":
            gaps += code_gaps(given)
        else:
            gaps += [f"{section}.{key}" for key in fields.get(section, ()) if key not in given]
    if gaps:
        more = f" and {len(gaps) - _SHOWN_GAPS} more" if len(gaps) > _SHOWN_GAPS else ""
        what = f"the base of all policies does not say {', '.join(gaps[:_SHOWN_GAPS])}{more}"
        default.refuse(None, what, "State every key in it; `none` means no limit.")
