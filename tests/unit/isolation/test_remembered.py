"""What is remembered of a policy's last kernel is a guess: whatever is wrong with it, there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandbox_kernel.isolation.container import Allowance, Containers
from sandbox_kernel.isolation.remembered import recall, remember
from sandbox_kernel.isolation.wanted import Wanted

# Its socket is there; nobody speaks to it.
ADDRESS = f"unix://{__file__}"
WANTED = Wanted(ADDRESS, (("gvisor", "runsc"), ("container", None)), "python", "tag", None)
ALLOWANCE = Allowance(1 << 30, 100, 1.5)


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", ADDRESS)


def containers(**changes: Any) -> Containers:
    asked = {"wanted": WANTED, "allowance": ALLOWANCE, "policy_sha256": "ab", "passed": ("A",)}
    return Containers(**(asked | changes))


def test_what_is_recalled_is_the_same_as_what_was_remembered() -> None:
    assert recall("mine", None) is None
    remember("mine", containers())
    recalled = recall("mine", None)
    assert recalled is not None
    assert recalled.same_as(containers())
    assert recall("/another/policy.yaml", None) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"wanted": WANTED._replace(image="another")},
        {"wanted": WANTED._replace(levels=(("container", None),))},
        {"wanted": WANTED._replace(digest="sha256:00")},
        {"allowance": ALLOWANCE._replace(memory_bytes=None)},
        {"allowance": ALLOWANCE._replace(cpus=1.0)},
        {"policy_sha256": "cd"},
        {"passed": ()},
    ],
)
def test_whatever_has_changed_is_another_container(changes: dict[str, Any]) -> None:
    remember("mine", containers())
    recalled = recall("mine", None)
    assert recalled is not None
    assert not recalled.same_as(containers(**changes))


def test_another_engine_is_not_asked_for_what_this_one_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remember("mine", containers())
    monkeypatch.setenv("DOCKER_HOST", f"unix://{Path(__file__).parent}")
    assert recall("mine", None) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: b"",
        lambda _: b"\xff{",
        lambda _: b"[]",
        lambda document: json.dumps({**document, "wanted": {"levels": []}}).encode(),
        lambda document: json.dumps({**document, "wanted": None}).encode(),
        lambda document: json.dumps({**document, "allowance": {"more": 1}}).encode(),
    ],
    ids=["empty", "torn", "a_list", "fields_missing", "no_mapping", "fields_of_another_version"],
)
def test_a_memory_that_is_spoilt_is_none(state_home: Path, spoil: Any) -> None:
    remember("mine", containers())
    (file,) = (state_home / "remembered").iterdir()
    file.write_bytes(spoil(json.loads(file.read_bytes())))
    assert recall("mine", None) is None


def test_what_cannot_be_remembered_is_forgotten(state_home: Path) -> None:
    (state_home / "remembered").write_text("in the way")
    remember("mine", containers())
    assert recall("mine", None) is None
