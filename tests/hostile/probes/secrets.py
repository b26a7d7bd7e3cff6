"""Reading what is not the notebook's: keys, tokens, other people's files, by many ways to one file."""

from __future__ import annotations

import ctypes
import glob
import hashlib
import os
import sqlite3
import subprocess
import sys
from functools import partial

from tests.hostile.probes.attack import TARGETS, add, probe, read

SECRETS = "secrets"
WAYS = "other ways to a file"

# Each file is planted in a home folder, readable by everybody: not its mode keeps a cell out.
IN_A_HOME = (
    ".ssh/id_ed25519",
    ".aws/credentials",
    ".docker/config.json",
    ".netrc",
    ".kube/config",
    ".gnupg/private-keys-v1.d/key",
    ".git-credentials",
    ".pypirc",
    ".pgpass",
    ".bash_history",
    ".config/gcloud/application_default_credentials.json",
    ".config/google-chrome/Default/Login Data",
    ".mozilla/firefox/a.default/logins.json",
    ".local/share/keyrings/login.keyring",
    ".password-store/bank.gpg",
    ".jupyter/jupyter_server_config.json",
    ".local/share/jupyter/runtime/jpserver-1.json",
    "Documents/plans.txt",
)
# Files planted in places of the host, world-readable too.
IN_PLACES = (
    *("/root", "/etc", "/var/lib", "/var/log", "/var/spool", "/var/tmp", "/var/cache"),
    *("/opt", "/srv", "/mnt", "/media", "/boot", "/tmp", "/run", "/dev/shm", "/home", "/"),
)
# Files of the host that are there anyhow: what they hold is told by a hash.
OF_THE_SYSTEM = (
    "/etc/passwd",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/machine-id",
    "/etc/resolv.conf",
)


def of_the_system(path: str) -> bool:
    return hashlib.sha256(read(path)).hexdigest() == TARGETS["hashes"].get(path)


for relative in IN_A_HOME:
    add(SECRETS, f"~/{relative}", lambda relative=relative: read(f"{TARGETS['home']}/{relative}"))
for place in IN_PLACES:
    add(SECRETS, f"a file in {place}", lambda place=place: read(TARGETS["planted"][place]))
for path in OF_THE_SYSTEM:
    add(SECRETS, f"the host's {path}", partial(of_the_system, path), witness="machine:files")


@probe(SECRETS, witness="machine:files")
def the_password_hashes() -> bool:
    return len(read("/etc/shadow")[:1]) == 1


@probe(SECRETS)
def another_users_home() -> bytes:
    return read(f"{TARGETS['other home']}/diary.txt")


@probe(SECRETS)
def names_of_files_in_a_home() -> str:
    return " ".join(os.listdir(TARGETS["home"]))


@probe(SECRETS)
def names_of_files_beside_the_notebooks_folder() -> str:
    return " ".join(os.listdir(f"{TARGETS['folder']}/.."))


@probe(SECRETS, witness="machine:files")
def the_connection_file_of_another_kernel() -> bool:
    return b"signature_scheme" in read(TARGETS["connection file"])


@probe(SECRETS, witness="machine:files")
def the_connection_file_though_it_is_in_the_notebooks_folder() -> bool:
    return b"signature_scheme" in read(TARGETS["connection file in the folder"])


@probe(SECRETS, witness="machine:files")
def the_state_directory_of_the_kernels() -> bool:
    return any("boot.py" in files for _, _, files in os.walk(TARGETS["state"]))


@probe(SECRETS)
def a_tokens_variable_of_the_environment() -> str:
    return repr(dict(os.environ))


@probe(SECRETS)
def a_database_of_the_users() -> str:
    uri = f"file:{TARGETS['home']}/history.sqlite?mode=ro"
    try:
        with sqlite3.connect(uri, uri=True) as base:
            return str(base.execute("select line from history").fetchall())
    except sqlite3.OperationalError as error:
        raise FileNotFoundError(2, str(error)) from error


@probe(SECRETS)
def a_module_of_the_users() -> str:
    sys.path.insert(0, f"{TARGETS['home']}/lib")
    try:
        return str(__import__("private_module").WORD)
    except ModuleNotFoundError as error:
        raise FileNotFoundError(2, str(error)) from error


# Other ways to the same key -----------------------------------------------------------------------


@probe(WAYS)
def up_from_the_working_directory() -> bytes:
    return read("../" * 40 + TARGETS["key"].lstrip("/"))


@probe(WAYS)
def through_a_process_own_root() -> bytes:
    return read(f"/proc/self/root{TARGETS['key']}")


@probe(WAYS)
def through_a_threads_root() -> bytes:
    return read(f"/proc/thread-self/root{TARGETS['key']}")


@probe(WAYS, control="apart")
def through_the_first_process_root() -> bytes:
    return read(f"/proc/1/root{TARGETS['key']}")


@probe(WAYS, control="apart")
def through_any_process_root() -> bytes:
    return b"".join(map(read, glob.glob(f"/proc/[0-9]*/root{TARGETS['key']}")))


@probe(WAYS, control="apart")
def through_any_process_working_directory() -> bytes:
    up = "../" * 40
    return b"".join(map(read, glob.glob(f"/proc/[0-9]*/cwd/{up}{TARGETS['key'].lstrip('/')}")))


@probe(WAYS)
def through_a_symlink_of_ones_own() -> bytes:
    link = f"{TARGETS['scratch']}/link-{os.getpid()}"
    os.symlink(TARGETS["key"], link)
    return read(link)


@probe(WAYS)
def through_a_symlink_in_the_notebooks_folder() -> bytes:
    return read(f"{TARGETS['folder']}/link-to-the-key")


@probe(WAYS)
def through_a_relative_symlink_in_the_notebooks_folder() -> bytes:
    return read(f"{TARGETS['folder']}/link-up/.ssh/id_ed25519")


@probe(WAYS)
def through_a_hard_link_of_ones_own() -> bytes:
    link = f"{TARGETS['scratch']}/hard-{os.getpid()}"
    os.link(TARGETS["key"], link)
    return read(link)


@probe(WAYS)
def through_a_descriptor_of_the_root() -> bytes:
    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    with open(os.open(TARGETS["key"].lstrip("/"), os.O_RDONLY, dir_fd=root), "rb") as file:
        return file.read()


@probe(WAYS)
def through_a_path_descriptor() -> bytes:
    held = os.open(TARGETS["key"], os.O_PATH)
    return read(f"/proc/self/fd/{held}")


@probe(WAYS)
def through_an_inherited_descriptor() -> bytes:
    found = b""
    for held in list(map(int, os.listdir("/proc/self/fd"))):
        try:
            file = os.open("../" * 40 + TARGETS["key"].lstrip("/"), os.O_RDONLY, dir_fd=held)
        except OSError:
            continue  # no directory, closed by now, or nothing there
        found += os.read(file, 4096)
    return found


@probe(WAYS)
def by_going_there_first() -> bytes:
    os.chdir(f"{TARGETS['home']}/.ssh")
    return read("id_ed25519")


@probe(WAYS)
def by_a_shell() -> bytes:
    return subprocess.run(["/bin/sh", "-c", 'cat "$0"', TARGETS["key"]], capture_output=True).stdout


@probe(WAYS)
def by_running_a_program_of_the_users() -> bytes:
    return subprocess.run([f"{TARGETS['home']}/bin/tell"], capture_output=True).stdout


@probe(WAYS, witness="machine:files")
def by_its_size() -> bool:
    return os.stat(TARGETS["key"]).st_size > 0


@probe(WAYS, witness="machine:files")
def by_a_watch_for_changes() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.inotify_add_watch(libc.inotify_init(), TARGETS["key"].encode(), 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
    return True


@probe(WAYS)
def by_its_handle() -> bytes:
    """As the "shocker" attack on containers did: any descriptor of the same file system will do."""
    kind, data = TARGETS["handle"]
    handle = (
        (len(data) // 2).to_bytes(4, "little") + kind.to_bytes(4, "little") + bytes.fromhex(data)
    )
    below = os.open(TARGETS["folder"], os.O_RDONLY)
    with open(call_by_handle(below, handle), "rb") as file:
        return file.read()


def call_by_handle(below: int, handle: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.open_by_handle_at(below, handle, os.O_RDONLY))
    if found < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return found
