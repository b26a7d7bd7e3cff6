"""What the wheel brings: the package, the kernelspec, the policies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return next(directory.glob("*.whl"))


def test_kernelspec_policies_and_images_are_packed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        spec = next(name for name in names if name.endswith("sandboxed-python/kernel.json"))
        assert spec.split(".data/")[1] == "data/share/jupyter/kernels/sandboxed-python/kernel.json"
        assert json.loads(archive.read(spec))["display_name"] == "Sandboxed Python"
        packed = archive.read("sandbox_kernel/policies/seccomp.json")
        assert packed == (REPOSITORY / "policies" / "seccomp.json").read_bytes()
        assert "sandbox_kernel/inner/boot.py" in names
        for name in ("Dockerfile", "python/requirements.txt", "python-minimal/requirements.txt"):
            packed = archive.read(f"sandbox_kernel/images/{name}")
            assert packed == (REPOSITORY / "images" / name).read_bytes()
        assert not [name for name in names if name.startswith(("tests", "benchmarks"))]


@pytest.mark.slow
@pytest.mark.process
def test_pip_install_alone_makes_a_working_kernel_appear(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    # Dependencies come from the environment of the tests; the product from the new one alone.
    borrowed = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    script = (
        "from jupyter_client.kernelspec import find_kernel_specs\n"
        "from jupyter_client.manager import start_new_kernel\n"
        "import sandbox_kernel\n"
        "print(find_kernel_specs()['sandboxed-python'])\n"
        "print(sandbox_kernel.__file__)\n"
        "manager, client = start_new_kernel(kernel_name='sandboxed-python')\n"
        "reply = client.execute_interactive('import os; print(os.getpid())', timeout=60)\n"
        "assert reply['content']['status'] == 'ok', reply['content']\n"
        "manager.shutdown_kernel()\n"
    )
    done = subprocess.run(
        [python, "-c", script],
        env=borrowed,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spec, package, pid, *_ = done.stdout.splitlines()
    assert Path(spec).is_relative_to(environment)
    assert Path(package).is_relative_to(environment)
    assert pid == "2"
