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
        "%env DB_PASSWORD = s3cr3tvalue",
        "%env DB_PASSWORD=abc&s3cr3tvalue",
        "%env DB_PASSWORD=s3cr$etvalue(1)s3cr3tvalue",
        "%env DB_PASSPHRASE correct horse battery s3cr3tvalue",
        "%env my_token s3cr3tvalue",
        "x = %set_env api_key=s3cr3tvalue",
        "%%bash\ncd /x; export DB_PASSWORD=s3cr3tvalue",
        "%%bash\ncd /x; db_password=s3cr3tvalue psql",
        "!env DB_PASSWORD=s3cr3tvalue cmd",
        "!env -i A=1 DB_PASSWORD=s3cr3tvalue cmd",
        "export api_key=s3cr3tvalue",
        "!cd x && db_password=s3cr3tvalue psql",
        "!cat x | token=s3cr3tvalue send",
        "found = !token=s3cr3tvalue send",
        "!docker run \\\n  -e DB_PASSWORD=s3cr3tvalue image",
        '{"Authorization": "Bearer s3cr3tvalue"}',
        '{"Authorization": "Basic s3cr3tvalue"}',
        'headers["Authorization"] = "s3cr3tvalue"',
        "!curl -H 'authorization: token s3cr3tvalue' example.org",
        "scheme = 'Bearer s3cr3tvalue'",
        '{"X-API-Key": "s3cr3tvalue"}',
        '{"X-Auth-Key": "s3cr3tvalue"}',
        "!curl -H 'X-API-Key: s3cr3tvalue' example.org",
        'connect("host=db password=s3cr3tvalue")',
        "connect('Server=db;Uid=ada;Pwd=s3cr3tvalue;')",
        "get('https://example.org/?token=s3cr3tvalue&page=1')",
        "os.system('DB_KEY=s3cr3tvalue psql')",
        "!psql --password s3cr3tvalue",
        "!psql --db-password 'correct s3cr3tvalue' db",
        "!psql --token=s3cr3tvalue",
    ],
)
def test_a_secret_in_a_shell_a_magic_a_header_or_an_option_is_replaced(code: str) -> None:
    redacted = NET.redact(code)
    assert "s3cr" not in redacted
    assert "correct" not in redacted
    assert "[redacted:" in redacted
    assert redacted.endswith(code.partition("s3cr3tvalue")[2])


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
        "API_KEY=load_key()",
        "token = tokens[0]",
        "x = 1; token=tokens[0]",
        "tokenizer=AutoTokenizer.from_pretrained(name)",
        "complete(prompt, max_tokens=100)",
        "max_tokens=1000",
        "sorted(names, key=lambda x: x)",
        "json.dumps(x, sort_keys=True)",
        "call('some', token=token_value, name='other')",
        "call(token=token, password=password)",
        "env = dict(token=token_value)",
        "for env in all_envs: call(token=token_value)",
        "headers = {'Authorization': f'Bearer {token}'}",
        "authorization = get_authorization()",
        "parser.add_argument('--token', help='what to send')",
        "command = 'send --token ' + token + ' now'",
        "command = f'send --token={token} --password {password}'",
        "'password=%s' % password",
        "'''As in call(token=token, password=None).'''",
        "!pip install tokenizers",
        "!export TOKEN=$OTHER && send --token $TOKEN",
        "!complete --max-tokens 1000 --tokenizer bert-base",
        "# Basic understanding of a bearer bond and of tokens",
        "%env TOKENIZERS_PARALLELISM=false",
        "%env API_TOKEN",
        "%env API_TOKEN={token}",
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
        '"token=' + '\\"' * 400_000,
        '"""token=' + '\\"""' * 200_000,
        "token=" * 150_000,
        "'token=" * 150_000,
        "!token=" * 150_000,
        "!" + "token=\\" * 100_000,
        "&& token" * 100_000,
        "env -env " * 100_000 + "token",
        "export " * 100_000 + "token",
        "export" + " " * 900_000 + "token",
        "%env " * 150_000 + "token",
        "%env a_token " * 70_000,
        "%env" + " " * 900_000 + "token",
        " " * 900_000 + "!token",
        "\n" * 900_000 + "%%bash token",
        "--a-" * 200_000 + "token",
        "--token " * 100_000,
        "--token '" * 100_000,
        "--token '" + "\\'" * 400_000,
        "authorization:" * 70_000,
        "authorization: bearer " * 40_000,
        "bearer " * 140_000,
        "Basic " + "A" * 900_000,
        "Basic A" * 100_000,
        "x-" * 400_000 + "api-key",
        "api-key:" * 100_000,
        "a" * 900_000 + "_token",
        "a_" * 400_000 + "token=",
    ],
)
def test_no_text_takes_long(text: str) -> None:
    begun = time.process_time()
    NET.redact(text[: 1 << 20])
    assert time.process_time() - begun < 5
