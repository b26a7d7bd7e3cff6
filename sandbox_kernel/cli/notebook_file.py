"""Notebook files, which strangers wrote: read without trusting their shape, saved whole or not at all."""

from __future__ import annotations

import json
import math
import os
import stat
import warnings
from pathlib import Path
from typing import Any, Final, NoReturn

MAX_BYTES: Final = 256 << 20
MAX_DEPTH: Final = 100
# Objects and lists: each takes two characters in a file, and up to a kilobyte to be read and saved.
MAX_CONTAINERS: Final = 1_000_000
# Those in texts are no containers.
_MAX_BRACKETS: Final = 4_000_000
# Results of a run. Those that a file brings along are not of the run that is about to begin.
_RESULTS_OF_CELL: Final = ("sandbox", "execution")
_RESULTS_OF_NOTEBOOK: Final = ("sandbox", "widgets")
_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotANotebook(Exception):
    """The file cannot be run as a notebook; the text says why, in one line."""


def read_notebook(path: Path) -> Any:
    """The notebook in nbformat 4, without any results; raises ``NotANotebook``."""
    text = _read_text(path)
    _check_json(text)
    notebook = _parse(text)
    _remove_results(notebook)
    return notebook


def save_notebook(notebook: Any, path: Path) -> None:
    """Raises ``OSError``; then the file is as it was."""
    import nbformat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # An output may hold half a character, which no file can.
        data = nbformat.writes(notebook).encode("utf-8", "replace")
    # Not longer than a name may be, however long the notebook's is.
    draft = path.with_name(f".sandbox-kernel-{os.getpid()}")
    try:
        draft.write_bytes(data + b"\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _read_text(path: Path) -> str:
    try:
        # Not blocking: opening a pipe waits for a writer, and there may never be one.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
            if kind != stat.S_IFREG:
                msg = f"it is {_KINDS.get(kind, 'not a file')}"
                raise NotANotebook(msg)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise NotANotebook(error.strerror or str(error)) from error
    if len(data) > MAX_BYTES:
        msg = f"it is larger than {MAX_BYTES >> 20} MiB"
        raise NotANotebook(msg)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"byte {error.start} is not UTF-8"
        raise NotANotebook(msg) from error
    if not text.strip():
        msg = "it is empty"
        raise NotANotebook(msg)
    return text


def _check_json(text: str) -> None:
    """Refuse what JSON readers accept and writers cannot write again."""
    if text.count("{") + text.count("[") > _MAX_BRACKETS:
        msg = f"it has more than {_MAX_BRACKETS:,} opening brackets"
        raise NotANotebook(msg)
    try:
        document: Any = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        containers = count_containers([document], MAX_DEPTH)
        if containers is None:
            raise RecursionError
        if containers > MAX_CONTAINERS:
            msg = f"it has more than {MAX_CONTAINERS:,} objects and lists"
            raise NotANotebook(msg)
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        msg = "it holds half a character (a lone surrogate)"
        raise NotANotebook(msg) from error
    except ValueError as error:
        msg = f"it is not JSON: {error}"
        raise NotANotebook(msg) from error
    except RecursionError as error:
        msg = "it is nested too deeply"
        raise NotANotebook(msg) from error
    if not isinstance(document, dict):
        msg = "it is JSON, but not an object"
        raise NotANotebook(msg)
    version = document.get("nbformat")
    if type(version) is not int or not 1 <= version <= 4:
        msg = f"its nbformat is {_short(version)}, not 4 or older"
        raise NotANotebook(msg)


def count_containers(document: Any, most_levels: int) -> int | None:
    """How many objects and lists a document is made of; ``None`` if it is nested too deeply.

    Libraries that go through a notebook later would find out by a ``RecursionError``.
    """
    level: list[Any] = [document]
    count = 0
    for _ in range(most_levels):
        count += len(level)
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return count
    return None


def _parse(text: str) -> Any:
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing cell ids, which nbformat adds
            notebook = nbformat.reads(text, as_version=4)
            nbformat.validate(notebook)
    except (
        *(ValueError, TypeError, AttributeError, LookupError),
        *(AssertionError, RecursionError, nbformat.ValidationError),
    ) as error:  # whatever nbformat trips over in JSON of another shape
        reason = str(error).partition("\n")[0] or type(error).__name__
        msg = f"it has not the shape of one: {reason[:300]}"
        raise NotANotebook(msg) from error
    return notebook


def _remove_results(notebook: Any) -> None:
    """Outputs, counts and receipts that come with a file prove nothing, and may be forged."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
        for key in _RESULTS_OF_CELL:
            cell.metadata.pop(key, None)
    for key in _RESULTS_OF_NOTEBOOK:
        notebook.metadata.pop(key, None)


def _no_constant(word: str) -> NoReturn:
    msg = f"{word} is not a number of JSON"
    raise ValueError(msg)


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        msg = f"the number {_short(word)} is too large"
        raise ValueError(msg)
    return number


def _short(value: object) -> str:
    text = str(value)
    return repr(value) if len(text) <= 40 else f"{text[:40]!r}…"
