"""The Python in commands and in the arguments of magics: IPython evaluates each ``{expression}``.

It does so before the command or the magic sees them. What fails to evaluate, such as the braces of
``awk '{print $1}'``, stays as it is.
"""

from __future__ import annotations

import ast
import string
import warnings
from collections.abc import Iterator
from typing import NamedTuple


class Expression(NamedTuple):
    """What stands between two braces, and where it begins in the text."""

    text: str
    offset: int


def expressions(text: str) -> Iterator[Expression]:
    """What may be evaluated of a text, in IPython's order; a mere name is not worth telling."""
    if "{" not in text:
        return
    at = 0
    try:
        # IPython reads the text with the same parser, and ends where that does.
        for _, field, more, _ in string.Formatter().parse(text):
            if not field:
                continue
            whole = f"{field}:{more}" if more else field  # a slice looks like a format
            at = max(text.find(field, at), at)
            inner = whole.lstrip(" \t")
            if not inner.isidentifier() and _is_expression(inner):
                yield Expression(inner, at + len(whole) - len(inner))
    except ValueError:
        return


def _is_expression(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "<expression>", "eval", ast.PyCF_ONLY_AST, dont_inherit=True)
        except SyntaxError:
            return False
        except (ValueError, MemoryError, RecursionError, OverflowError):
            return True  # who reads it next says what is wrong with it
    return True
