"""Secrets in the arguments of well-known programs, on a line for a shell or in a list of arguments."""

from __future__ import annotations

import re
from typing import Final

from sandbox_kernel.audit.shapes import NO_REFERENCE, Shape

# Between two arguments: spaces, the end of a line that goes on, or the quotes and comma of a list.
_NEXT: Final = r"(?:[\"'],?\s{0,8}[\"']|[^\S\n]{1,8}(?:\\\n\s{0,8})?[\"']?)"
_IS: Final = rf"(?:=[\"']?|{_NEXT})"
_BARE: Final = r"[^\s\"'`|;&<>()\[\],\\]"
_WORD: Final = rf"{_BARE}{{1,200}}+"
_VALUE: Final = (
    rf"{NO_REFERENCE}(?P<value>(?<=\")[^\"\n]{{3,400}}+(?=\")|(?<=')[^'\n]{{3,400}}+(?=')|"
    rf"{_BARE}{{3,400}}+)"
)
# Behind a user's name, which a colon ends.
_OF_USER: Final = (
    rf"[^\s\"':|;&<>()/]{{1,200}}+:{NO_REFERENCE}(?P<value>[^\s\"'`|;&<>\\]{{3,400}}+)"
)
_LOGIN: Final = rf"{_NEXT}login\b"

# Programs, and where among their arguments a secret stands.
_TABLE: Final[tuple[tuple[str, str], ...]] = (
    ("curl|http|https|xh", rf"{_NEXT}(?:-[sSLkvfi]{{0,6}}u|--(?:proxy-)?user|-U|-a|--auth)(?:{_IS})?{_OF_USER}"),
    ("curl", rf"{_NEXT}(?:-b|--cookie){_IS}(?P<value>[\w.-]{{1,100}}=[^\s\"'<>]{{4,400}}+)"),
    ("curl", rf"{_NEXT}--(?:oauth2-bearer|pass|proxy-pass){_IS}{_VALUE}"),
    ("mysql|mysqldump|mysqladmin|mysqlimport|mysqlsh|mariadb|mariadb-dump|mycli|xtrabackup", rf"{_NEXT}-p{_VALUE}"),
    ("docker|podman|nerdctl|buildah|skopeo|helm|oras|crane|az|oc|cf|ibmcloud", rf"{_LOGIN}[^\n]{{0,100}}?{_NEXT}-p{_IS}{_VALUE}"),
    ("twine|mongo|mongosh|mongodump|mongorestore|mongoexport|mongoimport|influx", rf"{_NEXT}-p{_IS}{_VALUE}"),
    ("sshpass", rf"{_NEXT}-p(?:{_IS})?{_VALUE}"),
    ("redis-cli", rf"{_NEXT}(?:-a|--pass){_IS}{_VALUE}"),
    ("sqlcmd|bcp", rf"{_NEXT}-P(?:{_IS})?{_VALUE}"),
    ("zip|unzip|zipcloak", rf"{_NEXT}-P{_IS}{_VALUE}"),
    ("7z|7za|7zz|rar|unrar", rf"{_NEXT}-h?p{_VALUE}"),
    ("ldapsearch|ldapadd|ldapmodify|ldapwhoami|ldapdelete", rf"{_NEXT}-w{_IS}{_VALUE}"),
    ("lftp", rf"{_NEXT}-u{_IS}[^\s\"',]{{1,100}}+,{_VALUE}"),
    ("smbclient|rpcclient|mount|net", rf"{_NEXT}(?:-U|--user){_IS}[^\s\"'%]{{1,100}}+%{_VALUE}"),
    ("htpasswd", rf"{_NEXT}-[a-zA-Z]{{0,5}}b[a-zA-Z]{{0,5}}{_NEXT}{_WORD}{_NEXT}{_WORD}{_NEXT}{_VALUE}"),
    ("htpasswd", rf"{_NEXT}-[a-zA-Z]{{0,5}}(?:bn|nb)[a-zA-Z]{{0,5}}{_NEXT}{_WORD}{_NEXT}{_VALUE}"),
    ("openssl", rf"{_NEXT}-pass(?:in|out)?{_NEXT}pass:{_VALUE}"),
    ("openssl", rf"{_NEXT}-(?:k|K|passwd){_NEXT}{_VALUE}"),
    ("aws", rf"{_NEXT}configure{_NEXT}set{_NEXT}[\w.]{{0,80}}(?:secret|token|key)\w{{0,40}}{_NEXT}{_VALUE}"),
    ("kubectl|oc", rf"{_NEXT}--from-literal{_IS}[\w.-]{{1,100}}+=[\"']?{_VALUE}"),
    ("vault|wandb|comet|neptune|netlify|snyk|linode-cli|huggingface-cli|hf", rf"{_LOGIN}{_NEXT}(?!-){_VALUE}"),
    ("vault", rf"{_NEXT}(?:kv{_NEXT}(?:put|patch)|write){_NEXT}{_WORD}{_NEXT}[\w.-]{{1,100}}+={_VALUE}"),
    ("npm|yarn|pnpm", rf"_(?:authToken|auth|password){_IS}{_VALUE}"),
    ("keytool|jarsigner|keystore", rf"{_NEXT}-(?:src|dest)?(?:store|key)pass{_NEXT}{_VALUE}"),
    ("mc", rf"{_NEXT}(?:alias{_NEXT}set|config{_NEXT}host{_NEXT}add){_NEXT}{_WORD}{_NEXT}{_WORD}{_NEXT}{_WORD}{_NEXT}{_VALUE}"),
    ("rabbitmqctl", rf"{_NEXT}(?:add_user|change_password){_NEXT}{_WORD}{_NEXT}{_VALUE}"),
    ("sqlplus|sqlldr", rf"{_NEXT}\w{{1,60}}+/{NO_REFERENCE}(?P<value>[^\s\"'@/]{{3,400}}+)@"),
    ("nmcli", rf"{_NEXT}password{_NEXT}{_VALUE}"),
    ("ansible-playbook|ansible", rf"{_NEXT}-e{_IS}\w{{0,60}}pass\w{{0,20}}={_VALUE}"),
    ("wpa_passphrase", rf"{_NEXT}{_WORD}{_NEXT}{_VALUE}"),
    ("git", rf"{_NEXT}http\.\S{{0,200}}?extraheader{_IS}[\"']?\w{{1,40}}:\s\w{{1,20}}\s{_VALUE}"),
    ("git", rf"{_NEXT}config[^\n]{{0,100}}?{_NEXT}[\w.]{{1,80}}\.(?:password|token){_NEXT}{_VALUE}"),
    ("ngrok", rf"{_NEXT}(?:authtoken|config{_NEXT}add-authtoken){_NEXT}{_VALUE}"),
    ("mysqladmin", rf"{_NEXT}password{_NEXT}{_VALUE}"),
    ("ssh-keygen", rf"{_NEXT}-[NP]{_NEXT}{_VALUE}"),
    ("machine", rf"\blogin\s{{1,8}}\S{{1,100}}+\s{{1,8}}password\s{{1,8}}{_VALUE}"),
    ("rclone", rf"{_NEXT}obscure{_NEXT}{_VALUE}"),
    ("gcloud|heroku|flyctl|doctl", rf"{_NEXT}(?:-t|--access-token){_IS}{_VALUE}"),
)  # fmt: skip

# A program and its arguments, to the end of its command. Quotes hide what would end it.
_ARGUMENTS: Final = r"(?:\\[\s\S]|\"[^\"\n]*+\"|'[^'\n]*+'|[\"'](?=,)|[^\\\n|;&\"'])*+"


def _row(programs: str, form: str) -> Shape:
    words = tuple(programs.split("|"))
    within = re.compile(rf"(?<![\w.-])(?:{programs})(?=[\s\"']){_ARGUMENTS}")
    return Shape("argument", words, re.compile(form), within)


# What is sent to a program through a pipe, or from the shell itself: `echo … | docker login --password-stdin`.
_STDIN: Final = (
    r"--password-stdin|--with-token|(?:sudo|su)\b[^\n|;&]{0,100}?-\w{0,5}S|chpasswd|passwd\b|"
    r"--passphrase-fd|wandb login|gh auth login|vault login|cryptsetup"
)
_ECHOED: Final = re.compile(
    rf"\b(?:echo|printf)(?:\s{{1,4}}-\w{{1,3}})?{_NEXT}(?:['\"]%s(?:\\n)?['\"]\s{{1,4}}['\"]?)?{_VALUE}"
    rf"[\"']?\s{{0,8}}\|(?!\|)[^\n|]{{0,200}}?(?:{_STDIN})"
)
_HERE_STRING: Final = re.compile(rf"(?:{_STDIN})[^\n]{{0,200}}?<<<\s{{0,8}}[\"']?{_VALUE}")
_SQL: Final = re.compile(
    r"\b(?i:IDENTIFIED\s{1,8}(?:WITH\s{1,8}\w{1,60}\s{1,8})?BY|(?:WITH|SET|ENCRYPTED)\s{1,8}PASSWORD|"
    r"(?-i:PASSWORD)(?=\s))(?:\s{1,8}(?i:FOR)\s[^=\n]{1,100}=)?[\s=(]{1,8}"
    r"(?P<quote>\\?['\"])(?P<value>(?!%s|\{|\[redacted:)[^'\"\n\\]{3,400}+)(?P=quote)"
)
PIPES: Final[tuple[Shape, ...]] = (
    Shape("argument", ("echo ", "printf "), _ECHOED),
    Shape("argument", ("<<<",), _HERE_STRING),
    Shape("password", ("identified", "password"), _SQL),
)
_ROWS: Final = tuple(_row(programs, form) for programs, form in _TABLE)
# In the arguments of each of these programs there may be secrets.
COMMANDS: Final[dict[str, tuple[Shape, ...]]] = {
    program: tuple(row for row in _ROWS if program in row.hints)
    for program in {hint for row in _ROWS for hint in row.hints}
}
# In every command that holds a secret there is an option, or one of these words.
OPTION: Final = re.compile(r"-(?<=[\s\"']-)-?[A-Za-z]")
SUBCOMMANDS: Final = (
    *("login", "configure", "alias", "host add", "_auth", "_password", "kv ", "vault", "add_user"),
    *("sqlplus", "sqlldr", "nmcli", "wpa_", "obscure", "authtoken"),
)
