"""`sandbox-kernel policy`: list, show and explain policies, and check notebooks against one."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sandbox_kernel.errors import PolicyError

SHIPPED: Final = ("trusted", "default", "strict", "paranoid")  # from loose to tight
COLOURS: Final = {"allow": "green", "warn": "yellow", "ask": "magenta", "deny": "red"}


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options))
    except PolicyError as error:
        print(f"sandbox-kernel policy: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandbox-kernel policy",
        description="What cells may do and use. A policy is a YAML file; default.yaml explains it.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, summary: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=summary, description=summary)
        found.set_defaults(run=run, parser=found)
        found.add_argument("--json", action="store_true", help="print JSON")
        return found

    command("list", _list, "all policies, where each is from, and the one a kernel would get")
    show = command("show", _show, "the files a policy is made of, or all that it comes to")
    show.add_argument("name", metavar="NAME", help="a policy's name, or an absolute path")
    show.add_argument("--effective", action="store_true", help="everything put together")
    check = command("check", _check, "what a policy says of notebooks; exits with 1 on a denial")
    check.add_argument("files", nargs="*", type=Path, metavar="FILE", help=".ipynb or .py")
    check.add_argument("-p", "--policy", help="name or path; else the one a kernel would get")
    check.add_argument(
        "--corpus",
        type=Path,
        metavar="FILE.jsonl.gz",
        help="count denials in many notebooks: a line each, an object with `cells`",
    )
    explain = command("explain", _explain, "a rule, and what each shipped policy decides; or all")
    explain.add_argument("rule", nargs="?", metavar="RULE", help="such as python.frames")
    explain.add_argument("about", nargs="?", metavar="NAME", help="of a module, command or magic")
    return parser


def _check(options: argparse.Namespace) -> int:
    from sandbox_kernel.cli.policy_check import check

    return check(options)


# list ------------------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
    from sandbox_kernel.policy.find import policy_names
    from sandbox_kernel.policy.levels import choose

    chosen = choose(None, os.environ)
    entries = [_entry(name) for name in policy_names()]
    if options.json:
        said = {"policy": chosen.policy, "said_by": chosen.said_by}
        print(json.dumps({"policies": entries, "chosen": said}))
        return 0
    from rich.table import Table

    table = Table("", "policy", "for trust", "from", "what it is")
    for entry in entries:
        mark = "✔" if entry["name"] == chosen.policy else ""
        what = entry["error"] or entry["summary"]
        table.add_row(mark, entry["name"], entry["trust"] or "", entry["from"], what)
    _print(table)
    why = f"so says {chosen.said_by}" if chosen.said_by else "nothing says otherwise"
    _print(f"✔ {chosen.policy} is what a kernel gets: {why}.")
    return 0


def _entry(name: str) -> dict[str, str | None]:
    """One policy; one that cannot be used is listed too, with the reason."""
    from sandbox_kernel.policy.find import directories
    from sandbox_kernel.policy.levels import TRUST
    from sandbox_kernel.policy.load import load_with_sources

    trust = next((level for level, policy in TRUST.items() if policy == name), None)
    entry: dict[str, str | None] = {"name": name, "trust": trust, "from": "", "path": None}
    try:
        loaded = load_with_sources(name)
    except PolicyError as error:
        return {**entry, "sha256": None, "summary": "", "error": str(error)}
    source = loaded.sources[-1]
    places = dict(zip(directories(), ("the system", "shipped", "the user"), strict=False))
    comments = [line for line in source.data.decode().splitlines() if line.startswith("# ")]
    said = [line[2:] for line in comments if not line.startswith("# yaml-language-server")]
    return {
        **entry,
        "from": places.get(source.path.parent, ""),
        "path": str(source.path),
        "sha256": loaded.policy.sha256,
        "summary": said[0] if said else "",
        "error": None,
    }


# show ------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace) -> int:
    from sandbox_kernel.policy.effective import as_document
    from sandbox_kernel.policy.load import load_with_sources

    policy, sources = load_with_sources(options.name)
    files = [{"path": str(source.path), "text": source.data.decode()} for source in sources]
    if options.json:
        what = {"effective": as_document(policy)} if options.effective else {"files": files}
        print(json.dumps({"name": policy.name, "sha256": policy.sha256, **what}))
        return 0
    if options.effective:
        text = _as_yaml(as_document(policy))
        shown = [f"# {policy.name}, sha256 {policy.sha256}\n{text}"]
    else:
        shown = [f"# {file['path']}\n{file['text']}" for file in files]
    _print_yaml("\n".join(shown))
    return 0


def _as_yaml(document: dict[str, Any]) -> str:
    """A key to a line, but lists of names in few lines."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def represent_list(self, data: Any) -> Any:
            return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    Dumper.add_representer(list, Dumper.represent_list)
    return yaml.dump(document, Dumper=Dumper, sort_keys=False, width=100, default_flow_style=False)


def _print_yaml(text: str) -> None:
    """Coloured on a terminal; elsewhere exactly the text, which can be saved as a policy."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.syntax import Syntax

    _print(Syntax(text, "yaml", background_color="default", word_wrap=True))


# explain ---------------------------------------------------------------------------------------


def _explain(options: argparse.Namespace) -> int:
    from sandbox_kernel.policy.load import load_policy
    from sandbox_kernel.policy.model import NAME_RULES
    from sandbox_kernel.policy.rules import all_ids, rule

    if options.rule is not None and options.rule not in all_ids():
        try:
            rule(options.rule)
        except KeyError as error:
            options.parser.error(error.args[0])
    if options.about is not None and options.rule not in NAME_RULES:
        options.parser.error(f"only {', '.join(NAME_RULES)} are about names")
    codes = {name: load_policy(name).code for name in SHIPPED}

    def decisions(id: str) -> dict[str, str]:
        if id in NAME_RULES and options.about is None:
            names = {name: getattr(code, NAME_RULES[id]) for name, code in codes.items()}
            return {name: f"by name, otherwise {found.otherwise}" for name, found in names.items()}
        return {name: code.decide(id, options.about or "") for name, code in codes.items()}

    wanted = [rule(id) for id in ([options.rule] if options.rule else all_ids())]
    explained = [{**found._asdict(), "decisions": decisions(found.id)} for found in wanted]
    if options.json:
        print(json.dumps(explained[0] if options.rule else explained))
    elif options.rule:
        _print_rule(explained[0], options.about)
    else:
        _print_rules(explained)
    return 0


def _print_rule(found: dict[str, Any], about: str | None) -> None:
    from rich.table import Table

    from sandbox_kernel.policy.backstops import in_words

    facts = Table(title=found["id"], title_justify="left", show_header=False)
    facts.add_row("risk", found["risk"])
    facts.add_row("why", _sentence(found["reason"]))
    facts.add_row("instead", _sentence(found["instead"]))
    facts.add_row("if the check is bypassed", in_words(found["backstop"]))
    _print(facts)
    table = Table("policy", f"decides about {about}" if about else "decides")
    for name, decision in found["decisions"].items():
        table.add_row(name, _coloured(decision))
    _print(table)


def _print_rules(explained: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("rule", "risk", *SHIPPED)
    for found in explained:
        words = [decision.removeprefix("by name, ") for decision in found["decisions"].values()]
        table.add_row(found["id"], found["risk"], *(_coloured(word) for word in words))
    _print(table)


def _coloured(decision: str) -> Any:
    from rich.text import Text

    return Text(decision, COLOURS.get(decision.rpartition(" ")[2], ""))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _print(what: Any) -> None:
    from rich.console import Console
    from rich.text import Text

    # Text as it is: square brackets in it are no markup.
    Console(force_jupyter=False).print(Text(what) if isinstance(what, str) else what)
