"""An image from a base, a flavour's lock file and what the user adds; built without network."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from docker.errors import DockerException
from requests import RequestException

from sandbox_kernel import __version__
from sandbox_kernel.errors import ImageError
from sandbox_kernel.images import Report
from sandbox_kernel.images.base import DEBIAN, find_base, image_id, probe
from sandbox_kernel.images.includes import read_all
from sandbox_kernel.images.lock import read_lock
from sandbox_kernel.images.wheels import fetch
from sandbox_kernel.isolation.engine import reason_of
from sandbox_kernel.isolation.images import ImageRecord, default_tag, full_tag, record
from sandbox_kernel.paths import images_directory

if TYPE_CHECKING:
    from docker import APIClient

_PYTHON_LABEL: Final = "sandbox-kernel.python"
_INPUTS_LABEL: Final = "sandbox-kernel.inputs"
# "Step 1/9 : FROM …"; Podman counts per stage: "[1/2] STEP 1/5: FROM …".
_STEP: Final = re.compile(r"(?:\[\d+/\d+\] )?step (\d+)/(\d+) ?: *(\S+)", re.IGNORECASE)
_SAID_CHARACTERS: Final = 1200


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """What is to be built."""

    flavor: str
    requirements: Path | None = None  # more packages, on top of the flavour's
    base: str = DEBIAN
    mirror: str | None = None  # of Debian's packages
    tag: str | None = None  # the flavour's own
    anew: bool = False  # nothing is reused, the Debian base included

    @property
    def lock(self) -> Path:
        return images_directory() / self.flavor / "requirements.txt"


def build_image(client: APIClient, request: ImageRequest, report: Report) -> ImageRecord:
    """The image, recorded: found if the engine has one of exactly these inputs, else built."""
    tag = full_tag(request.tag or default_tag(request.flavor))
    try:
        report("looking for the base", 0, 0)
        base = find_base(
            client, request.base, anew=request.anew, report=report, mirror=request.mirror
        )
        inputs = inputs_of(request, base)
        found = None if request.anew else _of_inputs(client, inputs)
        if found is None:
            _build(client, request, base, inputs, tag, report)
        else:
            client.tag(found, *tag.rsplit(":", 1))
        image = _record_of(client, tag, request.flavor, base)
    except (DockerException, RequestException) as error:
        what = f"The engine could not do its part of the build: {reason_of(error)}."
        hint = (
            "See the engine's log; its disk may be full (`docker system df`). Then build again: "
            "what is done already is not done twice."
        )
        raise ImageError(what, hint=hint) from error
    record(image)
    return image


def inputs_of(request: ImageRequest, base: str) -> str:
    """A digest of all that an image is made from; what pip makes of unpinned names is not in it."""
    parts = [
        __version__.encode(),
        request.flavor.encode(),
        base.encode(),
        _dockerfile().read_bytes(),
        request.lock.read_bytes(),
        *(read_all(request.requirements) if request.requirements else [b""]),
    ]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def _dockerfile() -> Path:
    return images_directory() / "Dockerfile"


def _of_inputs(client: APIClient, inputs: str) -> str | None:
    """The image of exactly these inputs. What was built on top of it has its labels, and is not it."""
    for found in client.images(filters={"label": f"{_INPUTS_LABEL}={inputs}"}):
        newest, *_ = client.history(found["Id"])
        # The label is the last step of the Dockerfile; whatever is built on top adds a step.
        if "LABEL" in newest["CreatedBy"] and inputs in newest["CreatedBy"]:
            return image_id(found)
    return None


def _record_of(client: APIClient, tag: str, flavor: str, base: str) -> ImageRecord:
    inspected = client.inspect_image(tag)
    return ImageRecord(
        id=image_id(inspected),
        flavor=flavor,
        tag=tag,
        python=inspected["Config"]["Labels"][_PYTHON_LABEL],
        base=base,
        size_bytes=int(inspected["Size"]),
        built_at=_seconds(inspected["Created"]),
    )


def _seconds(created: str) -> str:
    return datetime.fromisoformat(created).astimezone(UTC).isoformat(timespec="seconds")


# The build itself ------------------------------------------------------------------------------


def _build(
    client: APIClient, request: ImageRequest, base: str, inputs: str, tag: str, report: Report
) -> None:
    target = probe(client, base, request.base)
    arguments = {
        "BASE": base,
        "FLAVOR": request.flavor,
        "VERSION": __version__,
        "PYTHON": target.python,
        "INPUTS": inputs,
    }
    with tempfile.TemporaryDirectory(prefix="sandbox-kernel-image-") as place:
        wheels = Path(place, "wheels")
        wheels.mkdir()
        pins = read_lock(request.lock)
        more = fetch(target, request.lock, pins, request.requirements, wheels, report)
        requirements = "".join(f"{pin}\n" for pin in [*pins, *more])
        context = Path(place, "context.tar")
        with context.open("wb") as file:
            write_context(file, requirements, wheels.glob("*.whl"))
        report("sending the wheels to the engine", 0, 0)
        with context.open("rb") as file:
            build_context(client, file, tag, arguments, anew=request.anew, report=report)


def build_context(
    client: APIClient,
    context: IO[bytes],
    tag: str,
    arguments: Mapping[str, str],
    *,
    anew: bool,
    report: Report,
) -> None:
    """Have the engine build what ``write_context`` has put together."""
    progress = client.build(
        fileobj=context,
        custom_context=True,
        tag=tag,
        rm=True,
        forcerm=True,
        nocache=anew,
        network_mode="none",
        buildargs=arguments,
        # A proxy's password would stay in the image's history, and nothing is fetched.
        use_config_proxy=False,
        decode=True,
    )
    follow(progress, report)


def write_context(file: IO[bytes], requirements: str, wheels: Iterable[Path]) -> None:
    """What the Dockerfile needs; the same bytes for the same files, for the engine's cache."""
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in (
            ("Dockerfile", _dockerfile().read_bytes()),
            ("requirements.txt", requirements.encode()),
        ):
            archive.addfile(_entry(name, len(data)), io.BytesIO(data))
        for wheel in sorted(wheels):
            with wheel.open("rb") as content:
                archive.addfile(_entry(f"wheels/{wheel.name}", wheel.stat().st_size), content)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry


def follow(progress: Iterable[Mapping[str, Any]], report: Report) -> None:
    """Report a build's steps until its end; raise what it failed with."""
    said = ""
    for event in progress:
        line = event.get("stream", "")
        if step := _STEP.match(line):
            report(f"building: {step[3].lower()}", int(step[1]) - 1, int(step[2]))
            said = ""
        elif "error" in event:
            failed = " ".join(str(event["error"]).split())
            what = f"The build failed: {failed}. The step printed: {said.strip()!r}."
            hint = (
                "If it names a package, see whether it has a wheel for this base's Python; `--base` "
                "chooses another base."
            )
            raise ImageError(what, hint=hint)
        else:
            said = (said + line)[-_SAID_CHARACTERS:]
