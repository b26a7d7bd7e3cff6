"""Changing files of the host's: the notebook's folder, by every call there is, and other folders.

Each probe with the witness ``place:WHERE`` has a folder of its own there, with a ``file`` in it, that
everybody may write; the witness compares all of it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import signal
import socket
import time
from typing import Any

from tests.hostile.probes.attack import TARGETS, add, call, probe

FOLDER = "the notebook's folder"

WORD = b"changed"
# The host looks every few milliseconds.
LEASE_SECONDS = 0.3
# Where a folder for a probe is made, and what that place is.
PLACES = {
    "home": "the user's home",
    "etc": "the configuration of the host",
    "usr": "the programs of the host",
    "packages": "the packages of the environment",
    "var": "the state of the host",
    "root": "root's home",
    "tmp": "the host's temporary files",
    "shm": "the host's shared memory",
    "run": "the run-time files of the host",
}


def in_place(name: str = "file") -> str:
    return f"{TARGETS['place']}/{name}"


def write(path: str, flags: int = os.O_WRONLY) -> bool:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        return os.write(descriptor, WORD) == len(WORD)
    finally:
        os.close(descriptor)


def in_folder(**options: Any) -> Any:
    return probe(FOLDER, witness="place:folder", **options)


for where, what in PLACES.items():
    add(
        "other folders of the host",
        f"a file is changed in {what}",
        lambda: write(in_place()),
        witness=f"place:{where}",
    )


@in_folder()
def a_file_is_written() -> bool:
    return write(in_place())


@in_folder()
def a_file_is_made() -> bool:
    return write(in_place("new"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)


@in_folder()
def a_file_is_appended_to() -> bool:
    return write(in_place(), os.O_WRONLY | os.O_APPEND)


@in_folder()
def a_file_is_emptied_by_its_name() -> bool:
    os.truncate(in_place(), 0)
    return True


@in_folder()
def a_file_is_emptied_while_opened_for_reading() -> bool:
    opened = os.open(in_place(), os.O_RDONLY | os.O_TRUNC)
    return os.fstat(opened).st_size == 0


@in_folder()
def a_file_is_deleted() -> bool:
    os.unlink(in_place())
    return True


@in_folder()
def a_file_is_renamed() -> bool:
    os.rename(in_place(), in_place("other"))
    return True


@in_folder()
def two_files_are_exchanged() -> bool:
    exchange = 2
    first, second = in_place().encode(), in_place("second").encode()
    return call("renameat2", -100, first, -100, second, exchange) == 0


@in_folder()
def a_file_is_moved_away() -> bool:
    shutil.move(in_place(), f"{TARGETS['scratch']}/moved-{os.getpid()}")
    return True


@in_folder()
def a_folder_is_made() -> bool:
    os.mkdir(in_place("new"))
    return True


@in_folder()
def a_folder_is_replaced_by_a_symlink() -> bool:
    os.rename(TARGETS["place"], TARGETS["place"] + "-away")
    os.symlink("/", TARGETS["place"])
    return True


@in_folder()
def a_symlink_is_made() -> bool:
    os.symlink("/etc/passwd", in_place("new"))
    return True


@in_folder()
def a_hard_link_is_made() -> bool:
    os.link(in_place(), in_place("new"))
    return True


@in_folder()
def a_nameless_file_is_given_a_name() -> bool:
    opened = os.open(TARGETS["place"], os.O_TMPFILE | os.O_RDWR, 0o666)
    follow = 0x400
    name = f"/proc/self/fd/{opened}".encode()
    return call("linkat", -100, name, -100, in_place("new").encode(), follow) == 0


@in_folder()
def a_fifo_is_made() -> bool:
    os.mkfifo(in_place("new"))
    return True


@in_folder()
def the_mode_of_a_file_is_changed() -> bool:
    os.chmod(in_place(), 0o4777)
    return True


@in_folder()
def the_owner_of_a_file_is_changed() -> bool:
    os.chown(in_place(), 4242, 4242)
    return True


@in_folder()
def the_times_of_a_file_are_changed() -> bool:
    os.utime(in_place(), (1, 1))
    return True


@in_folder()
def an_attribute_of_a_file_is_set() -> bool:
    os.setxattr(in_place(), "user.word", WORD)
    return True


@in_folder()
def a_descriptor_for_reading_is_opened_again_for_writing() -> bool:
    opened = os.open(in_place(), os.O_RDONLY)
    return write(f"/proc/self/fd/{opened}")


@in_folder()
def a_path_descriptor_is_opened_for_writing() -> bool:
    opened = os.open(in_place(), os.O_PATH)
    return write(f"/dev/fd/{opened}")


@in_folder()
def the_mode_is_changed_through_a_descriptor() -> bool:
    opened = os.open(in_place(), os.O_RDONLY)
    os.fchmod(opened, 0o4777)
    return True


@in_folder()
def a_file_is_changed_through_a_shared_mapping() -> bool:
    opened = os.open(in_place(), os.O_RDWR)
    with mmap.mmap(opened, 4) as mapped:
        mapped[:4] = WORD[:4]
    return True


@in_folder()
def space_is_taken_behind_a_file() -> bool:
    os.posix_fallocate(os.open(in_place(), os.O_RDWR), 0, 1 << 20)
    return True


@in_folder()
def a_file_is_copied_over_in_the_kernel() -> bool:
    source = os.memfd_create("source")
    os.write(source, WORD)
    os.lseek(source, 0, os.SEEK_SET)
    return os.sendfile(os.open(in_place(), os.O_WRONLY), source, 0, len(WORD)) > 0


@in_folder()
def a_hook_of_git_is_put_in() -> bool:
    os.makedirs(in_place(".git/hooks"))
    write(in_place(".git/hooks/pre-commit"), os.O_WRONLY | os.O_CREAT)
    os.chmod(in_place(".git/hooks/pre-commit"), 0o755)
    return True


@in_folder()
def a_socket_is_put_in() -> bool:
    # By a short name: a unix socket's path has 107 bytes.
    os.chdir(TARGETS["place"])
    socket.socket(socket.AF_UNIX).bind("new")
    return True


@probe(FOLDER, witness="lease")
def a_lease_holds_up_the_one_who_saves_a_file() -> bool:
    """Whoever opens a leased file for writing waits until its holder lets go, or for 45 s."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the holder is asked to let go
    fcntl.fcntl(os.open(TARGETS["leased"], os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)
    time.sleep(LEASE_SECONDS)
    return True
