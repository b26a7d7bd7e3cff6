"""What an image is built on: one that the engine has, or a small Debian made on this host."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from docker.errors import APIError, NotFound

from sandbox_kernel.errors import ImageError
from sandbox_kernel.images import Report
from sandbox_kernel.images.wheels import Target
from sandbox_kernel.isolation.engine import reason_of
from sandbox_kernel.isolation.owner import OWNER, owner_label

if TYPE_CHECKING:
    from docker import APIClient

DEBIAN: Final = "debian"  # what `--base` calls the one that is made here
SUITE: Final = "bookworm"
DEBIAN_REPOSITORY: Final = "sandbox-kernel-base"
DEBIAN_TAG: Final = f"{DEBIAN_REPOSITORY}:{SUITE}"
_PACKAGES: Final = "python3,python3-venv,ca-certificates"
# Of no use in a sandbox: what was fetched, and what only people read.
_LEFTOVERS: Final = (
    *("var/cache/apt", "var/lib/apt/lists", "var/log", "var/cache/debconf"),
    *("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale"),
)
_OLDEST_PYTHON: Final = (3, 11)
# Runs in the base: which wheels fit it, and whether it can make an environment.
_PROBE: Final = """
import ensurepip, json, platform, sys, venv
print(json.dumps({
    "version": sys.version_info[:3],
    "implementation": sys.implementation.name,
    "flags": sys.abiflags,
    "machine": platform.machine(),
    "libc": platform.libc_ver(),
}))
"""
_PROBE_SECONDS: Final = 60
_PROBE_PROCESSES: Final = 64
_PROBE_BYTES: Final = 512 << 20


def find_base(
    client: APIClient, name: str, *, anew: bool, report: Report, mirror: str | None = None
) -> str:
    """The id of the base; Debian is made if it is not there yet, or if it is wanted ``anew``.

    ``mirror`` is where Debian's packages come from, if not from Debian's own server.
    """
    tag = DEBIAN_TAG if name == DEBIAN else name
    if not (anew and name == DEBIAN):
        with contextlib.suppress(NotFound):  # then it is made, or refused below
            return image_id(client.inspect_image(tag))
    if name != DEBIAN:
        what = f"The engine has no image {name} to build on."
        hint = (
            f"Get it first (`docker pull {name}`), or leave `--base` out for a Debian that is made "
            "on this host."
        )
        raise ImageError(what, hint=hint)
    _make_debian(client, report, mirror)
    return image_id(client.inspect_image(tag))


def image_id(inspected: dict[str, Any]) -> str:
    """With its algorithm, which Podman leaves out."""
    found = str(inspected["Id"])
    return found if ":" in found else f"sha256:{found}"


# Debian ----------------------------------------------------------------------------------------


def _make_debian(client: APIClient, report: Report, mirror: str | None) -> None:
    if os.geteuid() != 0:
        what = "Only root can make the Debian base: debootstrap owns its files and mounts in it."
        hint = (
            "Use sudo once, the base stays in the engine; or build on an image you have, any with "
            "Python ≥ 3.11: `--base IMAGE`."
        )
        raise ImageError(what, hint=hint)
    if shutil.which("debootstrap") is None:
        what = "debootstrap, which makes the Debian base, is not installed."
        hint = "Install it (`apt-get install debootstrap`), or build on an image you have: `--base IMAGE`."
        raise ImageError(what, hint=hint)
    with tempfile.TemporaryDirectory(prefix="sandbox-kernel-base-") as place:
        root = Path(place, "root")
        _debootstrap(root, report, mirror)
        report("packing Debian", 0, 0)
        for leftover in _LEFTOVERS:
            shutil.rmtree(root / leftover, ignore_errors=True)
            (root / leftover).mkdir(parents=True)
        archive = Path(place, "root.tar")
        pack = ["tar", "--numeric-owner", "--one-file-system", "-cf", str(archive), "."]
        subprocess.run(pack, cwd=root, check=True)
        report("importing Debian", 0, 0)
        answer = client.import_image(str(archive), repository=DEBIAN_REPOSITORY, tag=SUITE)
        if '"error"' in answer:
            what = f"The engine did not take the Debian base: {answer.strip()[-300:]!r}."
            hint = "See the engine's log; its disk may be full (`docker system df`)."
            raise ImageError(what, hint=hint)


def _debootstrap(root: Path, report: Report, mirror: str | None) -> None:
    report("making Debian", 0, 0)
    command = [
        # Wherever the packages come from, they are Debian's: without its keys it would not look.
        *("debootstrap", "--force-check-gpg", "--variant=minbase", f"--include={_PACKAGES}"),
        *(SUITE, str(root), *([] if mirror is None else [mirror])),
    ]
    said: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said = [*said[-5:], line.strip()]
            report(f"making Debian: {line.strip().removeprefix('I: ').lower()}", 0, 0)
    if process.returncode != 0:
        what = f"debootstrap failed. It said: {' '.join(said)!r}."
        hint = (
            "It needs Debian's package server or a copy of it (`--mirror URL`), Debian's keys "
            "(package debian-archive-keyring) and the right to mount; or build on an image you "
            "have: `--base IMAGE`."
        )
        raise ImageError(what, hint=hint)


# What wheels fit -------------------------------------------------------------------------------


def probe(client: APIClient, base: str, name: str) -> Target:
    """The Python of the base, asked in a container that can do nothing else."""
    try:
        status, said = _run(client, base, ["python3", "-I", "-c", _PROBE])
    except APIError as error:
        status, said = 1, reason_of(error)
    if status != 0:
        raise _unfit(name, f"It said: {said.strip()[-300:]!r}.")
    facts = json.loads(said)
    major, minor, micro = facts["version"]
    libc, libc_version = facts["libc"]
    if (major, minor) < _OLDEST_PYTHON or facts["implementation"] != "cpython":
        raise _unfit(name, f"It has {facts['implementation']} {major}.{minor}.")
    if libc != "glibc":
        raise _unfit(name, "It has no glibc, which wheels for Linux are made for.")
    return Target(
        python=f"{major}.{minor}.{micro}",
        abi=f"cp{major}{minor}{facts['flags']}",
        machine=facts["machine"],
        glibc_minor=int(libc_version.split(".")[1]),
    )


def _unfit(name: str, why: str) -> ImageError:
    return ImageError(
        f"The image {name} cannot be built on. {why}",
        hint="It needs `python3`, CPython 3.11 or newer with venv and ensurepip (on Debian: "
        "`python3-venv`), and glibc.",
    )


def _run(client: APIClient, image: str, command: list[str]) -> tuple[int, str]:
    with _container(client, image, command) as container:
        client.start(container)
        status = client.wait(container, timeout=_PROBE_SECONDS)["StatusCode"]
        # Of a failed one also what it complains about.
        said = client.logs(container, stdout=True, stderr=bool(status))
        return int(status), said.decode(errors="replace")


@contextlib.contextmanager
def _container(client: APIClient, image: str, command: list[str]) -> Iterator[str]:
    settings = client.create_host_config(
        network_mode="none",
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        pids_limit=_PROBE_PROCESSES,
        mem_limit=_PROBE_BYTES,
    )
    made = client.create_container(
        image,
        entrypoint=command,
        command=[],
        user="65534:65534",
        host_config=settings,
        # If this process is killed, a later kernel removes it.
        labels={OWNER: owner_label(os.getpid())},
    )
    try:
        yield made["Id"]
    finally:
        client.remove_container(made["Id"], v=True, force=True)
