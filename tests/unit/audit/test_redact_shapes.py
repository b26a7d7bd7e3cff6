"""Secrets are found in many shapes, ordinary notebooks are left alone, and no text takes long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from sandbox_kernel.audit import bodies
from sandbox_kernel.audit.redact import OVERLAP_CHARACTERS, Redactor
from tests.corpora import BENIGN, corpus
from tests.unit.audit.secrets_in_code import (
    COMMANDS,
    ORDINARY,
    PYTHON,
    SECRET,
    SHAPES,
    TEXT,
    TOKENS,
    URLS,
)

NET = Redactor({})
MARK = "[redacted:"
MIB = 1 << 20


@pytest.mark.parametrize("shape", SHAPES)
def test_a_secret_is_found_whatever_binds_it(shape: str) -> None:
    redacted = NET.redact(shape.replace("§", SECRET))
    assert "zebra" not in redacted
    assert MARK in redacted
    assert redacted[:4] == shape[:4]  # the code around the secret is still there
    assert NET.redact(redacted) == redacted


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
@pytest.mark.parametrize(
    "around", ["x = f('{}')", "{}", "# see {} there", "!tool {} x", 'x = r"{}"']
)
def test_a_token_of_a_vendor_is_found_under_any_name(token: str, around: str) -> None:
    redacted = NET.redact(around.replace("{}", token))
    assert token not in redacted
    before, _, after = around.partition("{}")
    assert redacted.startswith(before + MARK)
    assert redacted.endswith("]" + after)
    assert NET.redact(redacted) == redacted


@pytest.mark.parametrize("url", URLS)
def test_the_secret_part_of_a_url_is_found(url: str) -> None:
    kept, secret = url.split("|")
    redacted = NET.redact(f"post('{kept}{secret}')")
    assert secret not in redacted
    assert redacted.startswith(f"post('{kept}{MARK}")
    assert NET.redact(redacted) == redacted


@pytest.mark.parametrize("code", ORDINARY)
def test_code_about_secrets_is_kept(code: str) -> None:
    assert NET.redact(code) == code


def test_the_shapes_are_many(record_property: Callable[[str, object], None]) -> None:
    families = {
        "Python": PYTHON,
        "text": TEXT,
        "commands": COMMANDS,
        "tokens": TOKENS,
        "URLs": URLS,
    }
    total = sum(map(len, families.values()))
    said = ", ".join(f"{name} {len(shapes)}" for name, shapes in families.items())
    record_property("figures", f"shapes of secrets: {total} ({said})")
    assert total >= 250


def test_few_ordinary_cells_lose_anything(record_property: Callable[[str, object], None]) -> None:
    cells = [cell for notebook in corpus(BENIGN) for cell in notebook["cells"]]
    hits, characters = 0, 0
    for cell in cells:
        redacted = NET.redact(cell)
        if redacted != cell:
            hits += 1
            characters += abs(len(cell) - len(redacted.replace(f"{MARK}password]", "")))
            assert NET.redact(redacted) == redacted
    begun = time.thread_time()
    for cell in cells:
        NET.redact(cell)
    each = (time.thread_time() - begun) / len(cells)
    record_property(
        "figures",
        f"ordinary cells that lose something: {hits} of {len(cells)} ({hits / len(cells):.2%}), "
        f"{characters} characters; redaction takes {each * 1e6:.0f} µs for a cell on average",
    )
    assert hits <= 0.003 * len(cells)
    # Far above what it takes, far below what anybody would notice.
    assert each < 0.002


def test_redaction_never_raises_and_changes_nothing_the_second_time() -> None:
    dice = random.Random(20)
    pieces = [
        *(shape.replace("§", SECRET) for shape in SHAPES),
        *TOKENS.values(),
        *"\n\\\"'()[]{}=:,;#!%-|&$§\0\ud800İß",
        *('"""', ":=", "%%", "--", "&&", "<<<", "{x}"),
        *(
            "password",
            "token",
            "=",
            " ",
            "\n",
            "curl",
            "-u",
            "ada:",
            "export ",
            "f'",
            'b"',
        ),
    ]
    for _ in range(1500):
        text = "".join(dice.choices(pieces, k=dice.randint(1, 9)))
        cut = text[: dice.randint(0, len(text))]
        for each in (text, cut):
            once = NET.redact(each)
            assert NET.redact(once) == once, each


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if not shape.startswith("%%")][::19])
@pytest.mark.parametrize("shift", [-9, 0])
def test_a_secret_at_the_cut_is_not_stored(
    shape: str, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 4 * OVERLAP_CHARACTERS  # else each takes most of a second
    monkeypatch.setattr(bodies, "MAX_CODE_CHARACTERS", longest)
    begin, _, end = shape.partition("§")
    before = longest + shift - len(begin)
    code = ("x = 1\n" * (before // 6 + 1))[-before:] + begin + SECRET + end + "\ny = 2" * 2000
    assert code[longest + shift :].startswith(SECRET)
    stored = bodies._stored(code, NET)
    assert "Hunter" not in stored
    assert longest - OVERLAP_CHARACTERS <= len(stored) <= longest


HOSTILE = [
    *("(", "[", "{", "({[", "password=(", "password=[", "f(", "a=", "a:", "a,", "token=f(token="),
    *(
        "password = '",
        'password = """',
        "password:=",
        "user, password = ",
        "a, ",
        "(a, password) = ",
    ),
    *(
        "curl ",
        "curl -u ",
        "curl 'x",
        "mysql -p",
        "docker login ",
        "docker login -p ",
        "git config ",
    ),
    *(
        "echo a|",
        "echo a | sudo ",
        "--with-token ",
        "<<< ",
        "IDENTIFIED BY ",
        "IDENTIFIED WITH a BY ",
    ),
    *("--password ", "-a-", "--a-password", "password: ", "password:x ", "name: password\nvalue: "),
    *(
        "hf_",
        "eyJ",
        "eyJaaaaaaaa.",
        "eyJaaaaaaaa-",
        "SG.aaaaaaaaaaaaaaaaaaaaaaaa.",
        "xox",
        "sk-",
        "1//0",
        "pat0",
    ),
    *("://", "https://a:", "://a:b", "https://aaaaaaaaaaaaaaaa0", "hooks.slack.com/a/", "?sig="),
    *(
        "cookie: a=bbbb; ",
        "authorization: bearer ",
        "bearer ",
        "key = '",
        "Private-Lines: 1 aaaaaaaa ",
    ),
    *(
        "keykey",
        "author ",
        "password",
        "env password",
        "%env password ",
        "\nPASSWORD=",
        "\\\n",
        "\\",
    ),
    *(
        "f'{",
        "password = f'{a}",
        "'''",
        '"' + "\\",
        "#",
        "# password = '",
        "\n!",
        "\n%a password='",
    ),
    *(
        "machine login a password ",
        "htpasswd -b a ",
        "mc alias set a b c ",
        "vault kv put a b=",
        "a.b.",
    ),
    *("your ", "your_here ", "token=your_here_", "a" * 99 + "=", "password" * 20 + "=", "İ"),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_grows_no_faster_than_the_text(piece: str) -> None:
    short, long = (_seconds((piece * size)[:size] + "'x") for size in (MIB // 8, MIB))
    # Eight times the text. Below half a second the ratio says more about the machine than about us.
    assert long < 0.5 or long < 3 * 8 * short, (short, long)


def _seconds(text: str) -> float:
    begun = time.process_time()
    NET.redact(text)
    return time.process_time() - begun
