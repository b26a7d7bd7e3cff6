"""What the user has always allowed: exactly what was asked, listed and revocable.

An answer of "always" holds for a module, a command or a magic by its name. Other findings have no name that
says what the code does (`exec(text)`), so "always" holds for them in the very same code alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sandbox_kernel.errors import ApprovalUnknown
from sandbox_kernel.policy.judge import LONGEST_ABOUT
from sandbox_kernel.policy.verdict import Finding
from sandbox_kernel.text import printable

COMMAND: Final = "%approvals"
# The rules whose findings are about a name, and what it is a name of.
_NAMES: Final = {"python.import": "module", "shell.command": "command", "magic": "magic"}


@dataclass(frozen=True, slots=True)
class Subject:
    """What one "always" holds for. ``code``: the hash of the only code it holds in; empty: in any."""

    rule: str
    about: str
    code: str = ""

    @classmethod
    def of(cls, finding: Finding, texts: Iterable[str]) -> Subject:
        """The subject of a finding in a cell of these texts: its code and the expressions behind it."""
        # A name that was cut is not known to be the same name.
        if finding.rule in _NAMES and len(finding.about) < LONGEST_ABOUT:
            return cls(finding.rule, finding.about)
        digest = hashlib.sha256()
        for text in texts:
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d\n" % len(encoded))
            digest.update(encoded)
        return cls(finding.rule, finding.about, digest.hexdigest())

    def __str__(self) -> str:
        about = printable(self.about)
        if self.code:
            return f"`{about}` ({self.rule}) in exactly this code"
        return f"{_NAMES[self.rule]} `{about}`"

    @property
    def recorded(self) -> str:
        """For the audit log: a piece of code may hold a secret, so its hash stands for it."""
        return f"{self.rule} in code {self.code}" if self.code else str(self)


class Approvals:
    """What "always" was said about, for the kernel's life. Each has a number that never changes."""

    def __init__(self) -> None:
        self._numbers: dict[Subject, int] = {}
        self._last = 0

    def __contains__(self, subject: Subject) -> bool:
        return subject in self._numbers

    def add(self, subjects: Iterable[Subject]) -> None:
        for subject in subjects:
            if subject not in self._numbers:
                self._last += 1
                self._numbers[subject] = self._last

    def in_words(self) -> str:
        if not self._numbers:
            return "Nothing is approved for good: the policy's questions are asked each time."
        lines = [
            f"{number:>3}  {subject}" + (f", code {subject.code[:12]}" if subject.code else "")
            for subject, number in self._numbers.items()
        ]
        return "\n".join(
            [
                "Approved by you as long as this kernel lives:",
                *lines,
                f"`{COMMAND} revoke N` or `{COMMAND} revoke all` takes it back.",
            ]
        )

    def revoke(self, word: str) -> list[Subject]:
        """Take back the one with this number, or ``all``; what was taken back."""
        if word == "all":
            revoked = list(self._numbers)
        else:
            revoked = [each for each, number in self._numbers.items() if str(number) == word]
            if not revoked:
                msg = f"There is no approval {printable(word[:40])!r}."
                raise ApprovalUnknown(msg)
        for subject in revoked:
            del self._numbers[subject]
        return revoked


def is_command(code: str) -> bool:
    """Whether a cell is nothing but ``%approvals`` and its words, which the wrapper answers."""
    text = code.strip()
    return "\n" not in text and text.split(maxsplit=1)[:1] == [COMMAND]
