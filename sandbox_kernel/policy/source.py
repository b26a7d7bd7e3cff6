"""The Python that IPython will run for a cell, and where each part of it stands in the user's text.

Magics, ``!`` commands, prompts, auto-quoting and help are rewritten by IPython's own transformer, so
that the check and the sandbox never read a cell differently. It is loaded without the rest of
IPython, which would cost 300 ms and 20 MiB, and only for a cell that may need it: most are plain
Python.

IPython reads a cell of one line once more, by the state of its shell: ``ls -l`` is a magic there as
long as nothing else is called ``ls``. What earlier cells defined is an argument here.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import itertools
import re
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from textwrap import dedent
from types import ModuleType
from typing import Any, Final

TOO_LONG: Final = "takes too long to read"
FAILED: Final = "makes the check fail"
_TOO_MANY: Final = "holds too many magics and shell commands"
_STEPS: Final = 500  # IPython's own limit

# No transformation applies to a cell unless a line begins with one of these, ends in a question mark,
# or assigns a magic or a command. True of many lines in strings and comments too, at no harm.
_FIRST: Final = re.compile(r"^[^\S\n]*(?:[%!?/,;]|>>>|\.\.\.|In\ \[|\[nav\]|\[ins\])", re.MULTILINE)
_LAST: Final = re.compile(r"\?[^\S\n]*$", re.MULTILINE)
_ASSIGNED: Final = re.compile(r"=\s*[%!]")

_BLANK: Final = re.compile(r"^[ \t]+$", re.MULTILINE)

# IPython's pattern for `name?` takes time that grows with the square of a word's length, and its
# tokenizer some 2 µs for each token.
_HELP_WORD: Final = re.compile(r"[\w*.\[\]-]+")
_HELP_WORK: Final = 10_000_000
_TOKEN: Final = re.compile(r"\w+|[^\w\s]")
_MOST_LINES: Final = 100_000
_LONG_LINE: Final = 50_000
_LONG_LINE_TOKENS: Final = 50_000

# The line magics of a fresh ipykernel shell, its aliases for shell commands among them.
_LINE_MAGICS: Final = """
alias alias_magic autoawait autocall automagic autosave bookmark cat cd clear code_wrap colors
conda config connect_info cp debug dhist dirs doctest_mode ed edit env gui hist history
killbgscripts ldir less lf lk ll load load_ext loadpy logoff logon logstart logstate logstop ls
lsmagic lx macro magic mamba man matplotlib micromamba mkdir more mv notebook page pastebin pdb
pdef pdoc pfile pinfo pinfo2 pip popd pprint precision prun psearch psource pushd pwd pycat pylab
qtconsole quickref recall rehashx reload_ext rep rerun reset reset_selective rm rmdir run save sc
set_env subshell sx system tb time timeit unalias unload_ext uv who who_ls whos xdel xmode
"""
LINE_MAGICS: Final = frozenset(_LINE_MAGICS.split())
_AUTOCALLS: Final = frozenset({"exit", "quit"})  # called by their mere name


class Unreadable(Exception):
    """The text cannot be read, so nothing can be said about it."""

    def __init__(self, reason: str, *, is_syntax_error: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_syntax_error = is_syntax_error


# Of each line of the code: its line in the user's text, how many characters were taken off its start,
# and the column from which on nothing in it is the user's.
_Place = tuple[int, int, int]
_ALL: Final = sys.maxsize


@dataclass(frozen=True)
class Source:
    """What IPython runs for a cell."""

    code: str
    _places: Sequence[_Place] | None = None  # None: the code is the user's text

    def locate(self, line: int, column: int) -> tuple[int, int]:
        """The place in the user's text; of rewritten code, where what it was made of begins."""
        if self._places is None:
            return line, column
        if not self._places:
            return 1, 0
        origin, shift, own = self._places[min(max(line, 1), len(self._places)) - 1]
        return origin, min(column, own) + shift


def read_cell(
    text: str, known_names: Collection[str] = (), deadline: float | None = None
) -> Source:
    """The code that IPython makes of a cell in a shell where earlier cells defined these names.

    Raises ``Unreadable`` where IPython itself gives up, and when ``deadline`` (on ``time.thread_time``)
    has passed.
    """
    whole = text if text.endswith("\n") else text + "\n"
    lines = whole.splitlines(keepends=True)
    places: list[_Place] | None
    if _may_need_ipython(whole, lines):
        code, places = _transform(lines, deadline)
    else:
        code, places = _clean(whole, lines)
    if (len(lines) if code is whole else len(code.splitlines())) == 1:
        line = code.rstrip("\n")
        code = _prefilter(line, known_names) + "\n"
        if code != line + "\n":
            origin, shift, own = places[0] if places else (1, 0, _ALL)
            places = [(origin, shift, min(own, _same_start(line, code)))]
    return Source(code, places)


def _may_need_ipython(whole: str, lines: list[str]) -> bool:
    # Separators that are lines to IPython's tokenizer, but not to Python, or one of its signs.
    if len(lines) != whole.count("\n") or ("?" in whole and _LAST.search(whole)):
        return True
    if ("%" in whole or "!" in whole) and _ASSIGNED.search(whole):
        return True
    return _FIRST.search(whole) is not None


def _clean(whole: str, lines: list[str]) -> tuple[str, list[_Place] | None]:
    """What IPython does to every cell: no blank lines first, no common indentation."""
    if not whole[0].isspace() and _BLANK.search(whole) is None:
        return whole, None
    first = next((number for number, line in enumerate(lines) if not line.isspace()), 0)
    code = dedent("".join(lines[first:]) if first else whole)
    if first == 0 and (code is whole or code == whole):
        return whole, None
    places = [(number + 1, 0, _ALL) for number in range(len(lines))]
    return code, _moved(places[first:], lines[first:], code.splitlines(keepends=True))


# With IPython's transformer ------------------------------------------------------------------------


def _transform(lines: list[str], deadline: float | None) -> tuple[str, list[_Place]]:
    _check_work(lines)
    transformer = _ipython("core.inputtransformer2")
    manager = transformer.TransformerManager()
    numbers = itertools.accumulate((line.endswith(("\n", "\r")) for line in lines), initial=1)
    places: list[_Place] = [(number, 0, _ALL) for number, _ in zip(numbers, lines, strict=False)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for clean in (*manager.cleanup_transforms, *manager.line_transforms):
                after = clean(lines)
                lines, places = after, _moved(places, lines, after)
            for _ in range(_STEPS):
                changed, after = manager.do_one_token_transform(_Watched(lines, deadline))
                if not changed:
                    break
                lines, places = after, _moved(places, lines, after)
            else:
                raise Unreadable(_TOO_MANY)
    except Unreadable:
        raise
    except Exception as error:  # whatever it is, IPython does not run such a cell either
        reason = str(error) or type(error).__name__
        raise Unreadable(reason, is_syntax_error=isinstance(error, SyntaxError)) from error
    return "".join(lines), _by_python_line(places, lines)


class _Watched(list[str]):
    """Lines that cannot be read after the deadline: one pass of the tokenizer may take seconds."""

    def __init__(self, lines: list[str], deadline: float | None) -> None:
        super().__init__(lines)
        self._deadline = deadline

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(super().__iter__()):
            if self._deadline is not None and number % 64 == 0:
                _check(self._deadline)
            yield line


def _check(deadline: float) -> None:
    if time.thread_time() > deadline:
        raise Unreadable(TOO_LONG)


def _check_work(lines: list[str]) -> None:
    """Refuse what would hold the tokenizer, or a pattern of IPython's, between two looks at the clock."""
    if len(lines) > _MOST_LINES:
        raise Unreadable(TOO_LONG)
    for line in lines:
        if len(line) > _LONG_LINE:
            tokens = itertools.islice(_TOKEN.finditer(line), _LONG_LINE_TOKENS)
            if sum(1 for _ in tokens) == _LONG_LINE_TOKENS:
                raise Unreadable(TOO_LONG)
    if any(line.rstrip().endswith("?") for line in lines):
        text = "".join(lines)
        if sum(len(word) ** 2 for word in _HELP_WORD.findall(text)) > _HELP_WORK:
            raise Unreadable(TOO_LONG)


def _moved(places: list[_Place], before: list[str], after: list[str]) -> list[_Place]:
    """Where the lines come from after one step, which changes all of them or some that adjoin."""
    if len(before) == len(after):
        return [
            place if old is new or old == new else _rewritten(place, old, new)
            for place, old, new in zip(places, before, after, strict=True)
        ]
    shorter = min(len(before), len(after))
    start = 0
    while start < shorter and before[start] == after[start]:
        start += 1
    end = 0
    while end < shorter - start and before[-1 - end] == after[-1 - end]:
        end += 1
    origin = places[min(start, len(places) - 1)]
    old = before[start] if start < len(before) else ""
    changed = [_rewritten(origin, old, new) for new in after[start : len(after) - end]]
    return places[:start] + changed + places[len(places) - end :]


def _rewritten(place: _Place, old: str, new: str) -> _Place:
    line, shift, own = place
    if old.endswith(new):
        return line, shift + len(old) - len(new), own
    return line, shift, min(own, _same_start(old, new))


def _same_start(old: str, new: str) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(old), len(new)))


def _by_python_line(places: list[_Place], lines: list[str]) -> list[_Place]:
    """The same for lines as Python counts them: a form feed ends none."""
    begins = [True, *(line.endswith(("\n", "\r")) for line in lines)]
    return [place for place, begin in zip(places, begins, strict=False) if begin]


_loaded: dict[str, ModuleType] = {}
_loading = threading.Lock()


def _ipython(name: str) -> Any:
    """A module of IPython, without running the package's own initialisation.

    The bare parents are there for the time of the import only: a later ``import IPython`` gets the
    whole of it.
    """
    if (already := sys.modules.get(f"IPython.{name}")) is not None:
        return already
    with _loading:
        if name not in _loaded:
            _loaded[name] = _load(name)
        return _loaded[name]


def _load(name: str) -> ModuleType:
    if "IPython" in sys.modules:
        return importlib.import_module(f"IPython.{name}")
    spec = importlib.util.find_spec("IPython")
    if spec is None or spec.submodule_search_locations is None:
        msg = "IPython is not installed beside sandbox-kernel"
        raise ImportError(msg)
    folders = list(spec.submodule_search_locations)
    for parent in ("", "core", "utils"):
        bare = ModuleType(f"IPython.{parent}".rstrip("."))
        bare.__path__ = [f"{folder}/{parent}".rstrip("/") for folder in folders]
        sys.modules[bare.__name__] = bare
    try:
        return importlib.import_module(f"IPython.{name}")
    finally:
        for module in [key for key in sys.modules if key.partition(".")[0] == "IPython"]:
            del sys.modules[module]


# A cell of one line --------------------------------------------------------------------------------


def _prefilter(line: str, known_names: Collection[str]) -> str:
    """What a fresh shell makes of one line that is no magic by its looks; in IPython's order."""
    if not line.strip():
        return line
    info = _ipython("core.splitinput").LineInfo(line)
    name, rest = info.ifun, info.the_rest
    if name in _AUTOCALLS and name not in known_names:
        return _called(line, info)
    if rest[:1] in ("=", ","):
        return line
    shadowed = name in known_names or hasattr(builtins, name) or iskeyword(name)
    if name not in LINE_MAGICS or shadowed:
        return line
    return f"{info.pre_whitespace}get_ipython().run_line_magic({name!r}, {rest!r})"


def _called(line: str, info: Any) -> str:
    name, rest = info.ifun, info.the_rest
    quoted = {",": '", "'.join(rest.split()), ";": rest}
    if info.esc in quoted:
        return f'{name}("{quoted[info.esc]}")'
    if info.esc == "/":
        return f"{name}({','.join(rest.split())})"
    if rest.startswith("("):
        return line
    return f"{name}({rest[:-1]});" if rest.endswith(";") else f"{name}({rest})"
