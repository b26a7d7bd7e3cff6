"""The JSON Schema that editors read."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml

from sandbox_kernel.paths import policies_directory
from sandbox_kernel.policy.effective import as_document
from sandbox_kernel.policy.load import load_policy
from sandbox_kernel.policy.schema import SCHEMA_NAME, policy_schema, schema_text
from sandbox_kernel.policy.sections import READERS

SHIPPED = ["default", "strict", "trusted", "paranoid", "tour"]


def validate(document: Any) -> None:
    jsonschema.Draft7Validator(policy_schema()).validate(document)


def test_the_file_is_current() -> None:
    """If not: ``python -m sandbox_kernel.policy.schema``."""
    assert (policies_directory() / SCHEMA_NAME).read_text() == schema_text()


def test_it_is_a_schema_and_knows_every_section() -> None:
    schema = json.loads(schema_text())
    jsonschema.Draft7Validator.check_schema(schema)
    assert list(schema["properties"]) == ["extends", *READERS]


@pytest.mark.parametrize("name", SHIPPED)
def test_it_accepts_what_is_shipped(name: str) -> None:
    text = (policies_directory() / f"{name}.yaml").read_text()
    validate(yaml.load(text, yaml.BaseLoader))
    validate(as_document(load_policy(name)))


@pytest.mark.parametrize(
    "text",
    [
        "limit: {wall: 5s}",
        "limits: {wal: 5s}",
        "limits: {wall: 5 parsecs}",
        "limits: {processes: 1.5}",
        "limits: {grace: none}",
        "limits: {wall: true}",
        "isolation: {require: none}",
        "isolation: {prefer: []}",
        "isolation: {runtime: runc}",
        "isolation: {runtime: io.containerd.runc.v2}",
        "network: allow",
        "workspace: {mount: read-write}",
        "environment: {pass: [HOME]}",
        "environment: {pass: ['A B']}",
        "outputs: {}",
        "code: {max_size: none}",
        "code: {python: {imports: {otherwise: maybe}}}",
        "code: {python: {imports: {deny: [os.*]}}}",
        "code: {python: {imports: {deny: os}}}",
        "code: {shell: {commands: {deny: [/bin/rm]}}}",
        "code: {magics: {deny: ['%time']}}",
        "code: {python: {rules: {python.frmes: deny}}}",
        "code: {python: {rules: {python.import: deny}}}",
        "audit: none",
        "audit: {enabled: maybe}",
        "audit: {code: none}",
        "audit: {redact: [a, '']}",
        "audit: {anchor: 'file:relative'}",
        "audit: {mirror: 'command:/bin/x'}",
        "audit: {anchor_every: never}",
        "checkpoint: no",
        "annotate: reciept",
    ],
)
def test_it_marks_what_the_loader_refuses(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "text",
    [
        "limits: {wall: 90, memory: 1.5GiB, processes: 10, cpu: none}",
        "limits: {wall: 1 h}",
        "extends: strict",
        "audit: {enabled: false, code: hash, durability: full, redact: ['acme_[a-z]{9}']}",
        "audit: {anchor: 'file:/mnt/anchors', anchor_every: 1h, mirror: syslog}",
        "code: {shell: {commands: {deny: ['[', python3.11, g++, mkfs]}}}",
        "code: {python: {imports: {allow: [os.path, _private]}}}",
    ],
)
def test_it_accepts_what_the_loader_accepts(text: str) -> None:
    validate(yaml.safe_load(text))
