"""The log as the relay sees it: what happens to a cell is recorded, or the cell does not run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandbox_kernel.audit import bodies
from sandbox_kernel.audit.mirror import Mirror
from sandbox_kernel.audit.records import Entry, Kind, body_of, now_us, storable
from sandbox_kernel.audit.redact import Redactor
from sandbox_kernel.audit.schedule import Anchors
from sandbox_kernel.audit.store import BUSY_SECONDS, Store
from sandbox_kernel.audit.table import audit_directory
from sandbox_kernel.errors import AuditUnavailable
from sandbox_kernel.log import log
from sandbox_kernel.policy.model import Policy

if TYPE_CHECKING:
    from sandbox_kernel.isolation.base import SandboxFacts
    from sandbox_kernel.outputs.receipt import AuditState, Receipt
    from sandbox_kernel.relay.cells import Request, RunningCell

# Records that were not or could not be written when they were made, and go before the next one that can.
MAX_LATE: Final = 256
_STATES: Final = {"rolled_back": "rollback", "lost": "state_lost"}


class AuditLog:
    """One wrapper's way to the log. Runs in the loop's thread; a write takes some 60 µs.

    Intents and approvals come before a cell runs: if they cannot be written, ``AuditUnavailable`` is raised,
    or, where the policy does not require the log, it is noted that they are missing. All else has happened
    already: what cannot be written is kept and tried again with the next record.
    """

    def __init__(self, policy: Policy, kernel: str, home: Path) -> None:
        self._policy = policy
        self._settings = policy.audit
        self._kernel = kernel
        self._user = bodies.user_name(os.environ)
        self._policy_name = storable(policy.name)
        self._store = Store(audit_directory(home), policy.audit.durability)
        self._redactor = Redactor(os.environ, policy.audit.redact)
        self._mirror = Mirror(policy.audit.mirror)
        self._anchors = Anchors(
            policy.audit.anchor, policy.audit.anchor_seconds, lambda: self._store.head.seq
        )
        self._late: list[Entry] = []
        # Cells and records of which nothing is in the log.
        self._missed = 0
        self._why_missed = ""
        self._host_facts: dict[str, Any] = {}
        self._same: dict[str, Any] = {}
        self._sandbox: dict[str, Any] = {}
        self._said_why = ""
        # Whether the last record could not be written.
        self._failing = False
        # Cells that are not over, and of which the answer to what the policy asks is not in the log.
        self._unanswered: set[str] = set()

    def open(self) -> None:
        """What can be done before there is anything to record. What fails is tried again then."""
        if not self._settings.enabled:
            return
        self._host_facts = bodies.host_facts(os.environ)
        try:
            self._store.open()
        except AuditUnavailable as error:
            self._complain(error)

    # -- a kernel ----------------------------------------------------------------------------------

    def started(self, facts: SandboxFacts, kernel_info: Mapping[str, Any]) -> None:
        """A sandbox is ready: the first one, or one in its place that may be another."""
        before, self._sandbox = self._sandbox, bodies.sandbox_facts(facts)
        if self._same:
            if self._sandbox != before:
                self._note([self._entry("event", "sandbox_started", self._sandbox)])
            return
        self._same = bodies.same_for_all(facts, self._policy)
        inner = {
            key: str(kernel_info.get(key, ""))[:100]
            for key in ("implementation", "implementation_version")
        }
        said = {
            **self._host_facts,
            **self._sandbox,
            "inner": inner,
            "policy": self._same["policy"],
            "limits": self._same["limits"],
        }
        self._note([self._entry("start", facts.level, said)])

    def ended(self, how: str) -> None:
        """Nothing of this kernel comes after this."""
        self._failing = False  # what is late has no other time: it is waited for
        self._note([self._entry("end", how, {})])
        self._store.close()
        self._mirror.close()
        self._anchors.make_last()

    def anchor_with(self, call_later: Callable[[float, Callable[[], None]], object]) -> None:
        """Have heads of the log signed at intervals, by the timer of the wrapper's loop."""
        if self._settings.enabled:
            self._anchors.begin(call_later)

    def event(self, what: str, facts: Mapping[str, Any], cell: str = "") -> None:
        """Something happened that is no step of a cell."""
        self._note([self._entry("event", what, self._redacted(facts), cell)])

    # -- a cell ------------------------------------------------------------------------------------

    def intent(self, cell: RunningCell, verdict: str) -> bool:
        """A cell is to run, or to be denied; whether that is recorded. May raise ``AuditUnavailable``."""
        if not self._settings.enabled:
            return False
        try:
            said = self._intent(cell.request, cell)
        except AuditUnavailable as error:
            return self._lack(1, error)
        return self._require([self._entry("intent", verdict, said, cell.audit_id)])

    def approval(self, cell: RunningCell, answer: str) -> None:
        """The user's answer about a cell, before it counts. May raise ``AuditUnavailable``."""
        if not self._settings.enabled:
            return
        assert cell.verdict is not None
        rules = sorted({each.rule for each in cell.verdict.findings if each.decision == "ask"})
        if not self._require([self._entry("approval", answer, {"rules": rules}, cell.audit_id)]):
            self._unanswered.add(cell.audit_id)

    def lacks(self, cell: RunningCell) -> AuditState | None:
        """What is not in the log of a cell that is over; ``None`` if all is that came before it ran."""
        if not self._settings.enabled:
            return "off"
        whole = cell.recorded and cell.audit_id not in self._unanswered
        return None if whole else "missing"

    def outcome(
        self, cell: RunningCell, word: str, receipt: Receipt | None, *, with_kernel: bool = False
    ) -> None:
        """How a cell ended, or that it ended with its kernel. Written with the next record, or by ``flush``."""
        if not self._settings.enabled:
            return
        self._unanswered.discard(cell.audit_id)
        events = self._limit_events(cell.audit_id, receipt, with_state=not with_kernel)
        if cell.recorded:
            self._keep([*events, self._outcome(cell, word, receipt)], self._said_why)
        else:
            self._miss(len(events) + 1, self._why_missed)

    def flush(self) -> bool:
        """Write what waits; whether nothing does any more."""
        return not self._late or self._note([])

    def callback(self, audit_id: str, receipt: Receipt | None) -> None:
        """Code that is no cell reached a limit."""
        if entries := self._limit_events(audit_id, receipt):
            self._note(entries)

    def aborted(self, cell: RunningCell, receipt: Receipt | None) -> None:
        """A cell that never ran because one before it failed: nothing was decided about it."""
        if not self._settings.enabled:
            return
        try:
            said = self._intent(cell.request, None)
        except AuditUnavailable as error:
            self._miss(2, error.what)
            self._complain(error)
            return
        intent = self._entry("intent", "none", said, cell.audit_id)
        self._note([intent, self._outcome(cell, "aborted", receipt)])

    def tidy(self) -> None:
        """Called when no cell waits."""
        self._store.tidy()

    # -- how ---------------------------------------------------------------------------------------

    def _intent(self, request: Request, cell: RunningCell | None) -> dict[str, Any]:
        kept, net = self._settings.code, self._redactor
        return bodies.intent(request, cell, kept, net, self._store.hash_of)

    def _outcome(self, cell: RunningCell, word: str, receipt: Receipt | None) -> Entry:
        entry = self._entry(
            "outcome", word, bodies.outcome(cell, receipt, self._same), cell.audit_id
        )
        if receipt is None:
            return entry
        usage = receipt.usage
        return entry._replace(
            wall_us=round(usage.wall_seconds * 1e6),
            cpu_us=round(usage.cpu_seconds * 1e6),
            memory_bytes=usage.memory_peak_bytes,
        )

    def _limit_events(
        self, audit_id: str, receipt: Receipt | None, *, with_state: bool = True
    ) -> list[Entry]:
        """That variables go with their kernel, which ends, is no event of a cell: without ``with_state``."""
        entries: list[Entry] = []
        if receipt is None:
            return entries
        if receipt.exceeded is not None:
            entries.append(self._entry("event", "limit", receipt.exceeded.to_json(), audit_id))
        # That of `%undo`, which alone ends well, has been recorded.
        if with_state and receipt.state in _STATES and receipt.outcome != "ok":
            said = {"not_restored": list(receipt.not_restored)}
            entries.append(self._entry("event", _STATES[receipt.state], said, audit_id))
        return entries

    def _entry(self, kind: Kind, word: str, said: Mapping[str, Any], cell: str = "") -> Entry:
        return Entry(
            kind,
            now_us(),
            self._kernel,
            cell,
            self._user,
            self._policy_name,
            word,
            body_of(said),
        )

    def _redacted(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: self._redactor.redact(value) if isinstance(value, str) else value
            for key, value in facts.items()
        }

    def _require(self, entries: Sequence[Entry]) -> bool:
        self._store.wait_for(BUSY_SECONDS)
        try:
            self._write(entries)
        except AuditUnavailable as error:
            return self._lack(len(entries), error)
        return True

    def _lack(self, number: int, error: AuditUnavailable) -> bool:
        """What was to come first cannot be recorded: the cell does not run, or runs all the same."""
        self._miss(number, error.what)
        if self._settings.required:
            raise error
        self._complain(error)
        return False

    def _note(self, entries: Sequence[Entry]) -> bool:
        if not self._settings.enabled:
            return False
        # It was waited for once: a "Run all" that is aborted has a note for each of its cells.
        self._store.wait_for(0 if self._failing else BUSY_SECONDS)
        try:
            self._write(entries)
        except AuditUnavailable as error:
            self._keep(entries, error.what)
            self._complain(error)
            return False
        return True

    def _keep(self, entries: Sequence[Entry], why: str) -> None:
        room = max(0, MAX_LATE - len(self._late))
        self._late += entries[:room]
        if len(entries) > room:
            self._miss(len(entries) - room, why)

    def _write(self, entries: Sequence[Entry]) -> None:
        before = self._late
        if self._missed:
            said = {"records": self._missed, "why": self._why_missed}
            before = [*before, self._entry("event", "gap", said)]
        self._failing = True
        written = self._store.append([*before, *entries] if before else entries)
        self._failing = False
        if before:
            self._late, self._missed, self._said_why = [], 0, ""
        self._mirror.write(written)

    def _miss(self, number: int, why: str) -> None:
        self._missed += number
        self._why_missed = why

    def _complain(self, error: AuditUnavailable) -> None:
        """Once for each reason: a full disk concerns every cell."""
        if error.what != self._said_why:
            self._said_why = error.what
            log(f"{error.ename}: {error}")
