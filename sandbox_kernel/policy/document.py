"""A policy file as YAML nodes that know their lines; mappings, words and lists, strictly read.

Importing this loads PyYAML, some 15 ms: do it while the sandbox boots.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

import yaml

from sandbox_kernel.policy.find import Source
from sandbox_kernel.policy.model import suggestion
from sandbox_kernel.policy.units import shown

_MAX_DEPTH: Final = 8
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Node(NamedTuple):
    """A part of the file: a word, a list, or a mapping (a key, its value, the next key, …)."""

    content: str | list[Node]
    is_mapping: bool
    start_mark: Any


def compose(source: Source) -> Node:
    """The root of the file's only document; raises ``PolicyError``."""
    try:
        documents = _documents(source, source.data.decode())
    except UnicodeDecodeError as error:
        source.refuse(None, f"byte {error.start} is not UTF-8", "Save the file as UTF-8.")
    except yaml.YAMLError as error:
        said = [getattr(error, name, None) for name in ("context", "problem")]
        problem = " ".join(filter(None, said)) or "it holds a character that YAML forbids"
        hint = "Check indentation, colons and quotes there and in the line before."
        source.refuse(getattr(error, "problem_mark", None), f"not YAML: {problem}", hint)
    if not documents:
        source.refuse(
            None, "the file is empty", "Write `extends: default` if that is what it means."
        )
    return documents[0]


def _documents(source: Source, text: str) -> list[Node]:
    """The nodes, made here of what is parsed: in half the time, since nothing is resolved.

    Aliases can grow a page into gigabytes, tags change what is read: a policy needs neither.
    """
    roots: list[Node] = []
    children = [roots]  # of the node that is read, below those of its parents
    for event in yaml.parse(text, Loader=_LOADER):
        if getattr(event, "anchor", None) is not None:
            source.refuse(event.start_mark, "anchors and aliases are refused", "Write it out.")
        if getattr(event, "tag", None) is not None:
            source.refuse(event.start_mark, "tags are refused", "Leave out what begins with `!`.")
        if isinstance(event, yaml.DocumentStartEvent) and roots:
            source.refuse(event.start_mark, "another document begins", "Write one to a file.")
        if isinstance(event, yaml.ScalarEvent):
            children[-1].append(Node(event.value, False, event.start_mark))
        elif isinstance(event, yaml.CollectionStartEvent):
            inside: list[Node] = []
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            children[-1].append(Node(inside, is_mapping, event.start_mark))
            children.append(inside)
            if len(children) > _MAX_DEPTH:
                hint = "See default.yaml for the form."
                source.refuse(event.start_mark, "nested too deeply", hint)
        elif isinstance(event, yaml.CollectionEndEvent):
            children.pop()
    return roots


def read_items(
    source: Source,
    node: Node,
    what: str,
    known: Collection[str],
    unknown: Callable[[str], tuple[str, str] | None] = lambda _: None,
) -> Iterator[tuple[str, Node]]:
    """The keys and values of a mapping whose keys are all known and there once.

    ``unknown`` may say more about a key that is not known: what is wrong with it, and a hint.
    """
    if not node.is_mapping or isinstance(node.content, str):
        source.refuse(node.start_mark, f"{what} is not a mapping", f"Keys: {', '.join(known)}.")
    seen: dict[str, int] = {}
    pairs = iter(node.content)
    for key, value in zip(pairs, pairs, strict=True):
        name = read_word(source, f"a key of {what}", key)
        if name not in known:
            usual = (f"{shown(name)} is not a key of {what}", suggestion(name, known))
            source.refuse(key.start_mark, *(unknown(name) or usual))
        if name in seen:
            text = f"{name!r} is there twice, first in line {seen[name]}"
            source.refuse(key.start_mark, text, "Remove one of them.")
        seen[name] = key.start_mark.line + 1
        yield name, value


def read_word(source: Source, key: str, node: Node) -> str:
    """A scalar as it is written: what YAML 1.1 makes of `off`, `010` or `1:30` does not count."""
    if not isinstance(node.content, str):
        source.refuse(node.start_mark, f"{key} is not a single value", "Write one word or number.")
    return node.content


def read_choice(choices: tuple[str, ...], source: Source, key: str, node: Node) -> str:
    """One of a few words."""
    if (text := read_word(source, key, node)) not in choices:
        what = f"{key}: {shown(text)} is none of {', '.join(choices)}"
        source.refuse(node.start_mark, what, suggestion(text, choices))
    return text


def read_list(source: Source, key: str, node: Node) -> Iterator[tuple[str, Node]]:
    """The words of a list, with the nodes that know where they stand."""
    if node.is_mapping or isinstance(node.content, str):
        hint = "Write it as [one, two] or one to a line after `- `; [] is the empty list."
        source.refuse(node.start_mark, f"{key} is not a list", hint)
    for item in node.content:
        yield read_word(source, f"an entry of {key}", item), item
