"""Which names promise a secret, and which texts under such a name can be one.

A name is read by its words (``dbPass`` is ``db``, ``pass``). The surer the name, the less its value has to
look like a secret: ``password = "hunter"`` is one, ``session = "train"`` is none.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Final


def words(text: str) -> frozenset[str]:
    """A table of words."""
    return frozenset(text.split())


class Promise(IntEnum):
    """How surely a name says that its value is a secret."""

    NONE = 0
    WEAK = 1  # the value has to look random: `session`, `signature`
    LIKELY = 2  # the value may be a word of 8 letters: `token`, `auth`, `…_KEY`
    LIKELIER = 3  # the value may be any single word: `pwd`, `db_pass`
    SURE = 4  # any text: `password`, `client_secret`


# One of these is in every name that promises anything, in lower case.
STEM: Final = re.compile(
    "pass|pw|secret|token|key|auth|cred|cookie|session|bearer|jwt|dsn|sas_|signature|psk|connstr|"
    "connection|mnemonic|seedphrase|seed_phrase|kennwort|login"
)
# In a name without its separators, wherever it stands.
_SURE: Final = re.compile(
    r"password|passwd|passwort|kennwort|motdepasse|passphrase|passcode|secret|credential|"
    r"(?:api|access|account|private|secret|shared|auth|signing|encryption|decryption|master|storage|"
    r"subscription|license|licence|consumer|deploy|ssh|hmac|fernet)key(?!s?board|word|stroke)|"
    r"(?:api|access|auth|authentication|bearer|refresh|session|bot|oauth|client|personal|csrf|xsrf|"
    r"github|gitlab|gh|hf|huggingface|slack|discord|telegram|npm|pypi|vault|jwt|sas|id|security|user|"
    r"account|service|identity|admin|login)token(?!s|iz|is)|"
    r"authcode|mnemonic|seedphrase|connectionstring|connstr|authorization"
)
_WORDS: Final[dict[str, Promise]] = {
    **dict.fromkeys(("creds", "cred", "jwt", "psk"), Promise.SURE),
    **dict.fromkeys(("pwd", "pass", "pw", "passw", "userpass", "dbpass"), Promise.LIKELIER),
    **dict.fromkeys(("token", "bearer", "auth", "cookie", "cookies"), Promise.LIKELY),
    **dict.fromkeys(("session", "sessionid", "sid", "dsn", "sas", "signature"), Promise.WEAK),
}
# `mypwd`, `PGPASS`, `MYSQL_PWD`.
_ENDING: Final = re.compile(r"(?:pwd|(?:pg|db|sql|user|root|smtp|ftp|mail|my|admin)pass)$")
# With these a name is about a secret, and is none: `password_field`, `token_count`, `secret_name`.
_ABOUT_LAST: Final = words(
    "name names path paths file filename files dir directory folder url uri type types len length count "
    "counts size sizes field fields column columns col cols label labels prompt policy pattern regex "
    "format index idx ids num limit limits rate expiry expires expired expiration ttl required valid "
    "validator error errors message msg hint help placeholder title class model manager store provider "
    "service version scope scopes endpoint header headers var variable arn id user username strength "
    "generator input entry widget box prob probs probability logits embedding embeddings embed vocab "
    "list map dim shape mask pos position positions score scores loss text texts ratio mode state "
    "lower upper description example examples result results page form reader "
    "checker method function func fn handler backend algorithm algo usage cost price budget"
)
_ABOUT_FIRST: Final = words(
    "has is no num max min n use show hide enable disable forgot reset with without needs require "
    "requires allow total avg mean per sort group primary foreign join index partition low high band "
    "forward backward by bypass compass public"
)
# Of the language's own vocabulary: what a tokenizer knows by such a name is no secret.
_OF_A_TEXT: Final = words(
    "pad bos eos sep cls mask unk start end begin stop special first last next prev previous current "
    "sub word image answer query question code new old added extra delimiter separator control"
)
# These say which secret it is, or how it is written: the word before them counts.
_QUALIFIERS: Final = words(
    "prod production dev staging live test old new value str string raw hex b64 base64 bytes plain "
    "plaintext clear default env v"
)
_SPLIT: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LONGEST_NAME: Final = 100


@lru_cache(4096)
def promise(name: str) -> Promise:
    """What ``name`` says about its value."""
    if "." in name:  # `spark.s3a.secret.key` counts as a whole, `self.password` by its end
        return max(promise(name.rpartition(".")[2]), promise(name.replace(".", "_")))
    if len(name) > _LONGEST_NAME:
        name = name[-_LONGEST_NAME:]
    parts = [word.lower() for word in _SPLIT.findall(name)]
    while len(parts) > 1 and (parts[-1].isdigit() or parts[-1] in _QUALIFIERS):
        parts.pop()
    if not parts or parts[-1] in _ABOUT_LAST:
        return Promise.NONE
    if parts[0] in _ABOUT_FIRST:
        # `primary_key` is a column's and `band_pass` a filter's, but `PRIMARY_KEY = "8fK2…"` is a secret.
        if parts[-1] in ("pass", "key"):
            return Promise.WEAK if parts[-1] == "key" and name.isupper() else Promise.NONE
        return min(Promise.WEAK, promise("_".join(parts[1:])))
    if parts[-1] in ("token", "pass") and parts[-2:-1] and parts[-2] in _OF_A_TEXT:
        return Promise.NONE
    if _SURE.search("".join(parts)):
        return Promise.SURE
    if _ENDING.search(parts[-1]) or "pwd" in parts:
        return Promise.LIKELIER
    if parts[-1] == "key":
        # Other keys are those of dictionaries.
        return Promise.LIKELY if name.isupper() and len(parts) > 1 else Promise.NONE
    return _WORDS.get(parts[-1], Promise.NONE)


# -- values ------------------------------------------------------------------------------------------

# What stands where a secret will be, or names one: `<your key>`, `xxxx`, `$TOKEN`, `{token}`, `[PAD]`.
_STAND_IN: Final = re.compile(
    r"<[^<>]*>|\[[^\[\]]*\]|\(.*\)|\{[^{}]*\}|\$\w+|\$[({].*[)}]|%\(?\w+\)?s?|%\w+%|[xX*.•·_?#-]+|"
    r"(?:(?:enter|insert|add|put|paste|replace|use|type|with|the|here|my)[ _-])*your(?![^\W_]).*|"
    r"(?:enter|insert|paste|replace)[ _-].*|.*[ _-]here\W{0,9}|"
    r"None|null|nil|True|False|undefined|required|optional|string|str|password|passwd|"
    r"passphrase|secret|token|api[ _-]?key|TODO|N/?A",
    re.DOTALL | re.IGNORECASE,
)
# The name of a variable that has it: `HF_TOKEN`, `DB_PASSWORD`.
_CONSTANT: Final = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
_PATH: Final = re.compile(r"(?:~|\.{1,2})?/|[A-Za-z]:\\|https?://")
_FILE: Final = re.compile(r"[\w./~-]+\.(?:json|txt|pem|env|ya?ml|csv|py|key|crt)")
_RANDOM: Final = re.compile(
    r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])\S{6}|(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])[\w+/=~.-]{16}|\d{10}"
)
# Of what was redacted before, the beginning may be all that a pattern sees.
REDACTED: Final = re.compile(r"\[redacted:[^\s\]]*+\]?")
_SHORTEST: Final = 4
_SHORTEST_WORD: Final = 8
_LONGEST_LOOK: Final = 4096  # of a longer value, the beginning tells


def is_secret(value: str, promised: Promise) -> bool:
    """Whether ``value`` can be a secret under a name that promises so much."""
    seen = value[:_LONGEST_LOOK].strip()
    if "[redacted:" in seen:
        seen = REDACTED.sub("", seen).strip()
    if len(seen) < _SHORTEST or not promised or _STAND_IN.fullmatch(seen):
        return False
    if _CONSTANT.fullmatch(seen) and promise(seen) > Promise.WEAK:
        return False
    if promised is Promise.SURE:
        return not _FILE.fullmatch(seen)
    if any(map(str.isspace, seen)) or _PATH.match(seen) or _FILE.fullmatch(seen):
        return False
    if promised is Promise.LIKELIER or _RANDOM.match(seen):
        return True
    return promised is Promise.LIKELY and len(seen) >= _SHORTEST_WORD
