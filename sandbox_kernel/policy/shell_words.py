"""What the words of a shell text come to: quotes, escapes, expansions, as far as the text tells.

Parts that only the run knows stay in the word as one of the marks below, so that what is known around
them still counts: ``rm -rf /etc/$x``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tree_sitter import Node

    from sandbox_kernel.policy.syntax import Effort, Parsed

# Non-characters of Unicode: no text of a person holds them, and one that does is unknown anyway.
UNKNOWN: Final = "\ufdd0"
DOWNLOADED: Final = "\ufdd1"  # what a download prints
DECODED: Final = "\ufdd2"  # what a decoder prints
BREAK: Final = "\ufdd3"  # the shell splits the word here
PLACEHOLDER: Final = "unknown_value"  # the name of a value that is not known, in text read in turn
_MARKS: Final = re.compile(f"[{UNKNOWN}{DOWNLOADED}{DECODED}]")


def name_set(text: str) -> frozenset[str]:
    """A set of names, written as one text."""
    return frozenset(text.split())


DOWNLOADERS: Final = name_set(
    "curl wget aria2c axel lynx w3m links elinks fetch http https httpie xh curlie lwp-request "
    "gdown youtube-dl yt-dlp ftp tftp sftp scp"
)
DECODERS: Final = name_set(
    "base64 base32 basenc xxd uudecode openssl gunzip zcat gzip bzip2 bunzip2 xz unxz zstd rev tr "
    "sed awk od hexdump gpg"
)

_LONGEST: Final = 64 * 1024
_DEEPEST: Final = 12
_PRODUCT: Final = 64
_PER_WORD: Final = 16  # letters that take as long as a word by itself
_ALTERNATIVES: Final = 8

_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_STRING_ESCAPE: Final = re.compile(r'\\([$`"\\\n])')
_ANSI_ESCAPE: Final = re.compile(
    r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,4}|c.|.)", re.DOTALL
)
_ANSI: Final = {
    **{"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r"},
    **{"t": "\t", "v": "\v"},
}
# IPython puts the value of a Python expression here: `{name}`, `{a.b[0]}`, `{f(x)}`, `{x:02d}`.
# Nothing is given back (*+), or the time would grow with the square of the name's length.
_PYTHON: Final = re.compile(
    r"(?<!\$)\{\s*[A-Za-z_][\w.]*+(?:\[[^][{}]*\]|\([^(){}]*\)|[\w.+*/ -])*+(?:![rsa])?(?::[^{}]*)?\}"
)
_INTERPRETER: Final = re.compile(r"\{\s*sys\.executable\s*\}")
_BRACES: Final = re.compile(r"(?<!\$)\{([^{}\s]*,[^{}\s]*)\}")
_EXPANSION: Final = re.compile(r"(!?)(\w+|[@*#?$!-])(.*)", re.DOTALL)
_SLICE: Final = re.compile(r":\s*(-?\d{1,9})(?::\s*(-?\d{1,9}))?")
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT: Final = {
    **{"HOME": "~", "PWD": "./", "SHELL": "bash", "BASH": "bash", "PATH": SYSTEM_PATH},
    **{"IFS": BREAK, "TMPDIR": "/tmp", "0": "bash"},
    **dict.fromkeys(
        name_set(
            "USER LOGNAME HOSTNAME LANG TERM RANDOM SECONDS UID EUID PPID OSTYPE OLDPWD LINENO "
            "CONDA_PREFIX VIRTUAL_ENV PYTHONPATH LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES DISPLAY"
        ),
        UNKNOWN,
    ),
}


def is_known(text: str) -> bool:
    return _MARKS.search(text) is None


def shown(text: str) -> str:
    """The word as a person would write it, short."""
    text = _MARKS.sub("…", text[:100]).replace(BREAK, " ")
    return text if len(text) <= 80 else text[:79] + "…"


def filled(text: str, mark: str, value: str, most: int = -1) -> str:
    """The text with the value in place of each mark; unknown if it were too long to be read."""
    if len(value) * text.count(mark) > _LONGEST:
        return UNKNOWN
    return text.replace(mark, value, most)


class Words:
    """Folds the words of one tree; learns assignments as the reader comes upon them."""

    def __init__(self, parsed: Parsed, output_of: Callable[[Node], str], effort: Effort) -> None:
        self._parsed = parsed
        self._effort = effort
        self._output_of = output_of  # of a substitution
        self._values: dict[str, list[str]] = {}
        self._pick = -1
        self.alternatives = 1  # of the variables in the words folded last
        self.has_parameters = False  # $1 and $@ are set: within functions, or after `set`
        self.interpolated: set[str] = set()

    def assign(self, name: str, value: str, *, append: bool = False) -> None:
        values = self._values.setdefault(name, [])
        if append and values:
            value = values[-1] + value
        value = value[:_LONGEST]
        if value not in values and len(values) < _ALTERNATIVES:
            values.append(value)

    def list(self, nodes: list[Node], pick: int = -1) -> list[str]:
        """The words that the shell makes of these nodes; ``pick`` chooses among a variable's values."""
        self._pick = pick
        if pick < 0:
            self.alternatives = 1
        words: list[str] = []
        end = -1
        for node in nodes:
            folded = self.fold(node)
            if node.start_byte == end and words:
                folded = self._joined(words.pop(), folded)
            end = node.end_byte
            if node.type not in ("string", "raw_string", "ansi_c_string"):
                for word in self._braced(folded):
                    parts = word.split(BREAK)
                    words += [part for part in parts if part] if len(parts) > 1 else parts
            else:
                words.append(folded.replace(BREAK, " "))
        self._pick = -1
        return words

    def _braced(self, word: str) -> Sequence[str]:
        """The words that ``{a,b}`` makes of one."""
        words: tuple[str, ...] = (word,)
        if len(word) >= _LONGEST // 32:
            return words
        while len(words) < _PRODUCT and (match := _BRACES.search(words[0])):
            choices = match[1].split(",")[:_PRODUCT]
            self._effort.spend(len(words) * len(choices) * (len(word) + _PER_WORD))
            words = tuple(each.replace(match[0], one, 1) for each in words for one in choices)
        return words

    def _joined(self, left: str, right: str) -> str:
        """One word that the grammar takes for two: it reads ``a$b-c$d/`` as ``a$b-c$`` and ``d/``."""
        match = re.match(r"[A-Za-z_]\w*", right)
        if left.endswith("$") and match:
            return left[:-1] + self._split(self._variable(match[0]), False) + right[match.end() :]
        return left + right

    def fold(self, node: Node, depth: int = 0, *, quoted: bool = False) -> str:
        """The word's text, with marks for what is not known and for where it splits."""
        if depth > _DEEPEST:
            return UNKNOWN
        kind = node.type
        text = self._parsed.text
        if kind in ("word", "number", "variable_name", "extglob_pattern", "regex", "test_operator"):
            word = text(node)
            if UNKNOWN in word:
                self.interpolated.add("{…}")
            return self._python(_ESCAPE.sub(_unescaped, word))
        if kind == "raw_string":
            # IPython looks into these too. Where it finds nothing the shell gets them as they are,
            # such as a program for awk.
            word = text(node)[1:-1]
            self._python(word)
            return word
        if kind == "ansi_c_string":
            return decoded_escapes(text(node)[2:-1])
        if kind in ("string", "heredoc_body", "translated_string"):
            return self._python(self._mixed(node, depth))
        if kind in ("concatenation", "command_name", "array"):
            glue = BREAK if kind == "array" else ""
            children = [child for child in node.children if child.type not in ("(", ")")]
            parts = [self.fold(child, depth + 1, quoted=quoted) for child in children]
            folded = glue.join(parts)[:_LONGEST]
            return self._python(folded) if "{" in folded else folded
        if kind == "simple_expansion":
            return self._split(self._variable(text(node)[1:]), quoted)
        if kind == "expansion":
            return self._split(self._expanded(node, depth), quoted)
        if kind in ("command_substitution", "process_substitution"):
            output = self._output_of(node)
            return self._split(output.rstrip("\n"), quoted)
        if kind == "brace_expression":
            return text(node)[1:-1].partition("..")[0]
        return UNKNOWN if node.child_count else _ESCAPE.sub(_unescaped, text(node))

    def _mixed(self, node: Node, depth: int) -> str:
        """A quoted text: the grammar leaves gaps between its parts, which are text too."""
        pieces: list[str] = []
        at = node.start_byte
        for child in node.children:
            pieces.append(self._parsed.slice(at, child.start_byte))
            at = child.end_byte
            if child.type in ("string_content", "heredoc_content"):
                pieces.append(_STRING_ESCAPE.sub(_unescaped, self._parsed.text(child)))
            elif child.is_named:
                pieces.append(self.fold(child, depth + 1, quoted=True).replace(BREAK, " "))
            elif child.type not in ('"', '$"', "$"):
                pieces.append(self._parsed.text(child))
        pieces.append(self._parsed.slice(at, node.end_byte))
        return "".join(pieces)[:_LONGEST]

    def _python(self, text: str) -> str:
        if "{" not in text:
            return text
        text = _INTERPRETER.sub("python", text)
        found = _PYTHON.search(text)
        if found:
            self.interpolated.add(found[0])
            text = _PYTHON.sub(UNKNOWN, text)
        return text

    def _split(self, value: str, quoted: bool) -> str:
        if quoted:
            return value
        separators = "".join(self._values.get("IFS", ())).replace(BREAK, "")
        return _separated(separators).sub(BREAK, value)

    def _variable(self, name: str) -> str:
        if values := self._values.get(name):
            self.alternatives = max(self.alternatives, len(values))
            value = values[self._pick] if self._pick < len(values) else values[-1]
            self._effort.spend(len(value))
            return value
        if name in _ENVIRONMENT:
            return _ENVIRONMENT[name]
        if name.isdigit() or name in ("@", "*"):
            return UNKNOWN if self.has_parameters else ""
        if name.isidentifier() and name != PLACEHOLDER:
            self.interpolated.add("$" + name)
        return UNKNOWN

    def _expanded(self, node: Node, depth: int) -> str:
        match = _EXPANSION.fullmatch(self._parsed.text(node)[2:-1])
        if match is None:
            return UNKNOWN
        indirect, name, operation = match.groups()
        is_set = name in self._values or name in _ENVIRONMENT
        operator = operation[:2] if operation[:2] in (":-", ":=", ":+") else operation[:1]
        if operator in (":-", ":=", ":+", "-", "=", "+"):
            named = [child for child in node.named_children if child.type != "variable_name"]
            word = "".join(self.fold(child, depth + 1) for child in named)
            if "`" in operation:
                word = UNKNOWN  # a command that the grammar takes for a word
            if operator.endswith("+"):
                return word if is_set else ""
            if operator.endswith("=") and not is_set:
                self.assign(name, word)
            return self._variable(name) if is_set else word
        value = self._variable(name)
        if indirect:
            value = self._variable(value) if value.isidentifier() else UNKNOWN
        if not operation:
            return value
        return _operated(value, operation) if is_known(value) else UNKNOWN


@lru_cache(maxsize=16)
def _separated(separators: str) -> re.Pattern[str]:
    return re.compile(f"[\\s{re.escape(separators)}]+")


def _operated(value: str, operation: str) -> str:
    if match := _SLICE.fullmatch(operation):
        start = int(match[1])
        rest = value[start:]
        if match[2] is None:
            return rest
        return rest[: int(match[2])]
    if operation in (",,", "^^"):
        return value.lower() if operation == ",," else value.upper()
    if match := re.fullmatch(r"(//?)([^/*?\[\]$`'\"\\]+)/?([^/$`'\"\\]*)", operation):
        most = 1 if match[1] == "/" else -1
        return filled(value, match[2], match[3], most)
    return UNKNOWN


def _unescaped(match: re.Match[str]) -> str:
    return "" if match[1] == "\n" else match[1]


def decoded_escapes(text: str) -> str:
    r"""What ``$'…'``, ``echo -e`` and ``printf`` make of ``\x6f``, ``\157`` and ``\n``."""

    def decode(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
            return chr(number) if number < 0xD800 or 0xE000 <= number < 0x110000 else UNKNOWN
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        return _ANSI.get(code, code)

    return _ANSI_ESCAPE.sub(decode, text)


def printed(words: list[str], stdin: str | None) -> str | None:
    """What a command prints, where the text alone tells; ``None`` where it does not."""
    name, *args = words or [""]
    name = name.rpartition("/")[2]
    if name in ("echo", "printf"):
        return _echoed(args) if name == "echo" else _formatted(args)
    if name in ("which", "basename", "command", "type", "realpath") and args:
        wanted = name not in ("command", "type") or args[0] in ("-v", "-p", "-P")
        return args[-1].rpartition("/")[2] if wanted else None
    if stdin is None or not is_known(stdin):
        return None
    options = {arg for arg in args if arg.startswith("-")}
    if name in ("cat", "tee"):
        return stdin if name == "tee" or not [arg for arg in args if arg != "-"] else None
    if name == "rev":
        return "\n".join(line[::-1] for line in stdin.split("\n"))
    try:
        if name in ("base64", "openssl") and options & {"-d", "--decode", "-D", "-di", "-id"}:
            return _decoded(base64.b64decode("".join(stdin.split()), validate=False))
        if name == "base32" and options & {"-d", "--decode"}:
            return _decoded(base64.b32decode("".join(stdin.split())))
        if name == "xxd" and options & {"-r", "-rp", "-pr", "-r-p"}:
            return _decoded(binascii.unhexlify("".join(stdin.split())))
    except ValueError:  # not of that code: nobody knows what comes out
        return None
    if name == "tr" and len(args) == 2 and len(_ranged(args[0])) == len(_ranged(args[1])):
        return stdin.translate(str.maketrans(_ranged(args[0]), _ranged(args[1])))
    return None


def _ranged(text: str) -> str:
    def letters(match: re.Match[str]) -> str:
        return "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1)))

    return re.sub(r"([A-Za-z])-([A-Za-z])", letters, text) if len(text) < 100 else text


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _echoed(args: list[str]) -> str:
    escapes, newline = False, "\n"
    while args and re.fullmatch(r"-[neE]+", args[0]):
        escapes = escapes or "e" in args[0]
        newline = "" if "n" in args[0] else newline
        args = args[1:]
    text = " ".join(args)
    return (decoded_escapes(text) if escapes else text) + newline


def _formatted(args: list[str]) -> str | None:
    if args[:1] == ["--"]:
        args = args[1:]
    if not args:
        return None
    values = iter(args[1:])
    done = re.sub(r"%[sbdc]", lambda match: next(values, ""), decoded_escapes(args[0]))
    rest = list(values)
    return done + "".join(rest) if "%" in args[0] else done
