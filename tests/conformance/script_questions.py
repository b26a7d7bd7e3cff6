"""The part of the script that asks about the kernel and about code."""

from __future__ import annotations

from .exchange import Request, ask, exchange

INFORMATION = (
    ask("kernel_info is told on shell", "kernel_info_request"),
    ask("kernel_info is told on control", "kernel_info_request", channel="control"),
    ask("connect tells the ports", "connect_request"),
    ask("connect tells the ports on control", "connect_request", channel="control"),
    ask("no comm is open at first", "comm_info_request"),
    ask("no comm of a target is open at first", "comm_info_request", {"target_name": "own"}),
)


def _history(kind: str, **options: object) -> dict[str, object]:
    return {"hist_access_type": kind, "output": False, "raw": True, **options}


HISTORY = (
    ask("the history's tail is told", "history_request", _history("tail", n=4)),
    ask(
        "the history's tail is told with outputs",
        "history_request",
        _history("tail", n=6, output=True, raw=False),
    ),
    ask("a range of the history is told", "history_request", _history("range", start=1, stop=6)),
    ask(
        "a range of a session is told",
        "history_request",
        _history("range", session=1, start=2, stop=4),
    ),
    ask("the history is searched", "history_request", _history("search", pattern="*asleep*", n=5)),
    ask(
        "the history is searched for unique cells",
        "history_request",
        _history("search", pattern="print*", n=3, unique=True),
    ),
    ask("a search may find nothing", "history_request", _history("search", pattern="nothing?")),
)


def _at(code: str, position: int | None = None, **options: object) -> dict[str, object]:
    return {"code": code, "cursor_pos": len(code) if position is None else position, **options}


QUESTIONS = (
    ask("a module's names are completed", "complete_request", _at("time.per")),
    ask("a variable is completed", "complete_request", _at("warnin")),
    ask("a magic is completed", "complete_request", _at("%%wri")),
    ask("a key is completed", "complete_request", _at("os.environ['IPYTHOND")),
    ask("a completion inside a line has its place", "complete_request", _at("a = tim + 1", 7)),
    ask("a completion on a second line has its place", "complete_request", _at("a = 1\ntime.sle")),
    ask(
        "a completion after a wide character has its place",
        "complete_request",
        _at("'🐍'; time.sle"),
    ),
    ask("a completion may find nothing", "complete_request", _at("nothing.like")),
    ask(
        "completion is answered on control", "complete_request", _at("time.sle"), channel="control"
    ),
    ask("a function is inspected", "inspect_request", _at("time.sleep", detail_level=0)),
    ask("a function's source is inspected", "inspect_request", _at("f", detail_level=1)),
    ask(
        "a library's source is inspected",
        "inspect_request",
        _at("base64.b64decode", detail_level=1),
    ),
    ask("a variable is inspected", "inspect_request", _at("x")),
    ask("a call is inspected at its name", "inspect_request", _at("print(x)", 3)),
    ask(
        "parts of an inspection may be left out",
        "inspect_request",
        _at("x", omit_sections=["docstring"]),
    ),
    ask("an inspection may find nothing", "inspect_request", _at("nothing_like_it")),
    ask("complete code is recognised", "is_complete_request", {"code": "a = 1"}),
    ask(
        "incomplete code gets an indent", "is_complete_request", {"code": "for x in y:\n    if x:"}
    ),
    ask("an open bracket is incomplete", "is_complete_request", {"code": "f(1,"}),
    ask("invalid code is recognised", "is_complete_request", {"code": "a = = 1"}),
    ask("an open cell magic is incomplete", "is_complete_request", {"code": "%%bash\necho"}),
    ask(
        "is_complete is answered on control",
        "is_complete_request",
        {"code": "a"},
        channel="control",
    ),
    ask("usage is told", "usage_request", channel="control"),
    ask("usage is told again", "usage_request", channel="control"),
)

_UNANSWERED = {"replied": False}

MALFORMED = (
    ask("an unknown message type is passed over", "no_such_request", {"a": 1}, **_UNANSWERED),
    ask(
        "an unknown message type on control is passed over",
        "no_such_request",
        channel="control",
        **_UNANSWERED,
    ),
    ask("usage on shell is passed over", "usage_request", **_UNANSWERED),
    ask("an execute_request without code is not run", "execute_request", {"a": 1}, **_UNANSWERED),
    ask("a complete_request without content is passed over", "complete_request", **_UNANSWERED),
    ask("an inspect_request without content is passed over", "inspect_request", **_UNANSWERED),
    ask("a history_request without content is passed over", "history_request", **_UNANSWERED),
    ask(
        "an is_complete_request without content is passed over",
        "is_complete_request",
        **_UNANSWERED,
    ),
    ask(
        "code that is no text is not run",
        "execute_request",
        {"code": 5, "silent": False},
        **_UNANSWERED,
    ),
    ask(
        "a history of no known kind is empty",
        "history_request",
        _history("no such kind"),
    ),
    exchange(
        "after malformed requests the kernel still answers",
        Request("execute_request", {"code": "'well'", "silent": False}),
    ),
)

ENDING = (
    ask(
        "a shutdown is confirmed on control and on iopub",
        "shutdown_request",
        {"restart": False},
        channel="control",
        iopub=("shutdown_reply",),
    ),
)
