"""What an engine has of what a policy asks for: the first of its levels, and the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sandbox_kernel.errors import SandboxUnavailable
from sandbox_kernel.isolation.engine_http import Answer, Engine, EngineRefusal
from sandbox_kernel.isolation.wanted import Found, Missing, Wanted

DOCKER: Final = "docker"
PODMAN: Final = "podman"
NO_SUCH_IMAGE: Final = 404
REGISTER: Final = (
    'add to the engine\'s daemon.json: "runtimes": {"runsc": {"path": "runsc", "runtimeArgs": '
    '["--network=none", "--host-uds=open"]}}; then restart the engine'
)


class NothingFound(Exception):
    """The engine has none of the levels."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(", ".join(level for level, _ in missing))
        self.missing = missing


def choose(engine: Engine, wanted: Wanted) -> Found:
    """The first level that the engine has; raises ``NothingFound`` if it is known to have none.

    Where it is not known what it has, ``SandboxUnavailable``: not a reason for a weaker level. Nor is
    an image that is there but must not be used.
    """
    questions = ("/version", "/info", f"/images/{wanted.reference}/json")
    try:
        version, info, about_image = engine.ask(*questions)
    except SandboxUnavailable as error:
        if isinstance(error.__cause__, PermissionError):
            # That much is known: whatever the engine has, it is not for this user.
            raise _of_all(wanted, error) from error
        raise
    if isinstance(version, EngineRefusal):
        raise _untold(engine, version)
    if isinstance(info, EngineRefusal):
        raise _untold(engine, info)
    if (unfit := unmapped(engine.address, info)) is not None:
        raise _of_all(wanted, unfit)
    image = find_image(wanted, about_image)
    name = name_of(version)
    known = usable_runtimes(name, info)
    for level, runtime in wanted.levels:
        if runtime is None or runtime in known:
            return Found(level, runtime, image, name, has_labels(info))
    refuse = _other_runtime if name == PODMAN else _no_runtime
    raise NothingFound([(level, refuse(runtime, known)) for level, runtime in wanted.levels])


def usable_runtimes(engine: str, info: Mapping[str, Any]) -> list[str]:
    """Those that a container can be started with.

    Podman lists all that it has heard of, there or not. Its side of the API ignores which one it is
    asked for, and takes its default: a container would run without its second kernel, and say so
    nowhere.
    """
    if engine == PODMAN:
        default = str(info.get("DefaultRuntime") or "")
        return [Path(default).name] if default else []
    return sorted(info.get("Runtimes") or {})


def has_labels(info: Mapping[str, Any]) -> bool:
    """Whether the engine gives containers SELinux labels of their own."""
    return "name=selinux" in _security_options(info)


def _security_options(info: Mapping[str, Any]) -> list[str]:
    return [str(option).split(",")[0] for option in info.get("SecurityOptions") or ()]


def _untold(engine: Engine, refusal: EngineRefusal) -> SandboxUnavailable:
    what = f"The engine at {engine.address} refuses to tell of itself: {refusal.explanation}."
    return SandboxUnavailable(what, hint="See its log; the next cell asks it again.")


def _of_all(wanted: Wanted, error: SandboxUnavailable) -> NothingFound:
    """What is missing at whatever level."""
    return NothingFound([(level, error) for level, _ in wanted.levels])


def unmapped(address: str, info: Mapping[str, Any]) -> SandboxUnavailable | None:
    """Why an engine that has users of its own cannot run a sandbox; ``None``: it has the host's.

    It has some 65,000 of them. A sandbox's is none of these, and what is his on the host, sockets
    above all, is not his inside.
    """
    options = _security_options(info)
    if "name=rootless" in options or info.get("Rootless") is True:
        how = "runs without root"
    elif "name=userns" in options:
        how = "remaps users (`userns-remap`)"
    else:
        return None
    return SandboxUnavailable(
        f"The container engine at {address} {how}: it does not have the user that a sandbox runs as.",
        hint="Set DOCKER_HOST to an engine that runs as root and does not remap users, such as "
        "unix:///run/docker.sock or unix:///run/podman/podman.sock; or prefer the level `process`.",
    )


def find_image(wanted: Wanted, about: Answer) -> str:
    """Its id; raises ``NothingFound`` if there is none.

    ``SandboxUnavailable`` if the engine does not say, or has one that no sandbox may start from.
    """
    name = wanted.image
    if isinstance(about, EngineRefusal):
        if about.status == NO_SUCH_IMAGE:
            what = f"The engine has no image for {name!r}."
            from sandbox_kernel.isolation.images import FLAVORS

            option = "flavor" if name in FLAVORS else "tag"
            hint = (
                f"Build it (`sandbox-kernel image build --{option} {name}`), load it into the engine, "
                "or name another in the policy's `isolation.image`."
            )
            missing = SandboxUnavailable(what, hint=hint)
            raise _of_all(wanted, missing) from about
        what = f"The engine refuses to tell of image {name!r}: {about.explanation}."
        hint = "`sandbox-kernel image list` shows what there is."
        raise SandboxUnavailable(what, hint=hint) from about
    # With its algorithm, which Podman leaves out.
    found = str(about["Id"])
    found = found if ":" in found else f"sha256:{found}"
    if wanted.digest is not None and wanted.digest not in (found, *_repository_digests(about)):
        what = f"The image {name!r} is not the one that the policy pins: it is {found}."
        hint = "See what has changed; then put its digest in the policy, or the old image back."
        raise SandboxUnavailable(what, hint=hint)
    if volumes := (about.get("Config") or {}).get("Volumes"):
        raise _with_volumes(name, sorted(volumes))
    return found


def _with_volumes(name: str, places: Sequence[str]) -> SandboxUnavailable:
    """The engine makes one for every container, and its API has nothing to turn that off with."""
    return SandboxUnavailable(
        f"The image {name!r} declares volumes ({', '.join(places)}): the engine would make folders on "
        "the host's disk for them, which cells could write to until it is full.",
        hint="Build it without `VOLUME`, on a base that has none either; or name another image in the "
        "policy's `isolation.image`.",
    )


def _repository_digests(about: Mapping[str, Any]) -> list[str]:
    return [digest.rpartition("@")[2] for digest in about.get("RepoDigests") or ()]


def name_of(version: Mapping[str, Any]) -> str:
    """``docker`` or ``podman``."""
    components = version.get("Components") or ()
    return PODMAN if any("Podman" in part.get("Name", "") for part in components) else DOCKER


def _no_runtime(runtime: str | None, known: Sequence[str]) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"{no_runtime(runtime)}; it has {', '.join(known) or 'none'}.",
        hint=f"Install gVisor and {REGISTER}.",
    )


def _other_runtime(runtime: str | None, known: Sequence[str]) -> SandboxUnavailable:
    default = ", ".join(known) or "none that it tells of"
    return SandboxUnavailable(
        f"{no_runtime(runtime, PODMAN)}: it is {default}.",
        hint=f"Make it the default: {podman_service(runtime)}; or use Docker for this level.",
    )


def podman_service(runtime: str | None, flag: str = "host-uds=open") -> str:
    """How Podman's service is started so that it runs all containers with ``runtime``."""
    flags = f"--runtime-flag={flag} --runtime-flag=network=none"
    return f"`podman --runtime {runtime} {flags} system service --time=0`"


def no_runtime(runtime: str | None, engine: str = DOCKER) -> str:
    if engine == PODMAN:
        return f"Podman starts every container with its default runtime, which is not {runtime!r}"
    return f"The engine has no runtime {runtime!r}"
