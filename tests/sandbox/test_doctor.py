"""The doctor on real hosts: what it says is what kernels get, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.isolation import probe
from sandbox_kernel.isolation.descent import STAGE
from sandbox_kernel.limits.cgroup_places import PREFIX, find_places
from tests.kernel import IMAGE, isolation, running_kernel
from tests.sandbox.ordinary_user import REPOSITORY, UID, reachable

pytestmark = pytest.mark.process
DOCTOR = (sys.executable, "-P", "-m", "sandbox_kernel", "doctor", "--json")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become somebody else")


def examined(
    before: Sequence[str] = (), env: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [*before, *DOCTOR], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in report["checks"]}


def as_user(home: Path, **more: str) -> tuple[list[str], dict[str, str]]:
    """What makes a command that of a user without any privilege, and its environment."""
    paths = [Path(sys.base_prefix).resolve(), REPOSITORY]
    if not Path(sys.prefix).is_relative_to(REPOSITORY):
        paths.append(Path(sys.prefix))
    command = [
        *("bwrap", "--dev-bind", "/", "/", *reachable(paths)),
        *("--chdir", str(REPOSITORY), "--"),
        *("setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", "--inh-caps=-all"),
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    return command, environment | more


def test_what_it_says_of_default_is_what_a_kernel_gets(tmp_path: Path) -> None:
    code, report = examined()
    (default,) = [policy for policy in report["policies"] if policy["policy"] == "default"]
    assert (code, default["level"], report["level"]) == (0, "process", "process")
    with running_kernel(cwd=tmp_path, env={"SANDBOX_KERNEL_POLICY": "default"}) as kernel:
        cell = kernel.run("1 + 1")
        assert cell.result == "2"
        receipt = cell.reply["metadata"]["sandbox"]
    assert receipt["isolation"]["level"] == default["level"]


@pytest.mark.container
@pytest.mark.parametrize("image", [IMAGE, "no-such-image", f"{IMAGE}@sha256:{'0' * 64}"])
def test_what_it_says_of_a_policy_with_an_image_of_its_own_is_what_a_kernel_gets(
    tmp_path: Path, image: str
) -> None:
    policies = tmp_path / "sandbox-kernel" / "policies"
    policies.mkdir(parents=True)
    (policies / "mine.yaml").write_text(isolation("container", image=image))
    (policies / "mine.yaml").chmod(0o600)
    env = {"XDG_CONFIG_HOME": str(tmp_path), "SANDBOX_KERNEL_POLICY": "mine"}
    _, report = examined(env={**os.environ, **env})
    (mine,) = [policy for policy in report["policies"] if policy["policy"] == "mine"]
    with running_kernel(cwd=tmp_path, env=env) as kernel:
        cell = kernel.run("1 + 1")
    if mine["level"] is None:
        assert cell.ename == "SandboxUnavailable"
        assert mine["fix"]
    else:
        assert cell.receipt["isolation"]["level"] == mine["level"] == "container"
    assert (mine["level"] is not None) == (image == IMAGE)


def test_it_leaves_nothing_behind(state_home: Path) -> None:
    shutil.rmtree(state_home)
    with subprocess.Popen(DOCTOR, stdout=subprocess.DEVNULL) as doctor:
        assert doctor.wait(60) == 0
    assert not state_home.exists()
    # Where root leaves root: in the child's mount namespace only.
    assert not STAGE.is_mount()
    for _, places in find_places():
        for place in places.values():
            assert list(place.glob(f"{PREFIX}{doctor.pid}-*")) == []


@as_root
def test_an_ordinary_user_gets_the_same_level(home: Path) -> None:
    before, env = as_user(home)
    code, report = examined(before, env)
    assert (code, report["host"]["uid"]) == (0, UID)
    assert statuses(report)["user namespaces"] == "ok"
    (left,) = [check for check in report["checks"] if check["name"] == "leaving root"]
    assert "not needed" in left["found"]
    assert "idmapped mounts" not in statuses(report)


@as_root
def test_where_every_cell_fails_it_says_so_though_each_check_is_good(home: Path) -> None:
    """It tries a cell: no check looks at whether something can hold this limit for this user."""
    policies = home / "sandbox-kernel" / "policies"
    policies.mkdir(parents=True)
    for path in (policies, policies.parent):
        os.chown(path, UID, UID)
    mine = policies / "mine.yaml"
    mine.write_text("limits: {wall: 60s}")
    mine.chmod(0o600)
    os.chown(mine, UID, UID)
    chosen = {"XDG_CONFIG_HOME": str(home), "SANDBOX_KERNEL_POLICY": "mine"}
    before, env = as_user(home, **chosen)
    assert examined(before, env)[0] == 0, "the control"
    mine.write_text("limits: {wall: 60s, cpus: 0.5}")
    code, report = examined(before, env)
    assert (code, report["can_run"], report["default_can_run"]) == (1, False, True)
    assert report["trial"]["status"] == "refused"
    assert "cpus" in report["why_not"]
    assert report["trial"]["fix"]


def test_a_home_folder_inside_the_python_environment_hides_no_python_and_is_not_shown() -> None:
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="home-") as home:
        secret = Path(home) / "token"
        secret.write_text("secret")
        assert examined(env={**os.environ, "HOME": home})[0] == 0
        with running_kernel(cwd="/usr", env={"HOME": home}) as kernel:
            assert kernel.run("import numpy, sys; sys.prefix").result == repr(sys.prefix)
            seen = kernel.value(f"__import__('os').listdir({sys.prefix!r})")
            assert "lib" in seen
            assert Path(home).name not in seen
            assert not kernel.value(f"__import__('os').path.exists({str(secret)!r})")
        assert secret.exists()  # the control


@as_root
def test_an_engine_that_is_not_for_this_user_is_refused(home: Path) -> None:
    place = home / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        place.chmod(0o600)
        before, env = as_user(home, DOCKER_HOST=f"unix://{place}")
        code, report = examined(before, env)
    (engine,) = [c for c in report["checks"] if c["name"] == "engine" and str(place) in c["found"]]
    assert (code, engine["status"]) == (0, "refused")
    assert "usermod -aG docker" in engine["fix"]


@as_root
def test_a_state_home_that_cannot_be_made_is_refused(home: Path) -> None:
    before, env = as_user(home, SANDBOX_KERNEL_HOME="/var/sandbox-kernel-none")
    code, report = examined(before, env)
    assert (code, statuses(report)["state home"]) == (1, "refused")
    assert not report["default_can_run"]


def nested(script: str) -> list[str]:
    """A command that runs another in a user namespace where `script` was run first.

    Its one mapped user is not root in there, so that what is tried is what an ordinary user tries.
    """
    command = f'{script} && exec unshare --user --map-user=1000 --map-group=1000 "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command, "sh"]


def need(before: list[str]) -> None:
    done = subprocess.run([*before, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot set up such a namespace here: {done.stderr}")


def test_a_host_that_allows_no_user_namespaces_is_refused_with_the_reason() -> None:
    before = nested("echo 1 > /proc/sys/user/max_user_namespaces")
    need(before)
    code, report = examined(before)
    assert (code, report["default_can_run"]) == (1, False)
    (tried,) = [c for c in report["checks"] if c["name"] == "user namespaces"]
    assert tried["status"] == "refused"
    assert tried["fix"] == probe.no_namespaces_left().hint
    # The control: without the limit the same namespace will do.
    assert examined(nested("true"))[0] == 0


def test_a_proc_with_hidden_parts_is_refused_with_the_way_out() -> None:
    """As in a container: what hides something of /proc may not be got rid of by a new one."""
    before = nested("mount -t tmpfs none /proc/sys/fs")
    need(before)
    code, report = examined(before)
    (tried,) = [c for c in report["checks"] if c["name"] == "user namespaces"]
    assert (code, tried["status"]) == (1, "refused")
    assert "systempaths=unconfined" in tried["fix"]
