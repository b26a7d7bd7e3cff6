"""Says below a traceback that the sandbox is why a file could not be saved, and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from typing import Any

MOST_CAUSES = 10
NOT_SHOWN = (
    "Jupyter was started in {folder}, which the sandbox does not show: for cells it is empty, and nothing "
    "can be saved in it. Start Jupyter in a project's folder to read the files there."
)
READ_ONLY = "The sandbox shows {folder} read-only: cells cannot save files in it."
ELSEWHERE = (
    "What a cell writes to {temporary} is lost when the kernel ends; display what you need to keep."
)


def explain_refusals(shell: Any, settings: Mapping[str, Any]) -> None:
    """Have ``shell`` add a line to errors of cells that tried to write what is read-only."""
    folder = settings["working_directory"]
    text = READ_ONLY if settings["folder_shown"] else NOT_SHOWN
    temporary = os.environ.get("TMPDIR", "/tmp")
    note = f"{text} {ELSEWHERE}".format(folder=folder, temporary=temporary)
    show = shell._showtraceback

    def show_with_note(etype: type, evalue: BaseException, stb: list[str]) -> None:
        if any(is_refusal(each, folder) for each in causes(evalue)):
            stb = [*stb, f"\n\x1b[1m[sandbox-kernel]\x1b[0m {note}"]
        show(etype, evalue, stb)

    shell._showtraceback = show_with_note


def is_refusal(error: BaseException, folder: str) -> bool:
    if not isinstance(error, OSError):
        return False
    if error.errno == errno.EROFS:
        return True
    # Without a read-only mount, Landlock or gVisor refuses the write with EACCES.
    if error.errno != errno.EACCES or not isinstance(error.filename, str):
        return False
    return os.path.dirname(os.path.abspath(error.filename)) == folder


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came of: libraries wrap errors in their own."""
    for _ in range(MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
