"""Judges cells: reads them in all their languages, and has the policy decide about what is found.

Always a verdict, in bounded time. What is small is read here, against the clock. Reading cannot be
stopped in the middle (Python's own parser has no clock), so what is large is read in another process, which
is killed when its time is over; what was not read in time is denied. So is all that holds another language:
the parsers of those are native code, can take minutes over half a kilobyte, or crash. That process can do
nothing but read (``worker``).
"""

from __future__ import annotations

import codecs
import gc
import importlib
import io
import re
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from sandbox_kernel.log import log
from sandbox_kernel.policy import python
from sandbox_kernel.policy.model import Code, Names
from sandbox_kernel.policy.python_memory import Memory
from sandbox_kernel.policy.python_nodes import Nodes
from sandbox_kernel.policy.python_report import Listed
from sandbox_kernel.policy.rules import rule
from sandbox_kernel.policy.source import FAILED, TOO_LONG, Source, Unreadable, read_cell
from sandbox_kernel.policy.verdict import (
    DECISIONS,
    Embedded,
    Finding,
    Hit,
    Language,
    Magic,
    Verdict,
)

# For reading. With what is around it, a verdict takes no more than a quarter of a second. It is time on
# a processor: a machine that is busy must not have cells denied. But not for ever.
SECONDS: Final = 0.2
# The worst that was found for a cell of this size takes a quarter of the time.
LARGE_BYTES: Final = 8 << 10
# Code in code in code, and how much of it.
MAX_DEPTH: Final = 8
MAX_TEXTS: Final = 200
MAX_FINDINGS: Final = 50
LONGEST_ABOUT: Final = 200
ALLOWED: Final = Verdict("allow")
NOT_CONFINED: Final = "could not be read, as the machine gives no process for it that can be confined (libseccomp is needed)"
REHEARSED: Final = (
    "import os\nx = ['a' + 'b' for a in b]\nmatch x:\n    case 1: await f()\nos.system('ls ' + x)\nx = =",
    '!ls -l $x | grep a > b; for i in a; do rm -rf "$i"; done\n%timeit x\n?x',
    "%%bash\ncat <<E | python3 -c 'import os'\nE\nsed -e s/a/b/e /etc/passwd; find . -exec rm {} +",
    "%%javascript\nfetch('a').then(x => eval(x)); document.cookie",
    "%%html\n<script>x()</script><img src=x onerror=x()>",
    "eval('x.gi_frame')\nexec(base64.b64decode('eA=='))",
    "%%bash\n)(",
    "naïve = '\\N{BULLET} \\d'\nx.decode('rot13')",
)
# What Python itself loads in the middle of its work: for names that are not ASCII, for tracebacks.
LOADED: Final = ("linecache", "tokenize", "unicodedata", "warnings")
# Those that `fold` undoes, and that source text is in.
ENCODINGS: Final = (
    *(
        "ascii",
        "latin-1",
        "cp1252",
        "utf-7",
        "utf-8",
        "utf-8-sig",
        "utf-16",
        "utf-16-le",
        "utf-16-be",
    ),
    *("utf-32", "base64", "hex", "rot13", "unicode_escape", "raw_unicode_escape"),
)
NEWER: Final = "is no Python that the check knows, and the kernel's Python is newer"


class Text(NamedTuple):
    """Something to be read, and where it begins in the cell."""

    language: Language
    text: str
    line: int
    column: int
    depth: int


class OtherLanguage(Exception):
    """A text in a language that is read in another process only."""


class Places:
    """Where the lines of a text stand in the cell, which may quote or escape them."""

    def __init__(self, text: Text, cell: list[str]) -> None:
        self._text, self._cell = text, cell
        self._lines = text.text.split("\n") if text.depth else []
        self._starts: dict[int, tuple[int, int] | None] = {}

    def find(self, line: int, column: int) -> tuple[int, int]:
        """That place of the text; if it is not to be found as it is, where the text begins."""
        if not self._text.depth:
            return line, column
        if line not in self._starts:
            self._starts[line] = self._start(line)
        start = self._starts[line]
        return (start[0], start[1] + column) if start else (self._text.line, self._text.column)

    def _start(self, line: int) -> tuple[int, int] | None:
        number = self._text.line + line - 1
        if line > len(self._lines) or number > len(self._cell):
            return None
        from_column = self._text.column if line == 1 else 0
        column = self._cell[number - 1].find(self._lines[line - 1].rstrip(), from_column)
        return None if column < 0 else (number, column)


class Judge:
    """Judges the cells of one kernel in their order: what a name stands for depends on earlier ones."""

    def __init__(self, code: Code, memory: Memory | None = None) -> None:
        self._code = code
        self._memory = memory or Memory()
        self._listed = Listed.of(code.imports)
        self._allows_everything = allows_everything(code)
        self._inner_is_newer = False
        # Whether this is the process that may be killed.
        self._is_apart = False
        self._trees: list[Nodes] = []

    def know_inner_python(self, version: object) -> None:
        """Which Python runs the cells, such as ``3.13.1``; until it is told, the one that runs this."""
        numbers = re.match(r"(\d{1,4})\.(\d{1,4})", version) if isinstance(version, str) else None
        # What does not say its version may be newer.
        inner = (int(numbers[1]), int(numbers[2])) if numbers else (sys.maxsize, 0)
        self._inner_is_newer = inner > sys.version_info[:2]

    def judge(self, text: str, expressions: Iterable[str] = ()) -> Verdict:
        """The policy's word on a cell and the expressions that are evaluated behind it.

        One that may run counts as run; one that somebody must be asked about, after ``approved``.
        """
        if self._allows_everything:
            return ALLOWED
        verdict = self._read_all([text, *expressions])
        if verdict.decision in ("allow", "warn"):
            self._memory.commit()
        return verdict

    def approved(self, text: str, expressions: Iterable[str] = ()) -> None:
        """A cell that was asked about runs. It is read again: others were while the user thought."""
        self._read_all([text, *expressions])
        self._memory.commit()

    def tidy(self) -> None:
        """Free what was built for the last cell, once nobody waits for it any more."""
        self._trees.clear()

    # -- reading -----------------------------------------------------------------------------------

    def _read_all(self, texts: list[str]) -> Verdict:
        self._memory.begin()
        self.tidy()
        size_bytes = sum(
            len(each) if each.isascii() else len(each.encode("utf-8", "surrogatepass"))
            for each in texts
        )
        if size_bytes > self._code.max_bytes:
            return self._denial("cell.too_large", "")
        if size_bytes <= LARGE_BYTES:
            try:
                return self._read(texts)
            except OtherLanguage:
                self._memory.begin()
                self.tidy()
        return self._read_apart(texts)

    def _read(self, texts: list[str]) -> Verdict:
        return self._decide(self.find(texts))

    def find(self, texts: list[str]) -> list[tuple[Hit, str]]:
        """What the policy does not simply allow, each with the expression that it is in."""
        deadline = time.thread_time() + SECONDS
        collects = gc.isenabled()
        gc.disable()  # a syntax tree has thousands of objects and no cycles to be found among them
        try:
            cell, *expressions = texts
            hits = ((hit, "") for hit in self._hits(cell, deadline))
            behind = ((hit, each) for each in expressions for hit in self._hits(each, deadline))
            return self._not_allowed(chain(hits, behind))
        except OtherLanguage:
            raise
        except Exception:
            # A fault of the check itself: the wrapper's log has it, and the cell does not run.
            log(f"the check failed: {traceback.format_exc().rstrip()}")
            return [(Hit("cell.unreadable", FAILED, 1, 0), "")]
        finally:
            if collects:
                gc.enable()

    def _read_apart(self, texts: list[str]) -> Verdict:
        """The same in another process, which can do nothing but read, and may be killed."""
        import pickle  # 10 ms that no start pays

        from sandbox_kernel.policy import apart

        question = (self._code, self._memory, self._inner_is_newer, texts)
        try:
            said = apart.ask(pickle.dumps(question))
            answer = apart.read_answer(said, [text.count("\n") + 1 for text in texts])
            verdict = self._decide(answer.hits)
        except apart.NotConfined as error:
            log(f"a cell was not read: {(error.__cause__ or error)!r}")
            return self._denial("cell.unreadable", NOT_CONFINED)
        except (apart.NoAnswer, KeyError) as error:  # KeyError: a rule that there is not
            log(f"a cell was not read: {error}")
            return self._denial("cell.unreadable", TOO_LONG)
        if answer.log:
            log(f"from the process that reads cells: {answer.log.rstrip()}")
        self._memory.propose(*answer.proposed)
        return verdict

    def _hits(self, cell: str, deadline: float) -> Iterator[Hit]:
        waiting = deque([Text("python", cell, 1, 0, 0)])
        lines = cell.split("\n")
        read = 0
        while waiting:
            text = waiting.popleft()
            read += 1
            if text.depth > MAX_DEPTH or read > MAX_TEXTS:
                yield Hit("cell.too_deep", text.language, text.line, text.column)
                return
            try:
                if time.thread_time() > deadline:
                    raise Unreadable(TOO_LONG)
                for item in self._items(text, Places(text, lines), deadline):
                    if item.line > len(lines):  # separators that are lines to IPython alone
                        item = item._replace(line=len(lines), column=0)
                    if isinstance(item, Hit):
                        yield item
                    else:
                        waiting.append(Text(*item, text.depth + 1))
            except Unreadable as error:
                # Python itself says what is wrong with it, and runs nothing of it: unless that
                # Python knows a grammar that this one does not.
                if not error.is_syntax_error:
                    yield Hit("cell.unreadable", error.reason, text.line, text.column)
                elif self._inner_is_newer:
                    yield Hit("cell.unreadable", NEWER, text.line, text.column)

    def _items(self, text: Text, places: Places, deadline: float) -> Iterator[Hit | Embedded]:
        """What is in a text, with places in the cell."""
        if text.language == "python":
            yield from self._python_items(text, places, deadline)
            return
        if not self._is_apart:
            raise OtherLanguage
        if text.language == "shell":
            from sandbox_kernel.policy import shell as validator
        else:
            from sandbox_kernel.policy import javascript as validator  # type: ignore[no-redef]
        for item in validator.examine(text.text, deadline):
            line, column = places.find(item.line, item.column)
            yield item._replace(line=line, column=column)

    def _python_items(
        self, text: Text, places: Places, deadline: float
    ) -> Iterator[Hit | Embedded]:
        for source in self._readings(text, deadline):
            items = python.examine(source.code, self._memory, deadline, self._trees, self._listed)
            for item in items:
                place = places.find(*source.locate(item.line, item.column))
                moved = item
                if place != (item.line, item.column):
                    moved = item._replace(line=place[0], column=place[1])
                if isinstance(moved, Magic):
                    from sandbox_kernel.policy import magics

                    yield from magics.examine(moved)
                else:
                    yield moved

    def _readings(self, text: Text, deadline: float) -> Iterator[Source]:
        """What IPython may make of it.

        A line such as ``rm x`` is a magic unless ``rm`` is a name that a cell has defined. Whether it
        has is not known for certain, so such a line is read both ways.
        """
        names = self._memory.names
        source = read_cell(text.text, names, deadline)
        if names and "\n" not in text.text.strip():
            other = read_cell(text.text, (), deadline)
            if other.code != source.code:
                yield other
        yield source

    # -- deciding ----------------------------------------------------------------------------------

    def _denial(self, id: str, reason: str) -> Verdict:
        """Of a cell that is not read to its end, whatever the policy."""
        return self._decide([(Hit(id, reason, 1, 0), "")])

    def _not_allowed(self, hits: Iterable[tuple[Hit, str]]) -> list[tuple[Hit, str]]:
        """Those that the policy does not simply allow, up to the last denial that is told."""
        found: dict[tuple[Hit, str], None] = {}
        denials = 0
        for each in hits:
            decision = self._code.decide(each[0].rule, each[0].about)
            if decision == "allow" or each in found:
                continue
            found[each] = None
            # Only denials end it: warnings must not hide what stands behind them.
            denials += decision == "deny"
            if denials == MAX_FINDINGS:
                break
        return list(found)

    def _decide(self, hits: Iterable[tuple[Hit, str]]) -> Verdict:
        """The verdict on these, each with the expression that it is in, if it is not in the cell."""
        findings: dict[tuple[Hit, str], Finding] = {}
        for hit, expression in self._not_allowed(hits):
            decision = self._code.decide(hit.rule, hit.about)
            about = rule(hit.rule)
            findings[hit, expression] = Finding(
                hit.rule,
                decision,
                about.risk,
                _short(hit.about),
                hit.line,
                hit.column,
                about.reason,
                about.instead,
                expression,
            )
        if not findings:
            return ALLOWED
        gravest_first = sorted(
            findings.values(), key=lambda f: (-DECISIONS.index(f.decision), f.line, f.column)
        )
        shown, is_cut = tuple(gravest_first[:MAX_FINDINGS]), len(gravest_first) > MAX_FINDINGS
        return Verdict(gravest_first[0].decision, shown, is_cut)


def _short(about: str) -> str:
    """A name may be as long as the cell, and is shown in a message."""
    return about if len(about) <= LONGEST_ABOUT else about[: LONGEST_ABOUT - 1] + "…"


def allows_everything(code: Code) -> bool:
    """Whether no cell could be warned of: then there is no use in reading it."""
    names = (code.imports, code.commands, code.magics)
    decisions = {*code.rules.values(), *(each.otherwise for each in names)}
    for each in names:
        decisions |= set(each.entries.values())
    return decisions == {"allow"}


def load_parsers() -> None:
    """Load what reads magics, shell text and scripts."""
    for name in ("javascript", "magics", "shell"):
        importlib.import_module(f"sandbox_kernel.policy.{name}")
    read_cell("%lsmagic")


def answer_apart(question: bytes) -> bytes:
    """In a confined process: what a ``Judge`` there finds, as ``apart`` reads it."""
    import json
    import pickle

    code, memory, inner_is_newer, texts = pickle.loads(question)  # the wrapper's
    judge = Judge(code, memory)
    judge._is_apart, judge._inner_is_newer = True, inner_is_newer
    printed = sys.stderr = io.StringIO()
    found = judge.find(texts)
    names, known = memory.proposed
    document = {
        "hits": [[*hit, expression] for hit, expression in found],
        "names": names,
        "texts": known,
        "log": printed.getvalue(),
    }
    return json.dumps(document).encode()


def rehearse() -> None:
    """Load whatever reading may need, by reading texts of ours: later nothing can be opened."""
    import json
    import pickle

    load_parsers()
    for name in LOADED:
        importlib.import_module(name)
    for codec in ENCODINGS:
        codecs.lookup(codec)
    nothing = Names("deny", {})
    code = Code(1 << 20, nothing, nothing, nothing, {})
    for text in REHEARSED:
        json.loads(answer_apart(pickle.dumps((code, Memory(), False, [text, "1"]))))
    sys.stderr = sys.__stderr__
