"""What magics carry on, and what they do themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.policy import magics
from sandbox_kernel.policy.verdict import Embedded, Hit, Magic


def line(name: str, arguments: str = "") -> Magic:
    return Magic(name, arguments, None, 1, 0)


def cell(name: str, arguments: str, body: str) -> Magic:
    return Magic(name, arguments, body, 1, 0)


def rules(magic: Magic) -> set[str]:
    return {item.rule for item in magics.examine(magic) if isinstance(item, Hit)}


def embedded(magic: Magic) -> list[tuple[str, str, int, int]]:
    return [tuple(item) for item in magics.examine(magic) if isinstance(item, Embedded)]


@pytest.mark.parametrize("name", ["time", "bash", "tensorboard", "undo", "!", "no_such_magic"])
def test_every_magic_is_reported_by_its_name(name: str) -> None:
    assert Hit("magic", name, 1, 0) in magics.examine(line(name))


@pytest.mark.parametrize(
    ("magic", "expected"),
    [
        (line("!", "ls -l"), ("shell", "ls -l", 1, 1)),
        (line("!!", "ls"), ("shell", "ls", 1, 2)),
        (line("sx", "ls -l"), ("shell", "ls -l", 1, 4)),
        (line("system", "ls"), ("shell", "ls", 1, 8)),
        (line("sc", "-l files = ls"), ("shell", " ls", 1, 14)),
        (cell("bash", "", "ls\n"), ("shell", "ls\n", 2, 0)),
        (cell("sh", "--out x", "ls"), ("shell", "ls", 2, 0)),
        (cell("script", "bash", "ls"), ("shell", "ls", 2, 0)),
        (cell("script", "--bg --out x /bin/bash -x", "ls"), ("shell", "ls", 2, 0)),
        (cell("script", "env zsh", "ls"), ("shell", "ls", 2, 0)),
        (cell("script", "bash -c 'rm x'", ""), ("shell", "bash -c 'rm x'", 1, 9)),
        (cell("script", "python3", "x = 1"), ("python", "x = 1", 2, 0)),
        (cell("python", "", "x = 1"), ("python", "x = 1", 2, 0)),
        (cell("pypy", "", "x = 1"), ("python", "x = 1", 2, 0)),
        (cell("script", "node", "x"), ("javascript", "x", 2, 0)),
        (cell("system", "", "ls"), ("shell", "ls", 2, 0)),
        (line("alias", "z rm -rf"), ("shell", "rm -rf", 1, 9)),
        (line("rm", "-rf /"), ("shell", "rm -rf /", 1, 0)),
        (line("pip", "install x; ls"), ("shell", "pip install x; ls", 1, 1)),
        (line("time", "f(x)"), ("python", "f(x)", 1, 6)),
        (line("timeit", "-n 10 -r 3 f(x)"), ("python", "f(x)", 1, 19)),
        (line("timeit", "-n10 __import__('os')"), ("python", "__import__('os')", 1, 13)),
        (line("prun", "-s cumulative f()"), ("python", "f()", 1, 20)),
        (line("prun", "-r f()"), ("python", "f()", 1, 9)),
        (line("timeit", "-o f(x)"), ("python", "f(x)", 1, 11)),
        (line("timeit", "-c -qn 3 f(x)"), ("python", "f(x)", 1, 17)),
        (line("timeit", "-qn3 f(x)"), ("python", "f(x)", 1, 13)),
        (line("time", "-f(x)"), ("python", "-f(x)", 1, 6)),
        (line("time", "--no-raise-error f(x)"), ("python", "f(x)", 1, 23)),
        (line("sx", "-n x; ls"), ("shell", "-n x; ls", 1, 4)),
        (cell("bash", "-c 'nc x'", "ls"), ("shell", "bash -c 'nc x'", 1, 2)),
        (cell("sh", "--out x -c 'nc x'", "ls"), ("shell", "sh -c 'nc x'", 1, 2)),
        (cell("sh", "-c --pro=x 'nc x'", "ls"), ("shell", "sh -c 'nc x'", 1, 2)),
        (cell("python3", "-c f()", ""), ("shell", "python3 -c f()", 1, 2)),
        (line("matplotlib", "{f(x)}"), ("python", "f(x)", 1, 13)),
        (line("tensorboard", "--logdir {a[1:2]} {b!r}"), ("python", "a[1:2]", 1, 23)),
        (cell("capture", "{f(x)}", "ls"), ("python", "f(x)", 1, 11)),
        (cell("bash", "{f(x)}", "{g}"), ("python", "f(x)", 1, 8)),
        (cell("system", "", "ls\n{f(x)}"), ("python", "f(x)", 3, 0)),
        (line("memit", "f()"), ("python", "f()", 1, 7)),
        (line("lprun", "-f g f()"), ("python", "f()", 1, 12)),
        (line("lprun", "-f g f()"), ("python", "g", 1, 10)),
        (line("config", "A.b = f()"), ("python", "A.b = f()", 1, 8)),
        (cell("time", "", "f(x)\n"), ("python", "f(x)\n", 2, 0)),
        (cell("timeit", "a = 1", "f(a)"), ("python", "a = 1", 1, 9)),
        (cell("timeit", "a = 1", "f(a)"), ("python", "f(a)", 2, 0)),
        (cell("capture", "out", "!ls\n"), ("python", "!ls\n", 2, 0)),
        (cell("px", "--local", "f()"), ("python", "f()", 2, 0)),
        (cell("javascript", "", "alert(1)"), ("javascript", "alert(1)", 2, 0)),
        (cell("js", "", "alert(1)"), ("javascript", "alert(1)", 2, 0)),
        (cell("html", "", "<b>\n<script>x()</script>"), ("javascript", "x()", 3, 8)),
        (cell("html", "", "<SCRIPT type='module'>\nx()"), ("javascript", "\nx()", 2, 22)),
        (cell("svg", "", "<svg><script>y</script></svg>"), ("javascript", "y", 2, 13)),
        (cell("html", "", "<img src=x onerror='f()'>"), ("javascript", "f()", 2, 0)),
    ],
)  # fmt: skip
def test_text_is_handed_on_from_its_place(
    magic: Magic, expected: tuple[str, str, int, int]
) -> None:
    assert expected in embedded(magic)


@pytest.mark.parametrize(
    "magic",
    [
        line("matplotlib", "inline"),
        line("tensorboard", "--logdir={name}"),
        line("cd", "{name} {{f(x)}} {} {print $1} {"),
        line("time", "--no-raise-error"),
        line("ls_of_mine", "'{if (NR > 1) print $2}'"),
    ],
)
def test_braces_without_an_expression_hold_no_code(magic: Magic) -> None:
    assert embedded(magic) == []


@pytest.mark.parametrize("arguments", ["", "-e", "-euo pipefail", "--out x -ex", "--bg --no-raise"])
def test_settings_of_a_shell_are_no_command(arguments: str) -> None:
    assert embedded(cell("bash", arguments, "ls")) == [("shell", "ls", 2, 0)]


@pytest.mark.parametrize(
    ("magic", "rule"),
    [
        (cell("perl", "", "1"), "magic.other_language"),
        (cell("ruby", "", "1"), "magic.other_language"),
        (cell("script", "perl", "1"), "magic.other_language"),
        (cell("script", "python2", "print 1"), "magic.other_language"),
        (cell("cython", "", "1"), "magic.other_language"),
        (cell("bash", "--bg", "ls"), "magic.background"),
        (cell("html", "", "<b>"), "magic.html"),
        (cell("html", "", "<script src=//x></script>"), "javascript.remote_module"),
        (cell("html", "", "<a data-commandlinker-command=x>"), "javascript.commands"),
        (cell("html", "", "<iframe src=x>"), "javascript.inject"),
        (line("run", "f.py"), "magic.run_file"),
        (line("run", "-m module"), "magic.run_file"),
        (line("run", "http://x/y.py"), "magic.load_code"),
        (line("load", "http://x/y.py"), "magic.load_code"),
        (line("loadpy", "y.py"), "magic.load_code"),
        (line("load_ext", "autoreload"), "magic.load_ext"),
        (line("reload_ext", "x"), "magic.load_ext"),
        (line("pip", "install x"), "magic.install"),
        (line("conda", "install -y x"), "magic.install"),
        (line("uv", "pip install x"), "magic.install"),
        (cell("writefile", "x.py", "1"), "magic.write_file"),
        (cell("file", "x.py", "1"), "magic.write_file"),
        (cell("writefile", "run.sh", "ls"), "magic.write_script"),
        (cell("writefile", "-a ~/.bashrc", "x"), "magic.sensitive_path"),
        (cell("writefile", "/etc/cron.d/x", "x"), "magic.sensitive_path"),
        (cell("writefile", "~/.ssh/authorized_keys", "x"), "magic.sensitive_path"),
        (cell("writefile", "~/.ipython/profile_default/startup/x.py", "x"), "magic.sensitive_path"),
        (line("load", "/etc/passwd"), "magic.sensitive_path"),
        (line("pycat", "~/.ssh/id_rsa"), "magic.sensitive_path"),
        (line("cd", ".."), "magic.directory"),
        (line("env"), "magic.environment"),
        (line("env", "LD_PRELOAD=/tmp/x.so"), "magic.environment_hook"),
        (line("set_env", "PATH /tmp"), "magic.environment_hook"),
        (line("macro", "x 1-3"), "magic.history"),
        (line("rerun"), "magic.history"),
        (line("recall", "1"), "magic.history"),
        (line("store", "-r x"), "magic.history"),
        (line("pastebin", "1-3"), "magic.pastebin"),
        (line("config", "Application.x = 1"), "magic.config"),
        (line("alias_magic", "t time"), "magic.alias"),
        (line("connect_info"), "magic.connection"),
    ],
)
def test_rule_is_hit(magic: Magic, rule: str) -> None:
    assert rule in rules(magic)


@pytest.mark.parametrize(
    "magic",
    [line("matplotlib", "module://evil.x"), line("pylab", "'MODULE://evil.x' --no-import-all")],
)
def test_the_module_that_draws_is_imported(magic: Magic) -> None:
    assert Hit("python.import", "evil.x", 1, 0) in magics.examine(magic)


@pytest.mark.parametrize(
    "magic",
    [
        line("matplotlib", "inline"),
        line("matplotlib", "-l"),
        line("pylab"),
        line("autoreload", "2"),
        line("autoawait", "off"),
        line("undo"),
        line("undo", "2"),
        line("xmode", "Plain"),
        line("env", "OMP_NUM_THREADS=4"),
        line("env", "HOME"),
        line("config", "InlineBackend.figure_format = 'retina'"),
        line("time", "f(x)"),
        cell("capture", "out", "f(x)"),
        line("tensorboard", "--logdir {d}"),
        line("no_such_magic", "x y"),
    ],
)
def test_ordinary_magics_hit_no_rule_but_their_name(magic: Magic) -> None:
    assert rules(magic) == {"magic"}


def test_rules_are_described_once() -> None:
    assert len({rule.id for rule in magics.RULES}) == len(magics.RULES)


def test_place_is_that_of_the_magic() -> None:
    magic = Magic("time", "f()", None, 7, 4)
    assert Embedded("python", "f()", 7, 10) in magics.examine(magic)
    assert Hit("magic", "time", 7, 4) in magics.examine(magic)


@given(
    st.sampled_from(sorted(magics._KINDS)),
    st.text(max_size=60),
    st.none() | st.text(max_size=200),
)
def test_any_magic_gives_a_list(name: str, arguments: str, body: str | None) -> None:
    assert isinstance(magics.examine(Magic(name, arguments, body, 1, 0)), list)


def test_huge_bodies_are_answered() -> None:
    for body in ("<script>" * 100_000, " on=" * 200_000, "<script " * 100_000):
        magics.examine(cell("html", "", body))
