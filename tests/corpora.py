"""Real notebooks and hostile snippets, kept beside the repository. Nothing of them is ever run."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

_BESIDE = Path(__file__).parents[2] / "shared" / "corpora"
BENIGN = "benign-notebooks.jsonl.gz"
REDCODE = "hostile-redcode.jsonl.gz"


def corpus(name: str) -> list[dict[str, Any]]:
    """Its records; where the folder is absent, the test is skipped and says so."""
    path = Path(os.environ.get("SANDBOX_KERNEL_CORPORA", _BESIDE)) / name
    if not path.exists():
        pytest.skip(f"not run: {name} is not there; SANDBOX_KERNEL_CORPORA can name its folder")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
