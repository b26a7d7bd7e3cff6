"""Which images were built: a private file, so that a sandbox starts from a digest, not from a name."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sandbox_kernel.errors import ImageError, SandboxUnavailable
from sandbox_kernel.paths import state_home
from sandbox_kernel.state_folder import open_state_folder

SCHEMA: Final = 1
FLAVORS: Final = ("python", "python-minimal")


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One built image. Its id is a digest: the engine cannot have another under it."""

    id: str
    flavor: str
    tag: str
    python: str
    base: str
    size_bytes: int
    built_at: str  # ISO 8601, UTC


def default_tag(flavor: str) -> str:
    return f"sandbox-kernel-{flavor}:latest"


def full_tag(name: str) -> str:
    """A name with its tag, as engines write it: a colon before the last slash is a port."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def records_path() -> Path:
    return state_home() / "images.json"


def recorded(flavor_or_tag: str) -> ImageRecord | None:
    """The image last built under a tag; a flavour stands for its default tag."""
    wanted = default_tag(flavor_or_tag) if flavor_or_tag in FLAVORS else full_tag(flavor_or_tag)
    return next((record for record in records() if record.tag == wanted), None)


def records() -> list[ImageRecord]:
    """All of them, the newest first."""
    path = records_path()
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise _unusable(path, str(error)) from error
    try:
        return _parsed(document)
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(path, f"it is not a list of images ({error})") from error


def record(image: ImageRecord) -> None:
    """Remember ``image`` as the one of its tag."""
    path = records_path()
    try:
        os.close(open_state_folder(path.parent))
        with _locked(path.with_suffix(".lock")):
            kept = [image, *(other for other in records() if other.tag != image.tag)]
            _replace(path, {"schema": SCHEMA, "images": [asdict(one) for one in kept]})
    except SandboxUnavailable as error:
        what = f"The image {image.id} was built, but {path} cannot be written. {error.what}"
        raise ImageError(what, hint=error.hint) from error
    except OSError as error:
        what = f"The image {image.id} was built, but {path} cannot be written: {error.strerror}."
        hint = (
            "Make it writable, or set SANDBOX_KERNEL_HOME to a directory that is; then build again, "
            "which takes a moment."
        )
        raise ImageError(what, hint=hint) from error


def _parsed(document: Any) -> list[ImageRecord]:
    if document["schema"] != SCHEMA:
        msg = f"schema {document['schema']!r} is not {SCHEMA}"
        raise ValueError(msg)
    return [ImageRecord(**image) for image in document["images"]]


def _unusable(path: Path, why: str) -> ImageError:
    return ImageError(
        f"The list of images {path} cannot be read: {why}.",
        hint="Remove it and build the images again (`sandbox-kernel image build`); what the engine "
        "has of them is used, so that takes a moment.",
    )


def _replace(path: Path, document: dict[str, Any]) -> None:
    """Whole or not at all: a reader sees the old list or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(document, file, indent=1)
    draft.replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two builds at once both get into the list."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
