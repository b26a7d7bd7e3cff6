"""Questions of the wrapper's own to the user, on stdin: whether a cell may run that the policy asks about.

They are asked before anything of the cell runs. A cell may imitate one, but what is answered then is
the cell's, and allows nothing: each answer goes to who asked (`stdin.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from sandbox_kernel.policy.verdict import Answer, Finding
from sandbox_kernel.policy.violation import place
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.approvals import Approvals, Subject
from sandbox_kernel.relay.cells import RunningCell
from sandbox_kernel.relay.imitation import looks_like_the_wrapper
from sandbox_kernel.relay.wire import Message
from sandbox_kernel.text import printable
from sandbox_kernel.words import count

LABEL: Final = "[sandbox-kernel]"
_YES: Final = frozenset({"y", "yes"})
_ALWAYS: Final = frozenset({"a", "always"})
# Enter alone is a no, as the prompt says.
_NO: Final = frozenset({"", "n", "no"})
# How often a question is put if nobody can tell what the answer means.
MAX_TRIES: Final = 3
# More than a user can weigh in one question: each must then be answered for itself.
MAX_SUBJECTS: Final = 8
# Of a cell's prompt: to read letters out of a text takes long, and one may become eighteen.
MAX_PROMPT_CHARACTERS: Final = 4096

YES: Final[frozenset[Answer]] = frozenset({"yes", "always", "earlier"})
# Told the answer, says whether it counts: one that cannot be recorded does not.
Answered = Callable[[Answer], bool]


@dataclass(frozen=True, slots=True)
class Question:
    """One cell that waits for an answer."""

    cell: RunningCell
    findings: tuple[Finding, ...]
    # What an "always" would hold for; empty if it cannot be said in a question.
    subjects: tuple[Subject, ...]
    answered: Answered


class Asking:
    """Asks one question at a time. What is always to be allowed is remembered for the kernel's life."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._questions: deque[Question] = deque()
        self.approvals: Final = Approvals()
        # The msg_id of the prompt that puts the first question, and how often that was put.
        self._prompt_id = ""
        self._tries = 0

    @property
    def open(self) -> bool:
        return bool(self._questions)

    def ask(self, cell: RunningCell, answered: Answered) -> None:
        """Have the user decide about what the policy asks in this cell, unless that is decided."""
        assert cell.verdict is not None
        texts = [cell.request.code, *cell.request.expressions]
        found = [
            (finding, Subject.of(finding, texts))
            for finding in cell.verdict.findings
            if finding.decision == "ask"
        ]
        # Of findings beyond those that are named, nobody knows whether they were approved.
        if not cell.verdict.is_cut:
            found = [each for each in found if each[1] not in self.approvals]
        if not found:
            answered("earlier")
        elif not cell.request.allow_stdin:
            answered("nobody")
        else:
            subjects = tuple(dict.fromkeys(subject for _, subject in found))
            if cell.verdict.is_cut or len(subjects) > MAX_SUBJECTS:
                subjects = ()
            findings = tuple(finding for finding, _ in found)
            self._questions.append(Question(cell, findings, subjects, answered))
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
        """The user's answer to the question that is open; it is put again if that means nothing."""
        question = self._questions[0]
        answer = understood(question, value)
        if answer == "unclear" and self._tries < MAX_TRIES:
            self._put_again(value)
            return
        self._questions.popleft()
        # A question that comes up while this one's answer takes effect is put when it comes.
        others = bool(self._questions)
        if question.answered(answer) and answer == "always":
            self.approvals.add(question.subjects)
        if others:
            self._put()

    def remind(self, idents: tuple[bytes, ...]) -> None:
        """Put the question to this client again: what it said was about something else."""
        if self.is_put_to(idents):
            tries = self._tries
            self._put("That answered an earlier prompt. ")
            self._tries = tries

    def withdraw(self) -> None:
        """All open questions are answered with no: the user has interrupted."""
        questions, self._questions = self._questions, deque()
        for question in questions:
            question.answered("withdrawn")

    def _put(self, remark: str = "") -> None:
        question = self._questions[0]
        self._tries = self._tries + 1 if remark else 1
        content = {"prompt": in_words(question, remark), "password": False}
        self._prompt_id = self._answers.ask(question.cell.request, content)

    def _put_again(self, value: object) -> None:
        said = repr(printable(value[:20])) if isinstance(value, str) else "That"
        self._put(f"{said} is not one of the answers. ")


def understood(question: Question, value: object) -> Answer:
    """What the user's word means."""
    word = value.strip().lower() if isinstance(value, str) else None
    if word in _YES:
        return "yes"
    if word in _ALWAYS and question.subjects:
        return "always"
    return "no" if word in _NO else "unclear"


def in_words(question: Question, remark: str = "") -> str:
    first, *more = question.findings
    others = f" (and {count(len(more), 'more finding')})" if more else ""
    # All that `always` would be remembered for.
    subjects = ", ".join(map(str, question.subjects))
    always = f"[a]lways for {subjects}, " if subjects else ""
    return (
        f"{LABEL} {remark}{place(first)}, {printable(first.about)}: {first.reason}{others}. "
        f"Run this cell? [y]es, {always}[N]o: "
    )


class Prompt(msgspec.Struct):
    """What an ``input_request`` says; all else in it, which may be huge, is checked and not built."""

    prompt: str = ""
    password: bool = False


_read_prompt = msgspec.json.Decoder(Prompt).decode


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
        if is_short and not looks_like_the_wrapper(said.prompt):
            return content
    said.prompt = f"(the cell asks:) {_on_one_line(_shortened(said.prompt))}"
    return msgspec.json.encode(said)


def _on_one_line(prompt: str) -> str:
    """Nothing in it moves what it says away from the word on who asks."""
    end = " " if prompt[-1:].isspace() else ""
    return printable(" ".join(prompt.split())) + end


def _shortened(prompt: str) -> str:
    if len(prompt) <= MAX_PROMPT_CHARACTERS:
        return prompt
    half = MAX_PROMPT_CHARACTERS // 2
    left_out = count(len(prompt) - 2 * half, "character")
    return f"{prompt[:half]} … ({left_out} left out) … {prompt[-half:]}"
