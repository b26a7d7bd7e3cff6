"""Container engines: which answer, what they are, and whether the first has an image to run.

A start uses the first and no other, so that is the one that levels and policies are judged by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from sandbox_kernel.errors import SandboxError, SandboxUnavailable
from sandbox_kernel.isolation.checks.base import Check, Host, failed, together
from sandbox_kernel.isolation.checks.runtimes import Runtime, gvisor, runtimes
from sandbox_kernel.isolation.engine import UNIX, connect, knock
from sandbox_kernel.isolation.images import FLAVORS, recorded
from sandbox_kernel.isolation.lifeline import Peer
from sandbox_kernel.isolation.offer import unmapped

ENGINE: Final = "engine"
OTHER_ENGINE: Final = "other engine"
IMAGE: Final = "image"
_NO_ENGINE: Final = (
    "For the levels `container` and `gvisor`: `apt-get install docker.io`; or Podman, with its "
    "podman.socket enabled."
)
_NO_IMAGE: Final = "Make one: `sandbox-kernel image build`."


class Engine(NamedTuple):
    """What an engine says of itself."""

    address: str
    kind: str
    version: str
    rootless: bool
    cgroups: str
    runtimes: Mapping[str, Runtime]
    default_runtime: str
    images: frozenset[str]  # of those asked for
    unfit: SandboxUnavailable | None = None  # why it can run no sandbox
    in_sight: bool = True  # whether it is in our pid namespace, and its containers with it

    def summary(self) -> str:
        rootless = ", rootless" if self.rootless else ""
        unseen = (
            "" if self.in_sight else "; in another pid namespace, so it says itself what cells use"
        )
        return f"{self.kind} {self.version} at {self.address}{rootless}, cgroups by {self.cgroups}{unseen}"


def check_engines(host: Host) -> list[Check]:
    wanted: Mapping[str, str] | SandboxError
    try:
        wanted = _recorded_images()
    except SandboxError as error:  # what is told of the image; the engines are asked all the same
        wanted = error
    ids = sorted(set(wanted.values())) if isinstance(wanted, Mapping) else []
    # The client waits for each part of an answer, so it is the deadline that counts.
    questions = [partial(ask, address, host.timeout_seconds + 1, ids) for address in host.engines]
    answers = together(questions, host.timeout_seconds)
    checks = [
        _judge(address, answer, host.timeout_seconds)
        for address, answer in zip(host.engines, answers, strict=True)
    ]
    if not checks:
        checks = [Check(ENGINE, "missing", "no socket of Docker or Podman", _NO_ENGINE)]
    first = answers[0] if answers and isinstance(answers[0], Engine) else None
    return [
        *_in_order(host.engines, checks),
        runtimes(first),
        gvisor(first, host),
        image(first, wanted),
    ]


def _in_order(addresses: Sequence[str], checks: Sequence[Check]) -> list[Check]:
    """The one that a start uses by its own name, and if it will not do, which other one will."""
    first, *others = checks
    will_do = [a for a, c in zip(addresses[1:], others, strict=True) if c.status == "ok"]
    if first.status != "ok" and will_do:
        another = f"Or use another: set DOCKER_HOST={will_do[0]}."
        first = replace(first, fix=" ".join(filter(None, (first.fix, another))))
    return [first, *(replace(other, name=OTHER_ENGINE) for other in others)]


def ask(address: str, timeout: float, images: Sequence[str] = ()) -> Engine:
    """What the engine at ``address`` says of itself; raises ``SandboxUnavailable``."""
    client = connect(address, timeout)
    from docker.errors import DockerException, NotFound

    try:
        version, info = client.version(), client.info()
        found = set()
        for id in images:
            try:
                client.inspect_image(id)
                found.add(id)
            except NotFound:  # in whatever words: Podman has its own
                continue
        with knock(address, timeout) as connection:
            in_sight = Peer.of(connection).pid != 0
        return _engine(address, version, info, frozenset(found))._replace(in_sight=in_sight)
    except (DockerException, OSError, ValueError, TypeError, AttributeError) as error:
        # The last three: what has the place of an engine may answer anything.
        what = f"The container engine at {address} gives no proper answer: {error}."
        raise SandboxUnavailable(what, hint="See its log, or start it again.") from error
    finally:
        client.close()


def _engine(
    address: str, version: Mapping[str, Any], info: Mapping[str, Any], images: frozenset[str]
) -> Engine:
    parts = [str(part.get("Name", "")) for part in version.get("Components") or []]
    podman = any("podman" in part.lower() for part in parts)
    options = [str(option) for option in info.get("SecurityOptions") or []]
    found = {
        str(name): Runtime(
            str(entry.get("path", "")), tuple(map(str, entry.get("runtimeArgs") or []))
        )
        for name, entry in (info.get("Runtimes") or {}).items()
    }
    default = str(info.get("DefaultRuntime", ""))
    driver, number = info.get("CgroupDriver", "unknown"), info.get("CgroupVersion", "1")
    return Engine(
        address=address,
        kind="Podman" if podman else "Docker",
        version=str(version.get("Version", "of unknown version")),
        rootless=any(option.startswith("name=rootless") for option in options),
        cgroups=f"{driver} (version {number})",
        runtimes=_only(default, found) if podman else found,
        default_runtime=default,
        images=images,
        unfit=unmapped(address, info),
    )


def _only(default: str, found: Mapping[str, Runtime]) -> dict[str, Runtime]:
    """Podman lists all that it knows of, there or not, and takes its default whatever it is asked for."""
    name = Path(default).name
    return {name: found.get(name, Runtime(default, ()))} if name else {}


def _judge(address: str, answer: Engine | Exception | None, seconds: float) -> Check:
    if isinstance(answer, Engine):
        if answer.unfit is not None:
            return failed(ENGINE, "refused", answer.unfit)
        return Check(ENGINE, "ok", answer.summary())
    if answer is None:
        found = f"{address} does not answer within {seconds:g} s"
        fix = "See the engine's log; start it again: `systemctl restart docker`."
        return Check(ENGINE, "unknown", found, fix)
    if not isinstance(answer, SandboxUnavailable):
        return Check(ENGINE, "unknown", f"{address}: {type(answer).__name__}: {answer}")
    there = not address.startswith(UNIX) or Path(address.removeprefix(UNIX)).exists()
    return failed(ENGINE, "refused" if there else "missing", answer)


def image(engine: Engine | None, wanted: Mapping[str, str] | SandboxError) -> Check:
    """Whether the engine has an image that was built for sandboxes; which one a policy needs is its own."""
    if isinstance(wanted, SandboxError):
        return failed(IMAGE, "refused", wanted)
    if not wanted:
        return Check(IMAGE, "missing", "none was built", _NO_IMAGE)
    if engine is None:
        return Check(IMAGE, "unknown", "no engine to ask")
    there = [flavour for flavour, id in wanted.items() if id in engine.images]
    gone = ", ".join(flavour for flavour in wanted if flavour not in there)
    lost = f"{gone} built, but the engine has it no more" if gone else ""
    if not there:
        return Check(IMAGE, "missing", lost, _NO_IMAGE)
    return Check(IMAGE, "ok", "; ".join(filter(None, (", ".join(there), lost))))


def _recorded_images() -> dict[str, str]:
    """The ids of images that were built here, by flavour."""
    records = {flavor: recorded(flavor) for flavor in FLAVORS}
    return {flavor: record.id for flavor, record in records.items() if record is not None}
