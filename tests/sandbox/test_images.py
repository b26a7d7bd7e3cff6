"""Images built by a real engine: what is in them, what is not, and when one is built again."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker import APIClient

from sandbox_kernel.cli import main
from sandbox_kernel.errors import ImageError
from sandbox_kernel.images.base import DEBIAN_TAG, find_base, image_id, probe
from sandbox_kernel.images.build import ImageRequest, build_context, build_image, write_context
from sandbox_kernel.images.lock import Pin
from sandbox_kernel.isolation.engine import connect
from sandbox_kernel.isolation.images import ImageRecord, recorded, records_path
from tests.kernel import eventually, isolation, running_kernel

pytestmark = [pytest.mark.container, pytest.mark.slow]

MINIMAL = ImageRequest("python-minimal")


def nothing(*_: object) -> None:
    pass


@pytest.fixture
def client() -> Iterator[APIClient]:
    client = connect()
    client.timeout = 250  # of a disk that is busy
    yield client
    client.close()


@pytest.fixture
def tag(client: APIClient) -> Iterator[str]:
    """A name for an image that is gone after the test."""
    name = f"sandbox-kernel-test-{uuid.uuid4().hex}:latest"
    yield name
    # A keeper may be at it still.
    eventually(lambda: not client.containers(all=True, filters={"ancestor": name}))
    if client.images(name):
        client.remove_image(name, force=True)


@pytest.fixture
def minimal(client: APIClient) -> ImageRecord:
    """The image that `scripts/ensure-engine` has built."""
    return build_image(client, MINIMAL, nothing)


def run(client: APIClient, image: str, *command: str) -> tuple[int, str]:
    """What a container of ``image``, as it is meant to be used, prints."""
    settings = client.create_host_config(network_mode="none", read_only=True, cap_drop=["ALL"])
    container = client.create_container(image, list(command), host_config=settings)["Id"]
    try:
        client.start(container)
        status = client.wait(container)["StatusCode"]
        return status, client.logs(container).decode()
    finally:
        client.remove_container(container, force=True)


def python(client: APIClient, image: str, code: str) -> str:
    status, said = run(client, image, "python3", "-c", code)
    assert status == 0, said
    return said.strip()


def wheel(folder: Path, name: str = "sandbox_probe") -> Path:
    """A package of one module."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "HERE = True\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    return path


# what is in an image


def test_python_is_the_environment_with_a_kernel_in_it(
    client: APIClient, minimal: ImageRecord
) -> None:
    code = "import sys, ipykernel, json; print(json.dumps([sys.prefix, sys.version.split()[0]]))"
    assert json.loads(python(client, minimal.id, code)) == ["/opt/sandbox", minimal.python]


def test_the_default_image_has_what_notebooks_import(
    client: APIClient, tag: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """What `sandbox-kernel image build` makes, and every shipped policy names."""
    image = build_image(client, ImageRequest("python", tag=tag), nothing)
    record_property("figures", f"python: {image.size_bytes >> 20} MiB")
    tmp_path.chmod(0o755)
    policy = isolation("container", image=tag)
    with running_kernel(policy=policy, cwd=tmp_path) as kernel:
        assert kernel.run("import numpy, pandas, sklearn.linear_model, ipywidgets").ename is None
        plotted = kernel.run(
            "import matplotlib.pyplot as plt\nplt.plot(pandas.Series(numpy.arange(9)));"
        )
        shown = [m for m in plotted.messages if m["msg_type"] == "display_data"]
        assert "image/png" in shown[0]["content"]["data"], plotted.evalue


def test_cells_find_nothing_to_build_or_install_with(
    client: APIClient, minimal: ImageRecord
) -> None:
    look = "import json, shutil, sys; print(json.dumps([shutil.which(n) for n in sys.argv[1:]]))"
    names = ["python3", "cc", "gcc", "g++", "c++", "ld", "make", "pip", "pip3"]
    status, said = run(client, minimal.id, "python3", "-c", look, *names)
    assert status == 0, said
    found = dict(zip(names, json.loads(said), strict=True))
    assert found.pop("python3") == "/opt/sandbox/bin/python3"
    assert not any(found.values()), found
    assert python(client, minimal.id, "import importlib.util as u; print(u.find_spec('pip'))") == (
        "None"
    )


def test_nothing_of_the_build_is_left(client: APIClient, minimal: ImageRecord) -> None:
    left = (
        "import os; print([p for p in ('/build', '/root/.cache', '/opt/wheels') if os.path.exists(p)],"
        "[n for _, _, names in os.walk('/opt') for n in names if n.endswith(('.whl', '.tar'))],"
        "os.listdir('/var/cache/apt'), os.listdir('/tmp'))"
    )
    assert python(client, minimal.id, left) == "[] [] [] []"


def test_no_file_gives_its_caller_another_identity(client: APIClient, minimal: ImageRecord) -> None:
    look = ("find", "/", "-xdev", "-type", "f", "-perm", "/6000")
    found = run(client, minimal.id, *look)[1].splitlines()
    assert [line for line in found if "Permission denied" not in line] == []
    # The same question finds them where they were not taken away.
    assert "/usr/bin/su" in run(client, DEBIAN_TAG, *look)[1]


def test_whoever_starts_it_is_not_root(client: APIClient, minimal: ImageRecord) -> None:
    assert python(client, minimal.id, "import os; print(os.getuid(), os.getgid())") == "65534 65534"


def test_modules_are_compiled_for_good(client: APIClient, minimal: ImageRecord) -> None:
    code = (
        "import ipykernel, importlib.util as u;"
        "data = open(u.cache_from_source(ipykernel.__file__), 'rb').read(8);"
        "print(data[:4] == u.MAGIC_NUMBER, data[4])"
    )
    assert python(client, minimal.id, code) == "True 1"  # by hash, unchecked


def test_an_image_says_what_it_is(client: APIClient, minimal: ImageRecord) -> None:
    labels = client.inspect_image(minimal.id)["Config"]["Labels"]
    assert labels["sandbox-kernel.flavor"] == "python-minimal"
    assert labels["sandbox-kernel.version"]
    assert labels["sandbox-kernel.python"] == minimal.python


# when it is built


def test_an_image_of_the_same_inputs_is_not_built_again(
    client: APIClient, minimal: ImageRecord, tag: str
) -> None:
    stages: list[str] = []
    request = ImageRequest("python-minimal", tag=tag)
    again = build_image(client, request, lambda stage, *_: stages.append(stage))
    assert again.id == minimal.id
    assert stages == ["looking for the base"]


def test_an_image_that_was_built_on_top_is_not_taken_for_the_one_below(
    client: APIClient, minimal: ImageRecord, tag: str
) -> None:
    """It has the labels of what it is built on, and is newer."""
    recipe = f"FROM {minimal.tag}\nENV EVIL=1\n"
    list(client.build(fileobj=io.BytesIO(recipe.encode()), tag=tag, rm=True, decode=True))
    child = client.inspect_image(tag)
    labels = client.inspect_image(minimal.id)["Config"]["Labels"]
    assert child["Config"]["Labels"] == labels, "the control"
    assert image_id(child) != minimal.id
    assert build_image(client, MINIMAL, nothing).id == minimal.id


def test_the_command_prints_the_id_alone_and_records_it(
    client: APIClient, minimal: ImageRecord, tag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "build", "--flavor", "python-minimal", "--tag", tag]) == 0
    assert capsys.readouterr().out == f"{minimal.id}\n"
    found = recorded(tag)
    assert found is not None
    assert (found.id, found.flavor) == (minimal.id, "python-minimal")
    assert found.size_bytes > 50 << 20
    assert stat.S_IMODE(records_path().stat().st_mode) == 0o600
    assert main(["image", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["images"]
    assert {image["present"] for image in listed} == {True}


def test_an_image_that_the_engine_lost_is_listed_as_such(
    client: APIClient, minimal: ImageRecord, tag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = client.inspect_image(DEBIAN_TAG)["Id"]
    container = client.create_container(base, ["true"])["Id"]
    made = image_id(client.commit(container, *tag.rsplit(":", 1)))
    client.remove_container(container)
    document = json.loads(records_path().read_text())
    document["images"].append({**document["images"][0], "id": made, "tag": tag})
    records_path().write_text(json.dumps(document))

    def present() -> list[bool]:
        assert main(["image", "list", "--json"]) == 0
        return [image["present"] for image in json.loads(capsys.readouterr().out)["images"]]

    assert present() == [True, True]
    client.remove_image(tag)
    assert present() == [True, False]


def test_packages_of_one_s_own_come_on_top(
    client: APIClient, tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path)
    more = tmp_path / "more.txt"
    more.write_text("sandbox-probe\n")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    stages: list[str] = []
    request = ImageRequest("python-minimal", more, tag=tag)
    image = build_image(client, request, lambda stage, *_: stages.append(stage))
    assert "fetching sandbox_probe" in stages
    assert "building: run" in stages
    code = "import ipykernel, sandbox_probe; print(sandbox_probe.HERE)"
    assert python(client, image.id, code) == "True"


# what a build refuses


def build_wheel(client: APIClient, tag: str, folder: Path, digest: str) -> None:
    """An image of one wheel that is said to have ``digest``."""
    base = find_base(client, "debian", anew=False, report=nothing)
    context = io.BytesIO()
    pin = Pin("sandbox-probe", "1.0", frozenset({digest}))
    write_context(context, f"{pin}\n", folder.glob("*.whl"))
    context.seek(0)
    named = {"BASE": base, "FLAVOR": "test", "VERSION": "0", "PYTHON": "3", "INPUTS": tag}
    build_context(client, context, tag, named, anew=False, report=nothing)


def test_a_wheel_with_other_bytes_than_the_lock_says_is_not_installed(
    client: APIClient, tag: str, tmp_path: Path
) -> None:
    digest = hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest()
    with pytest.raises(ImageError, match="DO NOT MATCH THE HASHES"):
        build_wheel(client, tag, tmp_path, "0" * 64)
    assert not client.images(tag)
    build_wheel(client, tag, tmp_path, digest)
    assert client.images(tag)


def test_a_base_without_a_python_to_build_on_is_refused(client: APIClient, tag: str) -> None:
    archive_of_nothing = b"\0" * 10240
    client.import_image_from_data(archive_of_nothing, *tag.rsplit(":", 1))
    with pytest.raises(ImageError, match="cannot be built on") as caught:
        build_image(client, ImageRequest("python-minimal", base=tag), nothing)
    assert "python3-venv" in caught.value.hint
    assert probe(client, DEBIAN_TAG, DEBIAN_TAG).python.startswith("3.11.")
