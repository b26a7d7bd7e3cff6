"""Which level a kernel gets: the first that its policy prefers and this host has. Never a weaker one.

Chosen once, when the kernel starts: a sandbox that is lost is replaced by one of the same level, the
same image and the same engine, or by none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.base import Sandbox, SandboxSpec

if TYPE_CHECKING:
    from docker import APIClient

    from sandbox_kernel.policy.model import Level, Policy

# From weak to strong.
LEVELS: Final = ("process", "container", "gvisor")
# More than the enforcer allows, which can tell the user what happened: see `relay.lifecycle`.
OWN_TASKS: Final = 64
_PINNED: Final = re.compile(r"(?P<name>.*)@(?P<digest>sha256:[0-9a-f]{64})\Z")

Maker = Callable[[SandboxSpec], Sandbox]


class Chosen(NamedTuple):
    """A level that this host has, and how to make a sandbox of it."""

    level: Level
    make: Maker


def choose_level(policy: Policy) -> Chosen:
    """Raises ``SandboxUnavailable`` that says for each level why not."""
    isolation = policy.isolation
    refused: list[tuple[str, SandboxUnavailable]] = []
    for level in isolation.prefer:
        if LEVELS.index(level) < LEVELS.index(isolation.require):
            continue
        try:
            return Chosen(level, _MAKERS[level](policy))
        except SandboxUnavailable as error:
            refused.append((level, error))
    if len(refused) == 1:
        raise refused[0][1]
    reasons = " ".join(f"{level}: {error.what}" for level, error in refused)
    hints = " ".join(dict.fromkeys(error.hint for _, error in refused if error.hint))
    what = f"None of the levels that policy `{policy.name}` accepts can be had here. {reasons}"
    raise SandboxUnavailable(what, hint=hints)


def _process(_: Policy) -> Maker:
    from sandbox_kernel.isolation.process import ProcessSandbox, find_bwrap

    find_bwrap()
    return ProcessSandbox


def _container(policy: Policy) -> Maker:
    return _in_container(policy, "container", None)


def _gvisor(policy: Policy) -> Maker:
    return _in_container(policy, "gvisor", policy.isolation.runtime)


def _in_container(policy: Policy, level: str, runtime: str | None) -> Maker:
    from docker.errors import DockerException
    from requests import RequestException

    from sandbox_kernel.isolation.container import ContainerSandbox, ContainerSpec
    from sandbox_kernel.isolation.engine import connect, first_engine, unreachable

    address = first_engine()
    client = connect(address)
    try:
        about = client.info()
        name = name_of(client)
    except (DockerException, RequestException) as error:
        raise unreachable(address, error) from error
    if runtime is not None and runtime not in (known := about.get("Runtimes") or {}):
        raise _no_runtime(runtime, known)
    memory, processes = policy.limits.sandbox_memory_bytes, policy.limits.processes
    container = ContainerSpec(
        address=address,
        engine=f"{name} {runtime or about.get('DefaultRuntime') or ''}".strip(),
        image=find_image(client, policy.isolation.image),
        runtime=runtime,
        memory_bytes=None if memory is None else memory + memory // 8,
        processes=None if processes is None else processes + OWN_TASKS,
        policy_sha256=policy.sha256,
    )
    return lambda spec: ContainerSandbox(spec, container, level)


_MAKERS: Final[Mapping[str, Callable[[Policy], Maker]]] = {
    "process": _process,
    "container": _container,
    "gvisor": _gvisor,
}


def find_image(client: APIClient, wanted: str) -> str:
    """The id of an image, which cannot come to mean another one as a name can."""
    from docker.errors import APIError, ImageNotFound

    from sandbox_kernel.isolation.images import FLAVORS, default_tag, recorded

    pin = _PINNED.match(wanted)
    name = wanted if pin is None else pin["name"]
    record = recorded(name)
    reference = default_tag(name) if name in FLAVORS else name
    try:
        about = client.inspect_image(reference if record is None else record.id)
    except ImageNotFound as error:
        what = f"The engine has no image for {name!r}."
        hint = f"Build it: `sandbox-kernel image build --flavor {name}`, or name another in the "
        raise SandboxUnavailable(what, hint=f"{hint}policy's `isolation.image`.") from error
    except APIError as error:
        what = f"The engine refuses to tell of image {name!r}: {error.explanation}."
        hint = "`sandbox-kernel image list` shows what there is."
        raise SandboxUnavailable(what, hint=hint) from error
    found = str(about["Id"])
    if pin is not None and pin["digest"] not in (found, *_repository_digests(about)):
        what = f"The image {name!r} is not the one that the policy pins: it is {found}."
        hint = "See what has changed; then put its digest in the policy, or the old image back."
        raise SandboxUnavailable(what, hint=hint)
    return found


def _repository_digests(about: Mapping[str, Any]) -> list[str]:
    return [digest.rpartition("@")[2] for digest in about.get("RepoDigests") or ()]


def name_of(client: APIClient) -> str:
    """``docker`` or ``podman``."""
    components = client.version().get("Components") or ()
    return "podman" if any("Podman" in part.get("Name", "") for part in components) else "docker"


def _no_runtime(runtime: str, known: Mapping[str, Any]) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The engine has no runtime {runtime!r}; it has {', '.join(sorted(known)) or 'none'}.",
        hint='Install gVisor and add to the engine\'s daemon.json: "runtimes": {"runsc": {"path": '
        '"runsc", "runtimeArgs": ["--network=none", "--host-uds=open"]}}; then restart the engine.',
    )
