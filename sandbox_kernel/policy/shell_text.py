"""Reads the tree of one shell text: each command in each position, and what it is fed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from sandbox_kernel.policy import (
    shell_commands,
    shell_loose,
    shell_paths,
    shell_setters,
    shell_wrappers,
)
from sandbox_kernel.policy.shell_tree import (
    PYTHON,
    SHELLS,
    Order,
    given,
    words_of,
)
from sandbox_kernel.policy.shell_words import (
    BREAK,
    DECODED,
    DECODERS,
    DOWNLOADED,
    DOWNLOADERS,
    PLACEHOLDER,
    UNKNOWN,
    Words,
    is_known,
    name_set,
    printed,
    shown,
)
from sandbox_kernel.policy.syntax import Effort, Parsed, family
from sandbox_kernel.policy.verdict import Embedded, Hit, Language

if TYPE_CHECKING:
    from tree_sitter import Node

_NESTED: Final = 3  # substitutions within substitutions whose output is worked out
_MOST_OUTPUTS: Final = 500
_NAME: Final = 200  # no command has a longer one
_EXPANDED: Final = frozenset(("expansion", "heredoc_body", "command_substitution"))
_TABS: Final = re.compile(r"^\t+", re.MULTILINE)
_DEEPEST: Final = 12  # wrappers within wrappers
_MOST_COMMANDS: Final = 5_000
_SCRIPTS: Final = re.compile(r"(perl|ruby|php|lua|Rscript|julia|tclsh|pwsh|osascript)[\d.]*")
_NETCATS: Final = frozenset({"nc", "ncat", "netcat", "telnet", "socat", "openssl"})
_NODES: Final = frozenset({"node", "nodejs", "deno", "bun"})
_HOOK_PRINTERS: Final = re.compile(
    r"(conda|mamba|micromamba|ssh-agent|pyenv|direnv|brew|dircolors)$"
)
_SETS: Final = re.compile(r"(?:[-+*/%&|^]|<<|>>)?=")
_WORDS: Final = name_set(
    "word string raw_string ansi_c_string concatenation simple_expansion expansion number "
    "command_substitution process_substitution translated_string brace_expression "
    "arithmetic_expansion array"
)


class Reader(Protocol):
    """What the texts within one another share."""

    effort: Effort
    items: list[Hit | Embedded]
    commands: int
    other_path: str  # the variable that was set, so that a name may be that of another program
    downloads: set[str]  # names of files fetched so far

    def read(self, text: str, depth: int, place: tuple[int, int] | None) -> None:
        """Read the text as a shell would."""


class Text:
    """Reads one tree."""

    def __init__(
        self, reader: Reader, parsed: Parsed, depth: int, place: tuple[int, int] | None
    ) -> None:
        self._reader = reader
        self._parsed = parsed
        self._depth = depth
        self._fixed = place  # of all that is found, where the text is the value of some word
        self._words = Words(parsed, self._output, reader.effort)
        self._node: Node = parsed.root
        self._stdin: dict[int, tuple[str | None, frozenset[str]]] = {}
        self._outputs = 0
        self._known_names: dict[int, frozenset[str]] = {}
        self._names_of_commands: dict[int, frozenset[str]] = {}
        self._nesting = 0  # of substitutions whose output is asked for
        self._functions: set[str] = set()
        self._parents: dict[int, Node] = {}
        self._order = Order((), ())
        self._has_connection = b"/dev/tcp" in parsed.data
        self._hands_on = False  # words may become the values of variables
        self._lasting_path = ""  # the variable that a command sets for all that follow

    # The walk ----------------------------------------------------------------------------------

    def read(self) -> None:
        nodes, self._parents = family(self._parsed.root)
        self._order = Order(nodes, ("command", "pipeline", "&"))
        kinds = {node.type for node in nodes}
        called = {self._parsed.text(node) for node in nodes if node.type == "command_name"}
        has_functions = "function_definition" in kinds
        self._words.has_parameters = has_functions or not called.isdisjoint(("set", "shift"))
        self._hands_on = has_functions or any(map(shell_loose.hands_on, called))
        for node in nodes:
            self._reader.effort.look()
            self._node = node
            if handler := _HANDLERS.get(node.type):
                handler(self, node)
            parent = self._parents.get(node.id)
            if node.type in _WORDS and (parent is None or parent.type not in _WORDS):
                self._check_word(node)
        for name in sorted(self._words.interpolated):
            self._node = self._parsed.root
            self._hit("shell.interpolated", name)

    def _hit(self, rule: str, about: str) -> None:
        place = self._fixed or self._parsed.place(self._node)
        self._reader.items.append(Hit(rule, shown(about), *place))

    def _embed(self, language: Language, text: str) -> None:
        place = self._fixed or self._parsed.place(self._node)
        if not is_known(text):
            self._hit("shell.interpolated", text)
        if shell_commands.is_reverse_shell_code(text):
            self._hit("shell.reverse_shell", text)
        for mark in (UNKNOWN, DOWNLOADED, DECODED):
            text = text.replace(mark, PLACEHOLDER)
        self._reader.items.append(Embedded(language, text.replace(BREAK, " "), *place))

    def _inner(self, text: str) -> None:
        """Text that a shell will read."""
        if DOWNLOADED in text:
            self._hit("shell.pipe_to_shell", text)
        if DECODED in text:
            self._hit("shell.obfuscated", text)
        for mark in (UNKNOWN, DOWNLOADED, DECODED):
            text = text.replace(mark, f"${{{PLACEHOLDER}}}")
        place = self._fixed or self._parsed.place(self._node)
        self._reader.read(text.replace(BREAK, " "), self._depth + 1, place)

    def _check_word(self, node: Node) -> None:
        words = self._words.list([node])
        self._check(words)
        for word in words:
            place = (word, self._parsed, node, self._parents)
            if shell_loose.is_evaluated_late(*place) or (
                self._hands_on and shell_loose.may_become_a_value(*place)
            ):
                self._hit("shell.obfuscated", word)
                self._loose(word)

    def _loose(self, text: str) -> None:
        """Read the commands in text that is expanded."""
        for command in shell_loose.substitutions(text):
            self._inner(command)

    def _check(self, words: list[str]) -> None:
        for word in words:
            self._reader.effort.look()
            if rule := shell_paths.sensitive(word):
                self._hit(rule, word)

    # Parts of the tree -------------------------------------------------------------------------

    def _on_assignment(self, node: Node) -> None:
        parent = self._parents.get(node.id)
        if parent is None or parent.type != "command":  # those are read with the command
            self._assign(node)

    def _assign(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        if name is None:
            return
        text = self._words.fold(value, quoted=True) if value is not None else ""
        append = any(child.type == "+=" for child in node.children)
        identifier = self._parsed.text(name)
        self._words.assign(identifier, text, append=append)
        self._set(identifier, text)
        if identifier in ("HISTFILE", "HISTSIZE") and text in ("", "0", "/dev/null"):
            self._hit("shell.cover_tracks", f"{identifier}={text}")

    def _on_for(self, node: Node) -> None:
        name = node.child_by_field_name("variable")
        if name is None:
            return
        identifier = self._parsed.text(name)
        values = self._words.list(node.children_by_field_name("value"))
        for word in values[:8]:
            self._words.assign(identifier, word)
        for word in values or [UNKNOWN]:  # without any, those of the function or the script
            self._set(identifier, word)

    def _on_sum(self, node: Node) -> None:
        """``((PATH = 1))``."""
        name = node.child_by_field_name("left")
        operator = next((child.type for child in node.children if not child.is_named), "")
        if name is not None and name.type == "variable_name" and _SETS.fullmatch(operator):
            self._set(self._parsed.text(name), "0")

    def _on_function(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is None or body is None:
            return
        called = self._parsed.text(name)
        parent = self._parents.get(node.id)
        if parent is not None and parent.type == "program":
            self._functions.add(called)
        if self._is_fork_bomb(body, called):
            self._hit("shell.fork_bomb", self._parsed.text(node))

    def _is_fork_bomb(self, body: Node, name: str) -> bool:
        """Whether a function calls itself twice in one pipeline, or itself in the background."""
        calls = sum(name in self._named(each) for each in self._order.below(body, "command"))
        if not calls:
            return False
        return bool(self._order.below(body, "&")) or (
            calls > 1 and bool(self._order.below(body, "pipeline"))
        )

    def _on_pipeline(self, node: Node) -> None:
        stages = [child for child in node.named_children if child.type != "comment"]
        redirect = self._parents.get(node.id)
        if redirect is not None and redirect.type == "heredoc_redirect":
            stages = [
                self._parents[redirect.id],
                *stages,
            ]  # `cat <<END | sh`: the grammar puts the rest in here
        text: str | None = None
        names: frozenset[str] = frozenset()
        for index, stage in enumerate(stages):
            if index:
                for command in self._order.below(stage, "command"):
                    self._stdin.setdefault(command.id, (text, names))
            text = self._printed(stage, text)
            names |= self._names(stage)
        if names & SHELLS and names & _NETCATS:
            self._hit("shell.reverse_shell", self._parsed.text(node))

    def _on_heredoc(self, node: Node) -> None:
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        if body is not None and not self._is_literal(node):
            self._loose(shell_loose.loose_text(self._parsed, body))

    def _is_literal(self, heredoc: Node) -> bool:
        """Whether its text is not expanded: any quote in the word that ends it will do."""
        start = next((c for c in heredoc.children if c.type == "heredoc_start"), None)
        return start is not None and any(quote in self._parsed.text(start) for quote in "'\"\\")

    def _on_expansion(self, node: Node) -> None:
        text = self._parsed.text(node)
        if shell_loose.is_prompt(text):
            self._hit("shell.obfuscated", text)
        above = self._parents.get(node.id)
        while above is not None and above.type not in _EXPANDED:
            above = self._parents.get(above.id)
        # Within another expansion it is read as a part of that.
        if above is None or above.type == "command_substitution":
            self._loose(shell_loose.loose_text(self._parsed, node))

    def _on_substitution(self, node: Node) -> None:
        if self._parsed.slice(node.start_byte, node.start_byte + 1) == "`":
            text = self._parsed.text(node)
            if "\\`" in text:  # more of them within
                self._inner(shell_loose.unescaped(text[1:-1]))

    def _on_background(self, node: Node) -> None:
        self._hit("shell.background", "&")

    def _on_redirect(self, node: Node) -> None:
        operator = next((child.type for child in node.children if not child.is_named), ">")
        targets = [child for child in node.named_children if child.type != "file_descriptor"][:1]
        for target in self._words.list(targets):
            if operator.startswith("<"):
                continue  # every word is checked for paths that matter to readers
            if rule := shell_paths.written(target) or shell_paths.made(operator, target):
                self._hit(rule, f"{operator} {target}")

    # Commands ----------------------------------------------------------------------------------

    def _on_command(self, node: Node) -> None:
        nodes = self._words_of(node)
        words = self._words.list(nodes)
        rounds = [words]
        for pick in range(self._words.alternatives - 1):
            others = self._words.list(nodes, pick)
            if others not in rounds:
                rounds.append(others)
        other_path = self._reader.other_path
        for child in node.children:
            if child.type == "variable_assignment":  # `PATH=. cat`
                self._node = child
                self._assign(child)
        self._node = node
        heredoc = self._heredoc(node)
        stdin, feeders = self._stdin.get(node.id, (None, frozenset()))
        for each in rounds:
            self._command(each, heredoc if heredoc is not None else stdin, feeders, 0)
        self._reader.other_path = self._lasting_path or other_path
        self._lasting_path = ""

    def _on_variables(self, args: list[str]) -> None:
        """``env PATH=. cat``."""
        for arg in args:
            name, sign, value = arg.partition("=")
            if sign and name.isidentifier():
                self._set(name, value)
            elif not arg.startswith("-"):
                break

    def _on_setting(self, name: str, args: list[str]) -> None:
        """A command that sets variables by their names: ``printf -v PATH .``."""
        other_path, self._reader.other_path = self._reader.other_path, ""
        for variable, value in shell_setters.variables(name, args):
            if is_known(value):
                self._words.assign(variable, value)
            if shell_loose.has_command_in_subscript(value):
                self._hit("shell.obfuscated", value)
                self._loose(value)
            self._set(variable, value)
        self._lasting_path = self._lasting_path or self._reader.other_path
        self._reader.other_path = other_path

    def _set(self, name: str, value: str) -> None:
        if rule := shell_commands.assigned(name, value):
            self._hit(rule, f"{name}={value}")
        if shell_commands.changes_programs(name, value):
            self._reader.other_path = name

    def _on_declaration(self, node: Node) -> None:
        name = self._parsed.text(node.children[0]) if node.children else ""
        self._hit("shell.command", name)
        if name == "export" and node.child_count == 1:
            self._hit("shell.environment", name)
        rest = [self._parsed.text(child) for child in node.named_children]
        for rule in shell_commands.broken(name, rest):
            self._hit(rule, " ".join([name, *rest]))

    def _on_test(self, node: Node) -> None:
        self._hit("shell.command", "[" if self._parsed.text(node).startswith("[") else "test")

    def _command(
        self, words: list[str], stdin: str | None, feeders: frozenset[str], level: int
    ) -> None:
        while words and not words[0]:
            words = words[1:]  # an empty expansion: the next word is the command
        if not words:
            return
        self._reader.effort.look()
        self._reader.commands += 1
        if level > _DEEPEST or self._reader.commands > _MOST_COMMANDS:
            self._hit("shell.too_deep", " ".join(words))
            return
        whole = " ".join(words)
        folder, slash, name = words[0].rpartition("/")
        if not is_known(words[0]) or any(letter in name for letter in "*?") or not name:
            self._hit("shell.dynamic_command", whole)
            if DOWNLOADED in words[0]:
                self._hit("shell.pipe_to_shell", whole)
            return
        if level or words[0] not in self._functions:
            self._hit("shell.command", name)
            if slash and not shell_paths.is_system_folder(folder):
                self._hit("shell.command", words[0])  # another program of that name
            elif self._reader.other_path:
                self._hit("shell.command", f"{self._reader.other_path}=… {name}")
        args = words[1:]
        if name in ("env", "sudo", "doas"):
            self._on_variables(args)
        for rule in dict.fromkeys(shell_commands.broken(name, args)):
            self._hit(rule, whole)
        if name in shell_setters.NAMES:
            self._on_setting(name, args)
        self._note_downloads(name, args)
        if name in ("nohup", "disown", "setsid", "screen", "tmux", "daemonize"):
            self._hit("shell.background", whole)
        self._interpreter(name, args, whole, stdin, feeders)
        for inside in shell_wrappers.insides(name, args, stdin):
            if shell_wrappers.is_hidden(name) and not inside.is_usual:
                self._hit("shell.hidden_command", whole)
            if inside.text is None:
                self._command(inside.words, stdin, feeders, level + 1)
                self._check(inside.words[:50])
            else:
                if name == "eval" and not is_known(inside.text):
                    if self._prints_a_hook():
                        continue
                    self._hit("shell.obfuscated", whole)
                self._inner(inside.text)

    def _prints_a_hook(self) -> bool:
        """``eval "$(conda shell.bash hook)"`` and its like: how such tools are set up."""
        names = self._names(self._node) - {"eval"}
        return bool(names) and all(map(_HOOK_PRINTERS.match, names))

    def _interpreter(
        self, name: str, args: list[str], whole: str, stdin: str | None, feeders: frozenset[str]
    ) -> None:
        """A program that runs code from its arguments, its input or a file."""
        is_shell, is_python = name in SHELLS, PYTHON.fullmatch(name) is not None
        is_script = name in ("source", ".") or name in _NODES or _SCRIPTS.fullmatch(name)
        if not (is_shell or is_python or is_script or name in self._reader.downloads):
            return
        code, script = given(name, args)
        said = code or script or ""
        if DOWNLOADED in said:
            self._hit("shell.pipe_to_shell", whole)
        elif DECODED in said:
            self._hit("shell.obfuscated", whole)
        if (script or name).rpartition("/")[2] in self._reader.downloads:
            self._hit("shell.run_download", whole)
        if (
            is_shell
            and any(re.fullmatch(r"-\w*i\w*", arg) for arg in args)
            and self._has_connection
        ):
            self._hit("shell.reverse_shell", whole)
        if code is None and (script is None or script in ("-", "/dev/stdin", "/proc/self/fd/0")):
            code = self._from_input(whole, stdin, feeders)
        if code is None:
            return
        if is_shell:
            self._inner(code)
        elif is_python:
            self._embed("python", code)
        elif name in _NODES:
            self._embed("javascript", code)
        elif _SCRIPTS.fullmatch(name):
            self._hit("shell.other_language", whole)

    def _from_input(self, whole: str, stdin: str | None, feeders: frozenset[str]) -> str | None:
        """The code that an interpreter reads from a pipe or a here-document."""
        if feeders & DOWNLOADERS or (stdin and DOWNLOADED in stdin):
            self._hit("shell.pipe_to_shell", whole)
            return None
        if feeders & DECODERS:
            self._hit("shell.obfuscated", whole)
        elif feeders and stdin is None:
            self._hit("shell.dynamic_command", whole)
        return stdin

    def _note_downloads(self, name: str, args: list[str]) -> None:
        if name not in DOWNLOADERS:
            return
        for option, value in zip(args, [*args[1:], ""], strict=False):
            if option in ("-o", "-O", "--output", "--output-document") and value:
                self._reader.downloads.add(value.rpartition("/")[2])
            elif "://" in option and is_known(option):
                base = option.split("?")[0].rpartition("/")[2]
                if re.search(r"\w\.(sh|py|pl|rb|js|run|bin)$", base):
                    self._reader.downloads.add(base)

    # What parts print --------------------------------------------------------------------------

    def _heredoc(self, command: Node) -> str | None:
        """The text of a here-document or here-string of this command."""
        parent = self._parents.get(command.id)
        redirects = list(command.children)
        if parent is not None and parent.type == "redirected_statement":
            redirects += parent.children
        for redirect in redirects:
            if redirect.type == "herestring_redirect":
                return "".join(self._words.list(redirect.named_children[-1:])) + "\n"
            if redirect.type == "heredoc_redirect":
                body = next((c for c in redirect.children if c.type == "heredoc_body"), None)
                if body is None:
                    continue
                literal = self._is_literal(redirect)
                text = self._parsed.text(body) if literal else self._words.fold(body)
                return _TABS.sub("", text) if redirect.children[0].type == "<<-" else text
            if redirect.type == "file_redirect" and redirect.children[0].type == "<":
                target = self._words.list(redirect.named_children[:1])
                if target and not is_known(target[0]):
                    return target[0]  # `bash < <(curl …)`
        return None

    def _words_of(self, command: Node) -> list[Node]:
        return words_of(command, self._parents.get(command.id))

    def _printed(self, stage: Node, stdin: str | None) -> str | None:
        command = stage
        if stage.type == "redirected_statement" and stage.named_children:
            command = stage.named_children[0]
        if command.type != "command":
            return None
        heredoc = self._heredoc(command)
        return printed(
            self._words.list(self._words_of(command)), stdin if heredoc is None else heredoc
        )

    def _output(self, node: Node) -> str:
        """What a substitution comes to: text if it is known, else the mark of what it is."""
        self._outputs += 1
        if self._nesting >= _NESTED or self._outputs > _MOST_OUTPUTS:
            return UNKNOWN
        self._nesting += 1
        try:
            statements = [child for child in node.named_children if child.type != "comment"]
            if len(statements) == 1:
                is_pipeline = statements[0].type == "pipeline"
                stages = statements[0].named_children if is_pipeline else statements
                output: str | None = None
                for stage in stages[:8]:
                    output = self._printed(stage, output)
                if output is not None:
                    return output
        finally:
            self._nesting -= 1
        names = self._names(node)
        if names & DOWNLOADERS:
            return DOWNLOADED
        return DECODED if names & (DECODERS - {"sed", "awk", "tr"}) else UNKNOWN

    def _names(self, node: Node) -> frozenset[str]:
        """The commands below a node, wrappers and what they wrap, by their plain names."""
        if (known := self._known_names.get(node.id)) is not None:
            return known
        names = frozenset[str]().union(*map(self._named, self._order.below(node, "command")))
        self._known_names[node.id] = names
        return names

    def _named(self, command: Node) -> frozenset[str]:
        """The command and what it wraps."""
        if (known := self._names_of_commands.get(command.id)) is not None:
            return known
        names: set[str] = set()
        for word in self._words_of(command)[:6]:
            text = self._parsed.slice(word.start_byte, min(word.end_byte, word.start_byte + _NAME))
            if word.type in ("word", "command_name") and (not names or text[:1] != "-"):
                names.add(text.replace("\\", "").strip("\"'").rpartition("/")[2])
            if not shell_wrappers.is_wrapper(text):
                break
        self._names_of_commands[command.id] = frozenset(names)
        return self._names_of_commands[command.id]


_HANDLERS: Final = {
    "variable_assignment": Text._on_assignment,
    "for_statement": Text._on_for,
    "binary_expression": Text._on_sum,
    "function_definition": Text._on_function,
    "pipeline": Text._on_pipeline,
    "&": Text._on_background,
    "file_redirect": Text._on_redirect,
    "command": Text._on_command,
    "declaration_command": Text._on_declaration,
    "unset_command": Text._on_declaration,
    "test_command": Text._on_test,
    "heredoc_redirect": Text._on_heredoc,
    "expansion": Text._on_expansion,
    "command_substitution": Text._on_substitution,
}
