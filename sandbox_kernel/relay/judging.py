"""What comes before a cell runs: its limits, the budget, the policy's verdict, the user's word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sandbox_kernel.audit.log import AuditLog
from sandbox_kernel.errors import (
    ApprovalUnknown,
    AuditUnavailable,
    CellLimitExceeded,
    PolicyViolation,
    SandboxError,
)
from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.outputs.receipt import Exceeded, new_audit_id
from sandbox_kernel.policy.judge import Judge
from sandbox_kernel.policy.model import Policy
from sandbox_kernel.policy.verdict import Answer, Decision
from sandbox_kernel.policy.violation import CodeViolation
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.approvals import is_command
from sandbox_kernel.relay.asking import YES, Asking
from sandbox_kernel.relay.cells import RunningCell
from sandbox_kernel.relay.counts import Counts
from sandbox_kernel.relay.settle import NOTHING_USED, Ending

UNDO: Final = "%undo"


class Judging:
    """Decides about each cell: it is denied, is for the wrapper itself, or runs."""

    def __init__(
        self,
        policy: Policy,
        judge: Judge,
        audit: AuditLog,
        enforcer: Enforcer,
        counts: Counts,
        answers: Answers,
        *,
        run: Callable[[RunningCell], None],
        undo: Callable[[RunningCell], None],
        fail: Callable[[RunningCell, Ending], None],
    ) -> None:
        self._policy = policy
        self._judge = judge
        self._audit = audit
        self._enforcer = enforcer
        self._counts = counts
        self._answers = answers
        self._run = run
        self._undo = undo
        self._fail = fail
        self.asking: Final = Asking(answers)

    def decide(self, cell: RunningCell) -> None:
        request = cell.request
        cell.audit_id = new_audit_id()
        cell.limits = limits = self._policy.limits
        self._answers.say_notice(request)
        try:
            if (asked := request.asked_limits) is not None:
                cell.limits = limits.tighten(asked)
            self._enforcer.check_budget()
        except (PolicyViolation, CellLimitExceeded) as error:
            if self._recorded(cell, "deny"):
                self._deny(cell, error)
            return
        if request.code.strip() == UNDO:
            if self._recorded(cell, "allow"):
                self._begin(cell)
                self._undo(cell)
            return
        if is_command(request.code):
            if self._recorded(cell, "allow"):
                self._begin(cell)
                self._fail(cell, self._answer_command(cell))
            return
        cell.verdict = self._judge.judge(request.code, request.expressions)
        if not self._recorded(cell, cell.verdict.decision):
            return
        match cell.verdict.decision:
            case "deny":
                self._deny(cell, CodeViolation(cell.verdict, self._policy.name, request.code))
            case "ask":
                self.asking.ask(cell, lambda answer: self._on_answer(cell, answer))
            case _:
                self._run(cell)
        self._judge.tidy()

    def _recorded(self, cell: RunningCell, decision: Decision) -> bool:
        """Record what is about to happen; if that cannot be and must be, the cell ends here."""
        try:
            cell.recorded = self._audit.intent(cell, decision)
        except AuditUnavailable as error:
            self._deny(cell, error)
            return False
        return True

    def _on_answer(self, cell: RunningCell, answer: Answer) -> bool:
        """Run or deny the cell; whether the answer is recorded, or need not be."""
        request = cell.request
        cell.answer = answer
        try:
            self._audit.approval(cell, answer)
        except AuditUnavailable as error:
            self._deny(cell, error)
            return False
        if answer not in YES:
            assert cell.verdict is not None
            violation = CodeViolation(cell.verdict, self._policy.name, request.code, answer)
            self._deny(cell, violation)
            return True
        cell.approved = True
        self._judge.approved(request.code, request.expressions)
        self._run(cell)
        return True

    def _answer_command(self, cell: RunningCell) -> Ending:
        """What a cell that says ``%approvals`` is told."""
        approvals = self.asking.approvals
        _, *words = cell.request.code.split()
        try:
            match words:
                case []:
                    return Ending(NOTHING_USED, said=approvals.in_words())
                case ["revoke", word]:
                    revoked = approvals.revoke(word)
                    of = [each.recorded for each in revoked]
                    self._audit.event("approvals_revoked", {"of": of}, cell.audit_id)
                    said = "\n".join(f"Revoked: {each}." for each in revoked)
                    return Ending(NOTHING_USED, said=said or "There was nothing to revoke.")
                case _:
                    msg = "`%approvals` does not know these words."
                    raise ApprovalUnknown(msg)
        except ApprovalUnknown as error:
            return Ending(NOTHING_USED, error=error, outcome="error")

    def _begin(self, cell: RunningCell) -> None:
        """What ipykernel says first, for a cell that it will not see."""
        self._answers.status("busy", cell.request.message)
        self._answers.show_input(cell.request, self._counts.suppose(cell))

    def _deny(self, cell: RunningCell, error: SandboxError) -> None:
        self._begin(cell)
        if isinstance(error, CellLimitExceeded):
            exceeded = Exceeded(error.limit, error.allowed, error.used, error.action)
            ending = Ending(NOTHING_USED, error=error, outcome=error.outcome, exceeded=exceeded)
        else:
            ending = Ending(NOTHING_USED, error=error, outcome="denied")
        self._fail(cell, ending)
