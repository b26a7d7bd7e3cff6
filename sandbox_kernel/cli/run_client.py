"""The client of a batch run: nbclient, with a deadline of its own and nothing that a cell can steer it by.

A kernel's answers are made from what a sandbox said, so none of them is needed for a run to end.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from string import Template
from typing import Any, Final, NamedTuple

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbclient.exceptions import (
    CellControlSignal,
    CellExecutionError,
    CellTimeoutError,
    DeadKernelError,
)

from sandbox_kernel.cli import run_reply
from sandbox_kernel.cli.run_outputs import KeptOutputs, NotKept, notice
from sandbox_kernel.cli.run_report import OWN_OUTCOMES, SHOWN_CHARACTERS, CellResult, last_output
from sandbox_kernel.text import one_line, without_colours
from sandbox_kernel.words import duration

# What a kernel may need beside the cell: to check the code, make a checkpoint, roll back, start again.
SLACK_SECONDS: Final = 60.0
# To read what a cell has put out, once its reply is there.
_OUTPUT_SECONDS: Final = 60
SKIP_TAG: Final = "skip-execution"
_MAY_HOLD_COMMANDS: Final = re.compile(r"[!%]")
# As IPython rewrites them: those whose exit code it keeps (not `%sx`, `!!` and `x = !command`).
_COMMANDS: Final = re.compile(
    r"get_ipython\(\)\.(?:system\(|run_line_magic\('(?:pip|conda|mamba|micromamba|uv)')"
)
_READ_SECONDS: Final = 1.0


class Overdue(Exception):
    """The kernel owes the answer to a cell, and no limit of its policy explains why."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the kernel did not answer within {duration(seconds)}, which is more than its policy's "
            "limits allow a cell; it was ended"
        )


class _KernelClient(AsyncKernelClient):  # type: ignore[misc]  # untyped
    """Asks, with a cell, for more than its reply."""

    expressions: Mapping[str, str] = {}  # replaced, never changed

    def execute(self, code: str, **options: Any) -> Any:
        return super().execute(code, user_expressions=dict(self.expressions), **options)


class BatchClient(NotebookClient):  # type: ignore[misc]  # untyped
    """Runs the cells of one notebook. ``deadline`` is how long a kernel may take over a cell."""

    def __init__(self, notebook: Any, *, deadline: float | None, **options: Any) -> None:
        super().__init__(
            notebook, skip_cells_with_tag=SKIP_TAG, iopub_timeout=_OUTPUT_SECONDS, **options
        )
        self._seconds = deadline
        self._due: float | None = None
        self._reply: Any = None
        self._kept = KeptOutputs()
        self._left_out = False  # whether an output of this cell was
        self._all_read = False  # whether its outputs were read to their end
        # What the kernel said last; unknown behind a cell that failed.
        self._exit_code: int | None = 0
        self.on_cell_executed = self._keep_reply
        # Output widgets could claim what later cells put out, and be sent all of it again and again.
        # Their state is not saved, so what is put out belongs to the cell that does so.
        self.comm_open_handlers: dict[str, Any] = {}
        self.store_widget_state = False

    def create_kernel_manager(self) -> Any:
        manager = super().create_kernel_manager()
        manager.client_factory = _KernelClient
        return manager

    def _keep_reply(self, *, execute_reply: Any, **_: Any) -> None:
        self._reply = execute_reply

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        # A flood of messages may leave the loop no time for its timers.
        if self._due is not None and time.monotonic() > self._due:
            raise Overdue(self._seconds or 0)
        try:
            self._kept.check(msg, self._places(msg))
            return super().process_message(msg, cell, cell_index)
        except CellControlSignal:  # the cell has ended
            self._all_read = True
            raise
        except NotKept as error:
            self._leave_out(cell, str(error))
        except Exception as error:  # whatever libraries trip over in a kernel's messages
            what = one_line(f"{type(error).__name__}: {error}", SHOWN_CHARACTERS)
            self._leave_out(cell, f"one cannot be read ({what})")

    def _places(self, msg: dict[str, Any]) -> int:
        """How many outputs have the display id of this one."""
        display_id = (msg["content"].get("transient") or {}).get("display_id")
        return sum(map(len, self._display_id_map.get(display_id, {}).values()))

    def _leave_out(self, cell: Any, reason: str) -> None:
        if not self._left_out:  # told once
            self._left_out = True
            cell.outputs.append(notice(reason))

    async def _bounded(self, cell: Any, index: int) -> None:
        before = asyncio.all_tasks()
        running = asyncio.ensure_future(self.async_execute_cell(cell, index))
        try:
            done, _ = await asyncio.wait({running}, timeout=self._seconds)
            if not done:
                raise Overdue(self._seconds or 0)
            running.result()
        finally:
            # Where a cell ends otherwise than nbclient expects, it leaves tasks behind.
            if left := asyncio.all_tasks() - before:
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)

    def run_cell(self, cell: Any, index: int, number: int) -> CellResult:
        """Run one cell. A result that ``is_last`` leaves no kernel to go on with."""
        if SKIP_TAG in _tags(cell):
            return CellResult(number, cell.source, "skipped", f"tagged {SKIP_TAG}", 0.0)
        assert self.kc is not None
        self._reply = None
        self._left_out = self._all_read = False
        started = time.monotonic()
        self._due = None if self._seconds is None else started + self._seconds
        try:
            commands = read_commands(cell.source)
            if commands.number:  # from here on: what a later cell finds may be of an earlier one
                self.kc.expressions = {run_reply.EXIT_CODE: run_reply.EXIT_CODE}
            outcome, error = self._outcome(cell, index)
            self._end_cell(cell, index)
            return CellResult(
                number,
                cell.source,
                outcome,
                last_output(cell.outputs),
                time.monotonic() - started,
                error=error,
                warning=self._warning(commands),
                **run_reply.usage(self._reply),
            )
        except (Overdue, CellTimeoutError, DeadKernelError) as ending:
            # The kernel is busy with it still, or is no more.
            outcome = type(ending).__name__
            # nbclient adds the source.
            error = one_line(f"{outcome}: {str(ending).partition('Here is')[0]}", SHOWN_CHARACTERS)
        except Exception as unexpected:  # whatever libraries trip over in a kernel's messages
            outcome = "UnreadableMessage"
            what = one_line(f"{type(unexpected).__name__}: {unexpected}", SHOWN_CHARACTERS)
            error = (
                f"The kernel sent something that cannot be read ({what}), so the notebook ends here. "
                "A hostile cell can do that; if this one is not, please report it to sandbox-kernel."
            )
        seconds = time.monotonic() - started
        return CellResult(number, cell.source, outcome, error, seconds, error=error, is_last=True)

    def _outcome(self, cell: Any, index: int) -> tuple[str, str | None]:
        """Run the cell: how it ended, and its error if it failed. Raises all but that."""
        try:
            run_sync(self._bounded)(cell, index)
        except CellExecutionError as failure:
            name = one_line(str(failure.ename), SHOWN_CHARACTERS)
            error = run_reply.traceback(self._reply) or f"{failure.ename}: {failure.evalue}"
            # An exception may have any name.
            return "error" if name in ("", *OWN_OUTCOMES) else name, without_colours(error)
        status = run_reply.status(self._reply)
        if status in ("ok", "error"):  # the latter: the notebook says that this cell may fail
            return "ok", None
        name = one_line(f"status {status}" if status else "no status", SHOWN_CHARACTERS)
        return name, f"The kernel did not run this cell: it replied with {name}."

    def _end_cell(self, cell: Any, index: int) -> None:
        if not self._all_read:
            self._leave_out(cell, f"they were not all read in {_OUTPUT_SECONDS} s")
        kept = self._kept.end_cell(cell.outputs)
        if kept is not cell.outputs:
            cell.outputs = kept
            self.clear_display_id_mapping(index)

    def _warning(self, commands: Commands) -> str | None:
        before, after = self._exit_code, run_reply.exit_code(self._reply)
        self._exit_code = after
        if not commands.number or not after:
            return None
        if not commands.surely_ran and before in (None, after):
            return None  # it may be that of an earlier cell
        last = (
            "its command" if commands.number == 1 else f"the last of its {commands.number} commands"
        )
        return f"{last} failed with exit code {after}"


class NotStarted(Exception):
    """The kernel ended, or did not answer, before the first cell."""


@contextmanager
def kernel_of(client: BatchClient) -> Iterator[None]:
    """Start the kernel and end it afterwards; raises ``NotStarted``."""
    with ExitStack() as stack:
        try:
            stack.enter_context(client.setup_kernel())
        except RuntimeError as error:  # what jupyter_client raises then
            raise NotStarted(one_line(str(error), SHOWN_CHARACTERS).removesuffix(".")) from error
        except OSError:
            raise
        except Exception as error:  # whatever jupyter_client trips over in its first messages
            what = one_line(f"{type(error).__name__}: {error}", SHOWN_CHARACTERS)
            msg = f"it sent something that cannot be read ({what})"
            raise NotStarted(msg) from error
        yield


def cell_deadline(
    argv: Sequence[str], environ: Mapping[str, str], settings: Mapping[str, str]
) -> float | None:
    """Seconds after which a kernel started by ``argv`` has certainly ended a cell.

    ``settings`` are variables that its kernel.json sets, as templates. ``None``: its policy sets no
    limit on time, or it is a kernel of another kind. Raises ``PolicyError``.
    """
    from sandbox_kernel.policy.levels import choose_policy
    from sandbox_kernel.policy.load import load_policy

    if "sandbox_kernel" not in argv:
        return None
    # As jupyter_client does.
    own = {name: Template(value).safe_substitute(environ) for name, value in settings.items()}
    chosen = choose_policy(_option(argv, "--policy"), {**environ, **own}, _option(argv, "--trust"))
    policy = load_policy(chosen)
    walls = [policy.limits.wall_seconds, policy.budget.wall_seconds]
    limits = [seconds for seconds in walls if seconds is not None]
    return min(limits) + policy.limits.grace_seconds + SLACK_SECONDS if limits else None


def _option(argv: Sequence[str], name: str) -> str | None:
    for place, argument in enumerate(argv):
        option, equals, value = argument.partition("=")
        if option == name:
            return value if equals else "".join(argv[place + 1 : place + 2])
    return None


class Commands(NamedTuple):
    """The commands of a shell in a cell (``!ls``, ``%pip install x``)."""

    number: int
    # Whether one of them has run if the cell ended without an error: it is in no block of Python.
    surely_ran: bool


def read_commands(source: str) -> Commands:
    """The commands in a cell; none if it cannot be read."""
    if _MAY_HOLD_COMMANDS.search(source) is None:
        return Commands(0, False)
    from sandbox_kernel.policy.source import Unreadable, read_cell

    try:
        code = read_cell(source, deadline=time.thread_time() + _READ_SECONDS).code
    except Unreadable:  # the kernel says what is wrong with the cell
        return Commands(0, False)
    places = [match.start() for match in _COMMANDS.finditer(code)]
    return Commands(len(places), any(not place or code[place - 1] == "\n" for place in places))


def _tags(cell: Any) -> Sequence[str]:
    tags = cell.metadata.get("tags")
    return tags if isinstance(tags, list) else []
