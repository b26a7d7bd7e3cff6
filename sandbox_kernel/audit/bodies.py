"""What records say, from what the wrapper knows. Nothing that was typed into ``input()`` is here."""

from __future__ import annotations

import hashlib
import os
import platform
import pwd
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sandbox_kernel import __version__
from sandbox_kernel.audit.records import storable
from sandbox_kernel.audit.redact import OVERLAP_CHARACTERS, Redactor
from sandbox_kernel.paths import SECCOMP, policies_directory
from sandbox_kernel.policy.model import AuditCode, Policy
from sandbox_kernel.policy.verdict import Finding

if TYPE_CHECKING:
    from sandbox_kernel.isolation.base import SandboxFacts
    from sandbox_kernel.outputs.receipt import Receipt
    from sandbox_kernel.relay.cells import Request, RunningCell

SCHEMA: Final = 1
# Of a cell's code. A longer one is cut; its keyed hash is that of all of it.
MAX_CODE_CHARACTERS: Final = 1 << 20
_MAX_NAME: Final = 200
_SAME_FOR_ALL: Final = ("isolation", "policy", "limits")


def user_name(environment: Mapping[str, str]) -> str:
    """Who runs the kernel: the Hub's user where there is one, else the system's."""
    return storable(environment.get("JUPYTERHUB_USER", "")[:_MAX_NAME] or os_user())


def os_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def host_facts(environment: Mapping[str, str]) -> dict[str, Any]:
    """What is known before there is a sandbox."""
    facts = {
        "schema": SCHEMA,
        "versions": {"sandbox_kernel": __version__, "python": platform.python_version()},
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "os_user": os_user(),
        "seccomp": hashlib.sha256((policies_directory() / SECCOMP).read_bytes()).hexdigest(),
    }
    known = {
        "hub_user": environment.get("JUPYTERHUB_USER"),
        "hub_server": environment.get("JUPYTERHUB_SERVER_NAME"),
        "notebook": environment.get("JPY_SESSION_NAME"),
    }
    return facts | {key: value[:_MAX_NAME] for key, value in known.items() if value}


def sandbox_facts(facts: SandboxFacts) -> dict[str, Any]:
    return {
        "isolation": isolation_of(facts),
        "working_directory": facts.working_directory,
        **({"image": facts.image} if facts.image else {}),
        **({"notes": list(facts.notes)} if facts.notes else {}),
    }


def isolation_of(facts: SandboxFacts) -> dict[str, Any]:
    """As a receipt has it."""
    from sandbox_kernel.outputs.receipt import Isolation

    return Isolation.of(facts).to_json()


def same_for_all(facts: SandboxFacts, policy: Policy) -> dict[str, Any]:
    """What nearly every receipt of a kernel says in the same words: it is kept once."""
    from sandbox_kernel.outputs.receipt import PolicyName, rounded

    return {
        "isolation": isolation_of(facts),
        "policy": PolicyName(policy.name, policy.sha256).to_json(),
        "limits": {name: rounded(value) for name, value in policy.limits.to_json().items()},
    }


def intent(
    request: Request,
    cell: RunningCell | None,
    kept: AuditCode,
    net: Redactor,
    hash_of: Callable[[str], str],
) -> dict[str, Any]:
    """``hash_of``: a hash with the log's key, of code that is not stored as it runs."""
    code = _stored(request.code, net)
    expressions = [_stored(each, net) for each in request.expressions]
    said: dict[str, Any] = {
        "characters": len(request.code),
        "msg_id": request.msg_id[:_MAX_NAME],
        "session": str(request.session)[:_MAX_NAME],
    }
    if kept == "text":
        said["code"] = code
    else:
        said["sha256"] = hashlib.sha256(code.encode()).hexdigest()
    if kept != "text" or code != request.code:
        said["hmac"] = hash_of(request.code)
    if expressions:
        said["expressions"] = expressions if kept == "text" else len(expressions)
        if kept != "text" or expressions != [*request.expressions]:
            said["expressions_hmac"] = [hash_of(each) for each in request.expressions]
    if request.silent:
        said["silent"] = True
    if (username := request.message.header.get("username")) and isinstance(username, str):
        said["username"] = username[:_MAX_NAME]
    cell_id = request.message.metadata.get("cellId")
    if isinstance(cell_id, str):
        said["notebook_cell"] = cell_id[:_MAX_NAME]
    verdict = None if cell is None else cell.verdict
    if verdict is not None and verdict.findings:
        texts = [code, *expressions]
        has_secrets = texts != [request.code, *request.expressions]
        said["risk"] = verdict.risk
        said["findings"] = [
            _finding(each, kept, net, texts if has_secrets else None) for each in verdict.findings
        ]
    return said


def _stored(code: str, net: Redactor) -> str:
    """The code, cut behind what is looked through: of a secret at the cut all is seen, or nothing kept."""
    seen = code[: MAX_CODE_CHARACTERS + OVERLAP_CHARACTERS]
    redacted = net.redact(seen)
    end = len(redacted) if seen == code else len(redacted) - OVERLAP_CHARACTERS
    return storable(redacted[: min(end, MAX_CODE_CHARACTERS)])


def _finding(
    finding: Finding, kept: AuditCode, net: Redactor, texts: list[str] | None
) -> dict[str, Any]:
    """``texts``: what is stored of a cell with secrets. What a finding is about may be a part of one,
    which is no longer to be told for what it is: then it is not repeated.
    """
    said = {
        "rule": finding.rule,
        "decision": finding.decision,
        "risk": finding.risk,
        "line": finding.line,
        "column": finding.column,
    }
    if kept != "text":
        return said  # what it is about is a piece of the code
    about = net.redact(finding.about)
    if texts is not None and not any(about.removesuffix("…") in text for text in texts):
        about = "[redacted]"
    return said | {"about": about}


def outcome(cell: RunningCell, receipt: Receipt | None, same: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt, without what the intent or the kernel's start says already."""
    said: dict[str, Any] = {}
    if receipt is not None:
        whole = receipt.to_json()
        del whole["findings"], whole["audit_id"]
        for key in _SAME_FOR_ALL:
            if whole[key] == same.get(key):
                del whole[key]
        said["receipt"] = whole
    if cell.execution_count is not None:
        said["execution_count"] = cell.execution_count
    if cell.shown is not None:
        said["outputs"] = {"sha256": cell.shown.hexdigest(), "messages": cell.shown_messages}
    return said
