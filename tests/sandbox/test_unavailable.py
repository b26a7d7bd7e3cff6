"""No sandbox, no cell: the frontend sees why, and what to do, and can go on once it is mended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.kernel import running_kernel

pytestmark = pytest.mark.process


@pytest.fixture
def path_without_bwrap(tmp_path: Path) -> Path:
    """A PATH with everything a kernel needs but bwrap; what is put there counts."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("sh", "rm"):
        found = shutil.which(name)
        assert found is not None
        (directory / name).symlink_to(found)
    return directory


def test_without_bwrap_no_cell_runs_and_the_error_says_what_to_install(
    tmp_path: Path, path_without_bwrap: Path
) -> None:
    witness = tmp_path / "witness"
    code = f"open({str(witness)!r}, 'w').write('ran')"
    with running_kernel(cwd=tmp_path, env={"PATH": str(path_without_bwrap)}) as kernel:
        refused = kernel.run(code)
        assert refused.ename == "SandboxUnavailable"
        assert "apt-get install bubblewrap" in refused.evalue
        assert (
            "SandboxUnavailable"
            in kernel.client.kernel_info(reply=True, timeout=10)["content"]["banner"]
        )
        completion = kernel.client.complete("im", reply=True, timeout=10)
        assert completion["content"]["status"] == "error"
    assert not witness.exists()


def test_the_kernel_recovers_once_bwrap_is_there(tmp_path: Path, path_without_bwrap: Path) -> None:
    with running_kernel(cwd=tmp_path, env={"PATH": str(path_without_bwrap)}) as kernel:
        assert kernel.run("1 + 1").ename == "SandboxUnavailable"
        (path_without_bwrap / "bwrap").symlink_to(shutil.which("bwrap"))
        assert kernel.run("1 + 1").result == "2"


def test_run_all_shows_the_reason_once(tmp_path: Path, path_without_bwrap: Path) -> None:
    with running_kernel(cwd=tmp_path, env={"PATH": str(path_without_bwrap)}) as kernel:
        cells = [kernel.client.execute(f"print({n})") for n in range(5)]
        statuses = [kernel.reply_to(cell)["content"]["status"] for cell in cells]
        assert statuses == ["error", *["aborted"] * 4]


def test_nbclient_sees_the_reason(
    tmp_path: Path, path_without_bwrap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(path_without_bwrap))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    client = NotebookClient(notebook, kernel_name="sandboxed-python", timeout=60)
    with pytest.raises(CellExecutionError, match="bubblewrap") as caught:
        client.execute()
    assert caught.value.ename == "SandboxUnavailable"
    assert notebook.cells[0].outputs[0].ename == "SandboxUnavailable"


def test_a_host_without_an_engine_gives_the_next_level_and_says_why(tmp_path: Path) -> None:
    script = (
        "import json, sys; sys.path.insert(0, ''); from pathlib import Path\n"
        "from tests.kernel import isolation, running_kernel\n"
        "accepting = isolation('container', 'process', require='process')\n"
        f"directory = Path({str(tmp_path)!r})\n"
        "env = {'DOCKER_HOST': '', 'XDG_RUNTIME_DIR': str(directory)}\n"
        "with running_kernel(policy=accepting, cwd=directory, env=env) as kernel:\n"
        "    cell = kernel.run('1 + 1')\n"
        "    banner = kernel.client.kernel_info(reply=True, timeout=10)['content']['banner']\n"
        "level = cell.receipt['isolation']['level'] if cell.status == 'ok' else None\n"
        "print(json.dumps([level, cell.evalue, banner]))\n"
    )
    if shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        hidden: list[str] = []
    elif os.geteuid() == 0:  # where it is seen to be installed, it counts as stopped
        hide = 'mount --bind /dev/null "$(PATH=$PATH:/usr/sbin command -v dockerd)" && exec "$@"'
        hidden = ["unshare", "--mount", "sh", "-c", hide, "sh"]
    else:
        pytest.skip("Docker is installed, which only root can hide")

    def start(*before: str) -> list[str | None]:
        done = subprocess.run(
            [*before, sys.executable, "-c", script],
            cwd=Path(__file__).parent.parent.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        found: list[str | None] = json.loads(done.stdout)
        return found

    level, _, banner = start(*hidden)
    assert level == "process"
    assert "policy prefers container: no container engine was found\n" in str(banner)
    if hidden:
        level, evalue, _ = start()
        assert level is None, "the control"
        assert "does not run: there is no such socket" in str(evalue)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("bwrap: setting up uid map: Permission denied", "namespaces"),
        ("bwrap: Unknown option --size", "too old"),
        ("bwrap: execvp python: No such file or directory", "No such file"),
    ],
)
def test_what_bwrap_says_is_explained(
    tmp_path: Path, path_without_bwrap: Path, said: str, named: str
) -> None:
    # A bwrap that fails the way hosts make it fail: a fake, as it must misbehave.
    fake = path_without_bwrap / "bwrap"
    fake.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    fake.chmod(0o755)
    with running_kernel(cwd=tmp_path, env={"PATH": str(path_without_bwrap)}) as kernel:
        refused = kernel.run("1 + 1")
        assert refused.ename == "SandboxUnavailable"
        assert named in refused.evalue
        assert "What to do" in "\n".join(refused.reply["content"]["traceback"])


def test_a_host_that_allows_no_user_namespaces_is_named(tmp_path: Path) -> None:
    # For real: a user namespace in which no further one may be made. Its one mapped user is not
    # root in there, so the wrapper takes the ordinary user's way.
    script = (
        "import sys; sys.path.insert(0, ''); from tests.kernel import running_kernel\n"
        "with running_kernel() as kernel: print(kernel.run('1 + 1').evalue)\n"
    )
    # Its group is mapped too: without, the kernel would refuse for that reason alone.
    limited = (
        "echo 1 > /proc/sys/user/max_user_namespaces && "
        'exec unshare --user --map-user=1000 --map-group=1000 "$@"'
    )
    nested = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    probe = subprocess.run(
        [*nested, "echo 1 > /proc/sys/user/max_user_namespaces"], capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip(f"cannot set up such a namespace here: {probe.stderr.decode()}")
    done = subprocess.run(
        [*nested, limited, "sh", sys.executable, "-c", script],
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "max_user_namespaces is 0 or used up" in done.stdout
