"""What looks like a secret is not stored; what does not, is stored as it is."""

from __future__ import annotations

import random
import re
import time

import pytest

from sandbox_kernel.audit.redact import OVERLAP_CHARACTERS, PIECE_CHARACTERS, Redactor

ENVIRONMENT = {
    "API_TOKEN": "tok-12345678",
    "DB_PASSWORD": "correct horse",
    "DB_PASSWORD_OLD": "correct horse battery",
    "SHORT_SECRET": "abc",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
    "PWD": "/home/ada/notebooks",
    "SSH_AUTH_SOCK": "/run/ssh/agent.1",
    "KEYBOARD": "pc105-layout",
    "HOME": "/home/ada-lovelace",
}
NET = Redactor(ENVIRONMENT)
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nabc\n-----END RSA PRIVATE KEY-----"
SECRETS = {
    "aws": ("AKIAIOSFODNN7EXAMPLE", "aws"),
    "github": ("ghp_" + "a1B2" * 9, "github"),
    "github fine": ("github_pat_" + "a1B2" * 9, "github"),
    "jwt": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.SflKxwRJSMeKKF2QT4", "jwt"),
    "google": ("AIza" + "a" * 35, "google"),
    "slack": ("xoxb-123456789012-abcdef", "slack"),
    "sk": ("sk-proj-abcdefghijklmnopqrstuvwxyz", "key"),
    "private key": (KEY, "private-key"),
    "cut private key": (KEY[:52], "private-key"),
    "environment": ("tok-12345678", "API_TOKEN"),
}


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_of_known_forms_are_replaced(name: str) -> None:
    secret, word = SECRETS[name]
    assert NET.redact(f"x = f({secret!s}") == f"x = f([redacted:{word}]"


@pytest.mark.parametrize(
    "code",
    [
        'password = "hunter22"',
        "db_password='hunter22'",
        'connect(user="ada", passwd="hunter22")',
        '{"api_key": "hunter22"}',
        'os.environ["MY_TOKEN"] = "hunter22"',
        'os.environ.setdefault("CLIENT_SECRET", "hunter22")',
        "PASSWORD: str = 'hunter22'",
        'token = b"hunter22"',
        "secret = '''hunter22'''",
        "create_engine('postgresql://ada:hunter22@db/x')",
        "!curl https://ada:hunter22@example.org",
        'password = f"hunter22"',
        "password: str | None = 'hunter22'",
        'connect(token="", password="hunter22")',
        'os.environ["STRIPE_KEY"] = "hunter22"',
        "%env X_TOKEN=hunter22",
        "%env X_TOKEN hunter22",
        "!export API_KEY=hunter22",
        "%%bash\nPASSWORD=hunter22 psql",
    ],
)
def test_a_password_in_code_is_replaced_and_the_code_around_it_is_kept(code: str) -> None:
    redacted = NET.redact(code)
    assert "hunter22" not in redacted
    before, _, after = code.partition("hunter22")
    assert redacted.startswith(before)
    assert redacted.endswith(after)
    assert "[redacted:" in redacted


@pytest.mark.parametrize(
    "code",
    [
        "df = pd.read_csv('x.csv')\ndf.head()",
        "def tokenize(text):\n    return text.split(' ')",
        "tokens = tokenizer(text)",
        "url = 'https://example.org:8080/path'",
        "abc = '/home/ada/notebooks'; open('/run/ssh/agent.1')",
        "password = getpass()",
        "key = data['key']",
        "layout = 'pc105-layout'",
        'token = ""\nimport os\nos.system("id")',
        '# token = "\nimport os\nos.system("id")',
        "tokenizer('a text that is split')",
        "sort_key = 'name'",
        "API_KEY = load_key()",
    ],
)
def test_ordinary_code_is_kept_as_it_is(code: str) -> None:
    assert NET.redact(code) == code


def test_a_quote_in_a_password_does_not_end_it() -> None:
    assert NET.redact(r'token = "abcd\"hunter22"') == 'token = "[redacted:password]"'


def test_values_of_the_environment_are_found_anywhere_and_the_longest_first() -> None:
    assert (
        NET.redact("print('xxcorrect horse batteryxx')")
        == "print('xx[redacted:DB_PASSWORD_OLD]xx')"
    )
    assert NET.redact("wJalrXUtnFEMI/K7MDENG") == "[redacted:AWS_SECRET_ACCESS_KEY]"


def test_a_policy_names_patterns_of_its_own() -> None:
    net = Redactor({}, [r"acme-[0-9]{4}", r"PATIENT\d+"])
    assert (
        net.redact("load('acme-1234', PATIENT77)") == "load('[redacted:policy]', [redacted:policy])"
    )


def test_a_long_text_is_looked_at_in_pieces_and_lost_in_none() -> None:
    net = Redactor({}, [r"acme-[0-9]{4}"])
    line = "x = 'acme-1234' # " + "y" * 200 + "\n"
    text = line * (3 * PIECE_CHARACTERS // len(line))
    assert net.redact(text) == text.replace("acme-1234", "[redacted:policy]")
    for before in (
        edge + shift
        for edge in (PIECE_CHARACTERS - OVERLAP_CHARACTERS, PIECE_CHARACTERS)
        for shift in range(-10, 3)
    ):
        text = "z" * before + "acme-1234" + "z" * PIECE_CHARACTERS
        assert net.redact(text) == text.replace("acme-1234", "[redacted:policy]"), before
    long_line = "z" * (5 * PIECE_CHARACTERS + 3)
    assert net.redact(long_line) == long_line


@pytest.mark.parametrize("length", [0, 100, PIECE_CHARACTERS, 3 * PIECE_CHARACTERS + 7])
def test_pieces_give_what_the_whole_would(length: int) -> None:
    pattern = r"\b[a-f]{3}[0-9]+|(?<=k=)[a-z]{1,30}"
    text = "".join(random.Random(length).choices("abcdefk=0123456789 \n", k=length))
    assert Redactor({}, [pattern]).redact(text) == re.sub(pattern, "[redacted:policy]", text)


HIDDEN = "import os\nos.system('id')\ntotal = price / count"


@pytest.mark.parametrize(
    "code",
    [
        f"# -----BEGIN PRIVATE KEY-----\n{HIDDEN}",
        f"# -----BEGIN PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n{HIDDEN}",
        f"x = '-----BEGIN PRIVATE KEY-----'\n{HIDDEN}",
        f"# -----BEGIN PRIVATE KEY-----\n{HIDDEN}\n# -----END PRIVATE KEY-----",
    ],
)
def test_what_begins_like_a_private_key_does_not_hide_the_code_below_it(code: str) -> None:
    redacted = NET.redact(code)
    assert HIDDEN in redacted
    assert "[redacted:private-key]" in redacted
    assert "MIIE" not in redacted


@pytest.mark.parametrize(
    "between",
    ["\n", "\r\n", "\\n", '\\n"\n    "', "\n# ", "\nDEK-Info: AES-128-CBC,0A1B\n\n"],
)
def test_a_private_key_is_found_however_it_stands_in_code(between: str) -> None:
    key = KEY.replace("\n", between)
    assert NET.redact(f"k = '{key}'; use(k)") == "k = '[redacted:private-key]'; use(k)"


@pytest.mark.parametrize("between", ["\n", "\r\n", "\\n", "\nDEK-Info: AES-128-CBC,0A1B\n\n"])
def test_a_private_key_that_was_cut_is_found(between: str) -> None:
    key = KEY[:52].replace("\n", between)
    assert NET.redact(f"k = '{key}") == "k = '[redacted:private-key]"


@pytest.mark.parametrize(
    "text",
    [
        "password" * 100_000,
        "token='" * 100_000,
        "://" * 300_000,
        "-----BEGIN PRIVATE KEY-----" * 30_000,
        "-----BEGIN PRIVATE KEY-----\n" * 30_000,
        "-----BEGIN PRIVATE KEY-----" + "\nMIIE" * 200_000 + "!",
        "-----BEGIN PRIVATE KEY-----" + "\n" * 900_000 + "!",
        "-----BEGIN PRIVATE KEY-----\nM" + " " * 900_000 + "!",
        "-----BEGIN PRIVATE KEY-----\n" + "M" * 900_000 + "!",
        "-----BEGIN PRIVATE KEY-----" + "-a" * 400_000,
        "eyJ" * 300_000,
        "secret = " + '"' * 900_000,
        "secret = '" + "\\\\" * 400_000,
        "secret = '" + "x" * 900_000,
        "TOKEN_" * 150_000,
        "\nTOKEN=" * 150_000,
        "://a:" + "b" * 900_000,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    begun = time.process_time()
    NET.redact(text[: 1 << 20])
    assert time.process_time() - begun < 5
