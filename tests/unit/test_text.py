"""Strangers' text on a terminal: nothing of it is a command, and nothing of it moves."""

from __future__ import annotations

import pytest

from sandbox_kernel.text import one_line, printable, printable_lines, without_colours

HOSTILE = {
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "clipboard, other end": "\x1b]52;c;ZXZpbA==\x1b\\",
    "title": "\x1b]0;title\x07",
    "clear": "\x1b[2J\x1b[H",
    "C1 control": "\x9b2J\x9d0;t\x9c",
    "device control": "\x1bPq#0;2;0\x1b\\",
    "reset": "\x1bc",
    "direction": "\u202eevil\u2066\u200f",
    "return": "good\rbad",
    "backspace": "good\x08\x08\x08\x08bad",
    "half a character": "\ud83d",
    "line separators": "a\u2028b\x85c\x0bd\x0ce",
    "bell and delete": "\x07\x7f",
    "unfinished": "\x1b]52;c;",
    "unfinished colour": "\x1b[",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_that_a_terminal_obeys_is_left(name: str) -> None:
    text = HOSTILE[name]
    assert not text.isprintable()  # the control
    for shown in (printable(text), one_line(text, 100), without_colours(text)):
        assert shown.isprintable(), ascii(shown)
    assert all(map(str.isprintable, printable_lines(f"{text}\n{text}").split("\n")))


def test_a_traceback_loses_its_colours_and_keeps_its_words() -> None:
    text = (
        "\x1b[31mZeroDivisionError\x1b[39m\n\tFile \x1b[38;5;28m1\x1b[0m: \x1b]8;;http://x\x07here"
    )
    assert without_colours(text) == "ZeroDivisionError\n    File 1: here"


def test_an_unfinished_command_takes_no_other_line_with_it() -> None:
    assert without_colours("a\x1b]0;title\nb\x1bPc\nd") == "a\nb\nd"


def test_ordinary_text_stays_as_it_is() -> None:
    text = "naïve 日本 — ✔ [bold]x[/bold] {y}"
    assert printable(text) == without_colours(text) == text
