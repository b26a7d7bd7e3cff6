"""The files that a file of pip's requirements takes in: ``-r`` and ``-c``, as pip reads them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandbox_kernel.errors import ImageError

_NAMES: Final = ("-r", "--requirement", "-c", "--constraint")
_CONTINUED: Final = re.compile(r"\\\r?\n")
_COMMENT: Final = re.compile(r"(^|\s)#.*")
_VARIABLE: Final = re.compile(r"\$\{([A-Z0-9_]+)\}")
_ELSEWHERE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def read_all(requirements: Path) -> Iterator[bytes]:
    """What the file holds, then what each file holds that it takes in, once and however deep.

    What lies behind an address is not read; raises ``ImageError`` for a file that cannot be.
    """
    left, seen = [requirements], set()
    while left:
        path = left.pop(0)
        if (resolved := path.resolve()) in seen:
            continue
        seen.add(resolved)
        data = _read(path)
        yield data
        left += [path.parent / name for name in included(data.decode(errors="replace"))]


def included(text: str) -> Iterator[str]:
    """The files that are named, as they are written there; not addresses."""
    for line in _CONTINUED.sub("", text).splitlines():
        option = _COMMENT.sub("", line).strip()
        if not option.startswith("-"):
            continue
        expanded = _VARIABLE.sub(lambda name: os.environ.get(name[1], name[0]), option)
        try:
            words = shlex.split(expanded)
        except ValueError:  # a quote that does not end: pip refuses it when it fetches
            continue
        for name in _values(words):
            if not _ELSEWHERE.match(name):
                yield name


def _values(words: list[str]) -> Iterator[str]:
    """As pip reads options: the value in the next word, behind ``=``, or at once behind a letter."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word in _NAMES:
            yield from words[number + 1 : number + 2]
        elif equals and name in _NAMES and name.startswith("--"):
            yield value
        elif word[:2] in _NAMES:
            yield word[2:]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        what = f"The requirements {path} cannot be read: {error.strerror}."
        hint = "Give `-r` the path of a file of pip's requirements; what it takes in must be there too."
        raise ImageError(what, hint=hint) from error
