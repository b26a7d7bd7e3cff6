"""The differences from plain ipykernel that are meant, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Declared:
    """A difference that a frontend may see; patterns as in a shell."""

    request: str
    where: str
    what: str
    why: str


DECLARED: tuple[Declared, ...] = (
    Declared(
        request="*",
        where="*: kernel_info_reply.content.banner",
        what="the banner says that the kernel is sandboxed",
        why="who opens a console must see which kernel it is, and what protects the host",
    ),
    Declared(
        request="*",
        where="*execute_reply.metadata*",
        what="the reply's metadata have the receipt of the cell",
        why="what a cell used, and how it ended, belongs to its answer; under a key of its own",
    ),
    Declared(
        request="*",
        where="*.content.metadata*",
        what="an output's metadata have the id of the cell's receipt",
        why="it says which cell made the output, wherever the output is taken to",
    ),
    Declared(
        request="the notebook's folder can be written",
        where="*",
        what="the notebook's folder cannot be written",
        why="a cell must not change the user's files; temporary files can be written",
    ),
    *(
        Declared(
            request=request,
            where="*",
            what="an execute_request whose code is no text gets an error",
            why="it cannot be checked, so it must not get in; plain ipykernel never answers most of "
            "them, and evaluates the user_expressions of the others",
        )
        for request in (
            "an execute_request without code is not run",
            "code that is no text is not run",
        )
    ),
    Declared(
        request="*",
        where="iopub, outputs: stream.metadata",
        what="output that comes after the end of its cell has `late` in its metadata",
        why="whatever cells left running may add it to any cell that is over",
    ),
    Declared(
        request="what the kernel says unasked is the same",
        where="iopub for nobody: status",
        what="nothing is said of requests that no frontend sent",
        why="they are the inner kernel's own, and a cell could speak for requests still to come",
    ),
    *(
        Declared(
            request="a question between aborted cells is answered",
            where=where,
            what="an aborted cell is answered before a question that stood ahead of it",
            why="aborts are the wrapper's; one that waited for the inner kernel's answer to "
            "something else could wait for ever",
        )
        for where in ("iopub: status", "shell: execute_reply")
    ),
)
