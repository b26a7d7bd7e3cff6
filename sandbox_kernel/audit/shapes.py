"""Forms that give a secret away whatever name it has: tokens of vendors, private keys, URLs, headers.

Each pattern takes time in proportion to the text, whatever the text is: cells are written by anybody.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Shape(NamedTuple):
    """A form that secrets have; where it has a group ``value``, that alone is the secret."""

    name: str
    # One of these is in every text that holds the secret, in lower case: a fast look first.
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    # Where alone it is looked for, if not in all of the text.
    within: re.Pattern[str] | None = None


# What stands for a value and is none: `$NAME`, `{name}`, `<name>`, `%s`, or what was redacted before.
NO_REFERENCE: Final = r"(?!\$|\{|<|`|%[sdr(]|\[redacted:)"

# Vendor, what its tokens begin with (or hold), the whole token.
_TOKENS: Final[tuple[tuple[str, str, str], ...]] = (
    ("aws", "akia asia", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("github", "ghp_ gho_ ghu_ ghs_ ghr_", r"\bgh[pousr]_[A-Za-z0-9]{20,255}"),
    ("github", "github_pat_", r"\bgithub_pat_\w{20,255}"),
    (
        "gitlab",
        "glpat- gldt- glrt- glptt- glcbt- gloas- glsoat- glft- glimt- glagent-",
        r"\bgl(?:pat|dt|rt|ptt|cbt|oas|soat|ft|imt|agent)-[\w-]{16,250}",
    ),
    ("bitbucket", "atbb atctt3", r"\b(?:ATBB[A-Za-z0-9]{24,}|ATCTT3[\w=-]{50,})"),
    ("atlassian", "atatt3", r"\bATATT3[\w=-]{20,}"),
    ("google", "aiza", r"\bAIza[\w-]{35}"),
    ("google", "ya29.", r"\bya29\.[\w-]{20,}"),
    ("google", "gocspx-", r"\bGOCSPX-[\w-]{20,}"),
    ("google", "1//0", r"\b1//0[\w-]{30,}"),
    ("slack", "xox", r"\bxox[abceoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,250}"),
    ("slack", "xapp-", r"\bxapp-\d-[A-Za-z0-9-]{10,250}"),
    ("key", "sk-", r"\bsk-[\w-]{20,250}"),
    ("stripe", "k_live_ k_test_", r"\b[srp]k_(?:live|test)_[A-Za-z0-9]{10,250}"),
    ("stripe", "whsec_", r"\bwhsec_[A-Za-z0-9+/=]{16,}"),
    (
        "huggingface",
        "hf_ api_org_",
        r"\b(?:hf|api_org)_(?:[A-Za-z0-9]{30,100}|(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{16,100})\b",
    ),
    ("npm", "npm_", r"\bnpm_[A-Za-z0-9]{30,}"),
    ("pypi", "pypi-age", r"\bpypi-AgE[\w-]{16,}"),
    ("digitalocean", "_v1_", r"\bdo[opr]_v1_[a-f0-9]{32,}"),
    ("sendgrid", "sg.", r"\bSG\.[\w-]{16,100}\.[\w-]{16,100}"),
    ("sendinblue", "xkeysib-", r"\bxkeysib-[a-f0-9]{32,}[\w-]*"),
    ("mailgun", "key-", r"\bkey-[0-9a-zA-Z]{32}\b"),
    ("square", "sq0", r"\bsq0(?:atp|csp|idp)-[\w-]{20,}"),
    ("shopify", "shpat_ shpca_ shppa_ shpss_", r"\bshp(?:at|ca|pa|ss)_[a-fA-F0-9]{24,}"),
    ("facebook", "eaa", r"\bEAA[A-Za-z0-9]{60,}"),
    ("telegram", ":aa", r"\b\d{8,10}:AA[\w-]{32,}"),
    ("databricks", "dapi", r"\bdapi[0-9a-f]{32}(?:-\d)?\b"),
    ("newrelic", "nrak- nrjs- nrra- nrii- nriq-", r"\bNR(?:AK|JS|RA|II|IQ)-[\w-]{16,}"),
    ("grafana", "glsa_ glc_", r"\bgl(?:sa|c)_[\w+/=]{24,}"),
    ("vault", "hvs. hvb. hvr.", r"\bhv[sbr]\.[\w-]{20,}"),
    ("doppler", "dp.", r"\bdp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{20,}"),
    ("linear", "lin_", r"\blin_(?:api|oauth)_[A-Za-z0-9]{20,}"),
    ("notion", "ntn_", r"\bntn_[A-Za-z0-9]{20,}"),
    ("notion", "secret_", r"\bsecret_(?=[A-Za-z]{0,60}\d)[A-Za-z0-9]{32,}"),
    ("figma", "figd_", r"\bfigd_[\w-]{20,}"),
    ("postman", "pmak-", r"\bPMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    ("docker", "dckr_", r"\bdckr_(?:pat|oat)_[\w-]{20,}"),
    ("planetscale", "pscale_", r"\bpscale_(?:tkn|pw|oauth)_[\w.-]{20,}"),
    ("supabase", "sbp_ sb_secret_", r"\b(?:sbp_[0-9a-f]{32,}|sb_secret_[\w-]{20,})"),
    ("replicate", "r8_", r"\br8_[A-Za-z0-9]{30,}"),
    ("groq", "gsk_", r"\bgsk_[A-Za-z0-9]{30,}"),
    ("perplexity", "pplx-", r"\bpplx-[A-Za-z0-9]{32,}"),
    ("xai", "xai-", r"\bxai-[A-Za-z0-9]{40,}"),
    ("pinecone", "pcsk_", r"\bpcsk_\w{30,}"),
    ("tavily", "tvly-", r"\btvly-[\w-]{20,}"),
    ("langsmith", "lsv2_", r"\blsv2_(?:pt|sk)_[0-9a-f_]{30,}"),
    ("pulumi", "pul-", r"\bpul-[0-9a-f]{40}"),
    ("terraform", ".atlasv1.", r"\b[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{40,}"),
    ("fly", "fm1_ fm2_ fo1_", r"\bf(?:m[12]|o1)_[\w+/=]{30,}"),
    ("heroku", "hrku-", r"\bHRKU-[\w-]{30,}"),
    ("sentry", "sntrys_ sntryu_", r"\bsntry[su]_[\w+/=-]{30,}"),
    ("rubygems", "rubygems_", r"\brubygems_[0-9a-f]{40,}"),
    ("alibaba", "ltai", r"\bLTAI[A-Za-z0-9]{16,}"),
    ("plaid", "access-", r"\baccess-(?:sandbox|development|production)-[0-9a-f-]{36}"),
    ("age", "age-secret-key-1", r"(?i)\bAGE-SECRET-KEY-1[0-9A-Z]{20,}"),
    ("jwt", "eyj", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"),
)
_RARE: Final = (
    ("discord", r"\b[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,40}\b"),
    ("mailchimp", r"\b[0-9a-f]{32}-us\d{1,2}\b"),
    ("twilio", r"\b(?:SK|AC)(?=[a-f]{0,31}\d)[0-9a-f]{32}\b"),
    ("newrelic", r"\b[0-9a-f]{36}NRAL\b"),
    ("airtable", r"\bpat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
)
# The same, of what stands in URLs.
_URLS: Final[tuple[tuple[str, str, str], ...]] = (
    ("webhook", "hooks.slack.com", r"hooks\.slack\.com/(?P<value>[a-z]+/[\w/-]{8,})"),
    (
        "webhook",
        "/webhooks/",
        r"discord(?:app)?\.com/api/(?:v\d+/)?webhooks/(?P<value>\d+/[\w-]{8,})",
    ),
    ("webhook", "/webhook", r"\.webhook\.office\.com/(?P<value>webhookb2/[^\s\"'<>]{8,})"),
    ("webhook", "hooks.zapier.com", r"hooks\.zapier\.com/hooks/catch/(?P<value>[\w/]{6,})"),
    (
        "webhook",
        "maker.ifttt.com",
        r"maker\.ifttt\.com/[\w/{}-]{1,100}/with/key/(?P<value>[\w-]{8,})",
    ),
    ("webhook", "/hooks/", r"https?://[\w.:-]{1,200}/hooks/(?P<value>[a-z0-9]{26})\b"),
    ("telegram", "api.telegram.org", r"api\.telegram\.org/bot(?P<value>\d+:[\w-]{8,})"),
    ("azure", "sig=", r"[?&;]sig=(?P<value>[\w%+/=-]{20,})"),
    ("sentry", "sentry.", r"://(?P<value>[0-9a-f]{32}(?::[0-9a-f]{32})?)@[\w.-]{0,100}sentry"),
    ("url", "://", r"://[^\s/:@'\"\[]{0,200}:(?P<value>(?![{$<%]|\[redacted:)[^\s/@'\"]{1,200})@"),
    # A token in the place of a user's name.
    ("url", "://", r"https?://(?P<value>(?=[^\s/@]{0,200}\d)[A-Za-z0-9_.~-]{16,200})@"),
)

# -- headers -----------------------------------------------------------------------------------------

_SCHEME: Final = re.compile(
    r"authorization[\"'\]]{0,2}\s{0,8}[:=,(]\s{0,8}[rbuf]{0,2}[\"']?"
    r"(?:bearer|basic|digest|token|apikey)\s{1,8}(?P<value>(?!\[redacted:)[^\s\"'`<>{}$\\]{4,4000})",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(
    r"\b(?:(?i:bearer)\s{1,8}(?=[\w.~+/=-]{0,200}[0-9])|Basic\s{1,8}(?=[\w+/]{6,4000}=))"
    r"(?P<value>[\w.~+/=-]{8,4000})"
)
_COOKIE: Final = re.compile(
    r"\bcookie[\"']?:\s{0,8}[\"']?(?P<value>[\w.-]{1,100}=[^\s\"'`<>{}$]{4,4000}"
    r"(?:;\s{0,8}[\w.-]{1,100}=[^\s\"'`<>{}$]{1,4000}){0,50})",
    re.IGNORECASE,
)
# `login(key="…")`: a name that says too little, so the value has to be long and without words.
_KEY: Final = re.compile(
    r"\bkey[\"']?\s{0,8}[:=]\s{0,8}[\"'](?P<value>(?=[A-Za-z]{0,60}\d)(?=\d{0,60}[A-Za-z])[\w+/=-]{20,400})[\"']"
)

# -- private keys ------------------------------------------------------------------------------------

# What a private key may have around its base64: headers, quotes, escapes. No call can be written with it.
_IN_KEY: Final = r"[\w+/=\s\\\"',:#]"
_PRIVATE: Final = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?"
_PRIVATE_KEY: Final = re.compile(
    # Without an end, lines of base64: what begins like a key must not hide the code below it.
    rf"-----BEGIN {_PRIVATE}-----(?:"
    rf"{_IN_KEY}*(?:-(?!----){_IN_KEY}*)*-----END {_PRIVATE}-----|"
    r"(?:(?:\s|\\[nr])+(?:Proc-Type: 4,ENCRYPTED|DEK-Info: [A-Z0-9-]+,[0-9A-F]+|"
    r"[A-Za-z0-9+/=]+)(?=\s*[\r\n\\\"']|\s*\Z))*)"
)
_PUTTY_KEY: Final = re.compile(
    r"Private-Lines: \d{1,4}(?P<value>(?:(?:\s|\\[nr]){1,4}[A-Za-z0-9+/=]{8,})+)"
)

# -- all of them -------------------------------------------------------------------------------------


def _shapes(rows: tuple[tuple[str, str, str], ...]) -> tuple[Shape, ...]:
    return tuple(Shape(name, tuple(hints.split()), re.compile(form)) for name, hints, form in rows)


# Every token of a vendor has such a run of characters: few cells have one that begins like a token.
RUN: Final = re.compile(r"[\w.:/-]{15,}", re.ASCII)
TOKENS: Final = _shapes(_TOKENS)
URLS: Final = _shapes(_URLS)
# A token without a word of its own is looked for where there is such a run.
RARE_RUN: Final = re.compile(r"[0-9a-f]{32}|\.[\w-]{6}\.[\w-]{27}")
RARE_TOKENS: Final = tuple(Shape(name, (), re.compile(form)) for name, form in _RARE)
SHAPES: Final[tuple[Shape, ...]] = (
    Shape("private-key", ("private key-----", "private key block-----"), _PRIVATE_KEY),
    Shape("private-key", ("private-lines:",), _PUTTY_KEY),
    Shape("header", ("authorization",), _SCHEME),
    Shape("header", ("bearer", "basic"), _BEARER),
    Shape("header", ("cookie",), _COOKIE),
    Shape("key", ("key=", "key =", 'key"', "key'"), _KEY),
)
