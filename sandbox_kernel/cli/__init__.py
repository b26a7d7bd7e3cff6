"""The `sandbox-kernel` command. Each subcommand is a module here, imported only when called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

SUBCOMMANDS: Final = {
    "launch": "start the kernel on a connection file (what kernel.json calls)",
    "run": "run notebooks in the sandbox and show each cell's result",
    "doctor": "whether sandboxes run on this host, and what to type where they do not",
    "policy": "list, show and explain policies, and check notebooks against one",
    "audit": "what cells did: list, show, verify, export and keep the log of it",
    "image": "build and list the images of the container levels",
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["launch"]:
        # Every kernel starts here: not even argparse is loaded before the sandbox.
        from sandbox_kernel.cli import launch

        return launch.main(arguments[1:])
    return _main(arguments)


def _main(arguments: Sequence[str]) -> int:
    import argparse
    import importlib

    from sandbox_kernel import __version__

    parser = argparse.ArgumentParser(
        prog="sandbox-kernel", description="Sandboxed Python for Jupyter."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for name, summary in SUBCOMMANDS.items():
        subparsers.add_parser(name, help=summary, add_help=False)
    chosen = parser.parse_args(arguments[:1]).subcommand
    module = importlib.import_module(f"sandbox_kernel.cli.{chosen}")
    return int(module.main(arguments[1:]))
