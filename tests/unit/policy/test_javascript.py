"""What the JavaScript validator finds, and what it leaves alone."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_kernel.policy import javascript
from sandbox_kernel.policy.source import Unreadable
from sandbox_kernel.policy.verdict import Embedded, Hit


def rules(text: str) -> set[str]:
    items = javascript.examine(text)
    return {item.rule.removeprefix("javascript.") for item in items if isinstance(item, Hit)}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("fetch('/x')", "network"),
        ("const f = fetch; f('/x')", "network"),
        ("window.fetch('/x')", "network"),
        ("window['fe' + 'tch']('/x')", "network"),
        (r"window['\x66etch']('/x')", "network"),
        (r"\u0066etch('/x')", "network"),
        ("const {fetch: f} = window", "network"),
        ("new XMLHttpRequest()", "network"),
        ("new WebSocket('ws://x')", "network"),
        ("navigator.sendBeacon('/x', 1)", "network"),
        ("$.ajax({})", "network"),
        ("$.post('/x')", "network"),
        ("fetch('/api/terminals', {method: 'POST'})", "server_api"),
        ("fetch(base + `/api/kernels/${id}`)", "server_api"),
        ("fetch('/a' + 'pi/con' + 'tents/x')", "server_api"),
        ("let p = '/api/'; fetch(p + 'terminals')", "server_api"),
        ("fetch(base + '/api/' + 'terminals')", "server_api"),
        ("fetch('/api/' + 'terminals/' + name)", "server_api"),
        ("fetch(`${base}/api/${'term' + 'inals'}/${name}`)", "server_api"),
        ("fetch('/api/' + ('ter' + ('min' + 'als')))", "server_api"),
        ("f(g(require(['https://x/y.js'])), require('z'))", "remote_module"),
        ("fetch(atob('L2FwaS90ZXJtaW5hbHM='))", "network"),
        ("Jupyter.notebook.kernel.execute('x')", "kernel"),
        ("IPython.notebook.kernel.execute('x')", "kernel"),
        ("var k = IPython.notebook.kernel; k.execute('x')", "kernel"),
        ("session.kernel.requestExecute({code: 'x'})", "kernel"),
        ("IPython.notebook.execute_all_cells()", "notebook"),
        ("eval('1')", "eval"),
        ("(0, eval)('1')", "eval"),
        ("new Function('1')", "eval"),
        ("setTimeout('alert(1)', 1)", "eval"),
        ("window['ev' + 'al']('1')", "eval"),
        ("document.cookie", "credentials"),
        ("localStorage.getItem('x')", "credentials"),
        ("document['coo' + 'kie']", "credentials"),
        ("document.createElement('script')", "inject"),
        ("document.createElement('scr' + 'ipt')", "inject"),
        ("e.innerHTML = x", "inject"),
        ("document.write(x)", "inject"),
        ("e.insertAdjacentHTML('x', y)", "inject"),
        ("$('body').append('<script>x</script>')", "inject"),
        ("$(e).html('<img src=x onerror=f()>')", "inject"),
        ("app.commands.execute('terminal:create-new')", "commands"),
        ("window.jupyterapp.x", "commands"),
        ("x = '<button data-commandlinker-command=\"y\">'", "commands"),
        ("window.open('x')", "navigation"),
        ("location = 'http://x'", "navigation"),
        ("top.location.href = 'x'", "navigation"),
        ("parent.postMessage(1, '*')", "navigation"),
        ("require(['https://x/y.js'], f)", "remote_module"),
        ("require.config({paths: {d3: '//x/d3'}})", "remote_module"),
        ("import('https://x/y.js')", "remote_module"),
        ("import x from 'https://x/y.js'", "remote_module"),
        ("window[name]()", "dynamic_member"),
        ("globalThis[a + b]", "dynamic_member"),
        ("self[x]", "dynamic_member"),
        ("this[x]", "dynamic_member"),
        ("Reflect.get(window, x)", "dynamic_member"),
        ("[].constructor.constructor('x')()", "constructor"),
        ("[]['constructor']['constructor']('x')", "constructor"),
        ("(() => 1).constructor('x')", "constructor"),
        ("var = (", "unparseable"),
        ("alert('hi)", "unparseable"),
        ("1", "any"),
    ],
)
def test_rule_is_hit(text: str, rule: str) -> None:
    assert rule in rules(text)


@pytest.mark.parametrize(
    "text",
    [
        "Jupyter.notebook.kernel.execute('import os')",
        "Jupyter.notebook.kernel.execute('import' + ` os`)",
        "kernel.requestExecute({code: 'import os'})",
    ],
)
def test_code_for_the_kernel_is_handed_on(text: str) -> None:
    found = [item for item in javascript.examine(text) if isinstance(item, Embedded)]
    assert [(item.language, item.text) for item in found] == [("python", "import os")]


@pytest.mark.parametrize(
    "text",
    [
        "alert('hi');",
        "IPython.OutputArea.auto_scroll_threshold = 9999;",
        "require(['widgets/js/widget'], function (w) { w.x = 1; });",
        "this.$el.text(this.model.get('value'));",
        "$('div.inspector').detach().prependTo($('body')).css({'z-index': 999}).draggable();",
        "var e = element.get(0); d3.select(e).append('svg').attr('width', 600);",
        "setTimeout(function () { draw(); }, 100)",
        "model.fetch(); dialog.open(); node.parent.x = rows[i];",
        "f(function () { Base.update.apply(this); this[key] = 1; })",
        "console.log('cookies and eval are words')",
        "document.getElementById('x').textContent = 'y'",
    ],
)
def test_scripts_that_draw_hit_no_rule_but_any(text: str) -> None:
    assert rules(text) == {"any"}


def test_nothing_is_no_script() -> None:
    assert javascript.examine(" \n") == []


def test_places_count_characters_and_lines() -> None:
    items = javascript.examine("let é = 1;\n  'é'; fetch('x')")
    assert Hit("javascript.network", "fetch", 2, 7) in items


def test_rules_are_described_once() -> None:
    assert len({rule.id for rule in javascript.RULES}) == len(javascript.RULES)


@pytest.mark.parametrize(
    "text",
    [
        *("(" * 100_000, "[" * 100_000, "{" * 100_000, "`${" * 50_000, "a." * 100_000),
        *("f(" * 100_000, "x=>" * 50_000, "<a>" * 50_000, "!" * 100_000, "++>if" * 20_000),
        *("'" * 50_000, "...+*" * 20_000, "a.b(c);" * 100_000, "[" * 9_000 + "]" * 9_000),
        *("'a'+" * 9_000 + "'b'", "a" * 2**20, "\ud800'\0", "(" * 3_000 + "'a'" + ")" * 3_000),
        "x[" * 9_000 + "1" + "]" * 9_000,
        "x=" + "+".join(["''"] * 2_700),
        "x=" + "+".join(["'a'"] * 2_040),
        "var a0='aaaa';" + "".join(f"var a{n}=a{n - 1}+a{n - 1};" for n in range(1, 400)),
        "var a='a';" + "var a=[a,a,a].join(a);" * 300,
        "`${" * 2_000 + "}`" * 2_000,
        "'a'+(" * 1_300 + "'a'" + ")" * 1_300,
        "require(" * 900 + ")" * 900,
        "[" * 110 + "this[a]," * 950 + "]" * 110,
    ],
    ids=lambda text: text[:6].encode("unicode_escape").decode(),
)
def test_hostile_shapes_are_answered_in_bounded_time(text: str) -> None:
    javascript.examine("1")
    start = time.thread_time()
    with contextlib.suppress(Unreadable):
        assert isinstance(javascript.examine(text), list)
    assert time.thread_time() - start < 1


def test_reading_ends_at_the_deadline() -> None:
    javascript.examine("1", time.thread_time() + 60)
    with pytest.raises(Unreadable):
        javascript.examine("1", time.thread_time())


@settings(max_examples=200, deadline=None)
@given(
    st.text(max_size=100)
    | st.lists(st.sampled_from([*"(){}[]`'\"\\;.+=/<>\n\ud800", "${", "=>", "eval", "window", "if"]))
    .map("".join)
)  # fmt: skip
def test_any_text_gives_a_list_or_is_unreadable(text: str) -> None:
    with contextlib.suppress(Unreadable):
        assert isinstance(javascript.examine(text), list)
