"""Whether a text is what ran: also where the log has it redacted, cut or as a hash only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandbox_kernel.audit.chain import Keyed


def is_code_of(intent: Mapping[str, Any], text: str, keyed: Keyed) -> bool:
    """``intent``: what its record says. A file's last line may have an end that the cell's has not."""
    return any(_is_code_of(intent, each, keyed) for each in (text, text.removesuffix("\n")))


def _is_code_of(intent: Mapping[str, Any], text: str, keyed: Keyed) -> bool:
    if "hmac" in intent:
        return bool(keyed.hash_of(text) == intent["hmac"])
    return bool(text == intent.get("code"))
