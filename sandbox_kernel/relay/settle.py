"""The end of a cell: its last output, its reply and its idle, held until the receipt is final."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sandbox_kernel.audit.log import AuditLog
from sandbox_kernel.errors import PolicyViolation, SandboxError
from sandbox_kernel.isolation.base import SandboxFacts
from sandbox_kernel.outputs.annotate import annotate_reply, cell_error
from sandbox_kernel.outputs.receipt import (
    METADATA_KEY,
    Exceeded,
    Isolation,
    PolicyName,
    Receipt,
    Usage,
    VerdictWord,
    display_content,
)
from sandbox_kernel.policy.model import Policy
from sandbox_kernel.relay.answers import Answers, error_content
from sandbox_kernel.relay.cells import Request, RunningCell
from sandbox_kernel.words import Outcome, State

NOT_RECORDED: Final = (
    "How the cell before this one ended could not be written to the audit log then; "
    "it is written with this one."
)
NOTHING_USED: Final = Usage(0.0, 0.0, 0, 0, 0, 0, "none")
# When the reply and the idle are with the client: until then it needs the processors more than the log.
RECORD_SECONDS: Final = 0.003


@dataclass(frozen=True, slots=True)
class Ending:
    """How a cell ended: of itself, or with an error of the wrapper's."""

    usage: Usage
    state: State = "kept"
    error: SandboxError | None = None
    outcome: Outcome | None = None  # where it is the wrapper that knows
    exceeded: Exceeded | None = None
    not_restored: tuple[str, ...] = ()
    # What the wrapper has done in its place, if it was a cell for the wrapper.
    said: str | None = None


class Settler:
    """Says the last words of each cell to the frontend, in ipykernel's order."""

    def __init__(
        self,
        answers: Answers,
        policy: Policy,
        audit: AuditLog,
        facts: Callable[[], SandboxFacts | None],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._answers = answers
        self._audit = audit
        self._policy = policy
        self._facts = facts
        self._call_later = call_later

    def settle(self, cell: RunningCell, ending: Ending) -> None:
        """End ``cell``: error, receipt, reply, idle."""
        request = cell.request
        if ending.said is not None:
            stream = {"name": "stdout", "text": f"{ending.said}\n"}
            self._answers.publish("stream", stream, request.message)
        if ending.error is not None:
            self._answers.show_error(cell, ending.error, inner_traceback(cell))
        receipt = self._receipt(cell, ending)
        said = {} if receipt is None else receipt.to_json()
        if receipt is not None and self._policy.annotate == "receipt" and not request.silent:
            shown = display_content(receipt, said)
            self._answers.publish("display_data", shown, request.message)
        if ending.error is not None or ending.said is not None:
            content = {"status": "ok"} if ending.error is None else error_content(ending.error)
            self._answers.cell_reply(cell, content, {METADATA_KEY: said} if said else {})
        elif cell.reply is not None:
            metadata = annotate_reply(cell.reply.frames[2], said)
            self._answers.forward_reply(request, cell.reply.with_metadata(metadata))
        if cell.idle is not None:
            self._answers.forward_output(cell.idle)
        else:
            self._answers.status("idle", request.message)
        self._audit.outcome(cell, ending.outcome or outcome_of(cell), receipt)
        self._call_later(RECORD_SECONDS, self._record)

    def settle_callback(self, callback: RunningCell, ending: Ending) -> None:
        """End what is no cell: it has nothing to show a receipt in, and its replies are its own affair."""
        request = callback.request
        if ending.error is not None:
            self._answers.show_error(callback, ending.error, inner_traceback(callback))
            self._audit.callback(callback.audit_id, self._receipt(callback, ending))
        if callback.begun and callback.idle is None and not request.expects_reply:
            # It went with its kernel, and is not sent to the next one.
            self._answers.status("idle", request.message)

    def record_cut_off(self, cell: RunningCell, ending: Ending) -> None:
        """Record how a cell ended whose kernel ends: there is nobody left to tell."""
        word = ending.outcome or outcome_of(cell)
        self._audit.outcome(cell, word, self._receipt(cell, ending), with_kernel=True)

    def abort(self, request: Request, audit_id: str) -> None:
        """Answer a cell that does not run because one before it failed."""
        cell = RunningCell(request, audit_id=audit_id, recorded=True, limits=self._policy.limits)
        receipt = self._receipt(cell, Ending(NOTHING_USED, outcome="aborted"))
        metadata = {} if receipt is None else {METADATA_KEY: receipt.to_json()}
        self._answers.abort(request, metadata)
        self._audit.aborted(cell, receipt)

    def _record(self) -> None:
        """Nobody waits for it; what comes sooner takes it along, and if it is late, the log says so."""
        if not self._audit.flush():
            self._answers.notice(NOT_RECORDED)
        self._audit.tidy()

    def _receipt(self, cell: RunningCell, ending: Ending) -> Receipt | None:
        facts = self._facts()
        if facts is None or cell.limits is None:
            return None
        return Receipt(
            audit_id=cell.audit_id,
            verdict=verdict_of(cell, ending),
            findings=() if cell.verdict is None else cell.verdict.findings,
            outcome=ending.outcome or outcome_of(cell),
            state=ending.state,
            isolation=Isolation.of(facts),
            policy=PolicyName(self._policy.name, self._policy.sha256),
            usage=ending.usage,
            limits=cell.limits.to_json(),
            exceeded=ending.exceeded,
            not_restored=ending.not_restored,
            audit=self._audit.lacks(cell),
            answer=cell.answer,
        )


def verdict_of(cell: RunningCell, ending: Ending) -> VerdictWord:
    if isinstance(ending.error, PolicyViolation):
        return "deny"
    if cell.approved:
        return "approved"
    return "warn" if cell.verdict is not None and cell.verdict.findings else "allow"


def outcome_of(cell: RunningCell) -> Outcome:
    """Whether the cell says that it failed. Why it did, its error's name does not prove."""
    return "error" if cell.reply is not None and cell.reply.outline.failed else "ok"


def inner_traceback(cell: RunningCell) -> list[str]:
    """Where the cell was when it was stopped, if it could say."""
    return [] if cell.error is None else cell_error(cell.error.frames[3])[2]
