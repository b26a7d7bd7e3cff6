"""Questions of the wrapper's own to the user, on stdin: whether a cell may run that the policy asks about.

They are asked before anything of the cell runs. A cell may imitate one, but what is answered then is
the cell's, and allows nothing: each answer goes to who asked (`stdin.py`).
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from sandbox_kernel.policy.verdict import Finding
from sandbox_kernel.policy.violation import place, printable
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.cells import RunningCell
from sandbox_kernel.relay.wire import Message
from sandbox_kernel.words import count

LABEL: Final = "[sandbox-kernel]"
_YES: Final = frozenset({"y", "yes"})
_ALWAYS: Final = frozenset({"a", "always"})
_NO_LETTERS: Final = re.compile(r"[\W_]+")
# Of a cell's prompt: to read letters out of a text takes long, and one may become eighteen.
MAX_PROMPT_CHARACTERS: Final = 4096

# `earlier`: always, said about another cell; `nobody`: the client cannot be asked; `withdrawn`: the user
# has interrupted.
Answer = Literal["yes", "always", "earlier", "no", "nobody", "withdrawn"]
YES: Final[frozenset[Answer]] = frozenset({"yes", "always", "earlier"})
# Told the answer, says whether it counts: one that cannot be recorded does not.
Answered = Callable[[Answer], bool]


@dataclass(frozen=True, slots=True)
class Question:
    """One cell that waits for an answer."""

    cell: RunningCell
    findings: tuple[Finding, ...]
    answered: Answered


class Asking:
    """Asks one question at a time. What is always to be allowed is remembered for the kernel's life."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._questions: deque[Question] = deque()
        self._always: set[str] = set()
        # The msg_id of the prompt that puts the first question.
        self._prompt_id = ""

    @property
    def open(self) -> bool:
        return bool(self._questions)

    def ask(self, cell: RunningCell, answered: Answered) -> None:
        """Have the user decide about what the policy asks in this cell, unless that is decided."""
        assert cell.verdict is not None
        asked = tuple(
            finding
            for finding in cell.verdict.findings
            if finding.decision == "ask" and finding.rule not in self._always
        )
        if not asked:
            answered("earlier")
        elif not cell.request.allow_stdin:
            answered("nobody")
        else:
            self._questions.append(Question(cell, asked, answered))
            if len(self._questions) == 1:
                self._put()

    def is_put_to(self, idents: tuple[bytes, ...]) -> bool:
        """Whether this client has a question before it."""
        return self.open and self._questions[0].cell.request.message.idents == idents

    def is_answered_by(self, reply: Message, *, in_order: bool) -> bool:
        """Whether this is a client's answer to the question that is open, not to what a cell asks.

        JupyterLab says which prompt it answers. jupyter_client does not: what it says is the answer if
        it is ``in_order``, as nothing that was asked before is still to be answered.
        """
        if not self.is_put_to(reply.idents):
            return False
        return in_order if reply.parent_id is None else reply.parent_id == self._prompt_id

    def answer(self, value: object) -> None:
        """The user's answer to the question that is open. Anything but a yes is a no."""
        question = self._questions.popleft()
        # A question that comes up while this one's answer takes effect is put when it comes.
        others = bool(self._questions)
        word = value.strip().lower() if isinstance(value, str) else ""
        if word in _ALWAYS:
            if question.answered("always"):
                self._always |= {finding.rule for finding in question.findings}
        else:
            question.answered("yes" if word in _YES else "no")
        if others:
            self._put()

    def withdraw(self) -> None:
        """All open questions are answered with no: the user has interrupted."""
        questions, self._questions = self._questions, deque()
        for question in questions:
            question.answered("withdrawn")

    def _put(self) -> None:
        question = self._questions[0]
        content = {"prompt": in_words(question), "password": False}
        self._prompt_id = self._answers.ask(question.cell.request, content)


def in_words(question: Question) -> str:
    first, *more = question.findings
    others = f" (and {count(len(more), 'more finding')})" if more else ""
    # All that `always` would be remembered for.
    rules = ", ".join(dict.fromkeys(finding.rule for finding in question.findings))
    return (
        f"{LABEL} {place(first)}, {printable(first.about)}: {first.reason}{others}. "
        f"Run this cell? [y]es, [a]lways for {rules}, [N]o: "
    )


class Prompt(msgspec.Struct):
    """What an ``input_request`` says; all else in it, which may be huge, is checked and not built."""

    prompt: str = ""
    password: bool = False


_read_prompt = msgspec.json.Decoder(Prompt).decode


def _letters(text: str) -> str:
    """What is read of a text, whatever its dashes, spaces and widths: U+2011 looks like a hyphen."""
    return _NO_LETTERS.sub("", unicodedata.normalize("NFKC", text).casefold())


_LETTERS_OF_LABEL: Final = _letters(LABEL)


def told_apart(content: bytes) -> bytes:
    """The content of a cell's ``input_request``, with a word on who asks if it imitates the wrapper.

    So does one that is too long to be looked through; its middle is left out.
    """
    try:
        said = _read_prompt(content)
    except ValueError:
        said = Prompt()  # not what input() makes, and a frontend may show it as text all the same
    else:
        is_short = len(said.prompt) <= MAX_PROMPT_CHARACTERS
        if is_short and _LETTERS_OF_LABEL not in _letters(said.prompt):
            return content
    said.prompt = f"(the cell asks:) {_shortened(said.prompt)}"
    return msgspec.json.encode(said)


def _shortened(prompt: str) -> str:
    if len(prompt) <= MAX_PROMPT_CHARACTERS:
        return prompt
    half = MAX_PROMPT_CHARACTERS // 2
    left_out = count(len(prompt) - 2 * half, "character")
    return f"{prompt[:half]} … ({left_out} left out) … {prompt[-half:]}"
