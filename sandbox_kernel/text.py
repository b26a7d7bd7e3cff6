"""Text from strangers, made safe to show on a terminal: cells, their output, file names, engines' words.

Every command that prints such text prints it through these functions.
"""

from __future__ import annotations

import re
from typing import Final

# Commands to a terminal, whole: colours and cursor moves (CSI), titles and clipboard (OSC and its kin,
# up to their terminator or the end of the line), other escapes of two or three characters.
_TERMINAL_COMMAND: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c|(?=\n)|\Z)?"
    r"|\x1b[ -/]*[0-~]?"
)


def printable(text: str) -> str:
    """One line without control characters, text direction overrides or halves of characters.

    Each becomes ``·``, and a tab a blank. So a stranger's text cannot paint over what is said about it.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else " " if character == "\t" else "·"
        for character in text
    )


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def without_colours(text: str) -> str:
    """Printable lines of a text that was meant for a terminal, such as a traceback."""
    text = _TERMINAL_COMMAND.sub("", text).replace("\r\n", "\n")
    return printable_lines(text.expandtabs(4))


def one_line(text: str, limit: int) -> str:
    """The words of a text, printable, in one line of at most ``limit`` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"
