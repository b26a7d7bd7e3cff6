"""Cells and other requests on their way into the inner kernel, with what it must know of them."""

from __future__ import annotations

import time

from sandbox_kernel.limits.enforcer import Enforcer
from sandbox_kernel.outputs.receipt import METADATA_KEY, new_audit_id
from sandbox_kernel.policy.model import Policy
from sandbox_kernel.relay.answers import Answers
from sandbox_kernel.relay.cells import OVERTAKING, Cells, Request, RunningCell
from sandbox_kernel.relay.counts import Counts
from sandbox_kernel.relay.link import InnerSide
from sandbox_kernel.relay.wire import Author, encode_object


class Forwarder:
    """Has the enforcer watch what runs code, and sends it in."""

    def __init__(
        self,
        inner: InnerSide,
        cells: Cells,
        counts: Counts,
        enforcer: Enforcer,
        policy: Policy,
        answers: Answers,
        author: Author,
    ) -> None:
        self._inner = inner
        self._cells = cells
        self._counts = counts
        self._enforcer = enforcer
        self._policy = policy
        self._answers = answers
        self._author = author
        # Cells that were approved while there was no inner kernel.
        self._approved: list[RunningCell] = []

    def run(self, cell: RunningCell) -> None:
        """Run a cell about which all is decided, or as soon as there is an inner kernel."""
        if self._inner.link is None:
            self._approved.append(cell)
        else:
            self._send(cell)

    def take_approved(self) -> list[RunningCell]:
        """The cells that wait for an inner kernel: they are for the caller to run or to end."""
        approved, self._approved = self._approved, []
        return approved

    def pass_on(self, request: Request) -> None:
        """Send in what is no cell. It may run code all the same: a widget's callback, a completion."""
        if request.channel == "shell":
            limits = self._policy.limits
            callback = RunningCell(request, audit_id=new_audit_id(), limits=limits)
            self._cells.begin_callback(callback)
            self._enforcer.begin(callback, limits)
        self._inner.send_request(request, request.message)

    def ask_beside(self, cell: RunningCell) -> None:
        """A cell is over: find out whether messages to widgets that were sent beside it are, too.

        Of those that the inner kernel takes while the cell awaits something, it says neither busy nor
        idle; what it answers behind them says that they are over.
        """
        alone = len(self._cells.in_flight) == 1
        beside = [
            each
            for each in self._cells.callbacks
            if each.request.msg_type in OVERTAKING
            and not each.begun
            and (alone or each.request.lane_id == cell.request.lane_id)
        ]

        def answered() -> None:
            for each in beside:
                if not each.begun:
                    self._enforcer.over(each)

        if beside and self._inner.link is not None:
            question = self._author.message("kernel_info_request", {})
            self._inner.ask(question, answered, cell.request.lane_id)

    def _send(self, cell: RunningCell) -> None:
        request, limits = cell.request, cell.limits
        assert limits is not None
        cell.serial = self._counts.serial(request)
        # The wrapper says that the cell begins, while the inner kernel gets to it: unless something
        # else is before it there, or beside it.
        cell.announced = self._cells.one_runs and not self._inner.outstanding
        is_counted = cell.announced and not request.silent and request.lane_id is None
        count = self._counts.next if is_counted else None
        cell.sent = time.monotonic()
        terms = {
            "serial": cell.serial,
            "busy": cell.announced,
            "count": count,
            "sent": cell.sent,
            "checkpoint": self._policy.checkpoint,
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes,
            "file_bytes": limits.file_bytes,
            "text_bytes": limits.text_bytes,
        }
        metadata = {**request.message.metadata, METADATA_KEY: terms}
        message = request.message.with_metadata(encode_object(metadata))
        if request.allow_stdin and self._policy.stdin != "allow":
            content = {**request.message.content, "allow_stdin": False}
            message = message.with_content(encode_object(content))
        self._enforcer.begin(cell, limits)
        self._inner.send_request(request, message)
        if cell.announced:
            self._answers.status("busy", request.message)
        if count is not None:
            self._counts.show(cell, count)
            self._answers.show_input(request, count)
