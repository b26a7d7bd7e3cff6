"""A policy as the rest of the product sees it: frozen values, units in their names, ``None`` no limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, NamedTuple, get_args

from sandbox_kernel.errors import PolicyViolation
from sandbox_kernel.policy.units import COUNT, DURATION, PROCESSORS, SIZE, Kind, UnitError, shown
from sandbox_kernel.policy.verdict import Decision

# Where only one word is left, it is the one that this build can enforce.
Level = Literal["restricted", "process", "container", "gvisor"]  # from weak to strong
Network = Literal["none"]
Mount = Literal["read-only"]
Outputs = Literal["unfiltered"]
Stdin = Literal["allow", "deny"]
AuditCode = Literal["text", "hash"]
Durability = Literal["normal", "full"]
Checkpoint = Literal["cell", "off"]
Annotate = Literal["receipt", "metadata"]
LateOutput = Literal["label", "drop"]


class Setting(NamedTuple):
    """One amount in a section: the field it fills and how it may be written."""

    field: str
    kind: Kind
    can_be_zero: bool = False  # "nothing at all" is a sensible limit
    can_be_none: bool = True  # "no limit" is

    @property
    def wanted(self) -> str:
        """What to write in a policy, for a hint."""
        return f"{self.kind.wanted}{', or none for no limit' if self.can_be_none else ''}"

    def read(self, text: str) -> float | None:
        """The amount in a policy, where ``none`` may be written; raises ``UnitError``."""
        return None if text == "none" and self.can_be_none else self.parse(text)

    def parse(self, value: object) -> float:
        """The amount; raises ``UnitError``."""
        amount = self.kind.parse(value)
        if not amount and not self.can_be_zero:
            msg = f"{shown(value)} would stop every cell"
            raise UnitError(msg)
        return amount

    def show(self, amount: float | None) -> str:
        return "none" if amount is None else self.kind.show(amount)


# The names in YAML and in a client's request. Adding a limit: a line here and a field below.
LIMITS: Final[dict[str, Setting]] = {
    "wall": Setting("wall_seconds", DURATION),
    "cpu": Setting("cpu_seconds", DURATION),
    "memory": Setting("memory_bytes", SIZE),
    "sandbox_memory": Setting("sandbox_memory_bytes", SIZE),
    "processes": Setting("processes", COUNT),
    "file_size": Setting("file_bytes", SIZE, can_be_zero=True),
    "output": Setting("output_bytes", SIZE, can_be_zero=True),
    "text": Setting("text_bytes", SIZE, can_be_zero=True),
    "messages": Setting("messages", COUNT, can_be_zero=True),
    "grace": Setting("grace_seconds", DURATION, can_be_zero=True, can_be_none=False),
}
# In the same section, but of the sandbox as a whole: no cell can have its own. May be left out, since
# not every host can hold it, and what is asked for and cannot be held is refused.
SANDBOX_LIMITS: Final[dict[str, Setting]] = {"cpus": Setting("cpus", PROCESSORS)}
# Below `limits.background`: what cells have left running, in the time without a cell.
BACKGROUND: Final[Mapping[str, Setting]] = {
    "cpu": Setting("background_cpu_seconds", DURATION),
}
BUDGET: Final[Mapping[str, Setting]] = {
    "wall": Setting("wall_seconds", DURATION),
    "cpu": Setting("cpu_seconds", DURATION),
}
ANCHOR_EVERY: Final = Setting("anchor_seconds", DURATION, can_be_none=False)
MAX_SIZE: Final = Setting("max_bytes", SIZE, can_be_none=False)
LONGEST_NAME: Final = 100  # of an entry in a list of names
# Threads of the inner kernel, its checkpoints, the supervisor and bwrap.
OWN_TASKS: Final = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """What one cell may use."""

    wall_seconds: float | None
    cpu_seconds: float | None
    memory_bytes: int | None  # growth during the cell
    sandbox_memory_bytes: int | None  # everything in the sandbox
    processes: int | None  # processes and threads in the sandbox
    file_bytes: int | None  # each file written
    output_bytes: int | None  # everything the cell shows
    text_bytes: int | None  # printed text: what a browser must lay out line by line
    messages: int | None
    grace_seconds: float  # between the interrupt and the kill
    cpus: float | None = None  # processors that the sandbox may use at one time
    background_cpu_seconds: float | None = None  # of what cells left running, until the next cell

    def tighten(self, override: object) -> Limits:
        """These limits with a client's own for one cell, each of which must be tighter or equal.

        ``override`` is ``execute_request.metadata["sandbox"]["limits"]``, written as in YAML: nothing
        is known about it. Raises ``PolicyViolation``.
        """
        if not isinstance(override, Mapping):
            what = f"The limits asked for with this cell are {shown(override)}, not a mapping."
            hint = 'Send for example {"limits": {"wall": "5s", "memory": "128MiB"}}, or nothing.'
            raise PolicyViolation(what, hint=hint)
        changes = dict(self._tighter(name, asked) for name, asked in override.items())
        return replace(self, **changes)

    def _tighter(self, name: object, asked: object) -> tuple[str, Any]:
        """The field and its new value."""
        if not isinstance(name, str) or name not in LIMITS:
            what = f"This cell asks for a limit {shown(name)}, which does not exist."
            raise PolicyViolation(what, hint=suggestion(name, LIMITS))
        setting = LIMITS[name]
        allowed: float | None = getattr(self, setting.field)
        policy = f"the policy's limit {name!r} is {setting.show(allowed)}"
        try:
            amount = setting.parse(asked)
        except UnitError as error:
            what = f"This cell asks for a limit {name!r} that means nothing ({error}); {policy}."
            raise PolicyViolation(what, hint=f"Ask for {setting.kind.wanted}.") from error
        if allowed is not None and amount > allowed:
            what = f"This cell asks for {name!r} of {shown(asked)}, but {policy}."
            hint = (
                f"Ask for {setting.show(allowed)} or less: a cell's own limits can only be tighter."
            )
            raise PolicyViolation(what, hint=hint)
        return setting.field, amount

    # What the kernel itself is to hold, where it can, is a little wider: the enforcer comes first, which
    # can tell the user what happened.

    @property
    def hard_memory_bytes(self) -> int | None:
        used = self.sandbox_memory_bytes
        return None if used is None else used + used // 8

    @property
    def hard_tasks(self) -> int | None:
        return None if self.processes is None else self.processes + OWN_TASKS

    def tightens(self, other: Limits, name: str) -> bool:
        """Whether the limit of this name is another one than there."""
        field = LIMITS[name].field
        return bool(getattr(self, field) != getattr(other, field))

    def to_json(self) -> dict[str, float]:
        """For receipts; what has no limit is left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Budget:
    """What all cells of a notebook may use together, in the life of the kernel."""

    wall_seconds: float | None
    cpu_seconds: float | None


class Isolation(NamedTuple):
    """How strong the sandbox must be: levels in order of preference, and the weakest accepted."""

    prefer: tuple[Level, ...]
    require: Level
    image: str  # of containers: a flavour, a tag or an id, which may be pinned by its digest
    runtime: str  # the engine's name for what runs containers at `gvisor`

    @property
    def accepted(self) -> list[Level]:
        """What is preferred and strong enough."""
        levels = get_args(Level)
        return [each for each in self.prefer if levels.index(each) >= levels.index(self.require)]


class Audit(NamedTuple):
    """What is kept of what cells did."""

    enabled: bool
    required: bool  # no cell runs that cannot be recorded
    code: AuditCode  # of a cell: its text, or its hash alone
    durability: Durability  # what a record survives: the end of a process, or a power cut too
    redact: tuple[str, ...]  # patterns of what is never stored, beside known forms of secrets
    anchor: str  # where signed heads go: none, syslog, file:/…, command:/…
    anchor_seconds: float  # how often
    mirror: str  # where each record is written as a line, too: none, syslog, file:/…


class Names(NamedTuple):
    """What a policy decides about modules, commands or magics by their names."""

    otherwise: Decision
    entries: Mapping[str, Decision]

    def decide(self, name: str) -> Decision:
        """The word of the most specific entry; ``os`` is also about ``os.path`` and all below it."""
        # Nothing longer can be an entry, and a cell can hold a name of a million dots.
        name = name[: LONGEST_NAME + 1]
        while name:
            if (decision := self.entries.get(name)) is not None:
                return decision
            name = name.rpartition(".")[0]
        return self.otherwise

    def listed(self, decision: Decision) -> list[str]:
        """The entries of one list, as the policy has them."""
        return [name for name, given in self.entries.items() if given == decision]


class Code(NamedTuple):
    """What the static check says about a cell's code. ``rules`` has every rule but those on names."""

    max_bytes: int  # of a cell's text, as UTF-8
    imports: Names
    commands: Names
    magics: Names
    rules: Mapping[str, Decision]

    def decide(self, rule: str, about: str) -> Decision:
        """The policy's word on a hit; what no policy can decide about is denied."""
        if (field := NAME_RULES.get(rule)) is not None:
            names: Names = getattr(self, field)
            return names.decide(about)
        return self.rules.get(rule, "deny")


# The rules that lists of names decide, and the field of each.
NAME_RULES: Final[Mapping[str, str]] = {
    "python.import": "imports",
    "shell.command": "commands",
    "magic": "magics",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy, complete. ``sha256`` is that of the files it was made of, the base first."""

    name: str
    sha256: str
    isolation: Isolation
    limits: Limits
    budget: Budget
    network: Network
    workspace: Mount  # how the notebook's folder is mounted
    environment: tuple[str, ...]  # variables passed on to the sandbox
    code: Code
    outputs: Outputs  # what becomes of HTML and scripts that cells show
    stdin: Stdin  # whether cells may ask the user for input
    audit: Audit
    checkpoint: Checkpoint
    annotate: Annotate
    late_output: LateOutput  # what becomes of output that comes after the end of its cell


def suggestion(word: object, known: Iterable[str]) -> str:
    """A hint: the known word nearest to a mistaken one, else all of them."""
    import difflib  # only when something is wrong: 5 ms that no start pays

    text = word[:40] if isinstance(word, str) else ""
    near = difflib.get_close_matches(text, list(known), n=1, cutoff=0.5)
    return f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(known)}."
