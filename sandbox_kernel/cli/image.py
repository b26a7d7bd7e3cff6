"""`sandbox-kernel image`: build and list the images of the container levels."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandbox_kernel.errors import ImageError, SandboxUnavailable
from sandbox_kernel.isolation.images import FLAVORS, default_tag, records
from sandbox_kernel.words import size

_LIST_SECONDS: Final = 3.0  # a frozen engine is no reason not to list
_SHORT_ID: Final = 12  # as engines show it

if TYPE_CHECKING:
    from sandbox_kernel.images import Report


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options))
    except (ImageError, SandboxUnavailable) as error:
        print(f"sandbox-kernel image: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandbox-kernel image", description="Images that cells run in at the container levels."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    summary = "build an image, without network for the build, and print its id"
    build = commands.add_parser("build", help=summary, description=summary)
    build.set_defaults(run=_build)
    build.add_argument(
        "--flavor", choices=FLAVORS, default=FLAVORS[0], help="what is in it (%(default)s)"
    )
    build.add_argument(
        "-r",
        "--requirement",
        type=Path,
        metavar="FILE",
        help="more packages, as pip's requirements, on top of the flavour's",
    )
    build.add_argument(
        "--base",
        default="debian",
        metavar="IMAGE",
        help="an image of the engine with Python ≥ 3.11; `debian` (the default) is made on this "
        "host by debootstrap, once, and needs root for that",
    )
    build.add_argument(
        "--mirror",
        metavar="URL",
        help="where that Debian's packages come from: a copy of its server, such as "
        "file:///srv/debian, for a host without internet",
    )
    build.add_argument("--tag", help=f"its name (else such as {default_tag(FLAVORS[0])})")
    build.add_argument(
        "--no-cache", action="store_true", help="reuse nothing: get newer packages and Debian"
    )

    summary = "the images built here, and whether the engine has them still"
    listing = commands.add_parser("list", help=summary, description=summary)
    listing.set_defaults(run=_list)
    listing.add_argument("--json", action="store_true", help="print JSON")
    return parser


# build -----------------------------------------------------------------------------------------


def _build(options: argparse.Namespace) -> int:
    from sandbox_kernel.images.build import ImageRequest, build_image
    from sandbox_kernel.isolation.engine import connect

    request = ImageRequest(
        flavor=options.flavor,
        requirements=options.requirement,
        base=options.base,
        mirror=options.mirror,
        tag=options.tag,
        anew=options.no_cache,
    )
    with contextlib.closing(connect()) as client, _progress(request.flavor) as report:
        image = build_image(client, request, report)
    print(
        f"{image.tag}: Python {image.python}, {size(image.size_bytes)}, of {image.built_at}",
        file=sys.stderr,
    )
    print(image.id)
    return 0


@contextlib.contextmanager
def _progress(flavor: str) -> Iterator[Report]:
    """A bar on a terminal, and what is done now; elsewhere a line per stage."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _stages()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("[bold]{task.fields[flavor]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
    )
    with progress:
        task = progress.add_task("", total=None, flavor=flavor)

        def report(doing: str, done: int, total: int) -> None:
            progress.update(task, description=doing, completed=done, total=total or None)

        yield report


def _stages() -> Report:
    """`fetching numpy` is the stage `fetching`; one line of it is enough in a log."""
    seen: set[str] = set()

    def report(doing: str, _done: int, _total: int) -> None:
        stage = doing.split()[0]
        if stage not in seen:
            seen.add(stage)
            print(doing, file=sys.stderr, flush=True)

    return report


# list ------------------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
    found = records()
    present = _present([image.id for image in found])
    if options.json:
        images = [{**asdict(image), "present": present.get(image.id)} for image in found]
        print(json.dumps({"images": images}))
        return 0
    if not found:
        print("No image has been built here: `sandbox-kernel image build` builds one.")
        return 0
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "image", "Python", "size", "built", "id", box=SIMPLE_HEAD)
    for image in found:
        mark = {True: "✔", False: "✘", None: "?"}[present.get(image.id)]
        tag, built = image.tag.removesuffix(":latest"), image.built_at[: len("2000-01-01")]
        id = image.id.removeprefix("sha256:")[:_SHORT_ID]
        table.add_row(mark, Text(tag), image.python, size(image.size_bytes), built, id)
    Console(force_jupyter=False).print(table)
    if False in present.values():
        print("✘ the engine no longer has it: `sandbox-kernel image build` builds it again.")
    if not present:
        print("? no engine answers: whether it has them is not known.")
    return 0


def _present(ids: Sequence[str]) -> dict[str, bool]:
    """Which images the engine has; nothing if there is no engine to ask."""
    if not ids:
        return {}
    from docker.errors import DockerException
    from requests import RequestException

    from sandbox_kernel.isolation.engine import connect

    try:
        with contextlib.closing(connect(timeout=_LIST_SECONDS)) as client:
            return {id: _has(client, id) for id in ids}
    except (SandboxUnavailable, DockerException, RequestException):
        return {}


def _has(client: Any, id: str) -> bool:
    from docker.errors import NotFound

    try:
        client.inspect_image(id)
    except NotFound:
        return False
    return True
